"""What the ensemble head is trained on: reward minus lambda times the expected rejections, from cached numbers.

Every quantity the objective needs of a token is a handful of numbers: the head's inputs, p and q of the token, and the
distance of the two laws. An update therefore touches no vocabulary, and can be repeated at almost no cost.

Source:
    DIVERSED, arXiv:2604.07622 (objective); REINFORCE++, arXiv:2501.03262 (baseline, scale, clipped ratio). A rejection
    happens with probability w TV(p, q), arXiv:2411.00841. The share of later rejections in a token's return is ours:
    without it the head is not told that one choice makes the next ones cheap or dear.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from explorer.heads.ensemble import EnsembleHead

_SMALLEST = 1e-8


@dataclass(slots=True)
class Tokens:
    """The judged tokens of a batch of answers, end to end; M of them.

    Attributes:
        inputs: (M, N) float32, what the head sees.
        target_prob: (M,), p of the emitted token.
        draft_prob: (M,), q of it.
        distance: (M,), TV of the two laws.
        old_prob: (M,), the verifier's probability of it when it was sampled.
        answer: (M,) int64, which answer it belongs to; ascending.
        place: (M,) int64, its number among the judged tokens of its answer.
    """

    inputs: Tensor
    target_prob: Tensor
    draft_prob: Tensor
    distance: Tensor
    old_prob: Tensor
    answer: Tensor
    place: Tensor

    def of(self, chosen: Tensor) -> Tokens:
        """Those of a mask (M,)."""
        return Tokens(*(getattr(self, spec.name)[chosen] for spec in fields(self)))


def verifier_prob(tokens: Tokens, weight: Tensor) -> Tensor:
    """(M,) w p + (1 - w) q of each emitted token."""
    return weight * tokens.target_prob + (1 - weight) * tokens.draft_prob


def returns_to_go(tokens: Tokens, weight: Tensor, rewards: Tensor, price: float) -> Tensor:
    """(M,) what follows each token: its answer's reward minus `price` times the rejections expected after it.

    Args:
        tokens: Judged tokens.
        weight: (M,), the head's when they were sampled.
        rewards: (A,), one for each answer.
        price: lambda, in units of reward per expected rejection.
    """
    costs = weight * tokens.distance
    total = torch.zeros(len(rewards), dtype=costs.dtype).index_add_(0, tokens.answer, costs)
    so_far = costs.cumsum(0)
    before = torch.zeros_like(total)
    before[1:] = total.cumsum(0)[:-1]
    return rewards[tokens.answer] - price * (total[tokens.answer] - (so_far - before[tokens.answer]))


def advantages(tokens: Tokens, returns: Tensor, groups: Tensor) -> Tensor:
    """(M,) each return less the mean of the other answers to the same prompt that got as far.

    A token with no such other answer gets 0. Leaving the own answer out keeps the gradient unbiased.

    Args:
        tokens: Judged tokens.
        returns: (M,).
        groups: (A,) int64, the prompt each answer is of.
    """
    width = int(tokens.place.max()) + 1 if len(tokens.place) else 1
    cell = groups[tokens.answer] * width + tokens.place
    size = int(groups.max()) * width + width if len(groups) else 1
    sums = torch.zeros(size, dtype=returns.dtype).index_add_(0, cell, returns)[cell]
    counts = torch.zeros(size, dtype=returns.dtype).index_add_(0, cell, torch.ones_like(returns))[cell]
    others = (sums - returns) / (counts - 1).clamp(min=1)
    return torch.where(counts > 1, returns - others, 0.0)


def loss(
    head: EnsembleHead, tokens: Tokens, advantage: Tensor, num_answers: int, price: float, clip: float
) -> tuple[Tensor, Tensor]:
    """The loss to minimise, a mean over answers, and how many ratios were clipped.

    Its gradient at the weights that sampled the tokens is that of E[reward - price * rejections], scaled like the
    advantages: one part by the choice of each token, one by the price of each weight itself.

    Args:
        head: Being trained.
        tokens: Judged tokens.
        advantage: (M,), over the rewards' spread.
        num_answers: Answers they come from.
        price: lambda over the rewards' spread.
        clip: How far a ratio of new to old probability may leave 1.
    """
    weight = head(tokens.inputs)
    ratio = verifier_prob(tokens, weight) / tokens.old_prob.clamp(min=_SMALLEST)
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gained = torch.minimum(ratio * advantage, clipped * advantage)
    cost = price * weight * tokens.distance
    is_clipped = (gained != ratio * advantage).float().mean() if len(gained) else torch.zeros(())
    return (cost - gained).sum() / max(num_answers, 1), is_clipped
