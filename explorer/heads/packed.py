"""Linear layers with float16 weights and float32 arithmetic, for x86 processors.

A round multiplies a handful of tokens with every weight. FBGEMM's packed kernel reads each weight once for all of
them, in half the bytes; the plain float32 and bfloat16 kernels of a processor without bfloat16 instructions take
several times as long for five tokens as for one, which is what speculation must not pay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from explorer.heads.native import MAX_TOKENS, PackedMatrix, library

# FBGEMM packs for whatever processor it finds; these are the names under which torch offers it.
_ENGINES = ("fbgemm", "x86")


def is_supported() -> bool:
    """Whether this machine has the kernel."""
    return torch.backends.quantized.engine in _ENGINES


class PackedLinear(nn.Module):
    """A linear layer whose weight is kept in float16, packed. Takes and returns float32 (..., features)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Pack.

        Args:
            weight: (out, in), rounded to float16; beyond its range, to its largest number.
            bias: (out,), kept in float32.
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        bias = None if bias is None else bias.detach().float()
        self.packed: Any = torch.ops.quantized.linear_prepack_fp16(weight.detach().float().contiguous(), bias)

    @property
    def weight(self) -> Tensor:
        """(out, in) float32, unpacked anew at every call."""
        return torch.ops.quantized.linear_unpack_fp16(self.packed)[0]

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's output (..., out)."""
        return torch.ops.quantized.linear_dynamic_fp16(inputs, self.packed)


class DraftLinear(PackedLinear):
    """A matrix of a drafter. Few inputs are multiplied with eight-bit weights by compiled code, where that runs.

    A drafter may be a little wrong: the rule makes up for it, and half the bytes are half the time.
    """

    def __init__(self, weight: Tensor) -> None:
        """Pack (out, in) twice."""
        super().__init__(weight)
        self.few = PackedMatrix(weight, bits=8) if library() is not None else None

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's output (..., out)."""
        if self.few is None or inputs.numel() > MAX_TOKENS * self.in_features:
            return super().forward(inputs)
        return self.few(inputs)


def pack_linears(module: nn.Module) -> None:
    """Replace every `nn.Linear` inside `module` in place. A weight shared with an embedding stays there as it is."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child.weight, child.bias))
        else:
            pack_linears(child)
