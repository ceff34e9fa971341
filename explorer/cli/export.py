"""`export`: write a drafter of ours in the form that other engines load, or a trace as a page that plays it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from explorer.cli.terminal import ProgressLine
from explorer.errors import SettingError
from explorer.settings import add_flags, from_flags

HELP = "write a drafter for SGLang, vLLM or llama.cpp, or with --replay a trace as one HTML page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    from explorer.engine.export import ExportConfig

    parser.add_argument(
        "--replay", metavar="FILE", help="a trace (.ndjson) to make a page of, that plays it anywhere; --out names it"
    )
    add_flags(parser, ExportConfig)


def run(flags: argparse.Namespace) -> int:
    """Export, say where the result is, return the exit code."""
    if flags.replay is not None:
        return _replay(flags)
    from explorer.engine.export import ExportConfig
    from explorer.engine.export import run as export

    config = from_flags(ExportConfig, flags)
    with ProgressLine(sys.stderr) as progress:
        folder = export(config, progress=progress)
    sys.stdout.write(f"{folder}\n")
    return 0


def _replay(flags: argparse.Namespace) -> int:
    from explorer.engine.export import ExportConfig
    from explorer.engine.replay import embed_snippet, write_replay

    for spec in dataclasses.fields(ExportConfig):
        value = getattr(flags, spec.name)
        if spec.name != "out" and value != spec.default:
            raise SettingError(
                f"{spec.name} is {value}, but a replay is made of a trace alone. Leave it or --replay out."
            )
    for name, example in (("replay", "--replay run.ndjson"), ("out", "--out page.html")):
        if not getattr(flags, name).strip():
            raise SettingError(f"{name} is empty; give a file, as in {example}.")
    page = write_replay(Path(flags.replay).expanduser(), Path(flags.out).expanduser())
    sys.stdout.write(f"{page}\n")
    sys.stderr.write(f"To show it inside another page: {embed_snippet(page.name)}\n")
    return 0
