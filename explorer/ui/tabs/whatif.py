"""From the What if panel to a run: its settings go into the Decode tab's controls, then Run is pressed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

import gradio as gr

from explorer.engine.config import DecodeConfig
from explorer.errors import ExplorerError, SettingError
from explorer.ui.backend import Backend
from explorer.ui.controls import FIELDS, Controls

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
PRESS_RUN = "() => { document.querySelector('#run').click(); return []; }"
TAKEN = (
    "rule", "target_weight", "lenience", "draft_length", "temperature", "top_p", "seed", "max_new_tokens"
)  # fmt: skip


def build(prompt: gr.Textbox, controls: Controls, backend: Backend) -> None:
    """The unseen component through which the panel speaks; call it inside the tab's layout."""
    bridge = gr.HTML(
        "",
        html_template='<div class="sv-bridge"></div>',
        js_on_load="window.SpecView.WhatIf.bridge = (settings) => trigger('submit', settings);",
        apply_default_css=False,
        elem_id="whatif",
    )

    def fill(drafter: str, event: gr.EventData) -> list[Any]:
        """The prompt and the controls as the panel asks for them."""
        try:
            return continued(event._data, drafter, backend, tuple(controls))
        except ExplorerError as error:
            raise gr.Error(str(error), print_exception=False) from error

    filled = bridge.submit(fill, controls["drafter"], [prompt, *controls.values()], **QUIET)
    filled.success(None, None, None, js=PRESS_RUN, **QUIET)


def continued(asked: Any, drafter: str, backend: Backend, names: tuple[str, ...]) -> list[Any]:
    """Values of the prompt and of the named controls; what the recording does not say stays as it is.

    Args:
        asked: What the browser sent: the recording's prompt and settings, with the rule of the what-if.
        drafter: The drafter that is chosen now; kept unless the recording's command names one that is offered.
        backend: Says which drafters, heads and ranks there are.
        names: The controls, in order.

    Raises:
        SettingError: The prompt or a setting is not one that Run would take.
    """
    if not isinstance(asked, Mapping) or not isinstance(asked.get("prompt"), str):
        raise SettingError("The recording names no prompt. Open a trace that this page saved, or type a prompt.")
    values = {name: asked[name] for name in TAKEN if name in asked}
    DecodeConfig(**{name: _as_field(name, value) for name, value in values.items()})
    drafter, head = _drafter_and_head(asked.get("command"), drafter, backend)
    values |= {"drafter": drafter} | ({"head": head} if head else {})
    ranks, rank = backend.ranks(drafter), asked.get("rank")
    if isinstance(rank, int) and ranks and ranks[0] <= rank <= ranks[-1]:
        values["rank"] = rank
    return [asked["prompt"], *(values.get(name, gr.skip()) for name in names)]


def _as_field(name: str, value: Any) -> Any:
    """JavaScript has one kind of number: 1 may stand for 1.0, and 4.0 for 4."""
    kind = type(FIELDS[name].default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return kind(value) if is_number and kind in (int, float) and kind(value) == value else value


def _drafter_and_head(command: Any, drafter: str, backend: Backend) -> tuple[str, str]:
    """The drafter and head that the recording's command line names, where they are offered."""
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        words = []
    if not words:
        return drafter, ""
    offered = [name for _, name in backend.drafters]
    named = _option(words, "--drafter") or "auto"
    drafter = named if named in offered else drafter
    head = _option(words, "--head") or "own"
    return drafter, head if head in backend.heads(drafter) else ""


def _option(words: list[str], name: str) -> str:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
    return ""
