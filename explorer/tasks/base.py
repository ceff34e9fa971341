"""What every task offers: examples by split, a reward in [0, 1], and when an answer counts as correct.

Called by training and benchmarks. A subclass lists its examples once and scores one answer at a time; choosing a split,
shuffling and limiting are done here. A reward is a function of the answer's text and the example, of nothing else.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from explorer.errors import SettingError

Message = dict[str, str]


@dataclass(frozen=True)
class Example:
    """One prompt with what is needed to judge an answer to it.

    Attributes:
        prompt: Chat turns, each `{"role", "content"}`; solved examples come first, the last turn is the user's.
        reference: The right answer as text; empty where a task has none.
        meta: What else the reward needs, by task.
    """

    prompt: list[Message]
    reference: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


class Task(ABC):
    """Prompts and reward of one kind of work.

    Attributes:
        name: As in `TASKS`.
        splits: Names that `examples` takes; no prompt is in two of them.
        max_new_tokens: Longest answer worth sampling.
        is_graded: Whether rewards between 0 and 1 occur.
        correct_at: Smallest reward of a correct answer; None where no answer is right or wrong.
        needs_logprobs: Whether `reward` also wants the target's mean log-probability of the answer.
        runs_code: Whether `reward` runs what the model wrote.
    """

    name: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    max_new_tokens: ClassVar[int]
    is_graded: ClassVar[bool] = True
    correct_at: ClassVar[float | None] = None
    needs_logprobs: ClassVar[bool] = False
    runs_code: ClassVar[bool] = False
    takes_data: ClassVar[bool] = True
    most_shots: ClassVar[int] = 0

    def __init__(self, data: Path | None = None, *, num_shots: int = 0) -> None:
        if data is not None and not self.takes_data:
            raise SettingError(f"{self.name} makes its own examples and takes no data ({data}). Leave the data out.")
        if not 0 <= num_shots <= self.most_shots:
            raise SettingError(
                f"num_shots is {num_shots}; {self.name} takes 0 to {self.most_shots} solved examples in its prompts."
            )
        self._by_split = self._load(data, num_shots)

    @abstractmethod
    def _load(self, data: Path | None, num_shots: int) -> dict[str, list[Example]]:
        """All examples by split, in an order that depends on the data only."""

    @abstractmethod
    def reward(self, completion: str, example: Example) -> float:
        """How good the answer is, in [0, 1]."""

    def examples(self, split: str, limit: int | None = None, seed: int = 0) -> list[Example]:
        """Examples of a split, shuffled by `seed`; the seed never moves an example to another split.

        Args:
            split: One of `splits`.
            limit: Most examples to return, at least 1; all of them if None or if there are fewer.
            seed: Of the order.

        Raises:
            SettingError: No such split, a limit below 1, or an empty split.
        """
        if split not in self.splits:
            raise SettingError(f"{self.name} has no split {split!r}; choose one of {', '.join(self.splits)}.")
        if limit is not None and limit < 1:
            raise SettingError(f"limit is {limit}; it must be at least 1, or left out for every example.")
        chosen = list(self._by_split.get(split, ()))
        if not chosen:
            raise SettingError(f"The data of {self.name} has nothing for its {split} split. Give a longer file.")
        random.Random(seed).shuffle(chosen)
        return chosen[:limit]

    def is_correct(self, reward: float) -> bool | None:
        """Whether an answer of this reward is right; None where the task knows no right and wrong."""
        return None if self.correct_at is None else reward >= self.correct_at


def user(content: str) -> Message:
    """A turn of the user's."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """A turn of the model's."""
    return {"role": "assistant", "content": content}


def is_held_out(key: str, share: float) -> bool:
    """Whether an example belongs to the test split when one file must serve both.

    Decided by a hash of its text: the same in every run, on every machine and for every seed, and equal texts (up to
    case and spaces) stay together.

    Args:
        key: Text that identifies the example.
        share: Share of the examples to hold out, in [0, 1].
    """
    digest = hashlib.sha256(normalise(key).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < share


def normalise(text: str) -> str:
    """The text in lower case with single spaces: what decides whether two prompts are the same."""
    return " ".join(text.lower().split())


def by_hash(keyed: list[tuple[str, Example]], share: float) -> dict[str, list[Example]]:
    """Train and test splits of one file, each text once; `keyed` pairs the identifying text with its example."""
    unique: dict[str, Example] = {}
    for key, example in keyed:
        unique.setdefault(normalise(key), example)
    splits: dict[str, list[Example]] = {"train": [], "test": []}
    for key, example in unique.items():
        splits["test" if is_held_out(key, share) else "train"].append(example)
    return splits
