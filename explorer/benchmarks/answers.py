"""Answers of a task's prompts under one rule, with what was accepted and what should have been, prompt by prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator

from explorer.engine.config import DecodeConfig
from explorer.engine.decode import Batch
from explorer.engine.drafters import Draft
from explorer.engine.events import RoundEvent
from explorer.engine.judge import Judgement
from explorer.engine.pair import ModelPair


@dataclass(slots=True)
class Answer:
    """One answer.

    Attributes:
        ids: Its tokens.
        num_rounds, num_drafted, num_tested, num_accepted: Counts of its rounds.
        expected: Sum over rounds of the exact expected number of accepted drafts, given what was drafted.
        rejection, bias: Sums over tested drafts of w TV and (1 - w) TV; together TV. NaN under the lossy rule, which
            has no weight.
        distance: Sum over tested drafts of TV.
        logprob: Of its tokens to the target, in nats.
    """

    ids: list[int]
    num_rounds: int = 0
    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    expected: float = 0.0
    rejection: float = 0.0
    bias: float = 0.0
    distance: float = 0.0
    logprob: float = 0.0


def answer_all(
    pair: ModelPair, prompts: Sequence[Sequence[int]], config: DecodeConfig, generator: Generator
) -> tuple[list[Answer], float]:
    """Answer a batch of prompts; returns the answers and the seconds it took.

    Args:
        pair: Target, drafter and, for the dynamic rule, ensemble head.
        prompts: Token ids, one list per row.
        config: Rule and settings.
        generator: The only source of randomness.
    """
    batch = _CountingBatch(pair, prompts, config, generator)
    began = time.perf_counter()
    with torch.inference_mode():
        batch.prefill()
        while batch.rows:
            batch.round()
    return batch.answers, time.perf_counter() - began - batch.counting_s


class _CountingBatch(Batch):
    """A decode that counts. What counting costs is left out of its time."""

    def __init__(
        self, pair: ModelPair, prompts: Sequence[Sequence[int]], config: DecodeConfig, generator: Generator
    ) -> None:
        super().__init__(pair, prompts, config, generator, details=False)
        self.answers = [Answer([]) for _ in prompts]
        self.counting_s = 0.0

    def _emit(
        self,
        draft: Draft,
        judged: Judgement,
        accepted: list[int],
        next_ids: list[int],
        clock: tuple[float, float, float],
    ) -> list[RoundEvent]:
        places = {row.index: place for place, row in enumerate(self.rows)}
        events = super()._emit(draft, judged, accepted, next_ids, clock)
        began = time.perf_counter()
        self._count(events, places, draft, judged)
        self.counting_s += time.perf_counter() - began
        return events

    def _count(self, events: Sequence[RoundEvent], places: dict[int, int], draft: Draft, judged: Judgement) -> None:
        K = draft.ids.shape[1]
        inside = torch.arange(K, device=draft.ids.device) < draft.lengths.unsqueeze(1)
        chances = torch.where(inside, judged.accept_probs, 0.0)
        expected = chances.cumprod(1).sum(1).tolist()
        distance = None
        if judged.target_probs is not None and draft.laws is not None and K:
            distance = 1 - torch.minimum(judged.target_probs[:, :K], draft.laws).sum(-1)
        for event in events:
            answer, place, J = self.answers[event.row], places[event.row], event.num_tested
            ids = list(event.emitted_ids)
            answer.num_rounds += 1
            answer.num_drafted += len(event.draft_ids)
            answer.num_tested += J
            answer.num_accepted += event.num_accepted
            answer.expected += expected[place]
            if judged.target_probs is not None and ids:
                emitted = torch.tensor(ids, device=draft.ids.device).unsqueeze(1)
                probs = judged.target_probs[place, : len(ids)].gather(1, emitted)
                answer.logprob += float(probs.clamp(min=1e-30).log().sum())
            if distance is not None and J:
                apart = distance[place, :J]
                weight = judged.weight[place, :J] if judged.weight is not None else torch.full_like(apart, torch.nan)
                answer.distance += float(apart.sum())
                answer.rejection += float((weight * apart).sum())
                answer.bias += float(((1 - weight) * apart).sum())
            answer.ids += ids
