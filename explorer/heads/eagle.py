"""Weights of an EAGLE-3-style drafter: one decoder layer on fused features of the target, and a head.

The module has the pieces of a forward pass; who drafts or trains brings caches and attention.

Source:
    EAGLE-3, arXiv:2503.01840 (layer, fused features, tensor names); SlimSpec, arXiv:2605.10453 (low-rank head).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from explorer.errors import WeightsError
from explorer.heads.draft import LowRankHead
from explorer.heads.packed import DraftLinear, PackedLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape:
    """Sizes of a drafter; all but `intermediate_size` and `max_rank` follow from its target.

    Attributes:
        intermediate_size: Hidden units of the feed-forward part; 0 leaves it out.
        features: Indices of the target's hidden states, low, middle and high; index i is the output of layer i - 1.
        rope: Arguments of the rotary position embedding, as transformers names them.
        norm_before_residual: Whether attention is added to the normed states; EAGLE-3 itself adds it to them as they
            are, drafters of the speculators library often do not.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_rank: int
    norm_eps: float
    features: tuple[int, ...]
    rope: dict[str, Any]
    max_positions: int
    norm_before_residual: bool = False


class EagleModel(nn.Module):
    """Weights and the pieces of the forward pass; sessions (and training) bring their own attention.

    Query, key and value projections are one matrix, gate and up another: `named_weights` shows them under their
    published names.
    """

    def __init__(self, shape: EagleShape, embedding: Tensor, head: nn.Module) -> None:
        """Allocate a drafter with zero weights, norms of one.

        Args:
            shape: Sizes.
            embedding: (rows, D) the target's table, shared and never trained or saved.
            head: Maps (..., D) to (..., V), see `heads.draft`.
        """
        super().__init__()
        self.shape, self.head = shape, head
        self.embedding = embedding.detach()
        D, attended = shape.hidden_size, shape.num_heads * shape.head_dim
        projected = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim

        def zeros(*sizes: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(*sizes, dtype=embedding.dtype, device=embedding.device), False)

        self.fc = zeros(D, len(shape.features) * D)
        self.input_norm, self.hidden_norm = zeros(D), zeros(D)
        self.qkv = zeros(projected, 2 * D)
        self.out = zeros(D, attended)
        self.mlp_norm = zeros(D)
        self.gate_up = zeros(2 * shape.intermediate_size, D)
        self.mlp_down = zeros(D, shape.intermediate_size)
        self.final_norm = zeros(D)
        for norm in (self.input_norm, self.hidden_norm, self.mlp_norm, self.final_norm):
            norm.fill_(1.0)
        self._rope: tuple[Tensor, Tensor] | None = None
        self._packed: dict[str, PackedLinear] = {}

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.fc.dtype

    def named_weights(self) -> dict[str, Tensor]:
        """Views of the weights under the names of published EAGLE-3 checkpoints; the head has two factors."""
        shape = self.shape
        sizes = [n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)]
        q, k, v = self.qkv.detach().split(sizes)
        gate, up = self.gate_up.detach().chunk(2)
        weights = {
            "fc.weight": self.fc.detach(),
            "midlayer.input_layernorm.weight": self.input_norm.detach(),
            "midlayer.hidden_norm.weight": self.hidden_norm.detach(),
            "midlayer.self_attn.q_proj.weight": q,
            "midlayer.self_attn.k_proj.weight": k,
            "midlayer.self_attn.v_proj.weight": v,
            "midlayer.self_attn.o_proj.weight": self.out.detach(),
            "norm.weight": self.final_norm.detach(),
        }
        if shape.intermediate_size:
            weights["midlayer.post_attention_layernorm.weight"] = self.mlp_norm.detach()
            weights["midlayer.mlp.gate_proj.weight"] = gate
            weights["midlayer.mlp.up_proj.weight"] = up
            weights["midlayer.mlp.down_proj.weight"] = self.mlp_down.detach()
        if isinstance(self.head, LowRankHead):
            weights["lm_head.down.weight"] = self.head.down.detach()
            weights["lm_head.up.weight"] = self.head.up_t.detach().t()
        return weights

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights in, converted to this model's dtype.

        Raises:
            WeightsError: A tensor is missing or has another shape.
        """
        for name, own in self.named_weights().items():
            if name not in weights or weights[name].shape != own.shape:
                came = tuple(weights[name].shape) if name in weights else "missing"
                raise WeightsError(
                    f"The drafter's {name} is {came}; its sizes say {tuple(own.shape)}. Fit or fetch the drafter again."
                )
            own.copy_(weights[name])

    def with_feed_forward(self, gate: Tensor, up: Tensor) -> EagleModel:
        """The same function with hidden units whose outputs are still 0: a start for training. The head is shared.

        Args:
            gate: (I, D), such as the target's last layer's.
            up: (I, D).
        """
        wider = EagleModel(replace(self.shape, intermediate_size=len(gate)), self.embedding, self.head)
        weights = wider.named_weights()
        for name, weight in self.named_weights().items():
            if not name.startswith("lm_head"):
                weights[name].copy_(weight)
        weights["midlayer.mlp.gate_proj.weight"].copy_(gate)
        weights["midlayer.mlp.up_proj.weight"].copy_(up)
        return wider

    def pack(self) -> None:
        """From here on multiply float32 with float16 copies of the matrices; for a float32 model on x86."""
        feed_forward = ("gate_up", "mlp_down") if self.shape.intermediate_size else ()
        for name in ("fc", "qkv", "out", *feed_forward):
            # The layer itself has a compiled twin (`native_eagle`); of few rows, only features come through here.
            kind = DraftLinear if name == "fc" else PackedLinear
            self._packed[name] = kind(getattr(self, name))
        self.head.pack()

    @property
    def is_packed(self) -> bool:
        """Whether it multiplies with float16 copies."""
        return bool(self._packed)

    def _linear(self, inputs: Tensor, name: str) -> Tensor:
        packed = self._packed.get(name)
        return functional.linear(inputs, getattr(self, name)) if packed is None else packed(inputs)

    def rope(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Tables (capacity, 1, head_dim) of cosines, and of sines whose first half is negated; kept for later calls."""
        if self._rope is None or len(self._rope[0]) < capacity:
            self._rope = _rope_tables(self.shape, capacity, self.dtype, self.embedding.device)
        return self._rope

    def fuse(self, features: Tensor) -> Tensor:
        """States (..., D) of target features (..., 3 D)."""
        return self._linear(features.to(self.dtype), "fc")

    def project(self, ids: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, M, H, size), keys and values (B, M, H_kv, size) of entries, rotated to their positions.

        Args:
            ids: (B, M) int64, token after each entry's position.
            states: (B, M, D), fused features or the layer's own earlier output.
            positions: (B, M) int64.
        """
        shape = self.shape
        embedded = functional.embedding(ids, self.embedding)
        inputs = torch.cat([self._norm(embedded, self.input_norm), self._norm(states, self.hidden_norm)], dim=-1)
        heads = self._linear(inputs, "qkv").unflatten(-1, (-1, shape.head_dim))
        rotated, values = heads.split([shape.num_heads + shape.num_kv_heads, shape.num_kv_heads], dim=2)
        cos, sin = self.rope(1)
        swapped = rotated.roll(shape.head_dim // 2, dims=-1)
        rotated = torch.addcmul(rotated * cos[positions], swapped, sin[positions])
        queries, keys = rotated.split([shape.num_heads, shape.num_kv_heads], dim=2)
        return queries, keys, values

    def finish(self, states: Tensor, attended: Tensor) -> Tensor:
        """Output (..., D), before the final norm, of entries' states (..., D) and attended values (..., H * size)."""
        return self.feed_forward(self.mix(states, attended))

    def mix(self, states: Tensor, attended: Tensor) -> Tensor:
        """States (..., D) after attention."""
        residual = self._norm(states, self.hidden_norm) if self.shape.norm_before_residual else states
        return residual + self._linear(attended, "out")

    def feed_forward(self, mixed: Tensor) -> Tensor:
        """Output (..., D) of states after attention."""
        if not self.shape.intermediate_size:
            return mixed
        gate, up = self._linear(self._norm(mixed, self.mlp_norm), "gate_up").chunk(2, dim=-1)
        return mixed + self._linear(functional.silu(gate) * up, "mlp_down")

    def normed(self, states: Tensor) -> Tensor:
        """What the head reads: outputs (..., D) after the final norm."""
        return self._norm(states, self.final_norm)

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(states, weight.shape, weight, self.shape.norm_eps)


def _rope_tables(shape: EagleShape, capacity: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        rope_parameters=dict(shape.rope),
    )
    positions = torch.arange(capacity, device=device).unsqueeze(0)
    rotary = LlamaRotaryEmbedding(config).to(device)
    cos, sin = rotary(torch.zeros(1, device=device), positions)  # float32 (1, capacity, head_dim)
    first, second = sin[0].chunk(2, dim=-1)
    signed = torch.cat([-first, second], dim=-1)
    return cos[0].to(dtype).unsqueeze(1), signed.to(dtype).unsqueeze(1)
