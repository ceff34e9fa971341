"""`fit`: make an instant drafter for any target, without training."""

from __future__ import annotations

import argparse
import sys

from explorer.cli.terminal import ProgressLine
from explorer.settings import add_flags, from_flags

HELP = "fit an instant drafter for any target in closed form, without training"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    from explorer.training.fit import FitConfig

    add_flags(parser, FitConfig)


def run(flags: argparse.Namespace) -> int:
    """Fit, say where the drafter is, return the exit code."""
    from explorer.training.fit import FitConfig
    from explorer.training.fit import run as fit

    config = from_flags(FitConfig, flags)
    with ProgressLine(sys.stderr) as progress:
        fit(config, progress=progress)
    sys.stdout.write(f"{config.out}\n")
    return 0
