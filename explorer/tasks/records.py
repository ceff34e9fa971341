"""Reads the data of a task: JSONL files, or a data set by name. A malformed line stops it and is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from explorer.errors import SettingError

Record = dict[str, Any]


def read_jsonl(path: Path, fields: Mapping[str, type]) -> list[Record]:
    """Records of a JSONL file; empty lines are passed over.

    Args:
        path: UTF-8, one JSON object a line.
        fields: Fields that every record must have, with their type; more are kept.

    Raises:
        SettingError: The file cannot be read or holds no record, or a line is no object or lacks a field.
    """
    wanted = ", ".join(fields)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read ({error.strerror}). Give a JSONL file with the fields {wanted}."
        ) from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 text ({error.reason}). Give a JSONL file in UTF-8.") from error
    # Not splitlines(): JSON may hold U+2028 and its like unescaped, and they end no record.
    lines = text.split("\n")
    records = [
        _record(line, f"{path}, line {number},", fields) for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if not records:
        raise SettingError(f"{path} holds no records. Give a JSONL file with the fields {wanted}.")
    return records


def _record(line: str, where: str, fields: Mapping[str, type]) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{where} is not JSON ({error}). Mend or delete the line.") from error
    if not isinstance(record, dict):
        raise SettingError(f"{where} is a {type(record).__name__}; it must be an object with {', '.join(fields)}.")
    check_fields(record, where, fields)
    return record


def check_fields(record: Record, where: str, fields: Mapping[str, type]) -> None:
    """Raise `SettingError`, beginning with `where`, unless the record has every field with the right type."""
    for name, kind in fields.items():
        if name not in record:
            raise SettingError(f"{where} has no {name}; it must have the fields {', '.join(fields)}.")
        value = record[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise SettingError(f"{where} has {value!r:.60} as {name}; it must be of type {kind.__name__}.")


def need_data(data: Path | None, name: str, fields: Mapping[str, type]) -> Path:
    """The path, or a `SettingError` that says which file the task needs."""
    if data is None:
        raise SettingError(f"{name} needs data: give a JSONL file with the fields {', '.join(fields)}.")
    return data


def from_hub(name: str, config: str, split: str, fields: Mapping[str, type]) -> list[Record]:
    """Records of a data set of the Hugging Face Hub, through the `datasets` package.

    Raises:
        SettingError: The package is not installed, the data cannot be fetched, or a field is missing.
    """
    instead = f"Give a JSONL file with the fields {', '.join(fields)}"
    try:
        import datasets
    except ImportError as error:
        raise SettingError(
            f"{name} is fetched by a package that is not installed. {instead}, or run: pip install datasets"
        ) from error
    try:
        rows = [dict(row) for row in datasets.load_dataset(name, config, split=split)]
    except (OSError, ValueError, RuntimeError) as error:
        raise SettingError(f"{name} could not be fetched ({error}). {instead}, or go online.") from error
    for number, row in enumerate(rows, start=1):
        check_fields(row, f"{name}, {split}, row {number},", fields)
    return rows
