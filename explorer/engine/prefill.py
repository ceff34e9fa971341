"""Reading prompts: in pieces that fit the caches, and what all of them begin with only once."""

from __future__ import annotations

import torch
from torch import Tensor

from explorer.engine.cache import RowCache
from explorer.engine.models import LanguageModel

# Tokens read in one pass: more at once is no faster on a processor, and takes memory.
TOKENS_AT_ONCE = 1024


def read_prompts(
    target: LanguageModel, cache: RowCache, ids: Tensor, lengths: Tensor, features: tuple[int, ...]
) -> Tensor | None:
    """Run every prompt but its last token through the target.

    Args:
        target: The model.
        cache: Empty; holds the prompts afterwards.
        ids: (B, S) int64, row b is a prompt of lengths[b] tokens and padding.
        lengths: (B,) int64.
        features: Indices of hidden states that are wanted.

    Returns:
        (B, T, F) hidden states of the positions read, T those of the longest prompt; None if none are wanted or there
        is nothing to read.
    """
    B = len(lengths)
    width = int(lengths.max()) - 1 if B else 0
    if width == 0:
        return None
    shared = _num_shared(ids, lengths)
    pieces = [
        _read(target, cache, ids[:1], at, min(at + TOKENS_AT_ONCE, shared), features)
        for at in range(0, shared, TOKENS_AT_ONCE)
    ]
    if shared:
        cache.spread(B)
        pieces = [None if piece is None else piece.expand(B, -1, -1) for piece in pieces]
    step = max(1, TOKENS_AT_ONCE // B)
    for at in range(shared, width, step):
        pieces.append(_read(target, cache, ids, at, min(at + step, width), features))
    return torch.cat([piece for piece in pieces if piece is not None], dim=1) if features else None


def _num_shared(ids: Tensor, lengths: Tensor) -> int:
    """How many tokens all prompts begin with (a system message, solved examples), their last ones not counted."""
    if len(ids) == 1:
        return 0
    both = ids[:, : int(lengths.min()) - 1]
    return int((both == both[:1]).all(0).long().cumprod(0).sum())


def _read(
    target: LanguageModel, cache: RowCache, ids: Tensor, first: int, end: int, features: tuple[int, ...]
) -> Tensor | None:
    """Run columns [first, end) of some rows."""
    starts = torch.full((len(ids),), first, device=ids.device)
    return target.forward(ids[:, first:end], cache, starts, keep=0, features=features).features
