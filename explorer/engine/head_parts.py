"""A drafter's body and what its heads are made of, read from its checkpoint and its target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from explorer.engine.models import LanguageModel
from explorer.errors import WeightsError
from explorer.heads.choice import HeadParts, read_counts
from explorer.heads.draft import FullHead, LowRankHead
from explorer.heads.eagle import EagleModel, EagleShape


def read_parts(weights: dict[str, Tensor], is_full: bool, target: LanguageModel) -> HeadParts:
    """What a checkpoint's tensors, and the target's own head, give the drafter to make heads of.

    Args:
        weights: `lm_head.down.weight` (R, D) and `lm_head.up.weight` (V, R), unless the head is the target's; optional
            `token_counts` (V,) and, for a dynamic head, `scorer.down.weight` and `scorer.up.weight`.
        is_full: Whether the checkpoint says that it drafts with a full head.
        target: Gives the rows of a full head without tensors of its own.

    Raises:
        KeyError: Factors are missing.
        ValueError: A tensor has another shape than its target and its name say.
    """

    def factors(prefix: str) -> LowRankHead:
        down, up = weights[f"{prefix}.down.weight"], weights[f"{prefix}.up.weight"]
        if down.shape != (up.shape[1], target.hidden_size) or len(up) != target.vocab_size:
            raise ValueError(f"{prefix} has factors {tuple(down.shape)} and {tuple(up.shape)}")
        return LowRankHead(down, up).to(target.device, target.dtype)

    is_full = is_full and not any(name.startswith("lm_head.") for name in weights)
    return HeadParts(
        FullHead(_head_rows(target)) if is_full else factors("lm_head"),
        end_ids=target.end_ids,
        counts=read_counts(weights.get("token_counts"), target.vocab_size),
        scorer=factors("scorer") if "scorer.down.weight" in weights else None,
        is_packed=target.is_packed,
    )


def _head_rows(target: LanguageModel) -> Tensor:
    """(V, D) the target's output embedding, whose logits some models scale; tokens without a row have zeros."""
    rows = target.model.get_output_embeddings().weight.detach()[: target.vocab_size]
    rows = rows.to(target.device, target.dtype)
    return functional.pad(rows, (0, 0, 0, target.vocab_size - len(rows)))


def model_of(
    folder: Path,
    weights: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    embedding: Tensor,
    head: nn.Module | None = None,
) -> EagleModel:
    """The model that a checkpoint of ours describes, in the dtype and on the device of an embedding table.

    Args:
        folder: For messages.
        weights: Of the checkpoint.
        meta: Of the checkpoint.
        embedding: (rows, D).
        head: Of the model; by default the low-rank head of the checkpoint.

    Raises:
        WeightsError: It does not describe a drafter.
    """
    try:
        shape = EagleShape(**meta["shape"] | {"features": tuple(meta["shape"]["features"])})
        if head is None:
            factors = LowRankHead(weights["lm_head.down.weight"], weights["lm_head.up.weight"])
            head = factors.to(embedding.device, embedding.dtype)
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{folder} does not describe a drafter ({error}). Fit or fetch it again.") from error
    model = EagleModel(shape, embedding, head)
    model.load_weights(dict(weights))
    return model
