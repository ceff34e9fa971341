"""What a terminal is sent: marks by fate, progress, and no control character."""

import io

import pytest

from explorer.cli import terminal
from explorer.cli.terminal import ProgressLine, harmless, painted, painted_round


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True

    def reconfigure(self, **options):
        pass


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\n\twith 🙂 日本", "plain text\n\twith 🙂 日本"),
        ("\x1b[31m", "␛[31m"),
        ("a\rb\x00\x07", "a␍b␀␇"),
        ("\x7f", "␡"),
        ("\x9b31m\x85", "\ufffd31m\ufffd"),
        ("\u202eevil\u2066", "\ufffdevil\ufffd"),
        ("\udc80", "\ufffd"),
    ],
)
def test_harmless(text, shown):
    assert harmless(text) == shown


@pytest.mark.parametrize(
    ("text", "fate", "colour", "shown"),
    [
        (" word", "accepted", True, " \x1b[34mword\x1b[0m"),
        (" word", "rejected", True, " \x1b[9;31m✗word\x1b[0m"),
        (" word", "residual", True, " \x1b[4;35mword\x1b[0m"),
        (" word\n", "bonus", True, " \x1b[1;32mword\x1b[0m\n"),
        (" word", "rejected", False, " [-word-]"),
        ("\n", "rejected", False, "[-⏎-]"),
        ("  ", "rejected", True, "\x1b[9;31m✗␣\x1b[0m"),
        ("a\nb", "rejected", False, "[-a⏎b-]"),
        ("\n\n", "accepted", True, "\n\n"),
        ("\x1b[2J", "accepted", True, "\x1b[34m␛[2J\x1b[0m"),
        ("", "residual", True, ""),
        ("", "rejected", True, "\x1b[9;31m✗⋯\x1b[0m"),
        ("{}", "bonus", False, "*{}*"),
    ],
)
def test_painted(text, fate, colour, shown):
    assert painted(text, fate, colour) == shown


def test_round_shows_what_was_tested_and_hides_the_end_token():
    drafts = [
        {"text": "a", "fate": "accepted"},
        {"text": "b", "fate": "rejected"},
        {"text": "c", "fate": "discarded"},
    ]
    record = {"drafts": drafts, "next": {"text": "d", "fate": "residual"}}
    assert painted_round(record, frozenset(), colour=False) == "a[-b-]{+d+}"
    record = {"drafts": drafts[:1], "next": {"text": "<|end|>", "fate": "bonus"}}
    assert painted_round(record, frozenset({"<|end|>"}), colour=False) == "a"
    assert painted_round({"drafts": drafts[:1], "next": None}, frozenset(), colour=False) == "a"
    record = {"drafts": [{"text": "<|end|>", "fate": "rejected"}], "next": {"text": "d", "fate": "residual"}}
    assert painted_round(record, frozenset({"<|end|>"}), colour=False) == "[-<|end|>-]{+d+}"


def test_round_without_drafts_is_plain():
    record = {"drafts": [], "next": {"text": " the\x1b", "fate": "bonus"}}
    assert painted_round(record, frozenset(), colour=True) == " the␛"
    assert painted_round(record, frozenset({" the\x1b"}), colour=True) == ""


@pytest.mark.parametrize(("is_tty", "no_color", "term", "wanted"), [
    (True, "", "xterm", True), (True, "1", "xterm", False), (False, "", "xterm", False), (True, "", "dumb", False),
])  # fmt: skip
def test_colour_only_where_it_is_wanted(monkeypatch, is_tty, no_color, term, wanted):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert terminal.is_colour_wanted(Terminal() if is_tty else io.StringIO()) is wanted


def test_progress_rewrites_one_line_of_a_terminal_and_clears_it():
    stream = Terminal()
    with ProgressLine(stream) as progress:
        progress("Fetching", 1, 4)
        progress("Fetching", 1, 4)
        progress("Checking", 0, 0)
    assert stream.getvalue() == "\r\x1b[KFetching 25 %\r\x1b[KChecking\r\x1b[K"


def test_progress_elsewhere_says_each_step_once():
    stream = io.StringIO()
    with ProgressLine(stream) as progress:
        for done in range(3):
            progress("Fetching", done, 4)
        progress("Checking\x1b", 0, 0)
    assert stream.getvalue() == "Fetching\nChecking␛\n"
