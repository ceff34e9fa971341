"""`bench`: measurements inside the decode loop; each has a name of its own."""

from __future__ import annotations

import argparse
import json
import sys

from explorer.cli.terminal import ProgressLine, harmless
from explorer.settings import add_flags, from_flags

HELP = "measure heads, ranks and speeds inside the decode loop"
HEADS_HELP = "compare a drafter's heads: time, tokens per round, predicted and measured speed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the measurements and their flags."""
    from explorer.benchmarks.config import HeadsConfig

    kinds = parser.add_subparsers(dest="bench", required=True, metavar="WHAT")
    heads = kinds.add_parser("heads", help=HEADS_HELP, description=HEADS_HELP, allow_abbrev=False)
    add_flags(heads, HeadsConfig)
    heads.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    heads.set_defaults(measure=_heads)


def run(flags: argparse.Namespace) -> int:
    """Measure, print, return the exit code."""
    return flags.measure(flags)


def _heads(flags: argparse.Namespace) -> int:
    """Print a table, or one JSON object with `rows`."""
    from explorer.benchmarks.config import HeadsConfig

    config = from_flags(HeadsConfig, flags)
    from transformers.utils import logging

    from explorer.benchmarks import heads
    from explorer.benchmarks.report import heads_text

    logging.disable_progress_bar()
    with ProgressLine(sys.stderr) as progress:
        report = heads.run(config, progress)
    text = json.dumps(report, allow_nan=False) + "\n" if flags.json else harmless(heads_text(report))
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0
