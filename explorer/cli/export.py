"""`export`: write a drafter of ours in the form that other engines load."""

from __future__ import annotations

import argparse
import sys

from explorer.cli.terminal import ProgressLine
from explorer.settings import add_flags, from_flags

HELP = "write a drafter in a layout that SGLang, vLLM or llama.cpp loads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    from explorer.engine.export import ExportConfig

    add_flags(parser, ExportConfig)


def run(flags: argparse.Namespace) -> int:
    """Export, say where the folder is, return the exit code."""
    from explorer.engine.export import ExportConfig
    from explorer.engine.export import run as export

    config = from_flags(ExportConfig, flags)
    with ProgressLine(sys.stderr) as progress:
        folder = export(config, progress=progress)
    sys.stdout.write(f"{folder}\n")
    return 0
