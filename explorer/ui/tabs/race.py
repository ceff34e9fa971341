"""The Race tab: autoregressive against up to three rules, measured one after the other, replayed side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from explorer.errors import ExplorerError, SettingError
from explorer.rules import RULES
from explorer.ui.backend import Backend
from explorer.ui.controls import (
    DEPENDENT,
    Controls,
    Where,
    build_controls,
    check_prompt,
    dependent_updates,
    read_prompts,
    read_settings,
)
from explorer.ui.drawn import drawn
from explorer.ui.loading import Loader
from explorer.ui.runs import TURNS, Registry, Run, idle, running, stream
from explorer.ui.theme import ASSETS
from explorer.ui.turns import Turns

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
MAX_RULES = 3
MAX_AT_ONCE = 16
WARM_UP_TOKENS = 4
RACERS = tuple(rule for rule in RULES if rule != "ar")
DEFAULT_RULES = ("exact", "static")
CAUSES = ("ensemble", "head", "rank", "drafter", "draft_length", "temperature")


@dataclass(slots=True, eq=False)
class Race(Run):
    """One press of Start race: the autoregressive run as in `Run`, then one with each of `rules`."""

    rules: tuple[str, ...] = ()

    def heats(self) -> list[tuple[str, Run]]:
        """What is said while it goes on, and the run; the first warms the models up and is not shown."""
        runs = [Run(self.prompt, replace(self.config, rule=r), self.drafter, self.head) for r in ("ar", *self.rules)]
        for run in runs:
            run.stop = self.stop
            run.ensemble = self.ensemble if run.config.rule == "dynamic" else ""
        warm_up = replace(runs[-1], config=replace(runs[-1].config, max_new_tokens=WARM_UP_TOKENS))
        names = [RULES[run.config.rule].partition(":")[0] for run in runs]
        measured = [f"Measuring {i} of {len(runs)}: {name}" for i, name in enumerate(names, start=1)]
        return [("Warming up", warm_up), *zip(measured, runs, strict=True)]


def build(backend: Backend, loader: Loader, registry: Registry) -> None:
    """Lay the tab out and wire it."""
    with gr.Row(elem_classes="decode", equal_height=False):
        with gr.Column(elem_classes="side", scale=0, min_width=0):
            prompt = gr.Textbox(
                read_prompts((ASSETS / "prompts.jsonl").read_text("utf-8"))[0][1],
                label="Prompt of the race",
                lines=3,
                max_lines=8,
                max_length=8000,
                elem_id="race-prompt",
            )
            rules = gr.CheckboxGroup(
                [(RULES[rule].partition(":")[0], rule) for rule in RACERS],
                value=list(DEFAULT_RULES),
                label="Rules against autoregressive",
                info=f"One to {MAX_RULES}.",
                elem_id="race-rules",
            )
            with gr.Row(elem_classes="go"):
                start = gr.Button("Start race", variant="primary", elem_id="race-start", min_width=60, scale=3)
                stop = gr.Button("Stop race", elem_id="race-stop", min_width=60, scale=2)
            status = drawn("race-status", json.dumps(idle("")), "sv-status", "race.status")
            with gr.Accordion("Settings of the race", elem_id="race-settings", elem_classes="settings"):
                controls = _controls(backend)
        with gr.Column(elem_classes="stage", scale=1, min_width=0):
            view = drawn("race-view", "", "sv-view", "race.view")
    _wire(((start, stop), prompt, rules, controls, (view, status)), backend, loader, registry)


def _controls(backend: Backend) -> Controls:
    """The Decode tab's controls once more, without the rule, under ids of their own."""
    controls = build_controls(backend)
    controls.pop("rule").visible = False
    for name, component in controls.items():
        component.elem_id = f"race-{name}"
    controls["target_weight"].interactive, controls["target_weight"].info = True, "w of the static ensemble."
    return controls


def _wire(parts: tuple[Any, ...], backend: Backend, loader: Loader, registry: Registry) -> None:
    (start, stop), prompt, rules, controls, outputs = parts
    names = tuple(controls)

    def begin(request: gr.Request, prompt: str, rules: list[str], *values: Any) -> str:
        """Read the settings and register the race; what is wrong with them is said at once."""
        try:
            race = read_race(prompt, rules, dict(zip(names, values, strict=True)), backend)
        except ExplorerError as error:
            raise gr.Error(str(error), print_exception=False) from error
        registry.register(str(request.session_hash), race)
        return json.dumps(running("Starting"))

    def work(request: gr.Request) -> Iterator[tuple[Any, str]]:
        """Stream the registered race. When a page closes gradio closes this generator, which ends the race too."""
        yield from _updates(str(request.session_hash), loader, registry)

    def halt(request: gr.Request) -> None:
        """Ask the visitor's race to end."""
        registry.stop(str(request.session_hash))

    def depend(rules: list[str], *values: Any) -> list[Any]:
        """Switch controls off where none of the rules uses them."""
        return updates_for(rules, dict(zip(CAUSES, values, strict=True)), backend)

    inputs = [prompt, rules, *controls.values()]
    started = gr.on([start.click, prompt.submit], begin, inputs, outputs[1], concurrency_limit=None, **QUIET)
    stop.click(halt, None, None, queue=False, **QUIET)
    ended = started.success(work, None, list(outputs), concurrency_limit=MAX_AT_ONCE, **QUIET)
    causes = [rules, *(controls[name] for name in CAUSES)]
    affected = [controls[name] for name in DEPENDENT]
    changes = [component.change for component in causes if component is not controls["ensemble"]]
    gr.on(changes, depend, causes, affected, queue=False, trigger_mode="always_last", **QUIET)
    ended.then(depend, causes, affected, queue=False, **QUIET)


def read_race(prompt: str, rules: Sequence[str], values: Mapping[str, Any], backend: Backend) -> Race:
    """The race that the controls stand for.

    Raises:
        SettingError: No prompt, no rule, too many, one that is unknown or cannot run; or a setting out of range.
    """
    chosen = [rule for rule in RACERS if rule in rules]
    unknown = [rule for rule in rules if rule not in RACERS]
    if unknown or not 1 <= len(chosen) <= MAX_RULES:
        raise SettingError(
            f"{len(rules)} rules are chosen ({', '.join(map(str, rules)) or 'none'}); a race needs 1 to {MAX_RULES} of "
            f"{', '.join(RACERS)}. Tick that many."
        )
    settings = [read_settings({**values, "rule": rule}, backend) for rule in chosen]
    lead = settings[-1]  # of all rules only the dynamic one, which is the last, needs more than the others
    return Race(check_prompt(prompt), lead.config, lead.drafter, lead.head, lead.ensemble, rules=tuple(chosen))


def updates_for(rules: Sequence[str], values: Mapping[str, Any], backend: Backend) -> list[Any]:
    """Updates of the `DEPENDENT` controls: each as under the first rule that uses it."""
    where = Where(values["drafter"], values["draft_length"], values["temperature"])
    columns = [
        dependent_updates(rule, values["head"], values["rank"], where, backend, values["ensemble"])[1:]
        for rule in (rules or ["ar"])
    ]
    return [next((one for one in each if one["interactive"]), each[0]) for each in zip(*columns, strict=True)]


def race_stream(
    race: Race, loader: Loader, registry: Registry, turns: Turns = TURNS
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """All traces of the race one behind the other as one growing text, and the status."""
    done = ""
    for number, (words, run) in enumerate(race.heats()):
        trace = ""
        for part, status in stream(run, loader, registry, turns):
            trace = part or trace
            if status["state"] != "running":
                continue
            if status["text"].startswith("Decoding"):
                status |= {"text": words}
            yield (done + trace if trace and number else None), status
        if race.stop.is_set():
            yield (done + trace if trace and number else None), idle("Stopped.")
            return
        done += trace if number else ""
    yield done, idle("")


def _updates(session: str, loader: Loader, registry: Registry) -> Iterator[tuple[Any, str]]:
    """Values of the view and the status line while the visitor's registered race goes on."""
    race = registry.claim(session)
    if not isinstance(race, Race):
        if race is not None:
            registry.release(session, race)
        yield gr.skip(), json.dumps(idle("Another run of this window took the place of the race. Start it again."))
        return
    try:
        for text, status in race_stream(race, loader, registry):
            yield gr.skip() if text is None else text, json.dumps(status)
    except ExplorerError as error:
        yield gr.skip(), json.dumps(idle("The race was given up."))
        raise gr.Error(str(error), print_exception=False) from error
    except Exception:
        yield gr.skip(), json.dumps(idle("The race failed; the server's log says why."))
        raise
    finally:
        registry.release(session, race)
