"""Acceptance on text the target wrote, without decoding: every start of a chain at once, then rounds by recursion.

Keeping a text token with probability min(1, draft / target) has exactly the law of rejection sampling, so the expected
number of rounds a decode needs for a text follows from these probabilities alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from explorer.heads.eagle import EagleModel

Head = Callable[[Tensor], Tensor]


def rollout(model: EagleModel, ids: Tensor, features: Tensor, num_steps: int) -> list[tuple[Tensor, Tensor]]:
    """States of a chain from every pair of one row, the text's own tokens standing for the drafts.

    Args:
        model: The drafter's weights.
        ids: (S + 1,) int64.
        features: (S, 3 D).
        num_steps: K.

    Returns:
        For step j (from 0), the states after attention and the outputs before the final norm, (S - j, D) each: entry t
        predicts the token at t + j + 2.
    """
    S = len(features)
    states = model.fuse(features)
    model.rope(S + num_steps)
    starts = torch.arange(S, device=ids.device)
    base: tuple[Tensor, Tensor] | None = None
    chain: list[tuple[Tensor, Tensor]] = []
    outputs = []
    for step in range(num_steps):
        n = S - step
        if n <= 0:
            break
        tokens, positions = ids[1 + step :].unsqueeze(0), (starts[:n] + step).unsqueeze(0)
        queries, keys, values = (x.squeeze(0) for x in model.project(tokens, states[:n].unsqueeze(0), positions))
        if base is None:
            base = keys, values
        else:
            chain.append((keys, values))
        mixed = model.mix(states[:n], _attend(queries, base, chain))
        states = model.feed_forward(mixed)
        outputs.append((mixed, states))
    return outputs


def _attend(queries: Tensor, base: tuple[Tensor, Tensor], chain: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(n, H * size): query t sees the first entries 0..t, and of each later step its own entry t only."""
    n, num_heads, size = queries.shape
    groups = num_heads // base[0].shape[1]

    def spread(x: Tensor) -> Tensor:
        return x[:n].repeat_interleave(groups, dim=1)

    keys, values = spread(base[0]), spread(base[1])
    scores = torch.einsum("qhd,khd->hqk", queries, keys).float() * size**-0.5
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1), -torch.inf)
    own = [(queries * spread(k)).sum(-1).t().unsqueeze(2).float() * size**-0.5 for k, _ in chain]
    weights = torch.cat([scores, *own], dim=2).softmax(-1).to(values.dtype)
    attended = torch.einsum("hqk,khd->qhd", weights[:, :, :n], values)
    for i, (_, v) in enumerate(chain):
        attended = attended + weights[:, :, n + i].t().unsqueeze(2) * spread(v)
    return attended.flatten(1)


@dataclass(slots=True)
class Score:
    """Figures of a drafter on held-out text, by draft position.

    Attributes:
        overlap: Mean of the sum of min(target, draft) over the vocabulary.
        agreement: Share of positions where both name the same best token.
        num_tokens, num_rounds: Answer tokens, and rounds they are expected to take.
    """

    overlap: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_rounds: float = 0.0

    @property
    def tokens_per_round(self) -> float:
        """Expected tokens per target pass (tau)."""
        return self.num_tokens / self.num_rounds if self.num_rounds else float("nan")


def score(
    model: EagleModel,
    rows: Iterable[tuple[Tensor, int, Tensor, Tensor]],
    target_head: Head,
    num_steps: int,
    *,
    greedy: bool,
    rank: int = 0,
) -> Score:
    """Replay rows of text the target wrote.

    Args:
        model: The drafter.
        rows: (ids (S + 1,), prompt length, features (S, 3 D), last hidden states (S, D) after the final norm).
        target_head: Maps last hidden states to the target's logits.
        num_steps: K.
        greedy: Whether the text is greedy (a draft passes if it is the best token of both), else sampled at 1.
        rank: Of the drafter's head.
    """
    result = Score()
    sums = torch.zeros(2, num_steps, dtype=torch.float64)
    counts = torch.zeros(num_steps, dtype=torch.float64)
    for ids, prompt_length, features, last in rows:
        first = prompt_length - 1  # the state that predicts the answer's first token
        target = target_head(last[first:]).float().softmax(-1)
        best, text = target.argmax(-1), ids[first + 1 :]
        passes = torch.zeros(num_steps, len(target), dtype=torch.float64)
        for step, (_, outputs) in enumerate(rollout(model, ids, features, num_steps)):
            # Output t of step j is the drafter's version of the state at t + j + 1.
            skipped = max(first - step - 1, 0)
            at = skipped + step + 1 - first
            if at >= len(target):
                break
            draft = model.head(model.normed(outputs[skipped : skipped + len(target) - at]), rank).float().softmax(-1)
            law, chosen, own = target[at:], text[at:], best[at:]
            agrees = draft.argmax(-1) == own
            if greedy:
                passes[step, at:] = agrees.double()
            else:
                ratio = draft.gather(1, chosen[:, None]) / law.gather(1, chosen[:, None]).clamp(min=1e-30)
                passes[step, at:] = ratio.squeeze(1).clamp(max=1).double()
            sums[0, step] += torch.minimum(law, draft).sum()
            sums[1, step] += agrees.sum()
            counts[step] += len(own)
        result.num_tokens += len(text)
        result.num_rounds += expected_rounds(passes)
    result.overlap, result.agreement = ((total / counts.clamp(min=1)).tolist() for total in sums)
    return result


def expected_rounds(passes: Tensor) -> float:
    """Expected rounds for a text of n tokens; passes (K, n) is the chance of token i as draft number j + 1 of a round.

    A round that starts with i tokens written drafts i, i + 1, ..., keeps them up to the first failure, and always
    writes one more.
    """
    K, n = passes.shape
    table = passes.tolist()
    begins = [0.0] * (n + K + 2)
    begins[0] = 1.0
    for i in range(n):
        alive = begins[i]
        for j in range(K):
            kept = table[j][i + j] if i + j < n else 0.0
            begins[i + j + 1] += alive * (1.0 - kept)
            alive *= kept
        begins[i + K + 1] += alive
    return sum(begins[:n])
