"""The dynamic rule's weight: the ensemble head on the states of both models, once a round."""

from __future__ import annotations

from torch import Tensor

from explorer.engine.drafters import Draft
from explorer.engine.models import Pass
from explorer.engine.pair import ModelPair
from explorer.engine.sampling import Sampler
from explorer.errors import ModelPairError
from explorer.heads.ensemble import EnsembleHead, law_figures


def learned_weight(head: EnsembleHead, result: Pass, draft: Draft, sampler: Sampler) -> tuple[Tensor, Tensor | None]:
    """Weight of the target at each judged position, from what came before it.

    Args:
        head: The trained head.
        result: The target's pass over the last token and the K drafts, with last hidden states.
        draft: The drafts, with the states that produced them.
        sampler: Makes laws of logits.

    Returns:
        (B, K) weights, and the target's laws (B, K + 1, V) if the head looked at them.
    """
    K = draft.ids.shape[1]
    probs = figures = None
    if head.needs_laws:
        probs = sampler.probs(result.logits)
        figures = law_figures(probs[:, :K], draft.laws)
    return head(head.gather(draft.hidden, result.last_hidden[:, :K], figures)), probs


def check_ensemble(pair: ModelPair) -> None:
    """Raise `ModelPairError` unless the pair has a head for the dynamic rule, and states for it to look at."""
    if pair.ensemble is None:
        raise ModelPairError(
            "The dynamic rule needs a trained ensemble head and none is loaded. Give one with --ensemble DIR, train "
            "one with `python -m explorer train`, or choose the static rule."
        )
    if pair.drafter is None:
        return
    size = getattr(pair.drafter, "hidden_size", 0)
    if size != pair.ensemble.draft_size or pair.target.hidden_size != pair.ensemble.target_size:
        raise ModelPairError(
            f"The ensemble head looks at states of {pair.ensemble.draft_size} and {pair.ensemble.target_size} numbers; "
            f"{pair.drafter.name} has {size or 'none'}, {pair.target.name} {pair.target.hidden_size}. Choose the "
            "drafter it was trained with."
        )
