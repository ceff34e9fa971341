"""`distill`: train a drafter on text the target writes, from a fitted one on."""

from __future__ import annotations

import argparse
import sys

from explorer.cli.terminal import ProgressLine
from explorer.settings import add_flags, from_flags

HELP = "train a drafter on text the target writes, starting from a fitted one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    from explorer.training.distill import DistillConfig

    add_flags(parser, DistillConfig)


def run(flags: argparse.Namespace) -> int:
    """Train, say where the drafter is and what it gained, return the exit code."""
    from explorer.training.distill import DistillConfig
    from explorer.training.distill import run as distill

    config = from_flags(DistillConfig, flags)
    with ProgressLine(sys.stderr) as progress:
        metrics = distill(config, progress)["metrics"]
    sys.stdout.write(f"{config.out}: tokens per round with {metrics['draft_length']} drafts, on answers kept apart\n")
    for temperature, after in metrics["temperature"].items():
        before = metrics["before"][temperature]["tokens_per_round"]
        sys.stdout.write(
            f"temperature {temperature}: {before:.2f} -> {after['tokens_per_round']:.2f} "
            f"({after['num_answers']} answers, {after['num_tokens']:,} tokens)\n"
        )
    return 0
