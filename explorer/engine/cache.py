"""A key/value cache for any transformers decoder whose rows have lengths of their own.

Slot j of a row holds position j, always. Rolling back is therefore only a smaller start for the next pass: what lies
beyond is masked by position and written over. Nothing grows, nothing is copied.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class _Layer(CacheLayerMixin):
    """Keys and values of one layer, (B, heads, capacity, head size), allocated at the first pass."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate. Zeros, not garbage: a masked slot must still hold finite numbers."""
        capacity = self.cache.capacity
        self.keys = key_states.new_zeros((*key_states.shape[:2], capacity, key_states.shape[3]))
        self.values = value_states.new_zeros((*value_states.shape[:2], capacity, value_states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write (B, heads, T, size) at the pass's positions; return every slot the pass may look at."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._write(self.keys, key_states)
        self._write(self.values, value_states)
        return self.keys[:, :, : self.cache.end], self.values[:, :, : self.cache.end]

    def _write(self, slots: Tensor, states: Tensor) -> None:
        start = self.cache.common_start
        if start is not None:
            slots[:, :, start : start + states.shape[2]] = states
        else:
            rows = torch.arange(len(states), device=states.device).unsqueeze(1)
            slots[rows, :, self.cache.positions] = states.transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 (the base class's signature)
        """Slots a pass sees, and the position of the first."""
        return self.cache.end, 0

    def get_seq_length(self) -> int:
        """Slots in use by the longest row."""
        return self.cache.end

    def get_max_length(self) -> int:
        """Slots there are."""
        return self.cache.capacity


class RowCache(Cache):
    """Cache of `batch_size` rows with room for `capacity` positions each; `at` says where the next pass writes."""

    def __init__(self, num_layers: int, capacity: int) -> None:
        super().__init__(layers=[_Layer(self) for _ in range(num_layers)])
        self.capacity = capacity
        self.end = 0
        self.common_start: int | None = 0
        self.positions: Tensor | None = None

    def at(self, starts: Tensor, width: int) -> Tensor:
        """Place the next pass: row b writes positions starts[b] .. starts[b] + width - 1.

        Args:
            starts: (B,) int64 on the model's device.
            width: Tokens per row in the pass.

        Returns:
            (B, width) int64 position ids.

        Raises:
            ValueError: The pass does not fit.
        """
        first, last = int(starts.min()), int(starts.max())
        if first < 0 or last + width > self.capacity:
            raise ValueError(f"Positions {first} to {last + width} do not fit a cache of {self.capacity}.")
        self.positions = starts.unsqueeze(1) + torch.arange(width, device=starts.device)
        self.common_start = first if first == last else None
        self.end = last + width
        return self.positions

    def select(self, rows: Tensor) -> None:
        """Keep these rows ((B',) int64, none twice), in this order. Only rows that change places are copied."""
        places = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys = _moved(layer.keys, rows, places)
                layer.values = _moved(layer.values, rows, places)

    def spread(self, batch_size: int) -> None:
        """Give every row of a batch what the only row holds."""
        for layer in self.layers:
            layer.keys = _spread(layer.keys, batch_size, self.end)
            layer.values = _spread(layer.values, batch_size, self.end)


def _moved(slots: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    if len(places):
        slots[places] = slots[rows[places]]
    return slots[: len(rows)]


def _spread(slots: Tensor, batch_size: int, end: int) -> Tensor:
    copies = slots.new_zeros(batch_size, *slots.shape[1:])
    copies[:, :, :end] = slots[:, :, :end]
    return copies


def visible(positions: Tensor, end: int, window: int | None = None) -> Tensor:
    """(B, 1, T, end) bool: which slots each query may look at, by position alone.

    Args:
        positions: (B, T) positions of the queries.
        end: Number of slots.
        window: Sliding window in tokens, the query's own included; None for full attention.
    """
    slots = torch.arange(end, device=positions.device)
    mask = slots <= positions.unsqueeze(-1)
    if window is not None:
        mask &= slots > positions.unsqueeze(-1) - window
    return mask.unsqueeze(1)
