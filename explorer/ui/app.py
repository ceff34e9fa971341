"""The whole page as one gradio app."""

from __future__ import annotations

from typing import Any

import gradio as gr

from explorer.ui.api import add_decode, has_mcp
from explorer.ui.backend import Backend
from explorer.ui.loading import Loader
from explorer.ui.runs import Registry
from explorer.ui.tabs import decode, frontier, learn, race, train
from explorer.ui.tabs import head as heads
from explorer.ui.theme import css_paths, head, theme

TITLE = "Speculative decoding explorer"


def build_app(backend: Backend, *, preload: bool = False) -> gr.Blocks:
    """The page over a backend. Nothing is loaded before the first run, or, with `preload`, before the app is built.

    Args:
        backend: Where runs come from.
        preload: Whether to begin loading the default drafter's pair at once, in the background.
    """
    loader, registry = Loader(backend), Registry()
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as app:
        gr.Markdown(f"# {TITLE}", elem_id="title")
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("Decode", id="decode", render_children=True):
                view, controls = decode.build(backend, loader, registry)
            with gr.Tab("Learn"):
                learn.build()
            with gr.Tab("Race", id="race"):
                race.build(backend, loader, registry)
            with gr.Tab("Head") as head_tab:
                heads.build(backend, loader, head_tab)
            with gr.Tab("Frontier"):
                frontier.build(backend, controls, tabs)
            if backend.jobs is not None:
                with gr.Tab("Train"):
                    train.build(backend.jobs, backend.target, backend.drafters[0][1], view, tabs)
        add_decode(backend, loader, registry)
    app.queue(max_size=64)
    if preload:
        loader.start(backend.drafters[0][1])
    return app


def launch_options(host: str | None = None, port: int | None = None, *, share: bool = False) -> dict[str, Any]:
    """What `Blocks.launch` needs for this page: address, looks, scripts, and nothing that leaves the machine."""
    return {
        "server_name": host,
        "server_port": port,
        "share": share,
        "theme": theme(),
        "css_paths": css_paths(),
        "head": head(),
        "footer_links": [],
        "run_history": False,
        "ssr_mode": False,
        "show_error": True,
        "mcp_server": has_mcp(),
        "state_session_capacity": 200,
    }
