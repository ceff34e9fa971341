"""Loss of a drafter's head against the target's law, and its gradient, in one go.

A row of logits has as many entries as the vocabulary, so the gradient is formed in place of the logits at once:
autograd would keep a dozen such tensors. And most of the vocabulary hardly matters at any position: `choose_columns`
takes the frequent tokens and those of the text as they are, and a sample of the others that stands for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

LOSSES = ("kl", "lk")
# LK's hybrid leans on KL while the laws are far apart, on their overlap once they are near.
_LK_DECAY = 3.0


@dataclass(slots=True)
class Columns:
    """Tokens that a step looks at.

    Attributes:
        ids: (C,) int64; those that stand for themselves come first.
        log_counts: (C,) float32, logarithm of how many tokens each stands for.
        num_exact: How many stand for themselves.
    """

    ids: Tensor
    log_counts: Tensor
    num_exact: int


def choose_columns(frequent: Tensor, text: Tensor, vocab_size: int, num_sampled: int, generator: Generator) -> Columns:
    """The frequent tokens, those of the text, and a uniform sample of all others, each standing for many.

    Given the first two, sums over the columns weighted by their counts are unbiased sums over the vocabulary.

    Args:
        frequent: Ids that are always looked at.
        text: Ids of the step's own text, of any shape: what the target wrote is likely where it wrote it.
        vocab_size: V.
        num_sampled: How many of the others are drawn.
        generator: On the CPU.
    """
    is_kept = torch.zeros(vocab_size, dtype=torch.bool)
    is_kept[frequent] = True
    is_kept[text.flatten()] = True
    kept, others = is_kept.nonzero().squeeze(1), (~is_kept).nonzero().squeeze(1)
    drawn = others[torch.randperm(len(others), generator=generator)[:num_sampled]]
    log_counts = torch.zeros(len(kept) + len(drawn))
    if len(drawn):
        log_counts[len(kept) :] = torch.tensor(len(others) / len(drawn)).log()
    return Columns(torch.cat([kept, drawn]), log_counts, len(kept))


@dataclass(slots=True)
class HeadLoss:
    """Figures of N positions, (N,) each.

    Attributes:
        loss: Cross entropy in nats under "kl"; the hybrid's value under "lk".
        overlap: Sum of min(target, draft), the expected acceptance.
        matches: Whether the likeliest tokens agree, of those that stand for themselves.
    """

    loss: Tensor
    overlap: Tensor
    matches: Tensor


def head_loss(
    codes: Tensor, factor: Tensor, columns: Columns, target: Tensor, weights: Tensor, loss: str = "kl"
) -> tuple[HeadLoss, Tensor]:
    """Loss of the draft law softmax(codes @ factor), and the gradient of its weighted sum by the logits.

    Args:
        codes: (N, r), what the last factor multiplies.
        factor: (r, C), its columns of the chosen tokens.
        columns: The chosen tokens.
        target: (N, C) float32, the target's probabilities times the counts; left as they are.
        weights: (N,), of each row in the gradient.
        loss: "kl" (soft cross entropy) or "lk".

    Returns:
        The figures, and the gradient (N, C).

    Source:
        LK losses, arXiv:2602.23881: lambda KL + (1 - lambda) (1 - overlap), lambda = exp(-3 overlap).
    """
    logits = codes @ factor
    exact = columns.num_exact
    matches = logits[:, :exact].argmax(-1) == target[:, :exact].argmax(-1)
    expected = (target * logits).sum(-1)
    logits += columns.log_counts
    log_norm = logits.logsumexp(-1, keepdim=True)
    cross_entropy = log_norm.squeeze(1) - expected
    draft = logits.sub_(log_norm).exp_()
    overlap = torch.minimum(draft, target).sum(-1)
    if loss == "kl":
        value, gradient = cross_entropy, draft.sub_(target)
    else:
        value, gradient = _lk(draft, target, cross_entropy, overlap)
    gradient.mul_(weights.unsqueeze(1))
    return HeadLoss(value, overlap, matches), gradient


def _lk(draft: Tensor, target: Tensor, cross_entropy: Tensor, overlap: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient by logits of the hybrid; its mixing share is held constant, as in the paper."""
    share = torch.exp(-_LK_DECAY * overlap).unsqueeze(1)
    below = draft * (draft < target)
    by_overlap = below - draft * below.sum(-1, keepdim=True)  # gradient of the overlap
    gradient = share * (draft - target) - (1 - share) * by_overlap
    value = share.squeeze(1) * cross_entropy + (1 - share.squeeze(1)) * (1 - overlap)
    return value, gradient
