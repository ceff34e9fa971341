"""A Llama's whole pass over few tokens in one call of compiled code; `heads.native` compiles it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from explorer.engine.cache import RowCache
from explorer.heads.native import PackedMatrix, at, library


class _Model(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "inner", "vocab")
        ),
        ("eps", ctypes.c_float),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("qkv", "out", "gate", "up", "down")),
        ("head", ctypes.c_void_p),
        ("final_norm", ctypes.c_void_p),
    ]


class NativeLlama:
    """A Llama's layers and head as `native.c` runs them; each token sees the slots up to its own."""

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]],
        head: Tensor,
        final_norm: Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        eps: float,
    ) -> None:
        """Pack.

        Args:
            layers: Per layer the matrices of queries, keys and values; attention's output; gate; up; down. Norm weights
                are folded in.
            head: (V, D).
            final_norm: (D,).
            num_heads: Query heads.
            num_kv_heads: Key and value heads.
            eps: Of the norms.
        """
        qkv, out, _, _, down = layers[0]
        self.hidden_size, self.vocab_size, self.num_layers = len(out), len(head), len(layers)
        self.final_norm = final_norm.detach().float().contiguous()
        self.matrices = [[PackedMatrix(matrix) for matrix in layer] for layer in layers]
        self.head = PackedMatrix(head)
        by_kind = [
            (ctypes.c_void_p * len(layers))(*(matrix.data.data_ptr() for matrix in kind))
            for kind in zip(*self.matrices, strict=True)
        ]
        self.model = _Model(
            len(layers),
            self.hidden_size,
            num_heads,
            num_kv_heads,
            out.shape[1] // num_heads,
            down.shape[1],
            self.vocab_size,
            eps,
            *by_kind,
            self.head.data.data_ptr(),
            self.final_norm.data_ptr(),
        )

    def __call__(
        self, state: Tensor, cos: Tensor, sin: Tensor, cache: RowCache, keep: int, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits (B, keep, V), and the wanted hidden states (B, T, D) by index.

        Args:
            state: (B, T, D) embeddings, float32; written over.
            cos: (B, T, size).
            sin: (B, T, size), its first half negated.
            cache: Placed at the pass's positions, and written there.
            keep: How many of the last tokens need logits.
            wanted: Indices of hidden states; the last is taken after the final norm.
        """
        code, model = library(), self.model
        B, T, D = state.shape
        positions = cache.positions.contiguous()
        for layer in cache.layers:
            if not layer.is_initialized:
                slot = state.new_empty(B, model.kv_heads, 1, model.head_dim)
                layer.lazy_initialization(slot, slot)
        threads = torch.get_num_threads()
        size = code.scratch_size(ctypes.byref(model), ctypes.c_long(B * T), ctypes.c_long(cache.end), threads)
        scratch = torch.empty(size)
        found = {index: torch.empty(B, T, D) for index in wanted}
        places = [found[i].data_ptr() if i in found else None for i in range(self.num_layers + 1)]
        logits = torch.empty(B, keep, self.vocab_size)
        pointers = ctypes.c_void_p * len(cache.layers)
        code.run(
            ctypes.byref(model),
            B,
            T,
            keep,
            at(state),
            at(positions),
            at(cos),
            at(sin),
            pointers(*(layer.keys.data_ptr() for layer in cache.layers)),
            pointers(*(layer.values.data_ptr() for layer in cache.layers)),
            ctypes.c_long(cache.capacity),
            (ctypes.c_void_p * len(places))(*places),
            at(logits),
            at(scratch),
            threads,
        )
        return logits, found
