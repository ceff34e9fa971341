"""`pull`: fetch the default target's weights, so that everything else works offline."""

from __future__ import annotations

import argparse
import sys

from explorer.cli.terminal import ProgressLine

HELP = "fetch the default target's weights (98 MB, once) and print their folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("--cache", help="folder to keep the weights in (default: the user's cache folder)")


def run(flags: argparse.Namespace) -> int:
    """Fetch, print the folder, return the exit code."""
    from explorer.engine.weights import default_folder

    with ProgressLine(sys.stderr) as progress:
        folder = default_folder(progress, flags.cache)
    sys.stdout.write(f"{folder}\n")
    return 0
