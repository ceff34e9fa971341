"""EAGLE-3 drafters as others publish them: a folder with config.json and model.safetensors, read into our layer.

Tensor names are those of EAGLE and SpecForge (`midlayer.*`) or of speculators (`layers.0.*`), each with or without
`model.` before them; the head is whole, has the rows of chosen tokens (d2t), or two factors (TorchSpec). Pickled
weights are never opened.

Source:
    EAGLE-3, arXiv:2503.01840.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from explorer.engine.models import LanguageModel
from explorer.engine.published_config import CONFIG, is_published, read_config, shape_in, size_in, unreadable
from explorer.errors import ModelPairError, WeightsError
from explorer.heads.draft import FullHead, LowRankHead, TruncatedHead
from explorer.heads.eagle import EagleModel, EagleShape

__all__ = ["CONFIG", "WEIGHTS", "is_published", "read"]

WEIGHTS = "model.safetensors"
_AGAIN = "Fetch the drafter again."
_EMBEDDING = "embed_tokens.weight"
_DOWN, _UP, _HEAD = "lm_head.down.weight", "lm_head.up.weight", "lm_head.weight"
_OPTIONAL = {_DOWN, _UP, _HEAD, "d2t", "t2d"}
_UNUSED = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq")  # left over from training
_EXTRAS = {
    r"fc_norm\..*|input_norm\..*": "norms on the fused features",
    r"fc\.bias": "a bias on the fused features",
    r"layers\.\d+\..*": "several layers",
    r".*\.[qk]_norm\..*": "norms on queries and keys",
}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_CHUNK = 4096  # rows of an embedding table compared at once
# Two roundings, such as to bfloat16 and to float16, are at most this far apart.
_ROUNDING = {"rtol": 2.0**-7, "atol": 1e-5}


def read(folder: Path, target: LanguageModel) -> EagleModel:
    """A published drafter, in the target's dtype and on its device.

    Args:
        folder: Holds config.json and model.safetensors.
        target: The model it drafts for.

    Raises:
        WeightsError: A file is missing or damaged, or a tensor is missing, misshapen or not finite.
        ModelPairError: It was made for another target, or computes what our layer does not.
    """
    folder = Path(folder)
    config = read_config(folder)
    shape = shape_in(folder, config, target)
    tensors = _tensors(folder, shape, target)
    ids = _draft_ids(folder, config, tensors)
    head = _head(folder, config, tensors, ids, target).to(target.device, target.dtype)
    model = EagleModel(shape, target.embedding, head)
    model.load_weights(tensors)
    try:
        model.rope(1)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise WeightsError(f"The rope settings in {folder / CONFIG} cannot be used ({error}). {_AGAIN}") from error
    if target.is_packed:
        model.pack()
    return model


def _tensors(folder: Path, shape: EagleShape, target: LanguageModel) -> dict[str, Tensor]:
    """All tensors but the embeddings, under EAGLE's names, with the layer's as large as the shape says."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise WeightsError(
            f"{folder} holds no {WEIGHTS}, and no other file of weights is read (pickled ones can run code). Convert "
            "them to one safetensors file, or choose another drafter."
        )
    try:
        with safe_open(path, framework="pt") as file:
            keys = _named(folder, list(file.keys()))
            if _EMBEDDING in keys:
                _check_embedding(folder, file.get_slice(keys.pop(_EMBEDDING)), target)
            needed = _needed(folder, keys, shape)
            sizes = {name: tuple(file.get_slice(key).get_shape()) for name, key in keys.items()}
            for name, weight in needed.items():
                _check_size(folder, name, sizes.get(name), tuple(weight.shape))
            tensors = {name: file.get_tensor(key) for name, key in keys.items()}
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is damaged or cut short ({error}). {_AGAIN}") from error
    for name, tensor in tensors.items():
        if name not in ("d2t", "t2d"):
            _check_numbers(folder, name, tensor)
    return tensors


def _named(folder: Path, keys: list[str]) -> dict[str, str]:
    """EAGLE's name of each tensor -> its name in the file."""
    named: dict[str, str] = {}
    for key in keys:
        name = key.removeprefix("model.")
        if name.startswith("layers.0."):
            name = "midlayer." + name.removeprefix("layers.0.")
        if _UNUSED.fullmatch(name):
            continue
        if name in named:
            raise WeightsError(f"{folder / WEIGHTS} holds both {named[name]} and {key}, which are the same. {_AGAIN}")
        named[name] = key
    return named


def _needed(folder: Path, names: dict[str, str], shape: EagleShape) -> dict[str, Tensor]:
    """The layer's weights by name, without memory behind them; raises where the file holds more than we compute."""
    needed = EagleModel(shape, torch.empty(0, device="meta"), nn.Identity()).named_weights()
    for name in names.keys() - needed.keys() - _OPTIONAL:
        found = next((words for pattern, words in _EXTRAS.items() if re.fullmatch(pattern, name)), "an unknown tensor")
        raise unreadable(folder, f"{found} ({names[name]})")
    return needed


def _check_size(folder: Path, name: str, came: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    if came != expected:
        raise WeightsError(
            f"{name} in {folder / WEIGHTS} is {'missing' if came is None else came}; {CONFIG} says {expected}. {_AGAIN}"
        )


def _check_numbers(folder: Path, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise WeightsError(
            f"{name} in {folder / WEIGHTS} is {tensor.dtype}; weights must be {kinds}. Choose an unquantised drafter."
        )
    if not torch.isfinite(tensor).all():
        raise WeightsError(f"{name} in {folder / WEIGHTS} holds numbers that are not finite. {_AGAIN}")


def _check_embedding(folder: Path, table: Any, target: LanguageModel) -> None:
    """Raise unless a drafter's own embeddings are the target's up to rounding: only those are kept in memory."""
    ours = target.embedding
    num_rows = min(target.vocab_size, len(ours))
    shape = tuple(table.get_shape())
    same = len(shape) == 2 and shape[0] >= num_rows and shape[1] == ours.shape[1]
    for first in range(0, num_rows if same else 0, _CHUNK):
        last = min(first + _CHUNK, num_rows)
        same = same and torch.allclose(table[first:last].float(), ours[first:last].float().cpu(), **_ROUNDING)
    if not same:
        raise ModelPairError(
            f"The drafter {folder} has embeddings {shape} of its own ({_EMBEDDING}), and they are not those of "
            f"{target.name} {tuple(ours.shape)}. Load the target it was made for, in full precision."
        )


def _draft_ids(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Tensor:
    """(N,) the target's ids of the tokens that the head scores, row by row."""
    V = size_in(folder, config, "vocab_size")
    N = size_in(folder, config, "draft_vocab_size", V)
    d2t = tensors.get("d2t")
    if d2t is None:
        if N != V:
            raise WeightsError(
                f"{folder / WEIGHTS} has no d2t, which says what the {N} rows of its head stand for, of {V} tokens. "
                f"{_AGAIN}"
            )
        return torch.arange(V)
    _check_size(folder, "d2t", tuple(d2t.shape), (N,))
    if d2t.is_floating_point() or d2t.dtype == torch.bool:
        raise WeightsError(f"d2t in {folder / WEIGHTS} is {d2t.dtype}; it must hold whole numbers. {_AGAIN}")
    ids = d2t.long() + torch.arange(N)
    outside = (ids < 0) | (ids >= V)
    if outside.any() or len(ids.unique()) < N:
        row = int(outside.nonzero()[0]) if outside.any() else None
        problem = f"leads from row {row} to token {int(ids[row])}" if row is not None else "names a token twice"
        raise WeightsError(f"d2t in {folder / WEIGHTS} {problem}; it must name {N} of {V} tokens. {_AGAIN}")
    if "t2d" in tensors:
        _check_size(folder, "t2d", tuple(tensors["t2d"].shape), (V,))
        if not torch.equal(tensors["t2d"].bool().nonzero().flatten(), ids.sort().values):
            raise WeightsError(f"d2t and t2d in {folder / WEIGHTS} name different tokens. {_AGAIN}")
    return ids


def _head(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], ids: Tensor, target: LanguageModel
) -> nn.Module:
    """The head; rows of tokens that the target's tokenizer does not know are left out."""
    N, V, D = len(ids), target.vocab_size, target.hidden_size
    is_whole = N >= V and torch.equal(ids, torch.arange(N))
    found = tensors.keys() & {_HEAD, _DOWN, _UP}
    if found not in ({_HEAD}, {_DOWN, _UP}):
        raise WeightsError(
            f"The head in {folder / WEIGHTS} is {', '.join(sorted(found)) or 'missing'}; it must be {_HEAD}, or "
            f"{_DOWN} and {_UP}. {_AGAIN}"
        )
    if _HEAD in found:
        weight = tensors[_HEAD]
        _check_size(folder, _HEAD, tuple(weight.shape), (N, D))
        if is_whole:
            return FullHead(weight[:V].contiguous())
        known = ids < V
        return TruncatedHead(weight[known], ids[known], V)
    if not is_whole:
        raise unreadable(folder, f"a low-rank head of {N} of {V} tokens")
    R = size_in(folder, config, "lm_head_rank", max(len(tensors[_DOWN].flatten()) // D, 1))
    _check_size(folder, _DOWN, tuple(tensors[_DOWN].shape), (R, D))
    _check_size(folder, _UP, tuple(tensors[_UP].shape), (N, R))
    tensors[_UP] = tensors[_UP][:V]
    return LowRankHead(tensors[_DOWN], tensors[_UP])
