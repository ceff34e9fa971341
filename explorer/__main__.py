"""`python -m explorer COMMAND`: exit code 0, 2 with one sentence on bad input, 130 when stopped by Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from explorer.cli import bench, decode, distill, export, fit, pull, train
from explorer.cli.terminal import harmless
from explorer.errors import ExplorerError, SettingError

COMMANDS = {
    "pull": pull,
    "decode": decode,
    "fit": fit,
    "distill": distill,
    "train": train,
    "bench": bench,
    "export": export,
}


class _Parser(argparse.ArgumentParser):
    """Parser whose complaint is one sentence, like every other of ours."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message[:1].upper()}{message[1:]}; see `{self.prog} --help`.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.stdout.reconfigure(errors="replace")
    sys.stderr.reconfigure(errors="replace")
    try:
        flags = _parser(arguments).parse_args(arguments)
        return COMMANDS[flags.command].run(flags)
    except ExplorerError as error:
        sys.stderr.write(harmless(str(error)) + "\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped.\n")
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain once more while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """All commands by name; only the one asked for gets its flags, because reading them imports torch."""
    parser = _Parser(prog="python -m explorer", description="Speculative decoding, seen token by token.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.HELP, description=module.HELP, allow_abbrev=False)
        if name == next((word for word in arguments if not word.startswith("-")), None):
            module.add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
