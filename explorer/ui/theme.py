"""How the page looks and what it loads: theme, style sheets and scripts, all from this folder's `assets`."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from explorer.engine import replay
from explorer.engine.replay import ASSETS

# What a replay does without.
PAGE_SCRIPTS = (
    "link.js",
    "page.js",
    "race.js",
    "laws.js",
    "lesson.js",
    "toy.js",
    "learn.js",
    "costs.js",
    "chart.js",
    "head.js",
)
PAGE_STYLES = ("race.css", "learn.css", "head.css")
ACCENT, ACCENT_DARK = "#0072b2", "#56b4e9"
LOOK = {
    "body_background_fill": "#ffffff",
    "body_background_fill_dark": "#0b0f19",
    "body_text_color": "#1b2430",
    "body_text_color_dark": "#e8ecf3",
    "body_text_color_subdued": "#5a6675",
    "body_text_color_subdued_dark": "#9aa5b5",
    "background_fill_primary": "#ffffff",
    "background_fill_primary_dark": "#0b0f19",
    "block_background_fill": "transparent",
    "block_background_fill_dark": "transparent",
    "block_border_width": "0px",
    "block_border_width_dark": "0px",
    "block_padding": "0px",
    "block_label_text_color": "#5a6675",
    "block_title_text_color": "#5a6675",
    "block_title_text_color_dark": "#9aa5b5",
    "block_title_text_weight": "400",
    "block_info_text_color": "#5a6675",
    "block_info_text_color_dark": "#9aa5b5",
    "border_color_primary": "#d5dbe3",
    "border_color_primary_dark": "#2a3342",
    "input_background_fill": "#ffffff",
    "input_background_fill_dark": "#0f1522",
    "input_border_width": "1px",
    "input_border_color": "#c5ccd6",
    "input_border_color_dark": "#364052",
    "input_border_color_focus": ACCENT,
    "input_border_color_focus_dark": ACCENT_DARK,
    "slider_color": ACCENT,
    "slider_color_dark": ACCENT_DARK,
    "button_primary_background_fill": ACCENT,
    "button_primary_background_fill_dark": ACCENT_DARK,
    "button_primary_background_fill_hover": "#005f96",
    "button_primary_background_fill_hover_dark": "#7cc6f0",
    "button_primary_text_color": "#ffffff",
    "button_primary_text_color_dark": "#0b0f19",
    "button_secondary_background_fill": "transparent",
    "button_secondary_background_fill_dark": "transparent",
    "button_secondary_border_color": "#c5ccd6",
    "button_secondary_border_color_dark": "#364052",
    "button_secondary_text_color": "#1b2430",
    "button_secondary_text_color_dark": "#e8ecf3",
    "button_border_width": "1px",
    "color_accent": ACCENT,
}


def css_paths() -> list[Path]:
    """Style sheets of gradio's own parts. Gradio rewrites their selectors, and drops container queries on the way."""
    return [ASSETS / "style.css", ASSETS / "frontier.css"]


def head() -> str:
    """The view's style and scripts, inline and as they are: nothing is fetched from elsewhere."""
    page = "\n".join((ASSETS / "js" / name).read_text("utf-8") for name in PAGE_SCRIPTS)
    style = "\n".join((ASSETS / name).read_text("utf-8") for name in PAGE_STYLES)
    assert "</script" not in page
    # share.js makes replays of the first two elements and the shell.
    return (
        f'<style id="sv-style">{replay.style()}</style>\n<script id="sv-script">{replay.script()}</script>\n'
        f"<style>\n{style}\n</style>\n"
        f"<script>\nwindow.SpecView.shell = {replay.harmless_json(replay.shell())};\n{page}\n</script>"
    )


def theme() -> gr.themes.Base:
    """Quiet neutrals and one accent, light and dark."""
    font = (gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "ui-sans-serif", "system-ui", "sans-serif")
    return gr.themes.Base(font=font, text_size="sm", radius_size="sm", spacing_size="sm").set(**LOOK)
