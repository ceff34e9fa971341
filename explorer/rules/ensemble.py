"""The ensemble rules: verifier w p + (1 - w) q; w = 1 is the exact rule, w = 0 keeps every draft."""

from __future__ import annotations

import torch
from torch import Tensor


def check_weight(target_weight: float | Tensor) -> Tensor:
    """`target_weight` as float32; raises `ValueError` unless every entry is in [0, 1]."""
    weight = torch.as_tensor(target_weight, dtype=torch.float32)
    if not ((weight >= 0) & (weight <= 1)).all():
        raise ValueError(f"target_weight spans [{weight.min():.3g}, {weight.max():.3g}]; it must stay in [0, 1].")
    return weight


def mix(target_probs: Tensor, draft_probs: Tensor, target_weight: float | Tensor) -> Tensor:
    """Verifier distribution of the ensemble rules, mixed as probabilities (not logits).

    Args:
        target_probs: (K + 1, V); row K follows the last drafted token.
        draft_probs: (K, V), what the drafts were sampled from.
        target_weight: In [0, 1], a scalar (static) or (K,) (dynamic). It may depend on the prefix only, never on the
            drafted token, or the result is no distribution.

    Returns:
        (K + 1, V). Row K is the target's own: there is no draft to mix in.

    Raises:
        ValueError: `target_weight` leaves [0, 1].

    Source:
        DIVERSED, arXiv:2604.07622: its w, so 1 is lossless. The released code's draft weight is 1 - w.
    """
    weight = check_weight(target_weight).to(draft_probs)
    mixed = torch.lerp(draft_probs, target_probs[:-1], weight.view(-1, 1).expand(len(draft_probs), 1))
    return torch.cat([mixed, target_probs[-1:]])


def acceptance(target_prob: Tensor, draft_prob: Tensor, target_weight: float | Tensor) -> Tensor:
    """min(1, verifier / draft) = min(1, 1 - w + w p/q), elementwise on the drafts' own probabilities.

    Args:
        target_prob: p of each drafted id, any shape.
        draft_prob: q of each drafted id, same shape, > 0.
        target_weight: w in [0, 1], a scalar or the same shape.
    """
    return (1 - target_weight + target_weight * target_prob / draft_prob).clamp(max=1.0)


def greedy(target_probs: Tensor, draft_probs: Tensor, target_weight: float | Tensor) -> Tensor:
    """Temperature 0: the verifier's token is the argmax of the mixed, untempered laws.

    Args:
        target_probs: (..., V) untempered softmax of the target.
        draft_probs: (..., V) untempered softmax of the drafter, or one-hot for a drafter without a law.
        target_weight: A scalar, or broadcastable to (..., 1).

    Returns:
        (...,) int64. At w = 1 the target's argmax exactly, ties included; at w = 0 the drafter's.
    """
    return torch.lerp(draft_probs, target_probs, torch.as_tensor(target_weight, dtype=target_probs.dtype)).argmax(-1)
