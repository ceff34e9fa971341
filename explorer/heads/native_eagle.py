"""The layer of an EAGLE drafter over few tokens in one call of compiled code; `heads.native` compiles it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from explorer.heads.eagle import EagleModel
from explorer.heads.native import Matrix, PackedMatrix, at, library


class _Drafter(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("hidden", "heads", "kv_heads", "head_dim", "inner", "norm_before_residual")
        ),
        ("eps", ctypes.c_float),
        *((name, Matrix) for name in ("qkv", "out", "gate", "up", "down")),
        *((name, ctypes.c_void_p) for name in ("embedding", "input_norm", "hidden_norm", "mlp_norm", "final_norm")),
    ]


class NativeEagle:
    """The layer of an EAGLE drafter as `native.c` runs it; its session brings the cache, its head comes after.

    The weights are rounded to eight bits: a drafter may be a little wrong, the rule makes up for it.
    """

    def __init__(self, model: EagleModel) -> None:
        """Pack the layer of a float32 model; the embedding stays shared."""
        shape = self.shape = model.shape
        halves = model.gate_up.chunk(2) if shape.intermediate_size else ()
        matrices = [model.qkv, model.out, *halves, *([model.mlp_down] if halves else [])]
        self.packed = [PackedMatrix(matrix, bits=8) for matrix in matrices]
        norms = (model.input_norm, model.hidden_norm, model.mlp_norm, model.final_norm)
        self.tensors = [tensor.detach().float().contiguous() for tensor in (model.embedding, *norms)]
        pointers = [matrix.pointers for matrix in self.packed]
        self.model = _Drafter(
            shape.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.intermediate_size,
            shape.norm_before_residual,
            shape.norm_eps,
            *(pointers + [Matrix()] * (5 - len(pointers))),
            *(tensor.data_ptr() for tensor in self.tensors),
        )

    def __call__(
        self,
        ids: Tensor,
        states: Tensor,
        positions: Tensor,
        last: Tensor,
        rope: tuple[Tensor, Tensor],
        slots: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Outputs (B, D) of one entry per row, before and after the final norm.

        Args:
            ids: (B, T) int64.
            states: (B, T, D).
            positions: (B, T) int64.
            last: (B,) int64, which entry looks back.
            rope: Tables (capacity, 1, size) of cosines, and of sines whose first half is negated.
            slots: Keys and values (B, capacity, kv_heads, size), written at the positions.
        """
        code, model = library(), self.model
        B, T = ids.shape
        capacity, threads = slots[0].shape[1], torch.get_num_threads()
        size = code.draft_scratch_size(
            ctypes.byref(model), ctypes.c_long(B), ctypes.c_long(T), ctypes.c_long(capacity), threads
        )
        scratch, state = torch.empty(size), torch.empty(B, model.hidden)
        normed = torch.empty_like(state)
        # Kept by name until the call is over: of a temporary only the address would be left.
        inputs = [tensor.contiguous() for tensor in (ids, states, positions, last, *rope)]
        code.draft(
            ctypes.byref(model),
            B,
            T,
            *map(at, inputs),
            *map(at, slots),
            ctypes.c_long(capacity),
            at(state),
            at(normed),
            at(scratch),
            threads,
        )
        return state, normed
