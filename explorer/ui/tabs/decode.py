"""The Decode tab: controls at the left, one run at the right, seen token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from explorer.errors import ExplorerError
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
from explorer.ui.runs import Registry, Run, idle, running, stream
from explorer.ui.tabs import whatif
from explorer.ui.theme import ASSETS

MAX_AT_ONCE = 16  # runs of all visitors that take turns; more wait in gradio's queue
QUIET = {"show_progress": "hidden", "api_visibility": "private"}


def build(backend: Backend, loader: Loader, registry: Registry) -> tuple[gr.HTML, Controls]:
    """Lay the tab out and wire it; returns the component that draws the trace, and the controls."""
    with gr.Row(elem_classes="decode", equal_height=False):
        with gr.Column(elem_classes="side", scale=0, min_width=0):
            prompt = _prompt_box()
            with gr.Row(elem_classes="go"):
                run = gr.Button("Run", variant="primary", elem_id="run", min_width=60, scale=3)
                stop = gr.Button("Stop", elem_id="stop", min_width=60, scale=1)
            status = drawn("status", json.dumps(idle("")), "sv-status", "page.status")
            with gr.Accordion("Settings", elem_id="settings", elem_classes="settings"):
                controls = build_controls(backend)
        with gr.Column(elem_classes="stage", scale=1, min_width=0):
            view = drawn("view", first_trace(ASSETS / "traces"), "sv-view", "page.view")
            whatif.build(prompt, controls, backend)
    ended = _wire_run((run, stop), prompt, controls, (view, status), (backend, loader, registry))
    _wire_settings(prompt, controls, backend, ended)
    return view, controls


def first_trace(folder: Path) -> str:
    """The recorded run shown before anything is loaded: the first of the folder, or none."""
    paths = sorted(folder.glob("*.ndjson"))
    return paths[0].read_text("utf-8") if paths else ""


def _prompt_box() -> gr.Textbox:
    prompt = gr.Textbox(
        label="Prompt", lines=3, max_lines=8, max_length=8000, elem_id="prompt", placeholder="Ask the target something"
    )
    examples = read_prompts((ASSETS / "prompts.jsonl").read_text("utf-8"))
    prompt.value = examples[0][1]
    gr.Examples(
        [[text] for _, text in examples],
        inputs=[prompt],
        example_labels=[label for label, _ in examples],
        label="Examples",
        elem_id="examples",
        api_visibility="private",
    )
    return prompt


def _wire_run(
    buttons: tuple[gr.Button, gr.Button],
    prompt: gr.Textbox,
    controls: Controls,
    outputs: tuple[gr.HTML, gr.HTML],
    parts: tuple[Backend, Loader, Registry],
) -> Any:
    """Run and Stop; returns the event that streams a run."""
    backend, loader, registry = parts
    names = tuple(controls)

    def begin(request: gr.Request, prompt: str, *values: Any) -> str:
        """Read the settings and register the run; what is wrong with them is said at once."""
        try:
            settings = read_settings(dict(zip(names, values, strict=True)), backend)
            run = Run(check_prompt(prompt), settings.config, settings.drafter, settings.head, settings.ensemble)
        except ExplorerError as error:
            raise gr.Error(str(error), print_exception=False) from error
        registry.register(str(request.session_hash), run)
        return json.dumps(running("Starting"))

    def work(request: gr.Request) -> Iterator[tuple[Any, str]]:
        """Stream the registered run. When a page closes gradio closes this generator, which ends the run too."""
        yield from _updates(str(request.session_hash), loader, registry)

    def halt(request: gr.Request) -> None:
        """Ask the visitor's run to end."""
        registry.stop(str(request.session_hash))

    run, stop = buttons
    view, status = outputs
    inputs = [prompt, *controls.values()]
    # Queued, though quick: an error of an unqueued event is a failed request in the browser's console.
    start = gr.on([run.click, prompt.submit], begin, inputs, status, concurrency_limit=None, **QUIET)
    stop.click(halt, None, None, queue=False, **QUIET)
    return start.success(work, None, [view, status], concurrency_limit=MAX_AT_ONCE, **QUIET)


def _updates(session: str, loader: Loader, registry: Registry) -> Iterator[tuple[Any, str]]:
    """Values of the view and the status line while the visitor's registered run goes on."""
    run = registry.claim(session)
    if run is None:
        yield gr.skip(), gr.skip()
        return
    try:
        for trace, status in stream(run, loader, registry):
            yield gr.skip() if trace is None else trace, json.dumps(status)
    except ExplorerError as error:
        yield gr.skip(), json.dumps(idle(""))
        raise gr.Error(str(error), print_exception=False) from error
    except Exception:
        yield gr.skip(), json.dumps(idle("The run failed; the server's log says why."))
        raise
    finally:
        registry.release(session, run)


def _wire_settings(prompt: gr.Textbox, controls: Controls, backend: Backend, ended: Any) -> None:
    """What depends on what among the controls, and the note that the shown run has other settings."""
    causes = [controls[name] for name in ("rule", "ensemble", "head", "rank", "drafter", "draft_length", "temperature")]

    def depend(rule: str, ensemble: str | None, head: str, rank: float, *where: Any) -> list[Any]:
        """Switch controls off where they do nothing, with the reason; say what the rank is worth."""
        return dependent_updates(rule, head, rank, Where(*where), backend, ensemble)

    affected = [controls["rule"], *(controls[name] for name in DEPENDENT)]
    changes = [component.change for component in causes if component is not controls["ensemble"]]
    gr.on(changes, depend, causes, affected, queue=False, trigger_mode="always_last", **QUIET)
    # What the drafter's head offers, and what its ranks are worth, may be known only once it is loaded.
    for later in (ended.then, gr.context.Context.root_block.load):
        later(depend, causes, affected, queue=False, **QUIET)
    names = json.dumps(["prompt", *controls])
    note = f"(...values) => {{ window.SpecView.page.settings({names}, values); return []; }}"
    inputs = [prompt, *controls.values()]
    gr.on([component.change for component in inputs], None, inputs, None, js=note, **QUIET)
    gr.context.Context.root_block.load(None, inputs, None, js=note, **QUIET)
