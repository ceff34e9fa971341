"""What a stopped training goes on from: one file of tensors, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer.errors import WeightsError

_ADAM = "adam."


def save(path: Path, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Write tensors and an optimizer's state in place of an older file.

    Raises:
        WeightsError: The file cannot be written; the last one is kept.
    """
    found = dict(tensors)
    for index, state in optimizer.state_dict()["state"].items():
        found |= {f"{_ADAM}{index}.{key}": value for key, value in state.items()}
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.detach().contiguous().clone() for name, tensor in found.items()}, part)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise WeightsError(f"{path} could not be written ({error}). The last one is kept; free some space.") from error


def load(path: Path, optimizer: torch.optim.Optimizer, take: Callable[[dict[str, Tensor]], None]) -> None:
    """Put back what `save` wrote; `take` gets the tensors.

    Raises:
        WeightsError: The file is missing, damaged or of another training.
    """
    try:
        tensors = load_file(path)
        take(tensors)
        record = optimizer.state_dict()
        for name, value in tensors.items():
            if name.startswith(_ADAM):
                index, key = name.removeprefix(_ADAM).split(".")
                record["state"].setdefault(int(index), {})[key] = value
        optimizer.load_state_dict(record)
    except (OSError, SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise WeightsError(f"{path} cannot be resumed from ({error}). Start anew, without --resume.") from error
