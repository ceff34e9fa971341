"""`train`: teach the ensemble head of the dynamic rule on a task by reinforcement learning."""

from __future__ import annotations

import argparse
import sys

from explorer.cli.terminal import ProgressLine
from explorer.settings import add_flags, from_flags

HELP = "teach the dynamic rule's head on a task by reinforcement learning"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags; lambda is a word of Python's, so its setting is called price."""
    from explorer.training.train import TrainConfig

    add_flags(parser, TrainConfig, names={"price": "--lambda"})


def run(flags: argparse.Namespace) -> int:
    """Train, say where the head is and how it fared, return the exit code."""
    from explorer.training.train import TrainConfig
    from explorer.training.train import run as train

    config = from_flags(TrainConfig, flags)
    with ProgressLine(sys.stderr) as progress:
        meta = train(config, progress)
    if meta:
        metrics = meta["metrics"]
        sys.stdout.write(
            f"{config.out}: reward {metrics['reward']:.3f}, acceptance {metrics['acceptance']:.3f} in the last batch, "
            f"mean weight {metrics['weight']:.2f}\n"
        )
    return 0
