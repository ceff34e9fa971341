"""`bench`: measurements inside the decode loop; each has a name of its own."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from explorer.cli.terminal import ProgressLine, harmless
from explorer.settings import add_flags, from_flags

HELP = "measure heads, ranks and speeds inside the decode loop"
HEADS_HELP = "compare a drafter's heads: time, tokens per round, predicted and measured speed"

DRAFTERS_HELP = "compare drafters: tokens per round by kind of prompt, and speed against no drafts"

PARETO_HELP = "reward against acceptance of every rule, on held-out prompts of a task"

SPEED_HELP = "tokens per second of transformers, llama.cpp and this engine on the same prompts, in one run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the measurements and their flags."""
    from explorer.benchmarks.config import DraftersConfig, HeadsConfig, ParetoConfig, SpeedConfig

    kinds = parser.add_subparsers(dest="bench", required=True, metavar="WHAT")
    heads = kinds.add_parser("heads", help=HEADS_HELP, description=HEADS_HELP, allow_abbrev=False)
    add_flags(heads, HeadsConfig)
    heads.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    heads.set_defaults(measure=_heads)
    drafters = kinds.add_parser("drafters", help=DRAFTERS_HELP, description=DRAFTERS_HELP, allow_abbrev=False)
    add_flags(drafters, DraftersConfig)
    drafters.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    drafters.set_defaults(measure=_drafters)
    pareto = kinds.add_parser("pareto", help=PARETO_HELP, description=PARETO_HELP, allow_abbrev=False)
    add_flags(pareto, ParetoConfig)
    pareto.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    pareto.set_defaults(measure=_pareto)
    speed = kinds.add_parser("speed", help=SPEED_HELP, description=SPEED_HELP, allow_abbrev=False)
    add_flags(speed, SpeedConfig)
    speed.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    speed.set_defaults(measure=_speed)


def run(flags: argparse.Namespace) -> int:
    """Measure, print, return the exit code."""
    return flags.measure(flags)


def _heads(flags: argparse.Namespace) -> int:
    """Print a table, or one JSON object with `rows`."""
    from explorer.benchmarks import heads
    from explorer.benchmarks.config import HeadsConfig
    from explorer.benchmarks.report import heads_text

    return _report(heads.run, from_flags(HeadsConfig, flags), heads_text, flags.json)


def _drafters(flags: argparse.Namespace) -> int:
    """Print a table, or one JSON object with `rows`."""
    from explorer.benchmarks import drafters
    from explorer.benchmarks.config import DraftersConfig
    from explorer.benchmarks.report import drafters_text

    return _report(drafters.run, from_flags(DraftersConfig, flags), drafters_text, flags.json)


def _pareto(flags: argparse.Namespace) -> int:
    """Print a table, or one JSON object with `rows`."""
    from explorer.benchmarks import pareto
    from explorer.benchmarks.config import ParetoConfig
    from explorer.benchmarks.report import pareto_text

    return _report(pareto.run, from_flags(ParetoConfig, flags), pareto_text, flags.json)


def _speed(flags: argparse.Namespace) -> int:
    """Print a table, or one JSON object with `rows`."""
    from explorer.benchmarks import speed
    from explorer.benchmarks.config import SpeedConfig
    from explorer.benchmarks.report import speed_text

    return _report(speed.run, from_flags(SpeedConfig, flags), speed_text, flags.json)


def _report(measure: Callable[..., Any], config: Any, as_text: Callable[[Any], str], is_json: bool) -> int:
    """Measure with a progress line and print the result."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    with ProgressLine(sys.stderr) as progress:
        report = measure(config, progress)
    text = json.dumps(report, allow_nan=False) + "\n" if is_json else harmless(as_text(report))
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0
