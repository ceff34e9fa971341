"""Generated word problems that the default target solves about two times in three, with three solved examples.

The numbers decide the reward, most of the words do not: that is where a weight chosen token by token can beat a fixed
one. Nothing is read or fetched. Source: notes on a prototype of DIVERSED's head (arXiv 2604.07622) on SmolLM2-135M.
"""

from __future__ import annotations

import random
from pathlib import Path

from explorer.tasks.answers import find_integers
from explorer.tasks.base import Example, Message, Task, assistant, user

QUESTION = "I have {a} {noun} and I get {b} more. How many {noun} do I have?"
ANSWER = "{a} + {b} = {c}, so you have {c} {noun}."
# Each is one token of SmolLM2 after a space, so that all prompts have one length and batches need no padding.
NOUNS = (
    "apples", "books", "cards", "coins", "cups", "dogs", "eggs", "flowers", "stars", "keys",
    "pens", "shoes", "stones", "toys", "trees", "cats", "boxes", "bags", "balls", "birds",
)  # fmt: skip
SHOTS = ((2, 3, "tickets"), (7, 8, "chairs"), (9, 4, "rings"))
NUM_HELD_OUT_PAIRS = 27

# Shares of the reward: the last whole number, the first one after "=", and the sentence as it should be.
LAST, FIRST, FORM = 0.5, 0.2, 0.3


class Arithmetic(Task):
    """a + b for a and b from 1 to 9, asked with 20 nouns: 54 pairs of operands to train on, 27 held out.

    a + b and b + a are in the same split, and the pairs of the solved examples are among those for training.
    """

    name = "arithmetic"
    max_new_tokens = 24
    is_graded = True
    correct_at = LAST
    takes_data = False

    def _load(self, data: Path | None, num_shots: int) -> dict[str, list[Example]]:  # noqa: ARG002
        train, test = split_pairs()
        return {"train": _problems(train), "test": _problems(test)}

    def reward(self, completion: str, example: Example) -> float:
        """Half for the right last whole number, .2 for the first after "=", .3 for the whole sentence word for word.

        The sentence as it should be therefore gets 1, and an answer is correct (.5 or more) if and only if its last
        whole number is the sum. The form alone, with wrong numbers, gets nothing.
        """
        if completion.strip() == example.reference:
            return 1.0
        after = find_integers(completion.partition("=")[2])
        is_first_right = bool(after) and after[0] == example.meta["sum"]
        return LAST * reward_last_integer(completion, example) + FIRST * is_first_right


def reward_last_integer(completion: str, example: Example) -> float:
    """1 if the last whole number of the answer is the sum, else 0: the reward of the prototype's figures."""
    numbers = find_integers(completion)
    return float(bool(numbers) and numbers[-1] == example.meta["sum"])


def split_pairs() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Operand pairs to train on and pairs held out; always the same."""
    shown = {tuple(sorted(shot[:2])) for shot in SHOTS}
    groups = [(a, b) for a in range(1, 10) for b in range(a, 10) if (a, b) not in shown]
    random.Random(0).shuffle(groups)
    doubles = [pair for pair in groups if pair[0] == pair[1]][:3]
    mixed = [pair for pair in groups if pair[0] != pair[1]][: (NUM_HELD_OUT_PAIRS - len(doubles)) // 2]
    held_out = {*doubles, *mixed, *((b, a) for a, b in mixed)}
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    return [pair for pair in pairs if pair not in held_out], [pair for pair in pairs if pair in held_out]


def _problems(pairs: list[tuple[int, int]]) -> list[Example]:
    shots: list[Message] = []
    for a, b, noun in SHOTS:
        shots += [user(_fill(QUESTION, a, b, noun)), assistant(_fill(ANSWER, a, b, noun))]
    return [
        Example([*shots, user(_fill(QUESTION, a, b, noun))], _fill(ANSWER, a, b, noun), {"sum": a + b})
        for a, b in pairs
        for noun in NOUNS
    ]


def _fill(form: str, a: int, b: int, noun: str) -> str:
    return form.format(a=a, b=b, c=a + b, noun=noun)
