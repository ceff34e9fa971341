"""A place on the page that our own JavaScript draws."""

from __future__ import annotations

import gradio as gr


def drawn(elem_id: str, value: str, kind: str) -> gr.HTML:
    """A component whose value is data for `SpecView.page.<kind>`, in the colours of the run's view.

    The template is fixed: text of a model or a visitor never enters one.
    """
    return gr.HTML(
        value,
        html_template=f'<div class="sv-view sv-{kind}"></div>',
        js_on_load=f"window.SpecView.page.{kind}(element, props, watch)",
        apply_default_css=False,
        elem_id=elem_id,
    )
