"""The Frontier tab: reward against acceptance of every rule, from shipped reports and those measured here."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from explorer.benchmarks.config import ParetoConfig
from explorer.errors import ExplorerError, SettingError
from explorer.ui import front_reports
from explorer.ui.backend import Backend
from explorer.ui.controls import Controls
from explorer.ui.front_chart import accepted_figure, distance_figure, reward_figure, spread
from explorer.ui.front_reports import MAX_NAME, Place, Report, Row, is_head
from explorer.ui.measurements import Measurements, check_known, state_line
from explorer.ui.theme import ASSETS

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
POLL_S = 2.0
# Tasks that need no file from the visitor; the others are for the command line.
OFFERED = {"arithmetic": "Arithmetic: small sums", "fidelity": "Fidelity to the target"}
COLUMNS = (
    "rule",
    "acceptance [95 %]",
    "reward [95 %]",
    "acceptance in correct",
    "τ",
    "tokens/s vs AR",
    "above static front [95 %]",
    "above time sharing [95 %]",
)
ABOUT_DISTANCE = (
    "**What a rule gives up.** Per tested draft, the chance of a rejection and the bias of the output law add up to "
    "the distance between target and drafter: P(reject) + bias = TV. The lossy rule has no weight, only a TV."
)
ABOUT_ACCEPTED = "**Accepted drafts per round**, counted, beside what the two laws led one to expect."


@dataclass(frozen=True, slots=True)
class Parts:
    """The components that show a report."""

    report: gr.Dropdown
    place: gr.Dropdown
    reward: gr.Plot
    drawn: gr.HTML
    more: gr.Column
    distance: gr.Plot
    accepted: gr.Plot

    def all(self) -> list[Any]:
        """In the order of `shown`."""
        return [self.report, self.place, self.reward, self.drawn, self.more, self.distance, self.accepted]


def most_prompts() -> int:
    """Prompts that a visitor may measure on; fewer on a public host, which says so in its environment."""
    return 20 if os.environ.get("SPACE_ID") else 200


def build(backend: Backend, controls: Controls, tabs: gr.Tabs) -> None:
    """Lay the tab out and wire it.

    Args:
        backend: Whose ensembles a row may name; without `jobs` nothing is measured here.
        controls: Of the Decode tab, which take a row's settings.
        tabs: All tabs, to turn to that one.
    """
    measurements = None if backend.jobs is None else Measurements.in_cache()
    with gr.Row(elem_classes="decode", equal_height=False):
        with gr.Column(elem_classes="side", scale=0, min_width=0):
            report = gr.Dropdown([], label="Report", elem_id="frontier-report", filterable=False)
            place = gr.Dropdown([], label="Drafts and temperature", elem_id="frontier-place", filterable=False)
            asked = _measure_inputs(backend) if measurements is not None else []
        with gr.Column(elem_classes=["stage", "train", "frontier"], scale=1, min_width=0):
            parts = _stage(report, place)
    outputs = parts.all()
    report.input(lambda id_: shown(backend, id_, None), report, outputs, **QUIET)
    place.input(lambda id_, key: shown(backend, id_, key), [report, place], outputs, **QUIET)
    gr.context.Context.root_block.load(lambda: shown(backend, None, None), None, outputs, queue=False, **QUIET)
    names = tuple(controls)

    def fill(event: gr.EventData) -> list[Any]:
        """The chosen row's settings for the Decode tab's controls, and that tab."""
        try:
            chosen = settings_of(chosen_row(event._data), backend)
        except ExplorerError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return [gr.update(selected="decode"), *(chosen.get(name, gr.skip()) for name in names)]

    parts.drawn.submit(fill, None, [tabs, *controls.values()], **QUIET)
    if measurements is not None:
        _wire_measuring(backend, measurements, asked, parts)


def _stage(report: gr.Dropdown, place: gr.Dropdown) -> Parts:
    reward = gr.Plot(show_label=False, label="Reward against acceptance", elem_id="frontier-reward", visible=False)
    drawn = gr.HTML(
        "{}",
        html_template='<div class="sv-view sv-frontier"></div>',
        js_on_load=(ASSETS / "frontier.js").read_text("utf-8"),
        apply_default_css=False,
        elem_id="frontier",
    )
    with gr.Column(visible=False, elem_classes="frontier-more") as more:
        gr.Markdown(ABOUT_DISTANCE)
        distance = gr.Plot(show_label=False, label="P(reject) and bias per rule", elem_id="frontier-distance")
        gr.Markdown(ABOUT_ACCEPTED)
        accepted = gr.Plot(show_label=False, label="Accepted drafts per round", elem_id="frontier-accepted")
    return Parts(report, place, reward, drawn, more, distance, accepted)


def shown(backend: Backend, id_: str | None, key: str | None) -> list[Any]:
    """Values of all parts for a report and a place in it, the first ones if not chosen or no longer there."""
    reports, problems = front_reports.read_all()
    report = next((found for found in reports if found.id == id_), reports[0] if reports else None)
    if report is None:
        value = {"kind": "none", "command": front_reports.make_command("arithmetic"), "problems": problems}
        value["folder"] = str(front_reports.measured_folder())
        hidden = gr.update(visible=False)
        empty = gr.update(choices=[], value=None)
        return [empty, gr.update(choices=[], value=None, visible=False), hidden, json.dumps(value), hidden, None, None]
    places = report.places
    place = next((place for place in places if _key(place) == key), places[0])
    rows = report.rows(place)
    named = [(f"K = {K}, temperature {temperature:g}", _key((K, temperature))) for K, temperature in places]
    return [
        gr.update(choices=[(found.title, found.id) for found in reports], value=report.id),
        gr.update(choices=named, value=_key(place), visible=len(places) > 1),
        gr.update(value=reward_figure(rows), visible=True),
        json.dumps(table_of(report, place, backend) | {"problems": problems}),
        gr.update(visible=True),
        distance_figure(rows),
        accepted_figure(rows),
    ]


def _key(place: Place) -> str:
    return f"{place[0]} {place[1]!r}"


def table_of(report: Report, place: Place, backend: Backend) -> dict[str, Any]:
    """What the page's script draws: the sentence, the command and the table, all plain text."""
    rows = report.rows(place)
    return {
        "kind": "report",
        "verdict": front_reports.verdict(rows),
        "basis": front_reports.basis(report, place),
        "command": front_reports.command_of(report),
        "columns": COLUMNS,
        "rows": [{"cells": cells(row), "why": _why_not(row, backend), "is_head": is_head(row)} for row in rows],
        "report": report.id,
        "place": _key(place),
    }


def cells(row: Row) -> list[str]:
    """A row as text, in the order of `COLUMNS`."""

    def number(name: str, digits: int) -> str:
        return "–" if row.get(name) is None else f"{row[name]:.{digits}f}"

    return [
        row["label"][:MAX_NAME],
        spread(row.get("acceptance")),
        spread(row["reward"]),
        number("acceptance_in_correct", 3),
        f"{row['tau'][0]:.2f}",
        number("ratio_to_ar", 2),
        spread(row.get("above_static")),
        spread(row.get("above_time_sharing")),
    ]


def _why_not(row: Row, backend: Backend) -> str:
    try:
        settings_of(row, backend)
    except SettingError as error:
        return str(error)
    return ""


def settings_of(row: Row, backend: Backend) -> dict[str, Any]:
    """Values of the Decode tab's controls for a row; those it says nothing of are left out.

    Raises:
        SettingError: The Decode tab has no such rule or head.
    """
    rule, knob = row["rule"], row.get("knob")
    chosen = {"rule": rule, "draft_length": row["draft_length"], "temperature": float(row["temperature"])}
    if rule == "static":
        chosen["target_weight"] = knob
    if rule == "lossy":
        chosen["lenience"] = knob
    if rule == "dynamic":
        if knob is not None:
            raise SettingError("The one-line rule is only measured, to compare with. Choose another row.")
        chosen["ensemble"] = _head_named(row["label"], backend)
    return chosen


def _head_named(label: str, backend: Backend) -> str:
    """The Decode tab's name of the head that a report calls `label`: its folder, or its training."""
    for shown_name, name in backend.ensembles():
        if label in (name, shown_name, Path(name).name, Path(name).parent.name):
            return name
    raise SettingError(
        f"The head {label[:MAX_NAME]!r} is not on this machine. Choose another row, or put it in checkpoints/."
    )


def chosen_row(asked: Any) -> Row:
    """The row the browser asks for.

    Raises:
        SettingError: There is none such any more.
    """
    asked = asked if isinstance(asked, dict) else {}
    report = next((found for found in front_reports.read_all()[0] if found.id == asked.get("report")), None)
    places = [] if report is None else [place for place in report.places if _key(place) == asked.get("place")]
    number = asked.get("row")
    rows = report.rows(places[0]) if report is not None and places else []
    if not isinstance(number, int) or not 0 <= number < len(rows):
        raise SettingError("That row is not in the reports any more. Reload the page and choose a row of the table.")
    return rows[number]


def _measure_inputs(backend: Backend) -> list[gr.components.Component]:
    most = most_prompts()
    with gr.Accordion("Measure here", open=False, elem_id="frontier-measure", elem_classes="settings"):
        task = gr.Dropdown(
            [(label, name) for name, label in OFFERED.items()],
            value=next(iter(OFFERED)),
            label="Task measured",
            filterable=False,
            elem_id="frontier-task",
        )
        limit = gr.Slider(
            1,
            most,
            min(20, most),
            step=1,
            label="Held-out prompts",
            info="Few prompts give wide intervals.",
            elem_id="frontier-limit",
        )
        head = gr.Dropdown(
            _head_choices(backend),
            value="",
            label="Head measured",
            info="Those bundled, or one trained on this page.",
            filterable=False,
            elem_id="frontier-head",
        )
        with gr.Row(elem_classes="go"):
            start = gr.Button("Measure", variant="primary", elem_id="frontier-start", min_width=60)
            stop = gr.Button("Stop measuring", elem_id="frontier-stop", min_width=60)
        line = gr.Textbox("", label="Progress", interactive=False, elem_id="frontier-state", lines=1, max_lines=4)
    return [task, limit, head, start, stop, line]


def _head_choices(backend: Backend) -> list[tuple[str, str]]:
    trained = backend.jobs.heads() if backend.jobs is not None else {}
    return [("Bundled heads", ""), *((label, folder.parent.name) for label, folder in trained.items())]


def _wire_measuring(
    backend: Backend, measurements: Measurements, asked: Sequence[gr.components.Component], parts: Parts
) -> None:
    *inputs, start, stop, line = asked
    known = gr.State("")

    def begin(task: str, limit: float, head: str) -> str:
        """Start a measurement."""
        return _said(lambda: start_measuring(backend, measurements, task, limit, head))

    def end() -> str:
        """Stop the one that runs."""
        return _said(lambda: stop_measuring(measurements))

    def look(before: str, id_: str | None, key: str | None) -> list[Any]:
        """How far it is; the list of reports and heads only where something finished since the last look."""
        jobs = _said(measurements.all)
        now = json.dumps([job.id for job in jobs if job.state == "finished"])
        text = state_line(jobs[0]) if jobs else "Nothing was measured here yet."
        if now == before:
            return [before, text, gr.skip(), *(gr.skip() for _ in parts.all())]
        heads = gr.update(choices=_head_choices(backend))
        return [now, text, heads, *shown(backend, id_, key)]

    start.click(begin, inputs, line, **QUIET)
    stop.click(end, None, line, **QUIET)
    outputs = [known, line, inputs[2], *parts.all()]
    gr.Timer(POLL_S).tick(look, [known, parts.report, parts.place], outputs, queue=False, **QUIET)


def start_measuring(backend: Backend, measurements: Measurements, task: str, limit: float, head: str) -> str:
    """Begin a measurement; returns its state in words.

    Raises:
        SettingError: This host does not allow it, the head is not there, or another one runs.
        WeightsError: The folder cannot be written.
    """
    check_known(task, tuple(OFFERED), limit, most_prompts())
    flags = ["--task", task, "--limit", str(int(limit)), "--pair", backend.target, "--json"]
    drafter = backend.drafters[0][1]
    flags += ["--drafter", "auto" if drafter == "hybrid" else drafter]
    heads = len(front_reports.bundled("ensemble"))
    if head:
        folder = next((found for name, found in _trained(backend).items() if name == head), None)
        if folder is None:
            raise SettingError(f"There is no trained head {head!r}. Choose one from the list.")
        flags += ["--ensemble", str(measurements.linked(head, folder))]
        heads = 1
    default = ParetoConfig().filled()
    steps = 3 + len(default.weight) + len(default.lenience) + heads
    title = f"{task}, {int(limit)} prompts"
    return state_line(measurements.find(measurements.start(title, flags, steps)))


def _trained(backend: Backend) -> dict[str, Path]:
    return {} if backend.jobs is None else {path.parent.name: path for path in backend.jobs.heads().values()}


def stop_measuring(measurements: Measurements) -> str:
    """Stop the measurement that runs; returns its state in words."""
    running = next((job for job in measurements.all() if job.state == "running"), None)
    if running is None:
        return "Nothing is being measured."
    measurements.stop(running.id)
    return state_line(measurements.find(running.id))


def _said(action: Any) -> Any:
    """What the action gives; its error in the page's own words."""
    try:
        return action()
    except ExplorerError as error:
        raise gr.Error(str(error), print_exception=False) from error
