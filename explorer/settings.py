"""One line per option: default, help, range and choices live in the dataclass field, and everything reads them."""

from __future__ import annotations

import argparse
import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from explorer.errors import SettingError


def setting(
    default: Any, help: str, *, low: float | None = None, high: float | None = None, choices: Sequence[str] = ()
) -> Any:
    """Dataclass field that also carries its help text, closed range and choices."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "choices": tuple(choices)})


def check_ranges(config: Any) -> None:
    """Raise `SettingError` for the first field that is of the wrong type, not finite, out of range or not a choice."""
    hints = typing.get_type_hints(type(config))
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        item = _item_type(hints[spec.name])
        if item in (int, float):
            for part in value:
                _check_number(spec, part, item)
        number = _number_type(hints[spec.name])
        is_absent = value is None and type(None) in typing.get_args(hints[spec.name])
        if number is not None and not is_absent:
            _check_number(spec, value, number)
        choices = spec.metadata.get("choices", ())
        if choices and value not in choices:
            raise SettingError(f"{spec.name} is {value!r}; it must be one of {', '.join(choices)}.")


def _number_type(hint: Any) -> type | None:
    """`int` or `float` for such a field (also `int | None`), else None."""
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
    return kinds[0] if kinds[0] in (int, float) and len(kinds) == 1 else None


def _item_type(hint: Any) -> type | None:
    """What a tuple field holds, as in `tuple[int, ...]`; None for any other field."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def _check_number(spec: dataclasses.Field[Any], value: Any, number: type) -> None:
    """Raise `SettingError` unless `value` is a finite number of the field's type and range."""
    allowed = (int,) if number is int else (int, float)
    text = spec.metadata["help"]
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise SettingError(
            f"{spec.name} is {value!r}; it must be {'a whole number' if number is int else 'a number'} ({text})."
        )
    low, high = spec.metadata.get("low"), spec.metadata.get("high")
    too_low, too_high = low is not None and value < low, high is not None and value > high
    if not math.isfinite(value) or too_low or too_high:
        raise SettingError(f"{spec.name} is {value}; it must be in [{low}, {high}] ({text}).")


def add_flags(parser: argparse.ArgumentParser, config_class: type, names: Mapping[str, str] | None = None) -> None:
    """Add one `--flag` per field of a settings dataclass; tuples take the flag several times.

    Args:
        parser: Gets the flags.
        config_class: The dataclass.
        names: Flags of fields that cannot be named like them.
    """
    hints = typing.get_type_hints(config_class)
    for spec in dataclasses.fields(config_class):
        flag = (names or {}).get(spec.name, "--" + spec.name.replace("_", "-"))
        options: dict[str, Any] = {
            "help": f"{spec.metadata['help']} (default: {spec.default})",
            "default": spec.default,
            "dest": spec.name,
        }
        if item := _item_type(hints[spec.name]):
            metavar = "TEXT" if item is str else "N"
            options |= {"action": "append", "default": None, "metavar": metavar, "type": item}
        elif hints[spec.name] is bool:
            options |= {"action": argparse.BooleanOptionalAction}
        else:
            options |= {"type": _number_type(hints[spec.name]) or str}
        if spec.metadata["choices"]:
            options |= {"choices": spec.metadata["choices"]}
        parser.add_argument(flag, **options)


def from_flags(config_class: type, flags: argparse.Namespace) -> Any:
    """Build the settings dataclass from parsed flags; raises `SettingError` like its constructor."""
    values = {}
    for spec in dataclasses.fields(config_class):
        value = getattr(flags, spec.name)
        if isinstance(spec.default, tuple):
            value = tuple(value) if value else spec.default
        values[spec.name] = value
    return config_class(**values)
