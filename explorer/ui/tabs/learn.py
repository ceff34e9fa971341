"""The Learn tab: six steps over a recorded run, and a toy vocabulary. All of it runs in the browser."""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr

from explorer.ui.drawn import drawn
from explorer.ui.theme import ASSETS


def build() -> None:
    """Lay the tab out; there is nothing to wire."""
    with gr.Column(elem_classes="stage", min_width=0):
        drawn("learn", lesson(ASSETS), "sv-view sv-learn", "page.learn")


def lesson(assets: Path) -> str:
    """The lesson's texts and the recorded run it is about, as one JSON object.

    The run is the one that the texts name or, where that is missing, the first of the bundled ones; without any the
    page says so.
    """
    texts = json.loads((assets / "learn.json").read_text("utf-8"))
    paths = [assets / "traces" / texts["trace"], *sorted((assets / "traces").glob("*.ndjson"))]
    trace = next((path.read_text("utf-8") for path in paths if path.is_file()), "")
    return json.dumps({"lesson": texts, "trace": trace})
