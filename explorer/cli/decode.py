"""`decode`: answer a prompt in the terminal, each token marked by its fate."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from explorer.cli.terminal import ProgressLine, harmless, is_colour_wanted, legend, painted_round, summary
from explorer.errors import SettingError
from explorer.settings import add_flags, from_flags

HELP = "answer a prompt and show which drafted tokens were kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags: every setting of a decode, and what to decode with."""
    from explorer.engine.config import PRECISIONS, DecodeConfig
    from explorer.heads.choice import DEFAULT_SIZES, HEADS

    parser.add_argument("--prompt", required=True, metavar="TEXT", help="what to answer; - reads it from stdin")
    add_flags(parser, DecodeConfig)
    parser.add_argument("--precision", default="auto", choices=PRECISIONS, help="of the weights (default: auto)")
    parser.add_argument("--target", default="default", metavar="ID", help="Hub id, folder or .gguf (default: default)")
    parser.add_argument(
        "--drafter",
        default="auto",
        metavar="ID",
        help="auto, hybrid, ngram, none, a fitted folder, an EAGLE-3 drafter, or a smaller model",
    )
    parser.add_argument(
        "--head", default="own", choices=HEADS, help="head of a fitted drafter; own is what it came with (default: own)"
    )
    parser.add_argument(
        "--head-size",
        type=int,
        default=0,
        metavar="N",
        help=f"tokens kept (truncated, default: {DEFAULT_SIZES['truncated']}) or candidates (dynamic, default: "
        f"{DEFAULT_SIZES['dynamic']})",
    )
    parser.add_argument(
        "--ensemble", default="auto", metavar="DIR", help="head of the dynamic rule: auto (bundled) or a trained folder"
    )
    parser.add_argument("--trace", metavar="FILE", help="save the run as a trace that the page can open (.ndjson)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")


def run(flags: argparse.Namespace) -> int:
    """Decode, print, return the exit code."""
    from explorer.engine.config import DecodeConfig
    from explorer.heads.choice import HeadChoice

    config, prompt = from_flags(DecodeConfig, flags), _prompt(flags.prompt)
    head = HeadChoice(flags.head, flags.head_size)
    with _trace_file(flags.trace) as trace:
        from transformers.utils import logging

        from explorer.engine.ensembles import with_ensemble
        from explorer.engine.loading import load_pair
        from explorer.engine.run import run_trace

        logging.disable_progress_bar()
        with ProgressLine(sys.stderr) as progress:
            pair = load_pair(flags.target, flags.drafter, flags.precision, progress, head)
        if config.rule == "dynamic":
            pair = with_ensemble(pair, flags.ensemble)
        lines = run_trace(pair, prompt, config, command=_command(flags, config, prompt))
        records = _recorded(lines, trace)
        meta, end = _printed(records, frozenset(pair.target.tokenizer.all_special_tokens), flags.json)
    if flags.json:
        facts = {name: value for name, value in {**meta, **end}.items() if name not in ("kind", "version")}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    return 0


def _prompt(text: str) -> str:
    """The prompt itself, read from stdin for "-".

    Raises:
        SettingError: It is empty or not text.
    """
    try:
        if text == "-":
            text = sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        text.encode("utf-8")
    except UnicodeError:
        raise SettingError("The prompt is not UTF-8 text. Convert it first, for example with iconv.") from None
    if not text.strip():
        raise SettingError("The prompt is empty. Give a question or a text to continue with --prompt.")
    return text


def _command(flags: argparse.Namespace, config: Any, prompt: str) -> str:
    """The command line that repeats this run: what differs from the defaults."""
    words = ["python", "-m", "explorer", "decode", f"--prompt={prompt}"]
    for name, spec in config.__dataclass_fields__.items():
        value = getattr(config, name)
        if value != spec.default:
            flag = "--" + name.replace("_", "-")
            words += [f"{flag}={item}" for item in (value if isinstance(value, tuple) else (value,))]
    defaults = {"precision": "auto", "target": "default", "drafter": "auto", "head": "own", "head_size": 0}
    if config.rule == "dynamic":
        defaults["ensemble"] = "auto"
    given = {name: getattr(flags, name) for name, usual in defaults.items() if getattr(flags, name) != usual}
    words += [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return shlex.join(words)


@contextlib.contextmanager
def _trace_file(name: str | None) -> Iterator[TextIO | None]:
    """A file that takes the place of `name` when all went well or Ctrl-C was pressed, and vanishes otherwise.

    Raises:
        SettingError: Nothing can be written there; said before any model is loaded.
    """
    if name is None:
        yield None
        return
    path = Path(name).expanduser().resolve()
    try:
        if path.exists() and not path.is_file():
            raise FileExistsError(None, "it is not a file")
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed below, before it is moved
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}-", delete=False
        )
    except OSError as error:
        raise SettingError(
            f"The trace cannot be written to {name} ({error.strerror}). Choose another --trace."
        ) from None
    is_kept = False
    try:
        yield file
        is_kept = True
    except KeyboardInterrupt:
        is_kept = file.tell() > 0
        raise
    finally:
        _settle(file, path, is_kept)


def _settle(file: Any, path: Path, is_kept: bool) -> None:
    """Close the temporary file and move it to its place, or remove it."""
    try:
        with file:
            file.flush()
        if is_kept:
            mask = os.umask(0)
            os.umask(mask)
            Path(file.name).chmod(0o666 & ~mask)
            Path(file.name).replace(path)
    except OSError as error:
        raise SettingError(f"The trace could not be saved to {path} ({error.strerror}). Free some space.") from error
    finally:
        Path(file.name).unlink(missing_ok=True)


def _recorded(lines: Iterator[str], trace: TextIO | None) -> Iterator[dict[str, Any]]:
    """The records of a running trace, each saved before it is shown."""
    for line in lines:
        if trace is not None:
            try:
                trace.write(line)
            except OSError as error:
                raise SettingError(f"The trace could not be saved ({error.strerror}). Free some space.") from error
        yield json.loads(line)


def _printed(
    records: Iterator[dict[str, Any]], hidden: frozenset[str], is_json: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Stream the rounds to a terminal, or print the final text elsewhere; returns the meta and end records."""
    meta = next(records)
    is_terminal = sys.stdout.isatty()
    colour = is_colour_wanted(sys.stdout)
    end: dict[str, Any] = {}
    for record in records:
        if record["kind"] == "end":
            end = record
        elif is_terminal:
            sys.stdout.write(painted_round(record, hidden, colour))
            sys.stdout.flush()
    if is_terminal:
        sys.stdout.write("\n")
    elif not is_json:
        sys.stdout.write(harmless(end["text"]) + "\n")
    sys.stdout.flush()
    notes = [legend(colour and sys.stderr.isatty())] if is_terminal and end["num_drafted"] else []
    sys.stderr.write("\n".join([*notes, summary(end)]) + "\n")
    return meta, end
