"""A decode with clocks on it: the drafter's head, the rest of the draft, and the verification."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.models import Pass
from explorer.engine.pair import ModelPair
from explorer.engine.sampling import Sampler
from explorer.heads.choice import mass_outside


class TimedHead(nn.Module):
    """A head and a clock around its calls. On a GPU each call is waited for, which the calls alone would not do.

    Attributes:
        seconds: Spent inside the head since the last `reset`.
        num_calls: Calls since then.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.max_rank: int = getattr(head, "max_rank", 0)
        self.reset()

    def reset(self) -> None:
        """Set the clock to zero."""
        self.seconds, self.num_calls = 0.0, 0

    def forward(self, hidden: Tensor, rank: int = 0) -> Tensor:
        """The head's logits (..., V)."""
        _wait(hidden)
        began = time.perf_counter()
        logits = self.head(hidden, rank)
        _wait(logits)
        self.seconds += time.perf_counter() - began
        self.num_calls += 1
        return logits

    def num_parameters(self, rank: int = 0) -> int:
        """Weights the head reads for one token."""
        return self.head.num_parameters(rank)


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


@dataclass(slots=True)
class Timing:
    """Where the time of some decodes went, reading the prompts left out.

    Attributes:
        decode_s: Seconds of all rounds, with everything between them.
        draft_s, verify_s: Seconds in drafts (the head's among them) and in the target's passes with the rule.
        head_s: Seconds in the drafter's head.
        num_rounds: Rounds of a batch, however many rows it still had.
        num_head_calls: Calls of the head.
        emitted, row_rounds: Tokens and rounds of every prompt, by its number.
    """

    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    head_s: float = 0.0
    num_rounds: int = 0
    num_head_calls: int = 0
    emitted: dict[int, int] = field(default_factory=dict)
    row_rounds: dict[int, int] = field(default_factory=dict)

    def add(self, other: Timing) -> None:
        """Count other decodes in."""
        for name in ("decode_s", "draft_s", "verify_s", "head_s", "num_rounds", "num_head_calls"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.emitted, other.emitted), (self.row_rounds, other.row_rounds)):
            for prompt, number in theirs.items():
                mine[prompt] = mine.get(prompt, 0) + number

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all rows / decode_s."""
        return sum(self.emitted.values()) / self.decode_s

    @property
    def tokens_per_round(self) -> float:
        """Tokens / rounds of a row (tau)."""
        return sum(self.emitted.values()) / sum(self.row_rounds.values())

    @property
    def head_call_s(self) -> float:
        """Seconds of one call of the head."""
        return self.head_s / self.num_head_calls

    @property
    def kappa(self) -> float:
        """Seconds of the head / seconds of everything else."""
        return self.head_s / (self.decode_s - self.head_s)


def timed_decode(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    numbers: Sequence[int],
    config: DecodeConfig,
    timer: TimedHead | None,
) -> Timing:
    """Decode a batch and say where the time went.

    Args:
        pair: Target and drafter.
        prompts: Token ids, one list per row.
        numbers: What to call each row's prompt; two rows may hold the same one.
        config: Rule and settings.
        timer: The clock in the drafter's head, None where nothing drafts.
    """
    timing, last_row = Timing(), -1
    if timer is not None:
        timer.reset()
    began = started = time.perf_counter()
    for event in decode(pair, prompts, config):
        if not timing.num_rounds:  # the first event comes after the prompts are read and the first round is done
            started = max(began, time.perf_counter() - event.draft_s - event.verify_s)
        if not timing.num_rounds or event.row <= last_row:  # within a round, rows come in ascending order
            timing.num_rounds += 1
            timing.draft_s += event.draft_s
            timing.verify_s += event.verify_s
        last_row, number = event.row, numbers[event.row]
        timing.emitted[number] = timing.emitted.get(number, 0) + len(event.emitted_ids)
        timing.row_rounds[number] = timing.row_rounds.get(number, 0) + 1
    timing.decode_s = time.perf_counter() - started
    if timer is not None:
        timing.head_s, timing.num_head_calls = timer.seconds, timer.num_calls
    return timing


def judged_mass_outside(
    pair: ModelPair, prompts: Sequence[Sequence[int]], config: DecodeConfig, kept: Tensor
) -> float | None:
    """Mean target mass in [0, 1] outside the kept tokens, over the positions where a draft was judged.

    At temperature 0 the target's law is its one choice. None if no draft was judged.

    Args:
        pair: Target and the drafter whose drafts are judged.
        prompts: Token ids; decoded one by one.
        config: Rule and settings.
        kept: (N,) int64 ids that can be drafted.
    """
    sampler = Sampler.of(config)
    laws: list[Tensor] = []
    target = copy.copy(pair.target)

    def forward(*arguments: Any, keep: int, **options: Any) -> Pass:
        result = pair.target.forward(*arguments, keep=keep, **options)
        if keep:  # a round; passes that read the prompt keep no logits
            laws.append(_laws(result.logits[0], sampler))
        return result

    target.forward = forward
    total, count = 0.0, 0
    for prompt in prompts:
        for event in decode(ModelPair(target, pair.drafter), [prompt], config):
            judged = laws.pop()[: event.num_tested]
            if len(judged):
                total += mass_outside(judged, kept) * len(judged)
                count += len(judged)
    return total / count if count else None


def _laws(logits: Tensor, sampler: Sampler) -> Tensor:
    """(T, V) laws tokens are drawn from; one-hot if greedy."""
    if sampler.is_greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return sampler.probs(logits)
