r"""Numbers in text, and which of them is the answer. Exact arithmetic: every number is a Fraction.

What is read: signs (also U+2212), thousands with commas, decimals, exponents, fractions, mixed numbers, LaTeX's \frac;
currency, percent signs and units around a number are passed over, so "12 %" is 12. Not read: words ("twelve"), decimal
commas ("3,5" is a 3 and a 5), numbers inside names ("H2O"), NaN and infinities, numbers of more than 300 digits.
"""

from __future__ import annotations

import re
from fractions import Fraction

_MOST_DIGITS = 300
# Text beyond this is no answer; it bounds the time that a hostile completion can take.
_MOST_CHARACTERS = 20_000

_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![0-9A-Za-z)\]}%])[-\u2212])?   # "10-3" is a 10 and a 3
    (?:[$€£¥]\ ?(?P<inner>[-\u2212])?)?
    (?<![0-9A-Za-z])
    (?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?<!\.)(?=\.[0-9]))
    (?P<decimals>\.[0-9]+)?
    (?P<exponent>[eE][-+]?[0-9]{1,2}(?![0-9A-Za-z]))?
    (?:
      (?:\ (?P<top>[0-9]{1,9}))?/(?P<bottom>[0-9]{1,9})(?![0-9/]|[.,][0-9])   # 1/2, 1 1/2; no date, no 1/2.5
    )?
    """,
    re.VERBOSE,
)
_FRAC = re.compile(r"(?P<whole>[0-9])?\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_ANSWER = re.compile(r"\banswer\b[^0-9\n]{0,20}?(?:\bis\b|:|=)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")


def find_numbers(text: str) -> list[Fraction]:
    """Every number of the text, in order."""
    plain = _plain(text[:_MOST_CHARACTERS])
    values = (_value(match) for match in _NUMBER.finditer(plain))
    return [value for value in values if value is not None]


def find_integers(text: str) -> list[int]:
    """The whole numbers among `find_numbers`."""
    return [int(value) for value in find_numbers(text) if value.denominator == 1]


def final_answer(text: str) -> Fraction | None:
    r"""The number that a worked answer arrives at, or None if it states none.

    The first of these that holds a number: after the first "####" (a second one belongs to a made-up next question); in
    the last \boxed{}; in the sentence after the last "answer is" or "answer:"; anywhere, the last number. Where that
    place holds an equation, its right-hand side counts.
    """
    text = text[:_MOST_CHARACTERS]
    stated = [text.partition("####")[2].lstrip().partition("\n")[0], _boxed(text)]
    phrases = list(_ANSWER.finditer(text))
    if phrases:
        stated.append(_SENTENCE_END.split(text[phrases[-1].end() :].lstrip(), maxsplit=1)[0])
    for place in stated:
        numbers = find_numbers(place.rpartition("=")[2]) or find_numbers(place)
        if numbers:
            return numbers[0]
    numbers = find_numbers(text)
    return numbers[-1] if numbers else None


def _plain(text: str) -> str:
    """LaTeX's ways of writing numbers as plain text."""
    text = text.replace("{,}", ",").replace("\\,", "").replace("\\!", "").replace("\\$", "$").replace("\\%", "%")
    return _FRAC.sub(lambda match: f"{match[1]} {match[2]}/{match[3]}" if match[1] else f"{match[2]}/{match[3]}", text)


def _boxed(text: str) -> str:
    r"""What is inside the last \boxed{}; braces may nest."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    inside = text[start + len("\\boxed{") :]
    depth = 1
    for position, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return inside[:position]
    return inside


def _value(match: re.Match[str]) -> Fraction | None:
    """Value of a match, or None if it has no value or is too long to be one."""
    whole, decimals = match["whole"].replace(",", ""), match["decimals"] or ""
    if len(whole) + len(decimals) > _MOST_DIGITS:
        return None
    value = Fraction((whole or "0") + decimals + (match["exponent"] or ""))
    if match["bottom"]:
        bottom = int(match["bottom"])
        if bottom == 0:
            return None
        value = value + Fraction(int(match["top"]), bottom) if match["top"] else value / bottom
    is_negative = bool(match["sign"]) != bool(match["inner"])
    return -value if is_negative else value
