"""What `bench speed` compares: things that answer a batch of prompts, and the clock around them.

Every clock runs from the call to the last token, reading the prompts included, whoever answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from explorer.engine.sampling import Sampler

# Greedy, plain sampling, and sampling from a nucleus.
GREEDY, PLAIN, NUCLEUS = Sampler(temperature=0.0), Sampler(temperature=1.0), Sampler(temperature=1.0, top_p=0.95)
SAMPLERS = (GREEDY, PLAIN, NUCLEUS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message, and its ids in the target's chat template."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Written:
    """Answers to a batch of prompts.

    Attributes:
        num_tokens: Of all answers, end tokens included.
        seconds: Wall clock of the whole call.
        ids: Tokens of each answer, or () where they are not told.
        num_rounds: Rounds of all rows; 0 where there are none to count.
    """

    num_tokens: int
    seconds: float
    ids: tuple[tuple[int, ...], ...] = ()
    num_rounds: int = 0


Write = Callable[[Sequence[Prompt], int, int], Written]


@dataclass(frozen=True, slots=True, eq=False)
class Contestant:
    """One row of the report.

    Attributes:
        name: For people; with batch, precision and sampler it is unique.
        precision: Of the weights.
        sampler: How tokens are drawn.
        write: Answers prompts, given a seed and the most tokens of each answer.
        batch: Prompts answered at once.
        is_hf: Whether it is HF's plain `generate`, which the others are compared with.
        draft_length: K of ours, None where nothing of ours drafts.
    """

    name: str
    precision: str
    sampler: Sampler
    write: Write
    batch: int = 1
    is_hf: bool = False
    draft_length: int | None = None

    @property
    def setting(self) -> tuple[int, float, float]:
        """Batch, temperature and top-p: what two rows must share to be compared."""
        return self.batch, self.sampler.temperature, self.sampler.top_p
