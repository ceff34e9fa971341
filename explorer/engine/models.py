"""Language models: one pass of several tokens per row, and what identifies a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explorer.engine.cache import RowCache, visible
from explorer.engine.fused import FusedLlama, fits
from explorer.errors import ModelPairError
from explorer.heads.packed import pack_linears

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Pass:
    """What one pass leaves: logits (B, keep, V) of the last `keep` tokens, and chosen hidden states.

    Attributes:
        logits: (B, keep, V) in the model's dtype, V the tokenizer's size.
        features: (B, T, F), the asked-for hidden states side by side, or None.
        last_hidden: (B, T, D) last hidden state after the final norm, or None.
    """

    logits: Tensor
    features: Tensor | None
    last_hidden: Tensor | None


class LanguageModel:
    """A transformers causal language model and its tokenizer, run with per-row positions.

    Attributes:
        name: Hub id or folder, as given.
        vocab_size: Tokens of the tokenizer; padding rows of the model beyond it are never seen.
        num_rows: Rows of the model's head; special tokens beyond them are never written.
        context_length: Positions the model knows.
        end_ids: Ids that end an answer.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any, precision: str) -> None:
        self.name, self.model, self.tokenizer, self.precision = name, model.eval(), tokenizer, precision
        config = model.config.get_text_config()
        self.config = config
        self.num_layers = int(config.num_hidden_layers)
        self.hidden_size = int(config.hidden_size)
        self.device = model.get_input_embeddings().weight.device
        self.context_length = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
        self.num_rows = model.get_output_embeddings().weight.shape[0]
        self.vocab_size = _vocab_size(name, tokenizer, self.num_rows)
        self._windows = _attention_windows(name, config)
        self._needs_float_mask = config._attn_implementation not in ("sdpa", "flex_attention")
        self.end_ids = _end_ids(model, tokenizer)
        self.fused: FusedLlama | None = None
        self.is_packed = False

    @property
    def embedding(self) -> Tensor:
        """(rows, D) input embedding table."""
        return self.model.get_input_embeddings().weight

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return self.model.get_input_embeddings().weight.dtype

    @cached_property
    def num_parameters(self) -> int:
        """Weights, tied ones counted once, packed ones (4 bits) one by one."""
        states = [(weight, getattr(weight, "quant_state", None)) for weight in self.model.parameters()]
        return sum(weight.numel() if state is None else state.shape.numel() for weight, state in states)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that tell this model's weights from others, the same in every precision."""
        head = self.model.get_output_embeddings().weight
        sizes = f"{self.num_layers} {self.hidden_size} {self.vocab_size}"
        return fingerprint_of(self.embedding[:64].detach(), head[:64].detach(), sizes)

    def pack(self) -> None:
        """Keep the linear layers' weights in float16 and compute in float32; for a float32 model on an x86 processor.

        A Llama is rebuilt from larger operations as well.
        """
        self.fingerprint, self.num_parameters  # noqa: B018 (both are of the weights as they were)
        if fits(self.model):
            self.fused = FusedLlama(self.model)
        pack_linears(self.model)
        self.is_packed = True
        if self.fused is not None:
            self.fused.head = self.model.get_output_embeddings()
            self.fused.compile()

    def last_feed_forward(self) -> Tensor | None:
        """(2 I, D) float32 gate and up projections of the last layer, its norm folded in; None if it has none such."""
        if self.fused is not None:
            return self.fused.layers[-1].gate_up.weight
        layer = getattr(getattr(self.model, "model", None), "layers", [None])[-1]
        try:
            projections = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]).float()
            return projections.detach() * layer.post_attention_layernorm.weight.detach().float()
        except (AttributeError, RuntimeError):
            return None

    def new_cache(self, capacity: int) -> RowCache:
        """An empty cache for rows of at most `capacity` positions."""
        return RowCache(self.num_layers, capacity)

    def forward(
        self,
        ids: Tensor,
        cache: RowCache,
        starts: Tensor,
        *,
        keep: int,
        features: tuple[int, ...] = (),
        last_hidden: bool = False,
    ) -> Pass:
        """Run (B, T) tokens, row b at positions starts[b] onwards, over what the cache holds before them.

        Args:
            ids: (B, T) int64.
            cache: Written at those positions.
            starts: (B,) int64.
            keep: How many of the last tokens need logits, in [0, T].
            features: Indices into the hidden states (0 is the embedding, i the output of layer i - 1).
            last_hidden: Whether the last hidden state is wanted.
        """
        positions = cache.at(starts, ids.shape[1])
        # Columns that only pad a shorter row may lie past the context; learned positions have no entry there.
        inside = positions.clamp(max=self.context_length - 1)
        wanted = (*features, self.num_layers) if last_hidden else features
        if self.fused is not None:
            logits, states = self.fused(ids, inside, cache, keep, frozenset(wanted))
        else:
            output = self.model(
                input_ids=ids,
                attention_mask=self._masks(positions, cache.end),
                position_ids=inside,
                cache=cache,
                use_cache=True,
                logits_to_keep=max(keep, 1),  # to transformers, 0 means all
                output_hidden_states=bool(wanted),
            )
            logits, states = output.logits[:, output.logits.shape[1] - keep :], output.hidden_states
        logits = logits[:, :, : self.vocab_size]
        if self.num_rows < self.vocab_size:
            logits = torch.nn.functional.pad(logits, (0, self.vocab_size - self.num_rows), value=-torch.inf)
        return Pass(
            logits,
            torch.cat([states[i] for i in features], dim=-1) if features else None,
            states[self.num_layers] if last_hidden else None,
        )

    def _masks(self, positions: Tensor, end: int) -> Tensor | dict[str, Tensor]:
        """One mask, or one per kind of attention layer where a model mixes them."""
        masks = {kind: self._mask(positions, end, window) for kind, window in self._windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, positions: Tensor, end: int, window: int | None) -> Tensor:
        mask = visible(positions, end, window)
        if self._needs_float_mask:
            lowest = torch.finfo(self.dtype).min
            return torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill(~mask, lowest)
        return mask


def fingerprint_of(*parts: Tensor | str) -> str:
    """Sixteen hex digits of texts and of weights rounded to bfloat16."""
    digest = hashlib.sha256()
    for part in sorted(parts, key=lambda part: isinstance(part, Tensor)):
        if isinstance(part, str):
            digest.update(part.encode())
        else:
            digest.update(part.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def _vocab_size(name: str, tokenizer: Any, rows: int) -> int:
    """One more than the tokenizer's highest id.

    Raises:
        ModelPairError: The model has no row for some token. Special tokens may lack one: Gemma 3 1B has a token that
            stands for an image and sees none.
    """
    ids = tokenizer.get_vocab().values()
    beyond = [i for i in ids if i >= rows]
    added = tokenizer.added_tokens_decoder
    if any(i not in added or not added[i].special for i in beyond):
        raise ModelPairError(
            f"The tokenizer of {name} has {len(ids)} tokens, but its model covers {rows}. Choose a folder whose "
            "tokenizer and weights belong together."
        )
    return max(ids) + 1


def _attention_windows(name: str, config: Any) -> dict[str, int | None]:
    """Kinds of attention layers, each with its window (None: full).

    Raises:
        ModelPairError: A layer keeps a state that cannot be rolled back, or an attention this engine does not know.
    """
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = set(getattr(config, "layer_types", None) or ())
    if "local" in getattr(config, "attention_layers", ()):
        kinds = {"local_attention"}  # GPT-Neo: its own mask slides with the longest row, whatever mask it is given
    if not kinds:
        return {"full_attention": None} if window is None else {"sliding_attention": window}
    known = {"full_attention": None, "sliding_attention": window}
    if unknown := kinds - set(known):
        raise ModelPairError(
            f"{name} has layers of kind {', '.join(sorted(unknown))}; only full and sliding attention can be rolled "
            "back after a rejected draft. Choose a plain transformer decoder."
        )
    return {kind: known[kind] for kind in sorted(kinds)}


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that the model, its generation settings or its tokenizer calls the end of an answer."""
    found: set[int] = set()
    for source in (model.config, getattr(model, "generation_config", None), tokenizer):
        value = getattr(source, "eos_token_id", None)
        found |= set(value if isinstance(value, (list, tuple)) else [value])
    return frozenset(int(i) for i in found if i is not None)


def check_rows(model: LanguageModel) -> None:
    """Raise `ModelPairError` unless the model follows per-row positions and masks.

    Two rows of unequal length are read, one of them written over in part, and compared with plain passes over each.
    Models that count positions in their own way (ALiBi, recurrent states) would fail later, or write nonsense.
    """
    short, long, width = 4, 8, 3
    ids = torch.arange(2 * (long + width), device=model.device).view(2, -1) * 37 % min(model.vocab_size, model.num_rows)
    starts = torch.tensor([short, long], device=model.device)
    refusal = (
        f"{model.name} ({model.config.model_type}) does not decode rows of unequal length as this engine needs. Choose "
        "a plain transformer decoder, such as a Llama, Qwen or Gemma model."
    )
    try:
        with torch.inference_mode():
            cache = model.new_cache(long + width)
            model.forward(ids[:, :long], cache, torch.zeros_like(starts), keep=1)
            last = torch.stack([row[start : start + width] for row, start in zip(ids, starts.tolist(), strict=True)])
            found = model.forward(last, cache, starts, keep=width).logits.float()
            plain = [
                model.model(row[None, : start + width]).logits[0, -width:]
                for row, start in zip(ids, (short, long), strict=True)
            ]
    except (TypeError, ValueError, IndexError, RuntimeError, AttributeError) as error:
        raise ModelPairError(
            f"{refusal} What failed: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error
    expected = torch.stack(plain)[..., : model.vocab_size].float()
    found = found[..., : expected.shape[-1]]
    spread = (expected - expected.mean(-1, keepdim=True)).norm()
    # Rounding leaves 1e-6 in float32 and up to 0.1 in bfloat16. Quantised models are noisier, and of the same classes.
    if model.precision in ("float32", "float16", "bfloat16") and not (found - expected).norm() <= 0.3 * spread:
        raise ModelPairError(refusal)
