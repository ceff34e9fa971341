"""The Head tab: the low-rank head's cost model as a calculator, and what the ranks of the drafter are worth here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gradio as gr

from explorer.errors import ExplorerError
from explorer.ui.backend import Backend
from explorer.ui.drawn import drawn
from explorer.ui.loading import Loader, Loading
from explorer.ui.theme import ASSETS

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
UPDATE_S = 0.2
LENGTHS = range(1, 9)  # drafts per round that the table can show
NOTE = (
    "Times were measured when the drafter was loaded. Tokens per round are expected from the scores in the drafter's "
    "meta.json; speed is predicted from both, over decoding without drafts. ν is relative to the target's own head."
)


def build(backend: Backend, loader: Loader, tab: gr.Tab) -> None:
    """Lay the tab out and wire it; the figures of the default drafter come when the tab is opened, if it is loaded."""
    with gr.Column(elem_classes="stage", min_width=0):
        view = drawn("head", page_data(machine(backend)), "sv-view sv-costs", "page.costs")
        load = gr.Button("Load and measure", visible="hidden", elem_id="head-load")

    def measure() -> Iterator[str]:
        """Load the default drafter, saying how far it is, then show its figures."""
        loading = loader.start(backend.drafters[0][1])
        yield page_data(progress(loading))
        while not loading.done.wait(UPDATE_S):
            yield page_data(progress(loading))
        if loading.error is not None:
            yield page_data(machine(backend) | {"text": f"Loading failed. {_said(loading.error)}"})
            if not isinstance(loading.error, ExplorerError):
                raise loading.error
            return
        yield page_data(machine(backend))

    load.click(measure, None, view, concurrency_limit=4, **QUIET)
    tab.select(lambda: page_data(machine(backend)), None, view, queue=False, **QUIET)


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, ExplorerError) else "The server's log says why."


def page_data(state: dict[str, Any]) -> str:
    """What the tab's script draws: the fixed texts and what is known of this machine."""
    texts = json.loads((ASSETS / "head.json").read_text("utf-8"))
    return json.dumps({"texts": texts, "machine": state})


def progress(loading: Loading) -> dict[str, Any]:
    """State of a load that goes on."""
    return {
        "state": "loading",
        "text": f"{loading.text}…",
        "position": loading.position,
        "total": loading.total,
    }


def machine(backend: Backend) -> dict[str, Any]:
    """The default drafter's ranks at every number of drafts and temperatures 0 and 1, or what is missing for that."""
    label, drafter = backend.drafters[0]
    drafts = [_at(backend, drafter, length, warm) for length in LENGTHS for warm in (False, True)]
    if not all(entry["ranks"] for entry in drafts):
        return _missing(backend, label, drafter)
    hidden_size, vocab_size = backend.full_head or (0, 0)
    return {
        "state": "ready",
        "text": f"{label}: ranks timed on this machine when it was loaded.",
        "drafter": label,
        "drafts": drafts,
        "full": hidden_size * vocab_size,
        "note": NOTE,
    }


def _missing(backend: Backend, label: str, drafter: str) -> dict[str, Any]:
    if backend.ranks(drafter):
        text = f"Nothing is measured yet: {label} is not loaded. Loading it and timing its ranks takes some seconds."
        return {"state": "missing", "text": text}
    return {"state": "missing", "text": f"No ranks are known of {label}: it is not loaded, or has no low-rank head."}


def _at(backend: Backend, drafter: str, length: int, warm: bool) -> dict[str, Any]:
    temperature = float(warm)
    figures = backend.rank_figures(drafter, length, temperature)
    sizes = sum(backend.full_head or (0, 0))
    best = backend.predicted(drafter, figures[0].rank, length, temperature) if figures else None
    return {
        "length": length,
        "warm": warm,
        "best": best.best_rank if best else None,
        "kappa": figures[0].kappa if figures else None,
        "ranks": [
            {
                "rank": row.rank,
                "parameters": row.rank * sizes,
                "nu": row.nu,
                "tokens": row.tokens_per_round,
                "speed": row.speed_up,
            }
            for row in figures
        ],
    }
