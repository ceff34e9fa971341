"""Prompts to measure with: a user's file, or the built-in ones that no bundled drafter was fitted on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from explorer.errors import SettingError

BUILT_IN = Path(__file__).parents[2] / "assets" / "calibration_prompts.jsonl"
HELD_OUT_SHARE = 10  # `fit` keeps every tenth of them for its score


def held_out() -> list[str]:
    """The built-in prompts that `fit` does not fit on."""
    return read_prompts(BUILT_IN)[::HELD_OUT_SHARE]


def read_prompts(path: Path) -> list[str]:
    """User messages of a JSONL file: each line's `prompt`, its `question`, or the first of its `turns`.

    Raises:
        SettingError: The file cannot be read, or a line has none of them.
    """
    return [message for message, _ in read_with_kinds(path)]


def read_with_kinds(path: Path) -> list[tuple[str, str]]:
    """User messages of a JSONL file, each with its line's `category`, "" where it has none.

    Raises:
        SettingError: The file cannot be read, or a line has no message.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [(number, json.loads(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be used as prompts ({error}). Give a JSONL file with --prompts.") from error
    if not records:
        raise SettingError(f"{path} has no prompts. Give a JSONL file with at least one line.")
    return [(_message(record, path, number), str(record.get("category", ""))) for number, record in records]


def _message(record: Any, path: Path, number: int) -> str:
    if isinstance(record, dict):
        turns = record.get("turns")
        first = turns[0] if isinstance(turns, list) and turns else None
        for text in (record.get("prompt"), record.get("question"), first):
            if isinstance(text, str) and text.strip():
                return text
    raise SettingError(
        f"Line {number} of {path} has no text under prompt, question or turns. Give one such text per line."
    )
