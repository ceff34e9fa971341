"""Where a round's time goes, and whether it grows with the answer: decodes of their own, no row is timed by them."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from explorer.benchmarks.timing import TimedHead, Timing, timed_decode
from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.drafters import Drafter
from explorer.engine.eagle import EagleDrafter
from explorer.engine.hybrid import HybridDrafter
from explorer.engine.models import LanguageModel, Pass
from explorer.engine.pair import ModelPair

DRIFT_TOKENS = 1000
WINDOWS = 10  # the first and the last tenth of a long answer are compared


class TimedTarget:
    """A target and a clock around its passes that verify; those that read the prompt keep no logits and are left out.

    Attributes:
        model: The target to decode with: the same weights.
        seconds: Spent in those passes.
    """

    def __init__(self, target: LanguageModel) -> None:
        self.seconds = 0.0
        self.model = copy.copy(target)

        def forward(*arguments: Any, keep: int, **options: Any) -> Pass:
            began = time.perf_counter()
            result = target.forward(*arguments, keep=keep, **options)
            if keep:
                if result.logits.is_cuda:
                    torch.cuda.synchronize(result.logits.device)
                self.seconds += time.perf_counter() - began
            return result

        self.model.forward = forward


def phases(pair: ModelPair, prompts: Sequence[Sequence[int]], config: DecodeConfig) -> dict[str, Any]:
    """Milliseconds per round of each part; the parts add up to `round_ms`.

    `draft_body_ms` and `draft_head_ms` are None where a drafter has no head of its own, `draft_ms` is their sum.
    `verify_ms` is the target's pass, `rule_ms` what judges it, `rest_ms` everything outside draft and verification.
    """
    clocked = TimedTarget(pair.target)
    drafter, timer = (None, None) if config.rule == "ar" else with_timer(pair.drafter)
    whole = Timing()
    for number, ids in enumerate(prompts):
        one = ModelPair(clocked.model, drafter, pair.ensemble)
        whole.add(timed_decode(one, [ids], [number], config, timer))

    def per_round(seconds: float) -> float:
        return round(1000 * seconds / whole.num_rounds, 4)

    return {
        "round_ms": per_round(whole.decode_s),
        "draft_ms": per_round(whole.draft_s),
        "draft_body_ms": None if timer is None else per_round(whole.draft_s - whole.head_s),
        "draft_head_ms": None if timer is None else per_round(whole.head_s),
        "verify_ms": per_round(clocked.seconds),
        "rule_ms": per_round(whole.verify_s - clocked.seconds),
        "rest_ms": per_round(whole.decode_s - whole.draft_s - whole.verify_s),
        "num_rounds": whole.num_rounds,
        "tokens_per_round": round(whole.tokens_per_round, 4),
    }


def with_timer(drafter: Drafter | None) -> tuple[Drafter | None, TimedHead | None]:
    """The drafter with a clock in its head, and that clock; None where it has no head of its own."""
    if isinstance(drafter, HybridDrafter):
        inner, timer = with_timer(drafter.drafter)
        return (drafter, None) if inner is None or timer is None else (HybridDrafter(inner), timer)
    if not isinstance(drafter, EagleDrafter):
        return drafter, None
    timer = TimedHead(drafter.model.head)
    return drafter.with_module(timer, drafter.choice), timer


def drift(target: LanguageModel, prompt: Sequence[int], tokens: int = DRIFT_TOKENS) -> Mapping[str, Any]:
    """Time per token at the end of one long greedy answer without drafts, over that at its start.

    Each is the median of a tenth of the tokens. End tokens do not end it; the context may, and then it is shorter.

    Returns:
        `drift`, None where the context has room for fewer than 3 tokens, and `drift_tokens`.
    """
    endless = copy.copy(target)
    endless.end_ids = frozenset()
    tokens = min(tokens, target.context_length - len(prompt))
    if tokens < 3:
        return {"drift": None, "drift_tokens": tokens}
    times: list[float] = []
    began = time.perf_counter()
    for _ in decode(ModelPair(endless, None), [prompt], DecodeConfig(rule="ar", max_new_tokens=tokens)):
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
    return {"drift": end_over_start(times[1:]), "drift_tokens": tokens}  # the first one read the prompt


def end_over_start(times: Sequence[float]) -> float:
    """Median of the last tenth over median of the first."""
    width = max(len(times) // WINDOWS, 1)
    return round(median(times[-width:]) / median(times[:width]), 4)
