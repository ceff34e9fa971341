"""Drafters with random weights, and their checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Generator, Tensor

from explorer.engine.eagle import EagleDrafter, facts_of, shape_of
from explorer.engine.models import LanguageModel
from explorer.heads import checkpoint
from explorer.heads.draft import LowRankHead
from explorer.heads.eagle import EagleModel


def random_eagle(target: LanguageModel, rank: int, seed: int = 0, spread: float = 0.5) -> EagleModel:
    """A drafter's model whose laws are peaked, not flat."""
    generator = Generator().manual_seed(seed)
    shape = shape_of(target, rank, intermediate_size=16)
    head = LowRankHead(
        torch.randn(rank, shape.hidden_size, generator=generator) * shape.hidden_size**-0.5,
        torch.randn(shape.vocab_size, rank, generator=generator),
    )
    model = EagleModel(shape, target.embedding, head)
    for name, weight in model.named_weights().items():
        if not name.startswith("lm_head"):
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if "norm" in name else spread * noise * weight.shape[-1] ** -0.5 * 2)
    return model


def save_eagle(
    folder: Path, target: LanguageModel, model: EagleModel, *, full: bool = False, **tensors: Tensor
) -> Path:
    """Write a checkpoint; a full one has no head of its own. A double underscore in a tensor's name is a dot."""
    weights = {name: w for name, w in model.named_weights().items() if not (full and name.startswith("lm_head"))}
    weights |= {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    meta = {"kind": "drafter", "target": facts_of(target), "shape": dataclasses.asdict(model.shape)}
    checkpoint.save(folder, weights, meta | ({"head": "full"} if full else {}))
    return folder


def load_eagle(
    folder: Path, target: LanguageModel, rank: int = 12, *, seed: int = 0, full: bool = False, **tensors: Tensor
) -> EagleDrafter:
    """A random drafter that went through its checkpoint, as every drafter does."""
    return EagleDrafter.load(save_eagle(folder, target, random_eagle(target, rank, seed), full=full, **tensors), target)


def scorer_of(target: LanguageModel, rank: int = 6, seed: int = 5) -> dict[str, Tensor]:
    """The two tensors of a random scorer, by the names `save_eagle` takes."""
    generator = Generator().manual_seed(seed)
    return {
        "scorer__down__weight": torch.randn(rank, target.hidden_size, generator=generator),
        "scorer__up__weight": torch.randn(target.vocab_size, rank, generator=generator),
    }


def counts_of(size: int, seed: int = 7) -> Tensor:
    """(size,) int32, no two alike."""
    return torch.randperm(size, generator=Generator().manual_seed(seed)).int()
