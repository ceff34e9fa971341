"""Checkpoints of ours for a toy target, and the command that exports them."""

import dataclasses
from pathlib import Path

import torch
from plain_eagle import D
from torch import Generator, Tensor

from explorer import __main__ as command_line
from explorer.engine.eagle import facts_of, shape_of
from explorer.engine.models import LanguageModel
from explorer.heads import checkpoint
from explorer.heads.draft import LowRankHead
from explorer.heads.eagle import EagleModel

RANK = 8


def save_drafter(
    folder: Path,
    target: LanguageModel,
    *,
    width: int = 20,
    norms_first: bool = False,
    features: tuple[int, ...] | None = None,
    **extra: Tensor,
) -> Path:
    """A checkpoint of ours in bfloat16 with random weights; returns its folder."""
    generator = Generator().manual_seed(1)
    shape = shape_of(target, RANK, width)
    shape = dataclasses.replace(shape, norm_before_residual=norms_first, features=features or shape.features)
    head = LowRankHead(torch.zeros(RANK, D), torch.zeros(target.vocab_size, RANK))
    model = EagleModel(shape, target.embedding, head)
    for name, weight in model.named_weights().items():
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(1 + 0.3 * noise if "norm" in name else 1.5 * noise * weight.shape[-1] ** -0.5)
    weights = {name: weight.bfloat16() for name, weight in model.named_weights().items()}
    meta = {"kind": "drafter", "target": facts_of(target), "shape": dataclasses.asdict(shape)}
    checkpoint.save(folder, weights | extra, meta)
    return folder


def run(*words: object) -> int:
    """Exit code of `export` with these flags."""
    return command_line.main(["export", "--target=toy", *map(str, words)])
