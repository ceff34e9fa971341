"""Folders of safetensors shards with an index and `meta.json`: saved whole or not at all, refused for a wrong target.

A tensor larger than a shard is cut along its first dimension; the index says which pieces, in order, make it up.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from explorer.errors import ModelPairError, WeightsError

SHARD_BYTES = 9_000_000
INDEX = "index.json"
META = "meta.json"
# What must agree between the target a checkpoint was made for and the one at hand, and what to call it.
_IDENTITY = {
    "hidden_size": "hidden size",
    "vocab_size": "vocabulary size",
    "num_layers": "number of layers",
    "fingerprint": "weights (fingerprint)",
}


def save(folder: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint in place of whatever the folder held.

    Args:
        folder: Its parent is created if needed.
        weights: Tensors by name, written in the dtype they have.
        meta: JSON values, with at least `target`: name, fingerprint, hidden_size, vocab_size and num_layers.

    Raises:
        WeightsError: A weight is not finite, or the disk refuses; an older checkpoint is left as it was.
    """
    folder = Path(folder)
    _check_finite(folder, weights)
    write_whole(folder, lambda temporary: _write(temporary, weights, meta))


def write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside this one, which then takes its place.

    Args:
        folder: Its parent is created if needed; whatever it held is gone afterwards.
        write: Called with an empty folder.

    Raises:
        WeightsError: The disk refuses; what was there before is left as it was.
    """
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        temporary.chmod(0o755)
        write(temporary)
        _swap(temporary, folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WeightsError(
            f"The checkpoint {folder} could not be written ({reason}); nothing was changed. Free some disk space or "
            "choose another folder."
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Replace the `meta.json` of a checkpoint.

    Raises:
        WeightsError: The disk refuses; the old record is kept.
    """
    path = Path(folder) / META
    part = path.with_suffix(".part")
    try:
        part.write_text(_as_json(meta), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WeightsError(f"{path} could not be written ({error.strerror}). Free some disk space.") from error


def _write(folder: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    pieces: dict[str, list[str]] = {}
    free = SHARD_BYTES
    for name, weight in weights.items():
        pieces[name] = []
        for number, piece in enumerate(_cut(weight)):
            size = piece.numel() * piece.element_size()
            if size > free and shards[-1]:
                shards.append({})
                free = SHARD_BYTES
            free -= size
            key = f"{name}.{number}" if piece.shape != weight.shape else name
            shards[-1][key] = piece.detach().cpu().contiguous()
            pieces[name].append(f"{len(shards)}:{key}")
    for number, shard in enumerate(shards, start=1):
        path = folder / f"shard-{number}.safetensors"
        save_file(shard, path)
        path.chmod(0o644)  # safetensors writes for the owner alone
    index = {"shards": len(shards), "pieces": pieces}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    (folder / META).write_text(_as_json(meta), encoding="utf-8")


def _as_json(meta: Mapping[str, Any]) -> str:
    return json.dumps(dict(meta), indent=2, allow_nan=False) + "\n"


def _cut(weight: Tensor) -> tuple[Tensor, ...]:
    """The tensor in pieces of whole rows that fit a shard."""
    if weight.dim() == 0 or weight.numel() == 0:
        return (weight,)
    num_pieces = math.ceil(weight.numel() * weight.element_size() / SHARD_BYTES)
    return weight.split(math.ceil(len(weight) / num_pieces))


def _swap(new: Path, folder: Path) -> None:
    """Put `new` in the place of `folder`; if that fails, the old one is back."""
    old = folder.with_name(f".{folder.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    try:
        new.replace(folder)
    except OSError:
        if old.exists():
            old.replace(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, *, target: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and `meta` of a checkpoint.

    Args:
        folder: What `save` wrote.
        target: The target at hand: name, fingerprint, hidden_size, vocab_size and num_layers.

    Raises:
        ModelPairError: The checkpoint was made for another target.
        WeightsError: A file is missing or damaged, or a weight is not finite.
    """
    folder = Path(folder)
    meta = _read_json(folder, META)
    _check_target(folder, meta, target)
    index = _read_json(folder, INDEX)
    try:
        shards = [_read_shard(folder, number) for number in range(1, int(index["shards"]) + 1)]
        weights = {name: _joined(shards, pieces) for name, pieces in index["pieces"].items()}
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise WeightsError(
            f"The index of the checkpoint {folder} does not fit its shards ({error}). {_AGAIN}"
        ) from error
    _check_finite(folder, weights)
    return weights, meta


_AGAIN = "Fetch it again, or make it anew with `python -m explorer fit`."


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"{folder} is not a checkpoint: {name} cannot be read. {_AGAIN}") from error
    except ValueError as error:
        raise WeightsError(f"{path} is damaged: it is not JSON ({error}). {_AGAIN}") from error
    if not isinstance(record, dict):
        raise WeightsError(f"{path} is damaged: it holds no JSON object. {_AGAIN}")
    return record


def _check_target(folder: Path, meta: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    made_for = meta.get("target")
    if not isinstance(made_for, dict):
        raise WeightsError(f"{folder / META} does not say which target the checkpoint is for. {_AGAIN}")
    for key, words in _IDENTITY.items():
        if made_for.get(key) != target[key]:
            raise ModelPairError(
                f"The checkpoint {folder} was made for {made_for.get('name')}, whose {words} is {made_for.get(key)}; "
                f"{target['name']} has {target[key]}. Load that target, or fit a drafter for this one with "
                "`python -m explorer fit`."
            )


def _read_shard(folder: Path, number: int) -> dict[str, Tensor]:
    path = folder / f"shard-{number}.safetensors"
    if not path.is_file():
        raise WeightsError(f"The checkpoint {folder} lacks {path.name}. {_AGAIN}")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is damaged or cut short ({error}). {_AGAIN}") from error


def _joined(shards: list[dict[str, Tensor]], pieces: list[str]) -> Tensor:
    parts = []
    for piece in pieces:
        number, _, key = piece.partition(":")
        parts.append(shards[int(number) - 1][key])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _check_finite(folder: Path, weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise WeightsError(
                f"{name} of the checkpoint {folder} holds numbers that are not finite; it cannot be used. {_AGAIN}"
            )
