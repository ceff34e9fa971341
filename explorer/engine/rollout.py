"""Answers sampled from the dynamic rule's verifier, with the few numbers per token that its training needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.decode import Batch
from explorer.engine.drafters import Draft
from explorer.engine.dynamic import check_ensemble
from explorer.engine.events import RoundEvent
from explorer.engine.judge import Judgement
from explorer.engine.models import Pass
from explorer.engine.pair import ModelPair, check_prompt
from explorer.errors import SettingError
from explorer.heads.ensemble import law_figures


@dataclass(slots=True)
class Rollout:
    """One sampled answer.

    Attributes:
        ids: Its tokens.
        logprob: Natural logarithm of its probability to the target, summed over tokens.
        num_drafted, num_accepted, num_rounds: Counts, as in `RoundEvent`.
        places: Which of its tokens were judged; the others came from the target alone.
        inputs: (J, N) what the head saw at each judged token.
        numbers: (J, 5) target's, drafter's and verifier's probability of the token, distance of the laws, weight.
    """

    ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    num_drafted: int = 0
    num_accepted: int = 0
    num_rounds: int = 0
    places: list[int] = field(default_factory=list)
    inputs: Tensor = field(default_factory=lambda: torch.zeros(0))
    numbers: Tensor = field(default_factory=lambda: torch.zeros(0, 5))


def sample_rollouts(
    pair: ModelPair, prompts: Sequence[Sequence[int]], config: DecodeConfig, generator: Generator
) -> list[Rollout]:
    """Answer every prompt once, all at the same time.

    A fully accepted draft is not followed by a token of the target's: it would cost a column of every pass and say
    nothing about the head.

    Args:
        pair: Target, drafter and ensemble head.
        prompts: Token ids, one list per row.
        config: With the dynamic rule and a temperature above 0.
        generator: The only source of randomness.

    Raises:
        SettingError: The temperature is 0, or a prompt is empty or too long.
        ModelPairError: The pair has no head, or one that does not fit.
    """
    if config.temperature == 0 or config.rule != "dynamic":
        raise SettingError("Rollouts are sampled: choose the dynamic rule and a temperature above 0.")
    check_ensemble(pair)
    for ids in prompts:
        check_prompt(pair.target, list(ids))
    batch = _RolloutBatch(pair, prompts, config, generator)
    with torch.inference_mode():
        batch.prefill()
        while batch.rows:
            batch.round()
    return batch.finished()


class _RolloutBatch(Batch):
    """A decode that remembers what its head saw and did."""

    def __init__(
        self, pair: ModelPair, prompts: Sequence[Sequence[int]], config: DecodeConfig, generator: Generator
    ) -> None:
        super().__init__(pair, prompts, config, generator, details=False, has_bonus=False)
        self.rollouts = [Rollout() for _ in prompts]
        self.pieces: list[list[Tensor]] = [[] for _ in prompts]
        self.figures: list[list[Tensor]] = [[] for _ in prompts]

    def _judge(self, result: Pass, draft: Draft) -> Judgement:
        judged = super()._judge(result, draft)
        self.round_inputs, self.round_figures = self._looked_at(result, draft, judged)
        return judged

    def _looked_at(self, result: Pass, draft: Draft, judged: Judgement) -> tuple[Tensor | None, Tensor | None]:
        """(B, K, N) inputs of the head and (B, K, F) figures of the laws, if anything was drafted."""
        K = draft.ids.shape[1]
        if not K:
            return None, None
        figures = law_figures(judged.target_probs[:, :K], draft.laws)
        head = self.pair.ensemble
        return head.gather(draft.hidden, result.last_hidden[:, :K], figures if head.needs_laws else None), figures

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
        for event in events:
            self._record(event, places[event.row], draft, judged)
        return events

    def _record(self, event: RoundEvent, place: int, draft: Draft, judged: Judgement) -> None:
        rollout, ids = self.rollouts[event.row], list(event.emitted_ids)
        width = len(ids)
        emitted = torch.tensor(ids, device=judged.target_probs.device)
        target = judged.target_probs[place, :width].gather(1, emitted.unsqueeze(1)).squeeze(1)
        rollout.logprob += float(target.clamp(min=1e-30).log().sum())
        rollout.num_rounds += 1
        rollout.num_drafted += len(event.draft_ids)
        rollout.num_accepted += event.num_accepted
        J = event.num_tested
        if J:
            drafted = draft.laws[place, :J].gather(1, emitted[:J].unsqueeze(1)).squeeze(1)
            weight = judged.weight[place, :J]
            verifier = weight * target[:J] + (1 - weight) * drafted
            distance = self.round_figures[place, :J, 2]
            numbers = torch.stack([target[:J], drafted, verifier, distance, weight], dim=1)
            self.pieces[event.row].append(self.round_inputs[place, :J].clone())
            self.figures[event.row].append(numbers)
            rollout.places += range(len(rollout.ids), len(rollout.ids) + J)
        rollout.ids += ids

    def finished(self) -> list[Rollout]:
        """The rollouts, their tensors on the CPU and free of inference mode."""
        for rollout, inputs, numbers in zip(self.rollouts, self.pieces, self.figures, strict=True):
            if inputs:
                rollout.inputs = torch.cat(inputs).cpu().clone()
                rollout.numbers = torch.cat(numbers).cpu().clone()
        return self.rollouts
