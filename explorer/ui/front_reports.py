"""Reports of `bench pareto` as the Frontier tab reads them: found, checked, put into words. No gradio, no figure.

Names in a report are somebody else's words: nothing here makes markup of them, and whoever shows them may not either.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.benchmarks.config import ParetoConfig
from explorer.engine.config import PRECISIONS, DecodeConfig
from explorer.engine.weights import NAME, default_cache
from explorer.errors import SettingError
from explorer.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "assets" / "frontier"
CHECKPOINTS = ROOT / "checkpoints"
MAX_BYTES = 4_000_000
MAX_NAME = 60
LARGEST = 1e12  # also keeps out what is not finite
KIND = "bench pareto"

Row = dict[str, Any]
Place = tuple[int, float]  # K and temperature


@dataclass(frozen=True, slots=True)
class Report:
    """One report that was read and found whole.

    Attributes:
        id: Name of its folder and file, for the page.
        title: For people.
        fields: What the command wrote.
    """

    id: str
    title: str
    fields: Mapping[str, Any]

    @property
    def places(self) -> list[Place]:
        """Each K and temperature it was measured at, in its own order."""
        return list(dict.fromkeys((row["draft_length"], float(row["temperature"])) for row in self.fields["rows"]))

    def rows(self, place: Place) -> list[Row]:
        """The rows of one K and temperature."""
        return [row for row in self.fields["rows"] if (row["draft_length"], row["temperature"]) == place]


def measured_folder() -> Path:
    """Where reports measured on this machine lie."""
    return default_cache() / "frontier"


def read_all() -> tuple[list[Report], list[str]]:
    """Reports of this machine, the newest first, then the shipped ones; and what is wrong with those left out."""
    found: list[Report] = []
    problems: list[str] = []
    for source, folder in (("here", measured_folder()), ("shipped", SHIPPED)):
        for path in _files(folder, newest_first=source == "here"):
            try:
                fields = read(path)
            except SettingError as error:
                problems.append(str(error))
                continue
            where = path.stem[:MAX_NAME] if source == "here" else "shipped"
            title = f"{fields['task'][:MAX_NAME]}, {fields['num_prompts']} prompts ({where})"
            found.append(Report(f"{source}/{path.name}", title, fields))
    return found, problems


def _files(folder: Path, *, newest_first: bool) -> list[Path]:
    try:
        paths = sorted(path for path in folder.glob("*.json") if path.is_file())
        return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True) if newest_first else paths
    except OSError:
        return []


def read(path: Path) -> dict[str, Any]:
    """The report of a file.

    Raises:
        SettingError: It cannot be read or is no whole report; the message names the file and the first fault.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        return parse(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(
            f"{path.name} was left out: {reason}. A report is the last line of `{make_command('NAME')}`; make it again."
        ) from error


def parse(text: str) -> dict[str, Any]:
    """The report in the last line of the command's output.

    Raises:
        ValueError: It is no whole report.
    """
    lines = text.strip().splitlines()
    try:
        fields = json.loads(lines[-1] if lines else "", parse_constant=_no_constant)
    except (ValueError, RecursionError):
        # A file that somebody's editor laid out on many lines is welcome too.
        try:
            fields = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ValueError("its last line is no JSON object") from error
    if not isinstance(fields, dict) or fields.get("kind") != KIND:
        raise ValueError(f'its "kind" is not "{KIND}"')
    for name, kind in (("task", str), ("num_prompts", int), ("num_answers", int), ("rows", list)):
        if not isinstance(fields.get(name), kind) or isinstance(fields.get(name), bool):
            raise ValueError(f'"{name}" is missing or of the wrong kind')
    if not fields["rows"] or fields["num_prompts"] < 1:
        raise ValueError("it has no rows or no prompts")
    for number, row in enumerate(fields["rows"], 1):
        fault = _fault(row)
        if fault:
            raise ValueError(f"row {number}: {fault}")
    return fields


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _fault(row: Any) -> str:
    """What is wrong with a row; empty if nothing."""
    if not isinstance(row, dict):
        return "no object"
    if not isinstance(row.get("label"), str):
        return '"label" is no text'
    if row.get("rule") not in tuple(RULES):
        return f'"rule" must be one of {", ".join(RULES)}'
    for name in ("draft_length", "temperature", "knob"):
        if not _fits(name, row):
            return f'"{name}" is {row.get(name)!r}, which no rule can take'
    return _fault_of_figures(row)


def _fits(name: str, row: Row) -> bool:
    """Whether a setting of the row is one that the decode loop would take."""
    value, field = row.get(name), name
    if name == "knob":
        field = {"static": "target_weight", "lossy": "lenience"}.get(row["rule"], "")
        if not field:
            return value is None or _is_number(value)
    if not _is_number(value):
        return False
    try:
        DecodeConfig(**{field: value})
    except SettingError:
        return False
    return True


def _fault_of_figures(row: Row) -> str:
    for name in ("reward", "tau"):
        if not _is_triple(row.get(name)):
            return f'"{name}" must be three numbers'
    for name in ("acceptance", "above_static", "above_time_sharing"):
        if row.get(name) is not None and not _is_triple(row[name]):
            return f'"{name}" must be three numbers or null'
    for name in ("acceptance_in_correct", "rejection", "bias", "distance", *_PER_ROUND, "ratio_to_ar"):
        if row.get(name) is not None and not _is_number(row[name]):
            return f'"{name}" must be a number or null'
    return ""


_PER_ROUND = ("expected_per_round", "accepted_per_round")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_triple(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value))


def is_head(row: Row) -> bool:
    """Whether the row is of a trained head; the one-line rule has a knob."""
    return row["rule"] == "dynamic" and row.get("knob") is None


def make_command(task: str) -> str:
    """A command that makes a report where this tab finds it."""
    return f"python -m explorer bench pareto --task {shlex.quote(task)} --json"


def verdict(rows: Sequence[Row]) -> str:
    """Whether each trained head lies above the static front and beats time sharing, in plain words."""
    heads = [row for row in rows if is_head(row)]
    if heads:
        return " ".join(_head_sentence(row) for row in heads)
    text = "No trained head was measured here."
    sure = next((row for row in rows if row["rule"] == "dynamic"), None)
    return text if sure is None else f"{text} Of the one-line rule: {_head_sentence(sure)}"


def _head_sentence(row: Row) -> str:
    name = row["label"][:MAX_NAME]
    above, shared = row.get("above_static"), row.get("above_time_sharing")
    if above is None:
        first = f"{name} cannot be compared with the static front, which needs two static points"
    elif above[1] > 0:
        first = f"{name} lies above the static front: {_spread(above)} reward at equal acceptance"
    elif above[2] < 0:
        first = f"{name} lies below the static front: {_spread(above)} reward at equal acceptance"
    else:
        first = f"{name} is not shown to lie above the static front: {_spread(above)} reward, an interval that holds 0"
    if shared is None:
        second = "time sharing was not measured, which needs static 0"
    elif shared[1] > 0:
        second = f"it beats time sharing: {_spread(shared)}"
    elif shared[2] < 0:
        second = f"it is worse than time sharing: {_spread(shared)}"
    else:
        second = f"it is not shown to beat time sharing: {_spread(shared)}"
    return f"{first}; {second}."


def _spread(values: Sequence[float]) -> str:
    return f"{values[0]:+.3f} [{values[1]:+.3f}, {values[2]:+.3f}]"


def basis(report: Report, place: Place) -> str:
    """What the figures rest on."""
    fields, (K, temperature) = report.fields, place
    counts = [row["num_answers"] for row in report.rows(place) if isinstance(row.get("num_answers"), int)]
    answers = counts[0] if counts else fields["num_answers"]
    text = f"Each point: {answers} answers to {fields['num_prompts']} held-out prompts of {fields['task'][:MAX_NAME]}"
    return f"{text}, K = {K}, temperature {temperature:g}; intervals are 95 % bootstraps over prompts."


def command_of(report: Report) -> str:
    """The command that made the report, from its fields; what equals the command's default is left out."""
    fields, default = report.fields, ParetoConfig().filled()
    if isinstance(fields.get("command"), str):
        return fields["command"][:4000]
    rows = fields["rows"]
    words = ["python", "-m", "explorer", "bench", "pareto", "--task", fields["task"]]
    if isinstance(fields.get("target"), str) and fields["target"] not in (NAME, "default"):
        words += ["--pair", fields["target"]]
    if isinstance(fields.get("drafter"), str) and fields["drafter"] not in {"auto", *bundled("drafter").values()}:
        words += ["--drafter", fields["drafter"]]
    words += _repeated("weight", [row["knob"] for row in rows if row["rule"] == "static"], default)
    words += _repeated("lenience", [row["knob"] for row in rows if row["rule"] == "lossy"], default)
    words += _repeated("temperature", [row["temperature"] for row in rows], default)
    words += _repeated("draft_length", [row["draft_length"] for row in rows], default)
    heads = list(dict.fromkeys(row["label"] for row in rows if is_head(row)))
    if not set(heads) <= set(bundled("ensemble")):
        words += [part for head in heads for part in ("--ensemble", head)]
    answers = fields["num_answers"] // max(fields["num_prompts"], 1)
    for name, value in (("limit", fields["num_prompts"]), ("answers", answers), ("seed", fields.get("seed", 0))):
        if value != getattr(default, name):
            words += [f"--{name}", str(value)]
    if fields.get("precision") in PRECISIONS:
        words += ["--precision", fields["precision"]]
    return shlex.join([*words, "--json"])


def _repeated(name: str, values: Sequence[float], default: ParetoConfig) -> list[str]:
    """The flag once per value, or nothing if these are the values it has when left out."""
    found = tuple(dict.fromkeys(values))
    if found == getattr(default, name):
        return []
    return [part for value in found for part in ("--" + name.replace("_", "-"), f"{value:g}")]


def bundled(kind: str) -> dict[str, str]:
    """Folder and name of the bundled checkpoints of a kind."""
    found = {}
    for path in sorted(CHECKPOINTS.glob("*/meta.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            if record["kind"] == kind:
                found[path.parent.name] = str(record["name"])
        except (OSError, ValueError, LookupError, TypeError):
            continue  # loading it will say what is wrong
    return found
