"""The core of every rule: coins against acceptance probabilities, and what replaces the first rejected draft.

Works on gathered probabilities, so that a round never builds a vocabulary-sized tensor that no draft was tested on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one round emits: the first `num_accepted` drafts, then `next_id` (residual or bonus)."""

    num_accepted: int
    next_id: int


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Law of the token that replaces a rejected draft: the target's excess over the draft, normalised.

    The same for the exact, lossy, static and dynamic rules: the excess of `w p + (1 - w) q` over q is w (p - q).

    Args:
        target_probs: (..., V), the target's law at the rejected position.
        draft_probs: (..., V), what the rejected id was sampled from.

    Returns:
        (..., V), sums to 1. Where the rows are equal up to rounding there is no excess; such a rejection has
        probability ~0, and the target's own row is returned.

    Source:
        Leviathan et al. 2023, Algorithm 1 (arXiv:2211.17192).
    """
    excess = (target_probs - draft_probs).clamp(min=0.0)
    total = excess.sum(-1, keepdim=True)
    return torch.where(total > 0, excess / total.where(total > 0, 1.0), target_probs)


def accepted_lengths(accept_probs: Tensor, coins: Tensor, draft_lengths: Tensor) -> Tensor:
    """(B,) int64, how many leading drafts of each row pass.

    Args:
        accept_probs: (B, K) in [0, 1].
        coins: (B, K) uniform in [0, 1), independent per position.
        draft_lengths: (B,) drafts really proposed in each row; later columns are padding.
    """
    # `<`, because a coin can be 0: a token of acceptance probability 0 must never pass.
    passed = coins < accept_probs
    positions = torch.arange(accept_probs.shape[1], device=accept_probs.device)
    passed &= positions < draft_lengths.unsqueeze(1)
    return passed.long().cumprod(dim=1).sum(dim=1)


def verify(
    draft_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    acceptance: Callable[[Tensor, Tensor], Tensor],
    generator: Generator,
) -> Verdict:
    """The plain reference for one row: keep a prefix of the draft, then draw what follows it.

    Args:
        draft_ids: (K,) int64, drafted token ids.
        draft_probs: (K, V), what each id was sampled from.
        target_probs: (K + 1, V); row K supplies the bonus token.
        acceptance: Elementwise rule, called with the target's and the drafter's probabilities of the drafts.
        generator: The only source of randomness, on the tensors' device.

    Raises:
        ValueError: A drafted token has draft probability 0.

    Source:
        Leviathan et al. 2023, Algorithm 1 (arXiv:2211.17192), with the rule's acceptance in place of min(1, p/q).
    """
    K = len(draft_ids)
    index = draft_ids.unsqueeze(1)
    draft_at, target_at = draft_probs.gather(1, index), target_probs[:K].gather(1, index)
    if (draft_at <= 0).any():
        raise ValueError(f"draft_ids {draft_ids.tolist()} hold a token of draft probability 0; sample drafts from it.")
    accept = acceptance(target_at, draft_at).view(1, K)
    coins = torch.rand(1, K, generator=generator, device=accept.device)
    num_accepted = int(accepted_lengths(accept, coins, torch.tensor([K], device=accept.device)))
    next_probs = target_probs[num_accepted]
    if num_accepted < K:
        next_probs = residual(next_probs, draft_probs[num_accepted])
    return Verdict(num_accepted, int(torch.multinomial(next_probs, 1, generator=generator)))
