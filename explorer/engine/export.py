"""A drafter of ours in the form that other engines load: a folder with config.json and model.safetensors.

`eagle3` is the layout of EAGLE and SpecForge (SGLang, vLLM, llama.cpp read it), `speculators` that of vLLM's own
library. A merged head is whole again and as slow as any; the two factors of an unmerged one are TorchSpec's format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from explorer.engine.eagle import facts_of
from explorer.engine.export_config import LAYOUTS, config_for
from explorer.engine.head_parts import model_of
from explorer.engine.loading import DEFAULT_TARGET, bundled_drafter, load_model
from explorer.engine.models import LanguageModel, Progress
from explorer.engine.published import CONFIG, WEIGHTS
from explorer.errors import ModelPairError, SettingError, WeightsError
from explorer.heads import checkpoint
from explorer.heads.draft import frequent_ids
from explorer.heads.eagle import EagleModel
from explorer.settings import check_ranges, setting

TOKEN_COUNTS = "token_counts"  # optional tensor (V,) int32 of our checkpoints: how often the target wrote each token
_DTYPE = torch.bfloat16
# Engines load no layer without a feed-forward part; one of zeros adds nothing, and this width suits their kernels.
_ZERO_WIDTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """Settings of an export."""

    out: str = setting("", "folder to write")
    drafter: str = setting("auto", "folder that fit wrote, or auto for the bundled one")
    target: str = setting(DEFAULT_TARGET, "model it was made for: default, a Hub id, a folder or a GGUF file")
    layout: str = setting("eagle3", "names and config: SGLang, vLLM and llama.cpp, or vLLM alone", choices=LAYOUTS)
    merge: bool = setting(True, "multiply the head's factors out, which most engines need")
    trim: int = setting(0, "keep only so many of the most frequent tokens; 0 keeps all", low=0, high=1 << 22)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.out.strip():
            raise SettingError("out is empty; give the folder that the drafter is written to, as in --out DIR.")
        if self.trim and not self.merge:
            raise SettingError(
                f"trim is {self.trim} and merge is off; a head in two factors speaks of all tokens. Leave one out."
            )


def run(config: ExportConfig, progress: Progress | None = None) -> Path:
    """Load the target, write its drafter in the published form, return the folder.

    Args:
        config: Settings.
        progress: Called with (what, done, total) during long steps.

    Raises:
        SettingError: The folder holds something else, or the head cannot be trimmed so.
        ModelPairError: The target cannot be loaded, has no drafter, or is not the drafter's.
        WeightsError: The drafter is damaged, or the disk refuses.
    """
    out = Path(config.out).resolve()
    _check_out(out)
    target = load_model(config.target, "bfloat16", progress)  # only its identity is needed, the same in any precision
    folder = bundled_drafter(target) if config.drafter == "auto" else Path(config.drafter)
    if folder is None:
        raise ModelPairError(
            f"No drafter for {target.name} is bundled. Give the folder of one as --drafter, or fit one: python -m "
            "explorer fit --target ID --out DIR"
        )
    tensors, record = published_form(folder, target, config)
    write(out, tensors, record)
    return out


def _check_out(out: Path) -> None:
    """Raise unless nothing but an earlier export would be replaced."""
    try:
        others = {path.name for path in out.iterdir()} - {CONFIG, WEIGHTS} if out.exists() else set()
    except OSError as error:
        raise SettingError(f"out is {out}, which is no folder ({error.strerror}). Choose another --out.") from None
    if others:
        raise SettingError(f"out is {out}, which holds {min(others)} and would be replaced. Choose a new folder.")


def published_form(
    folder: Path, target: LanguageModel, config: ExportConfig
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and config.json of a drafter of ours, in bfloat16.

    Args:
        folder: What `fit` wrote.
        target: The model it drafts for.
        config: Which form.

    Raises:
        SettingError: The head cannot be trimmed so.
        ModelPairError: It was made for another target, or cannot be published.
        WeightsError: It is damaged, or not a drafter.
    """
    weights, meta = checkpoint.load(folder, target=facts_of(target))
    model = model_of(folder, weights, meta, torch.empty(0, target.hidden_size))
    if not model.shape.intermediate_size:
        zeros = torch.zeros(_ZERO_WIDTH, target.hidden_size)
        model = model.with_feed_forward(zeros, zeros)
    if max(model.shape.features) >= target.num_layers:
        raise ModelPairError(
            f"The drafter {folder} reads the last state of {target.name}, which engines do not hand out. Choose "
            "a target of three layers or more."
        )
    head = _merged(folder, weights, target, config.trim) if config.merge else _factors(model, target)
    body = {name: weight for name, weight in model.named_weights().items() if not name.startswith("lm_head")}
    tensors = {_renamed(name, config.layout): tensor for name, tensor in (body | head).items()}
    num_drafted = len(head["d2t"]) if config.merge else target.num_rows
    record = config_for(model.shape, target, config.layout, num_drafted, 0 if config.merge else model.head.max_rank)
    return {name: t.to(_DTYPE) if t.is_floating_point() else t for name, t in tensors.items()}, record


def _renamed(name: str, layout: str) -> str:
    return name.replace("midlayer.", "layers.0.", 1) if layout == "speculators" else name


def _merged(folder: Path, weights: Mapping[str, Tensor], target: LanguageModel, trim: int) -> dict[str, Tensor]:
    """The whole head and what its rows stand for, even where they are all tokens.

    Without d2t, older engines put the target's head in the place of a drafter's whole one.
    """
    num_known = min(target.vocab_size, target.num_rows)
    ids = _kept(folder, weights.get(TOKEN_COUNTS), target, trim) if trim else torch.arange(num_known)
    up, down = weights["lm_head.up.weight"][ids].float(), weights["lm_head.down.weight"].float()
    is_kept = torch.zeros(target.num_rows, dtype=torch.bool)
    is_kept[ids] = True
    return {"lm_head.weight": up @ down, "d2t": ids - torch.arange(len(ids)), "t2d": is_kept}


def _kept(folder: Path, counts: Tensor | None, target: LanguageModel, trim: int) -> Tensor:
    """(trim,) ids of the most frequent tokens, with those that end an answer."""
    if counts is None:
        raise SettingError(
            f"trim is {trim}, but the drafter {folder} has no {TOKEN_COUNTS}: it does not say which tokens are "
            "frequent. Leave --trim out, or fit a drafter that counts them."
        )
    num_known = min(target.vocab_size, target.num_rows)
    if tuple(counts.shape) != (target.vocab_size,) or counts.is_floating_point() or (counts < 0).any():
        raise WeightsError(
            f"{TOKEN_COUNTS} of the drafter {folder} is {counts.dtype} {tuple(counts.shape)}; it must hold a count for "
            f"each of {target.vocab_size} tokens. Fit the drafter again."
        )
    always = sorted(i for i in target.end_ids if i < num_known)
    if not max(len(always), 1) <= trim <= num_known:
        raise SettingError(f"trim is {trim}; it must be in [{max(len(always), 1)}, {num_known}], or 0 to keep all.")
    return frequent_ids(counts[:num_known], trim, always)


def _factors(model: EagleModel, target: LanguageModel) -> dict[str, Tensor]:
    if target.vocab_size != target.num_rows:
        raise ModelPairError(
            f"{target.name} has {target.num_rows} rows for {target.vocab_size} tokens; a head in two factors must have "
            "one row for each. Leave --no-merge out."
        )
    return {name: weight for name, weight in model.named_weights().items() if name.startswith("lm_head")}


def write(folder: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write config.json and model.safetensors, both or neither.

    Raises:
        WeightsError: A number is too large for its dtype, or the disk refuses.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise WeightsError(f"{name} does not fit {_DTYPE}; the drafter cannot be exported. Fit it again.")

    def fill(temporary: Path) -> None:
        path = temporary / WEIGHTS
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
        path.chmod(0o644)  # safetensors writes for the owner alone
        (temporary / CONFIG).write_text(json.dumps(dict(record), indent=2) + "\n", encoding="utf-8")

    checkpoint.write_whole(folder, fill)
