"""`native.c`, compiled for this processor when first needed: products and whole passes over few tokens.

Without a C compiler, or on a processor it is not written for, `library` is None and everything goes on operator by
operator. `EXPLORER_NATIVE=0` does the same by choice.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from explorer.folders import default_cache

SOURCE = Path(__file__).with_suffix(".c")
GROUP = 32  # rows that lie together in a packed matrix
_MULTIPLE = 16  # what the sizes inside a layer must be a multiple of: the widest vector
# Above so many tokens the work is arithmetic, and FBGEMM's kernel is as fast.
MAX_TOKENS = 16

PROCESSOR_FLAGS: tuple[str, ...] = ("-march=native",)
_FLAGS = ("-O3", "-fopenmp", "-shared", "-fPIC")
_log = logging.getLogger(__name__)


def library() -> ctypes.CDLL | None:
    """The compiled code, or None; why is in the log."""
    is_off = os.environ.get("EXPLORER_NATIVE") == "0"
    return None if is_off else _loaded(os.environ.get("CC", "cc"), PROCESSOR_FLAGS)


@cache
def _loaded(compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    try:
        found = ctypes.CDLL(str(_compiled(compiler, flags)))
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip()
        _log.warning("The faster pass could not be compiled; decoding takes about twice as long. %s", detail[-500:])
        return None
    found.scratch_size.restype = found.draft_scratch_size.restype = ctypes.c_long
    return found


def suits(*sizes: int) -> bool:
    """Whether layers of these inner sizes can be compiled here."""
    return all(size % _MULTIPLE == 0 for size in sizes) and library() is not None


def _compiled(compiler: str, flags: tuple[str, ...]) -> Path:
    """Path of the library for this source and processor, compiled if it is not there."""
    flags = (*_FLAGS, *flags)
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(flags).encode() + _processor())
    path = default_cache() / "native" / f"{digest.hexdigest()[:16]}.so"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        command = [compiler, *flags, "-o", str(part), str(SOURCE)]
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


class Matrix(ctypes.Structure):
    """A packed matrix as `native.c` sees it."""

    _fields_ = [("data", ctypes.c_void_p), ("scale", ctypes.c_void_p)]


class PackedMatrix:
    """A (N, K) matrix in the order in which `native.c` reads it, in float16 or in eight bits with a scale per row."""

    def __init__(self, weight: Tensor, *, bits: int = 16) -> None:
        """Pack a float32 matrix; in 16 bits, a number beyond float16's range becomes the largest."""
        code = library()
        assert code is not None
        largest = torch.finfo(torch.float16).max
        weight = weight.detach().float()
        weight = (weight.clamp(-largest, largest) if bits == 16 else weight).contiguous()
        self.num_rows, self.num_columns = N, K = weight.shape
        rows = -(-N // GROUP) * GROUP
        self.data = torch.empty(rows * K, dtype=torch.int16 if bits == 16 else torch.int8)
        code.use_large_pages(at(self.data), ctypes.c_long(self.data.nbytes))
        self.scale: Tensor | None = None
        if bits == 16:
            code.pack_matrix(at(weight), ctypes.c_long(N), ctypes.c_long(K), at(self.data))
        else:
            self.scale = torch.empty(rows)
            code.pack_bytes(at(weight), ctypes.c_long(N), ctypes.c_long(K), at(self.data), at(self.scale))

    @property
    def pointers(self) -> Matrix:
        """Where it begins; valid as long as this object."""
        return Matrix(self.data.data_ptr(), None if self.scale is None else self.scale.data_ptr())

    def __call__(self, inputs: Tensor) -> Tensor:
        """Product (..., N) with float32 inputs (..., K'), K' <= K: the first K' columns are used. For few inputs."""
        used = inputs.shape[-1]
        rows = inputs.reshape(-1, used).contiguous()
        product = torch.empty(*inputs.shape[:-1], self.num_rows)
        threads = torch.get_num_threads()
        scratch = torch.empty(threads * len(rows) * GROUP)
        matrix = self.pointers
        library().multiply(
            ctypes.c_void_p(matrix.data),
            ctypes.c_void_p(matrix.scale),
            ctypes.c_long(self.num_rows),
            self.num_columns,
            used,
            at(rows),
            len(rows),
            at(product),
            at(scratch),
            threads,
        )
        return product


def at(tensor: Tensor) -> ctypes.c_void_p:
    """Address of a tensor's numbers; the tensor must be kept until it was used."""
    return ctypes.c_void_p(tensor.data_ptr())
