"""EAGLE-3 as its paper and its published files define it, in loops: no batches, no cache, none of our code.

Also folders in every published layout, with random weights for a toy target.
"""

import json
import math
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor
from toys import CONTEXT, VOCAB, language_model, randomise
from transformers import LlamaConfig, LlamaForCausalLM

from explorer.engine.models import LanguageModel

D, HEADS, GROUPS, SIZE, WIDTH, RANK, KEPT, LAYERS = 32, 4, 2, 12, 20, 8, 24, 6
EPS, THETA = 1e-3, 500.0
HEAD_KINDS = ("full", "d2t", "factors")


@cache
def deep_network() -> LlamaForCausalLM:
    """Six layers, so that the three fused states are different ones. Shared: do not change it."""
    sizes = {"hidden_size": D, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, num_hidden_layers=LAYERS, tie_word_embeddings=False,
        **sizes, **ids,
    )  # fmt: skip
    network = LlamaForCausalLM(config).eval()
    randomise(network, 5)
    network.generation_config.eos_token_id = None
    return network


def deep_target(name: str = "deep toy") -> LanguageModel:
    return language_model(deep_network(), name=name)


def random_tensors(head: str = "full", seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of a published drafter, under EAGLE's names, wide enough that any slip shows."""
    generator = Generator().manual_seed(seed)

    def noise(*sizes: int) -> Tensor:
        return 1.5 * torch.randn(*sizes, generator=generator) * sizes[-1] ** -0.5

    def norm() -> Tensor:
        return 1 + 0.3 * torch.randn(D, generator=generator)

    tensors = {
        "fc.weight": noise(D, 3 * D),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": noise(HEADS * SIZE, 2 * D),
        "midlayer.self_attn.k_proj.weight": noise(GROUPS * SIZE, 2 * D),
        "midlayer.self_attn.v_proj.weight": noise(GROUPS * SIZE, 2 * D),
        "midlayer.self_attn.o_proj.weight": noise(D, HEADS * SIZE),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.mlp.gate_proj.weight": noise(WIDTH, D),
        "midlayer.mlp.up_proj.weight": noise(WIDTH, D),
        "midlayer.mlp.down_proj.weight": noise(D, WIDTH),
        "norm.weight": norm(),
    }
    if head == "factors":
        return tensors | {"lm_head.down.weight": noise(RANK, D), "lm_head.up.weight": 3 * noise(VOCAB, RANK)}
    if head == "full":
        return tensors | {"lm_head.weight": noise(VOCAB, D)}
    ids = torch.randperm(VOCAB, generator=generator)[:KEPT].sort().values
    is_kept = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors | {"lm_head.weight": noise(KEPT, D), "d2t": ids - torch.arange(KEPT), "t2d": is_kept}


def config_of(layout: str = "eagle3", **changes: object) -> dict[str, object]:
    """config.json; changes go where a layout keeps them, and None takes a key away."""
    layer: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": D,
        "intermediate_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "num_hidden_layers": 1,
        "head_dim": SIZE,
        "vocab_size": VOCAB,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
    }
    outer: dict[str, object] = {"draft_vocab_size": VOCAB, "tie_word_embeddings": False}
    for key, value in changes.items():
        (layer if key in layer or "rope" in key else outer)[key] = value
    layer, outer = ({k: v for k, v in part.items() if v is not None} for part in (layer, outer))
    if layout == "eagle3":
        return {"architectures": ["LlamaForCausalLMEagle3"]} | layer | outer
    return (
        {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3"}
        | outer
        | {"transformer_layer_config": layer}
    )


def write_folder(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, object], layout: str = "eagle3", prefix: str = ""
) -> Path:
    """The files of a published drafter."""
    folder.mkdir(parents=True, exist_ok=True)
    first = "layers.0." if layout == "speculators" else "midlayer."
    named = {prefix + name.replace("midlayer.", first): tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def folder_of(path: Path, head: str = "full", layout: str = "eagle3", **changes: object) -> Path:
    """A sound published drafter."""
    size = {"draft_vocab_size": KEPT} if head == "d2t" else {}
    return write_folder(path, random_tensors(head), config_of(layout, **size | changes), layout)


class PlainEagle:
    """One layer and one head in double precision, entry by entry, head by head."""

    def __init__(
        self, tensors: dict[str, Tensor], table: Tensor, *, norms_first: bool, eps: float = EPS, theta: float = THETA
    ) -> None:
        """Args: published tensors; the target's embeddings; whether attention is added to the normed state; config."""
        self.w = {
            name.replace("midlayer.", "").replace("layers.0.", ""): tensor.double() for name, tensor in tensors.items()
        }
        self.table, self.norms_first, self.eps, self.theta = table.double(), norms_first, eps, theta
        self.size = len(tensors[next(name for name in tensors if "q_proj" in name)]) // HEADS

    def fused(self, states: list[Tensor]) -> list[Tensor]:
        """The layer's first inputs, of the target's three states (T, D) each."""
        return [
            self.w["fc.weight"] @ torch.cat(list(three)) for three in zip(*(s.double() for s in states), strict=True)
        ]

    def entries(self, states: list[Tensor], tokens: list[int]) -> list[dict[str, Tensor]]:
        """What the layer computes of each entry, each looking at itself and those before it."""
        done: list[dict[str, Tensor]] = []
        for position, (state, token) in enumerate(zip(states, tokens, strict=True)):
            hidden = self._rms(state, "hidden_norm")
            inputs = torch.cat([self._rms(self.table[token], "input_layernorm"), hidden])
            q, k, v = (self.w[f"self_attn.{name}_proj.weight"] @ inputs for name in "qkv")
            q, k = self._rotated(q, position), self._rotated(k, position)
            done.append({"q": q, "k": k, "v": v})
            attended = torch.cat([self._look(q, done, head) for head in range(HEADS)])
            mixed = (hidden if self.norms_first else state) + self.w["self_attn.o_proj.weight"] @ attended
            x = self._rms(mixed, "post_attention_layernorm")
            gate = self.w["mlp.gate_proj.weight"] @ x
            unit = gate / (1 + (-gate).exp()) * (self.w["mlp.up_proj.weight"] @ x)
            done[-1] |= {"attended": attended, "output": mixed + self.w["mlp.down_proj.weight"] @ unit}
        return done

    def logits(self, output: Tensor) -> Tensor:
        """(V,), -inf for tokens without a row."""
        x = self._rms(output, "norm")
        if "lm_head.up.weight" in self.w:
            return self.w["lm_head.up.weight"] @ self.w["lm_head.down.weight"] @ x
        scores = self.w["lm_head.weight"] @ x
        if "d2t" not in self.w:
            return scores
        logits = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
        for row, offset in enumerate(self.w["d2t"].long().tolist()):
            logits[row + offset] = scores[row]
        return logits

    def _rms(self, x: Tensor, name: str) -> Tensor:
        return x / math.sqrt(float((x * x).sum()) / len(x) + self.eps) * self.w[f"{name}.weight"]

    def _look(self, q: Tensor, done: list[dict[str, Tensor]], head: int) -> Tensor:
        group = head * GROUPS // HEADS
        own, theirs = (slice(i * self.size, (i + 1) * self.size) for i in (head, group))
        scores = [math.exp(float(q[own] @ entry["k"][theirs]) / math.sqrt(self.size)) for entry in done]
        return sum(s / sum(scores) * entry["v"][theirs] for s, entry in zip(scores, done, strict=True))

    def _rotated(self, x: Tensor, position: int) -> Tensor:
        """Every head's pair (i, i + half) turned by position / theta^(i / half)."""
        out, half = x.clone(), self.size // 2
        for start in range(0, len(x), self.size):
            for i in range(half):
                a, b, angle = float(x[start + i]), float(x[start + i + half]), position * self.theta ** (-i / half)
                out[start + i] = a * math.cos(angle) - b * math.sin(angle)
                out[start + i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out
