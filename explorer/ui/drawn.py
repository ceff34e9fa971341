"""A place on the page that our own JavaScript draws."""

from __future__ import annotations

import gradio as gr


def drawn(elem_id: str, value: str, classes: str, drawing: str) -> gr.HTML:
    """A component whose value is data for a drawing of our own.

    The template is fixed: text of a model or a visitor never enters one.

    Args:
        elem_id: Of the component.
        value: What it shows.
        classes: CSS classes of the element that is drawn in.
        drawing: Function of `window.SpecView` that draws, such as "page.view".
    """
    return gr.HTML(
        value,
        html_template=f'<div class="{classes}"></div>',
        js_on_load=f"window.SpecView.{drawing}(element, props, watch)",
        apply_default_css=False,
        elem_id=elem_id,
    )
