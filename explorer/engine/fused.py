"""A Llama decoder with few, large operations, for processors: the fast twin of the plain path in `models`.

Projections that read the same input are one packed matrix, norm weights are folded into the matrices behind them, and
grouped query heads are laid out as a sequence, so that keys and values are never repeated. A pass over few tokens is
one call of compiled code where there is a compiler (`native`), and this module's operators otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from explorer.engine.cache import RowCache, visible
from explorer.engine.native import NativeLlama
from explorer.heads.native import MAX_TOKENS, suits
from explorer.heads.packed import PackedLinear


def fits(model: Any) -> bool:
    """Whether this transformers model is a Llama as `FusedLlama` knows it."""
    config = model.config
    return (
        config.model_type == "llama"
        and config.hidden_act == "silu"
        and not getattr(config, "attention_bias", False)
        and not getattr(config, "mlp_bias", False)
        and getattr(config, "pretraining_tp", 1) == 1
    )


class FusedLlama(nn.Module):
    """The layers of a float32 `LlamaForCausalLM`, packed; the model itself keeps its embedding, norm and head."""

    def __init__(self, model: Any) -> None:
        """Pack the layers and take them out of `model`, whose memory they would otherwise hold twice."""
        super().__init__()
        config, base = model.config, model.model
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps = float(config.rms_norm_eps)
        self.embed, self.rotary, self.final_norm, self.head = (
            base.embed_tokens,
            base.rotary_emb,
            base.norm,
            model.lm_head,
        )
        self.layers = nn.ModuleList()
        while len(base.layers):
            self.layers.append(_Layer(base.layers[0]))
            del base.layers[0]
        self.native: NativeLlama | None = None

    def compile(self) -> None:
        """Take passes over few tokens to compiled code, if there is a compiler and the sizes suit it."""
        first = self.layers[0]
        head_dim = first.out.in_features // self.num_heads
        if not suits(first.down.out_features, first.down.in_features, head_dim):
            return
        self.native = NativeLlama(
            [
                (layer.qkv.weight, layer.out.weight, *layer.gate_up.weight.chunk(2), layer.down.weight)
                for layer in self.layers
            ],
            self.head.weight,
            self.final_norm.weight,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            eps=self.eps,
        )

    def forward(
        self, ids: Tensor, positions: Tensor, cache: RowCache, keep: int, wanted: frozenset[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits (B, keep, rows), and the wanted hidden states (B, T, D) by index, as transformers numbers them.

        Args:
            ids: (B, T) int64.
            positions: (B, T) int64, for the rotary embedding; the cache knows its own.
            cache: Placed at the pass's positions.
            keep: How many of the last tokens need logits.
            wanted: Indices of hidden states; the last is taken after the final norm.
        """
        state = self.embed(ids)
        cos, sin = self.rotary(state, positions)
        first, second = sin.chunk(2, dim=-1)
        sin = torch.cat([-first, second], dim=-1)
        if self.native is not None and ids.numel() <= MAX_TOKENS:
            return self.native(state, cos, sin, cache, keep, wanted)
        rope = cos.unsqueeze(2), sin.unsqueeze(2)
        mask = None
        if ids.numel() > 1:
            mask = visible(cache.positions, cache.end).repeat(1, 1, self.num_heads // self.num_kv_heads, 1)
        found = {}
        for index, layer in enumerate(self.layers):
            if index in wanted:
                found[index] = state
            query, key, value = self._project(layer, state, rope)
            key, value = cache.layers[index].update(key, value)
            state = state + layer.out(_attend(query, key, value, mask))
            gate, up = layer.gate_up(self._scaled(state)).chunk(2, dim=-1)
            state = state + layer.down(functional.silu(gate).mul_(up))
        normed = self._scaled(state) * self.final_norm.weight
        if len(self.layers) in wanted:
            found[len(self.layers)] = normed
        return self.head(normed[:, normed.shape[1] - keep :]), found

    def _scaled(self, state: Tensor) -> Tensor:
        """RMS norm without its weights."""
        size = state.shape[-1]
        scale = torch.linalg.vector_norm(state, dim=-1, keepdim=True).square_().div_(size).add_(self.eps).rsqrt_()
        return state * scale

    def _project(self, layer: _Layer, state: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, T, H, size), keys and values (B, H_kv, T, size), rotated."""
        heads = layer.qkv(self._scaled(state)).unflatten(-1, (self.num_heads + 2 * self.num_kv_heads, -1))
        rotated, value = heads.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=2)
        rotated = torch.addcmul(rotated * rope[0], rotated.roll(rotated.shape[-1] // 2, dims=-1), rope[1])
        query, key = rotated.split([self.num_heads, self.num_kv_heads], dim=2)
        return query, key.transpose(1, 2), value.transpose(1, 2)


class _Layer(nn.Module):
    """Packed matrices of one decoder layer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        before_attention, before_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = _packed([projection.weight * before_attention for projection in projections])
        self.out = _packed([attention.o_proj.weight])
        self.gate_up = _packed([mlp.gate_proj.weight * before_mlp, mlp.up_proj.weight * before_mlp])
        self.down = _packed([mlp.down_proj.weight])


def _packed(weights: list[Tensor]) -> PackedLinear:
    return PackedLinear(torch.cat(weights))


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """(B, T, H * size) of queries (B, T, H, size) over keys and values (B, H_kv, end, size)."""
    B, T = query.shape[:2]
    num_kv_heads = keys.shape[1]
    grouped = query.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # (B, H_kv, G * T, size)
    attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return attended.unflatten(2, (-1, T)).permute(0, 3, 1, 2, 4).reshape(B, T, -1)
