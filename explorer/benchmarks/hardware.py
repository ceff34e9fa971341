"""What limits a pass on this machine: how fast weights are read, how many there are, and how much memory was used."""

from __future__ import annotations

import sys
import time
from statistics import median

import torch

from explorer.engine.models import LanguageModel

BYTES_OF = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "nf4": 0.5}
NUM_READS = 7


def bandwidth_gb_s(num_bytes: int, device: torch.device | str = "cpu") -> float:
    """10^9 bytes per second of a plain read: the sum of a float32 array of this size, median of several."""
    numbers = torch.ones(num_bytes // 4, device=device)
    times = []
    for _ in range(NUM_READS + 1):
        began = time.perf_counter()
        numbers.sum().item()  # the number itself, so that a GPU is waited for
        times.append(time.perf_counter() - began)
    return round(numbers.numel() * 4 / median(times[1:]) / 1e9, 3)


def bytes_per_pass(model: LanguageModel) -> int:
    """Bytes of the weights a pass reads: all of them, but for an embedding table that is not the head as well.

    Of a mixture of experts, a pass reads less.
    """
    count = model.num_parameters
    if not getattr(model.config, "tie_word_embeddings", False):
        count -= model.embedding.numel()
    return int(count * BYTES_OF[model.precision])


def peak_memory_mb() -> float | None:
    """The most memory this process has had at once, in 2^20 bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
