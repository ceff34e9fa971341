"""A trace as one HTML file that plays it: the page's own scripts and style, and nothing loaded from anywhere.

The browser makes the same file from the same parts (`assets/js/share.js`); a test compares them byte for byte. Only the
trace is text that is not ours. It enters as JSON in plain ASCII without `<`, `>` or `&`, so it can be no markup.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from explorer.engine.trace import read_trace
from explorer.errors import SettingError, TraceError

ASSETS = Path(__file__).resolve().parents[2] / "assets"
# Order matters: each script adds to `window.SpecView` and may use what the earlier ones put there.
SCRIPTS = (
    "trace.js",
    "dom.js",
    "header.js",
    "answer.js",
    "player.js",
    "lanes.js",
    "inspector.js",
    "share.js",
    "files.js",
    "whatif.js",
    "whatif_panel.js",
    "view.js",
)
STYLES = ("view.css", "whatif.css")
SUFFIXES = (".html", ".htm")
GENERATOR = 'content="speculative-decoding-explorer replay"'


def style() -> str:
    """The view's style sheets in one, as they stand between the tags."""
    return "\n" + "\n".join((ASSETS / name).read_text("utf-8") for name in STYLES) + "\n"


def script() -> str:
    """The view's scripts in one, as they stand between the tags."""
    code = "\n".join((ASSETS / "js" / name).read_text("utf-8") for name in SCRIPTS)
    assert "</script" not in code
    assert "<!--" not in code
    return "\n" + code + "\n"


def shell() -> str:
    """The page with a comment where its style, its trace and its scripts belong, in this order."""
    return (ASSETS / "replay.html").read_text("utf-8")


def harmless_json(text: str) -> str:
    """The text as a JSON string that is plain ASCII and can neither end a script element nor begin a comment in it."""
    return re.sub(r"[<>&\x7f]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text))


def replay_page(trace: str) -> str:
    """The whole file.

    Args:
        trace: Text of a trace, kept as it is.

    Raises:
        TraceError: It is none.
    """
    read_trace(trace)
    before, middle, later, after = re.split("<!--(?:style|trace|script)-->", shell())
    return before + style() + middle + harmless_json(trace) + later + script() + after


def embed_snippet(name: str) -> str:
    """The element that shows a replay, saved under this name next to it, inside another page."""
    quoted = name.replace("&", "&amp;").replace('"', "&quot;")
    looks = 'width="100%" height="800" style="border:0" loading="lazy"'
    return f'<iframe src="{quoted}" title="Speculative decoding replay" {looks}></iframe>'


def write_replay(source: Path, out: Path) -> Path:
    """Turn a trace file into a page; returns where it is.

    Args:
        source: The trace.
        out: The page; an earlier replay is replaced, anything else is not.

    Raises:
        SettingError: A file cannot be read or written, or would be lost.
        TraceError: The trace is none; the message names the file and the line.
    """
    _check_out(out)
    try:
        text = source.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingError(
            f"replay is {source}, which cannot be read ({error.strerror}). Give a trace, as `decode --trace` saves it."
        ) from None
    except UnicodeDecodeError:
        raise SettingError(
            f"replay is {source}, which is not UTF-8 text. Give a trace, as `decode --trace` saves it."
        ) from None
    try:
        page = replay_page(text)
    except TraceError as error:
        raise TraceError(f"{source}: {error}") from None
    _write(out, page)
    return out


def _check_out(out: Path) -> None:
    """Raise unless a page may be written there."""
    if out.suffix.lower() not in SUFFIXES:
        raise SettingError(f"out is {out}; a replay must end in .html, so that a browser opens it.")
    if not out.exists():
        return
    try:
        with out.open("rb") as file:
            is_ours = GENERATOR.encode() in file.read(1000)
    except OSError as error:
        raise SettingError(f"out is {out}, which is no file ({error.strerror}). Choose another --out.") from None
    if not is_ours:
        raise SettingError(f"out is {out}, which holds something else and would be replaced. Choose a new name.")


def _write(out: Path, page: str) -> None:
    """The whole file or nothing."""
    part = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=out.parent, prefix=f".{out.name}-", delete=False) as file:
            part = Path(file.name)
            file.write(page.encode())
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(out)
    except OSError as error:
        raise SettingError(
            f"out is {out}, which could not be written ({error.strerror}); nothing was changed. Choose another --out."
        ) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
