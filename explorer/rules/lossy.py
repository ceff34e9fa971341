"""Lossy rule: lenience l in (0, 1] lets drafts pass that the exact rule would reject. l = 1 is the exact rule."""

from __future__ import annotations

from torch import Tensor


def acceptance(target_prob: Tensor, draft_prob: Tensor, lenience: float) -> Tensor:
    """min(1, p / (l q)), elementwise on the drafts' own probabilities.

    With the residual of the exact rule no token is emitted with more than p / l.

    Args:
        target_prob: p of each drafted id, any shape.
        draft_prob: q of each drafted id, same shape, > 0.
        lenience: l in (0, 1].

    Source:
        Leviathan et al. 2023, Appendix A.5 (arXiv:2211.17192).
    """
    return (target_prob / (lenience * draft_prob)).clamp(max=1.0)


def greedy(target_probs: Tensor, draft_ids: Tensor, lenience: float) -> Tensor:
    """Temperature 0: a draft passes if its untempered probability is at least l times the best one's.

    Args:
        target_probs: (..., V) untempered softmax of the target.
        draft_ids: (...,) int64.
        lenience: l in (0, 1].

    Returns:
        (...,) int64, the draft where it passes, else the target's argmax.

    Source:
        Leviathan et al. 2023, Appendix A.5, the lenience of greedy decoding.
    """
    best = target_probs.max(-1)
    at_draft = target_probs.gather(-1, draft_ids.unsqueeze(-1)).squeeze(-1)
    return draft_ids.where(at_draft >= lenience * best.values, best.indices)
