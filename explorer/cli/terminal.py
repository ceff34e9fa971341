"""What a terminal shows: tokens marked by fate, progress, and never a control character that a model wrote."""

from __future__ import annotations

import os
import unicodedata
from types import TracebackType
from typing import Any, TextIO

# Fate -> (how it looks in colour, how it looks without); told apart by line style and glyph, not by colour alone.
STYLES = {
    "accepted": ("\x1b[34m{}\x1b[0m", "{}"),
    "rejected": ("\x1b[9;31m✗{}\x1b[0m", "[-{}-]"),
    "residual": ("\x1b[4;35m{}\x1b[0m", "{{+{}+}}"),
    "bonus": ("\x1b[1;32m{}\x1b[0m", "*{}*"),
}
BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def harmless(text: str) -> str:
    """The text with every control character but newline and tab made visible, and direction overrides taken out."""
    return "".join(_harmless(character) for character in text)


def _harmless(character: str) -> str:
    if character in "\n\t":
        return character
    if character in BIDI_CONTROLS or unicodedata.category(character) in ("Cc", "Cs"):
        code = ord(character)
        return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"
    return character


def is_colour_wanted(stream: TextIO) -> bool:
    """Whether ANSI sequences may go to this stream (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, fate: str, colour: bool) -> str:
    """One token as the terminal shows it; white space around the token keeps its place and takes no style."""
    text = harmless(text)
    if fate == "rejected":  # nothing it holds may break the line or look like nothing at all
        text = _visible(text)
    body = text.strip()
    if not body:
        return text
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return before + STYLES[fate][0 if colour else 1].format(body) + after


def _visible(text: str) -> str:
    """The text on one line; white space alone as a sign, and part of a character as dots."""
    if text.strip():
        return text.replace("\n", "⏎").replace("\t", "⇥")
    return "⏎" if "\n" in text else "␣" if text else "⋯"


def painted_round(record: dict[str, Any], hidden: frozenset[str], colour: bool) -> str:
    """A round of a trace: its accepted drafts, the rejected one, and what follows; untested drafts are left out.

    A round without drafts is a plain step of the target, and shown plainly.

    Args:
        record: A `round` record of the trace.
        hidden: Texts of emitted tokens not shown, such as the end token's.
        colour: Whether ANSI sequences may be used.
    """
    following = record["next"]
    if not record["drafts"]:
        return "" if following["text"] in hidden else harmless(following["text"])
    tokens = [token for token in (*record["drafts"], following) if token and token["fate"] in STYLES]
    is_shown = [token["fate"] == "rejected" or token["text"] not in hidden for token in tokens]
    return "".join(painted(t["text"], t["fate"], colour) for t, shown in zip(tokens, is_shown, strict=True) if shown)


def legend(colour: bool) -> str:
    """The four looks, each on its own name."""
    return "  ".join(painted(fate, fate, colour) for fate in STYLES)


def summary(end: dict[str, Any]) -> str:
    """One line of figures from a trace's `end` record."""
    speed = f" ({end['tokens_per_s']:.1f} tokens/s)" if end["tokens_per_s"] else ""
    parts = [f"{end['num_emitted']} tokens in {end['elapsed_s']:.2f} s{speed}"]
    if end["num_rounds"]:
        parts.append(f"{end['num_rounds']} rounds, {end['tokens_per_round']:.2f} tokens per round")
    if end["num_drafted"]:
        parts.append(
            f"{end['num_accepted']} of {end['num_drafted']} drafts accepted ({100 * end['acceptance_rate']:.0f} %)"
        )
    return " · ".join(parts)


class ProgressLine:
    """A progress callback that keeps one line of a terminal up to date; elsewhere it writes each step once."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.shown = stream, ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.shown and self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` parts of `what` are done; total 0 means unknown."""
        is_terminal = self.stream.isatty()
        percent = f" {100 * done // total} %" if is_terminal and total else ""
        text = harmless(what).replace("\n", " ") + percent
        if text == self.shown:
            return
        self.shown = text
        self.stream.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
        self.stream.flush()
