"""`native.c`, compiled for this processor when first needed: a whole pass over few tokens in one call.

Without a C compiler, or on a processor it is not written for, `library` is None and `fused` goes on operator by operator.
`EXPLORER_NATIVE=0` does the same by choice.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from explorer.engine.cache import RowCache
from explorer.engine.weights import default_cache
from explorer.heads.eagle import EagleModel

SOURCE = Path(__file__).with_suffix(".c")
GROUP = 32  # rows that lie together in a packed matrix
_MULTIPLE = 16  # what the sizes inside a layer must be a multiple of: the widest vector
# Above so many tokens the work is arithmetic, and FBGEMM's kernel is as fast.
MAX_TOKENS = 16

FOR_THIS_PROCESSOR = ("-march=native",)
_FLAGS = ("-O3", "-fopenmp", "-shared", "-fPIC")
_log = logging.getLogger(__name__)


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


class _Drafter(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("hidden", "heads", "kv_heads", "head_dim", "inner", "norm_before_residual")
        ),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("qkv", "out", "gate", "up", "down")),
        *((name, ctypes.c_void_p) for name in ("embedding", "input_norm", "hidden_norm", "mlp_norm", "final_norm")),
    ]


@cache
def library(flags: tuple[str, ...] = FOR_THIS_PROCESSOR) -> ctypes.CDLL | None:
    """The code, compiled with these flags, or None; why is in the log."""
    if os.environ.get("EXPLORER_NATIVE") == "0":
        return None
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        found = ctypes.CDLL(str(_compiled(flags)))
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip()
        _log.warning("The faster pass could not be compiled; decoding takes about twice as long. %s", detail[-500:])
        return None
    found.scratch_size.restype = found.draft_scratch_size.restype = ctypes.c_long
    return found


def suits(*sizes: int) -> bool:
    """Whether layers of these inner sizes can be compiled here."""
    return all(size % _MULTIPLE == 0 for size in sizes) and library() is not None


def _compiled(flags: tuple[str, ...]) -> Path:
    """Path of the library for this source and processor, compiled if it is not there."""
    flags = (*_FLAGS, *flags)
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(flags).encode() + _processor())
    path = default_cache() / "native" / f"{digest.hexdigest()[:16]}.so"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        command = [os.environ.get("CC", "cc"), *flags, "-o", str(part), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        part.replace(path)  # whole or not at all, whoever else compiles at the same time
    return path


def _processor() -> bytes:
    """What tells one kind of processor from another: a library made for more instructions would crash."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"".join(sorted({line for line in lines if line.startswith((b"flags", b"model name"))}))


class PackedMatrix:
    """A (N, K) matrix in float16, in the order in which `native.c` reads it."""

    def __init__(self, weight: Tensor) -> None:
        """Pack a float32 matrix; beyond float16's range, its largest number."""
        code = library()
        assert code is not None
        largest = torch.finfo(torch.float16).max
        weight = weight.detach().float().clamp(-largest, largest).contiguous()
        N, K = weight.shape
        self.data = torch.empty(-(-N // GROUP) * GROUP * K, dtype=torch.int16)
        code.use_large_pages(_at(self.data), ctypes.c_long(2 * self.data.numel()))
        code.pack_matrix(_at(weight), ctypes.c_long(N), ctypes.c_long(K), _at(self.data))

    @property
    def pointer(self) -> int:
        """Where it begins."""
        return self.data.data_ptr()


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


class NativeLlama:
    """A Llama's layers and head as `native.c` runs them. Has no say in which tokens are seen: slots up to a token's own."""

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
            (ctypes.c_void_p * len(layers))(*(matrix.pointer for matrix in kind))
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
            self.head.pointer,
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
            _at(state),
            _at(positions),
            _at(cos),
            _at(sin),
            pointers(*(layer.keys.data_ptr() for layer in cache.layers)),
            pointers(*(layer.values.data_ptr() for layer in cache.layers)),
            ctypes.c_long(cache.capacity),
            (ctypes.c_void_p * len(places))(*places),
            _at(logits),
            _at(scratch),
            threads,
        )
        return logits, found


class NativeEagle:
    """The layer of an EAGLE drafter as `native.c` runs it; its session brings the cache, its head comes after."""

    def __init__(self, model: EagleModel) -> None:
        """Pack the layer of a float32 model; the embedding stays shared."""
        shape = self.shape = model.shape
        halves = model.gate_up.chunk(2) if shape.intermediate_size else ()
        matrices = [model.qkv, model.out, *halves, *([model.mlp_down] if halves else [])]
        self.packed = [PackedMatrix(matrix) for matrix in matrices]
        norms = (model.input_norm, model.hidden_norm, model.mlp_norm, model.final_norm)
        self.tensors = [tensor.detach().float().contiguous() for tensor in (model.embedding, *norms)]
        pointers: list[int | None] = [matrix.pointer for matrix in self.packed]
        self.model = _Drafter(
            shape.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.intermediate_size,
            shape.norm_before_residual,
            shape.norm_eps,
            *(pointers + [None] * (5 - len(pointers))),
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
            *map(_at, inputs),
            *map(_at, slots),
            ctypes.c_long(capacity),
            _at(state),
            _at(normed),
            _at(scratch),
            threads,
        )
        return state, normed
