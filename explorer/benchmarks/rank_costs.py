"""What a rank of the drafter's head is worth here: a second of measurement, and a prediction from it.

`bench heads` measures the whole thing in real decodes; this is the estimate the page shows beside its slider.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Sequences
from explorer.engine.eagle import EagleDrafter
from explorer.engine.models import LanguageModel
from explorer.engine.sampling import Sampler

_REPEATS = 4
_CONTEXT = 48
_LONG_PASS = 5


@dataclass(frozen=True, slots=True)
class RankCosts:
    """Milliseconds of the parts of a round at batch 1.

    Each is timed after a pass of the target, whose weights push everything else out of the caches.

    Attributes:
        token_ms: A pass of one token: what autoregressive decoding pays per token.
        column_ms: What each further token of a pass adds.
        body_ms: A step of the drafter without its head.
        head_ms: The head, by rank.
        full_ms: The target's own head, a row per token; None if it was not timed.
    """

    token_ms: float
    column_ms: float
    body_ms: float
    head_ms: Mapping[int, float]
    full_ms: float | None = None

    def round_ms(self, draft_length: int, rank: int) -> float:
        """A round of K drafts; ranks between two measured ones cost in between."""
        ranks = sorted(self.head_ms)
        above = next((r for r in ranks if r >= rank), ranks[-1])
        below = next((r for r in reversed(ranks) if r <= rank), ranks[0])
        share = (rank - below) / (above - below) if above > below else 0.0
        head = self.head_ms[below] * (1 - share) + self.head_ms[above] * share
        return self.token_ms + draft_length * (self.column_ms + self.body_ms + head)

    def nu(self, rank: int) -> float | None:
        """Time of the head at a timed rank over that of the full head; None if that was not timed."""
        return None if not self.full_ms else self.head_ms[rank] / self.full_ms

    def kappa(self, draft_length: int) -> float | None:
        """Time of the full head in a round of K drafts over that of everything else; None if it was not timed."""
        rest = self.token_ms + draft_length * (self.column_ms + self.body_ms)
        return None if not self.full_ms else draft_length * self.full_ms / rest

    def speed_up(self, draft_length: int, rank: int, tokens_per_round: float) -> float:
        """Predicted tokens/s over those of autoregressive decoding."""
        return tokens_per_round * self.token_ms / self.round_ms(draft_length, rank)


def expected_tokens(pass_rates: Sequence[float], draft_length: int) -> float:
    """Tokens per round if draft k passes with pass_rates[k], given that those before it did; the last rate goes on."""
    total = alive = 1.0
    for step in range(draft_length):
        alive *= pass_rates[min(step, len(pass_rates) - 1)]
        total += alive
    return total


def best_rank(
    costs: RankCosts, pass_rates: Mapping[int, Sequence[float]], draft_length: int
) -> tuple[int, float] | None:
    """The rank of the highest predicted speed-up and that speed-up; the smaller of two equal ones, None without any."""
    found = [
        (costs.speed_up(draft_length, rank, expected_tokens(rates, draft_length)), -rank)
        for rank, rates in pass_rates.items()
        if rank in costs.head_ms
    ]
    return (-max(found)[1], max(found)[0]) if found else None


def pass_rates(metrics: Mapping[str, Any], max_rank: int, temperature: float) -> dict[int, list[float]]:
    """Chance of each draft of a round to pass, by rank, from the scores in a checkpoint's `meta.json`.

    At temperature 0 a draft passes where both models name the same token; above, it passes as often as their laws
    overlap at temperature 1.
    """
    key, figure = ("0", "agreement") if temperature == 0 else ("1", "overlap")
    by_rank = metrics.get("by_rank") or {str(max_rank): metrics.get("temperature", {})}
    return {int(rank): scores[key][figure] for rank, scores in by_rank.items() if key in scores}


@torch.inference_mode()
def measure_ranks(target: LanguageModel, drafter: EagleDrafter) -> RankCosts:
    """Time the parts of a round; takes about 35 passes of the target.

    Args:
        target: The model.
        drafter: Its drafter, with a low-rank head.
    """
    ids = torch.arange(_CONTEXT, device=target.device).unsqueeze(0) % target.vocab_size
    cache = target.new_cache(_CONTEXT + _LONG_PASS + 2)
    start = torch.zeros(1, dtype=torch.int64, device=target.device)
    features = target.forward(ids, cache, start, keep=0, features=drafter.features).features

    def target_pass(width: int) -> None:
        target.forward(ids[:, :width], cache, start + _CONTEXT, keep=width, features=drafter.features)

    sequences = Sequences(ids=ids, lengths=start + _CONTEXT)
    sequences.features, sequences.feature_starts = features[:, :-1], start
    sampler, generator = Sampler(temperature=0.0), torch.Generator(device=target.device)

    def draft() -> None:
        drafter.start(1, _CONTEXT + 8, DecodeConfig()).draft(sequences, 2, sampler, generator)

    hidden = torch.zeros(1, drafter.hidden_size, dtype=drafter.model.dtype, device=target.device)
    one, many = (_fastest(lambda w=width: target_pass(w)) for width in (1, _LONG_PASS))
    head_ms = {
        rank: _fastest(lambda r=rank: drafter.model.head(hidden, r), before=lambda: target_pass(1))
        for rank in drafter.rank_choices
    }
    full_head = target.model.get_output_embeddings()
    full_ms = _fastest(lambda: full_head(hidden), before=lambda: target_pass(1))
    two_steps = _fastest(draft, before=lambda: target_pass(1))
    body_ms = max(two_steps / 2 - head_ms[max(head_ms)], 0.0)
    return RankCosts(one, max(many - one, 0.0) / (_LONG_PASS - 1), body_ms, head_ms, full_ms)


def _fastest(action: Callable[[], Tensor | None], before: Callable[[], None] = lambda: None) -> float:
    """Milliseconds of the fastest of a few calls, the first not counted."""
    times = []
    for _ in range(_REPEATS):
        before()
        began = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return min(times[1:])
