"""The EAGLE-3-style drafter: one decoder layer on the target's own hidden states, and a head, low-rank or another.

Entry t of a row pairs the target's features at position t with the token at t + 1, and its output predicts the token at
t + 2. While drafting, the layer's own output stands in for the features of positions the target has not seen yet.

Source:
    EAGLE-3, arXiv:2503.01840 (layer, fused features, tensor names); SlimSpec, arXiv:2605.10453 (low-rank head).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Draft, Sequences, refuse_rank, stop_unsure
from explorer.engine.head_parts import model_of, read_parts
from explorer.engine.models import LanguageModel, fingerprint_of
from explorer.engine.sampling import Sampler, best_ids
from explorer.errors import ModelPairError, SettingError, WeightsError
from explorer.heads import checkpoint
from explorer.heads.choice import OWN_HEAD, HeadChoice, HeadParts
from explorer.heads.eagle import EagleModel, EagleShape
from explorer.heads.native import MAX_TOKENS, suits
from explorer.heads.native_eagle import NativeEagle


class EagleDrafter:
    """A fitted or trained drafter of one target.

    Attributes:
        rank_choices: Ranks to offer; any rank up to the highest works.
        choice: Which head it drafts with.
        parts: What its other heads are made of.
        metrics: What its checkpoint says of its own scores.
    """

    kind = "eagle"

    def __init__(
        self,
        model: EagleModel,
        name: str,
        parts: HeadParts | None = None,
        choice: HeadChoice = OWN_HEAD,
        native: NativeEagle | None = None,
    ) -> None:
        """Take a model; `native` is its compiled layer, made here where a packed model has none yet."""
        shape = model.shape
        if native is None and model.is_packed and suits(shape.hidden_size, shape.intermediate_size, shape.head_dim):
            native = NativeEagle(model)
        self.model, self.name, self.choice, self.native = model.eval(), name, choice, native
        self.parts = parts or HeadParts(model.head)
        self.metrics: Mapping[str, Any] = {}
        self.features, self.hidden_size = model.shape.features, model.shape.hidden_size
        self.max_rank = getattr(model.head, "max_rank", 0)
        self.rank_choices = tuple(sorted({max(self.max_rank // n, 1) for n in (8, 4, 2, 1)})) if self.max_rank else ()

    @classmethod
    def load(cls, folder: Path, target: LanguageModel) -> EagleDrafter:
        """Read what `save` wrote, for use in the target's dtype and on its device.

        A checkpoint whose meta says `"head": "full"` has no head of its own: it drafts with the target's.

        Raises:
            WeightsError: A file is missing or damaged.
            ModelPairError: It was made for another target.
        """
        weights, meta = checkpoint.load(folder, target=facts_of(target))
        try:
            parts = read_parts(weights, meta.get("head") == "full", target)
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"{folder} does not describe a drafter ({error}). Fit or fetch it again.") from error
        model = model_of(folder, weights, meta, target.embedding, parts.own)
        if target.is_packed:
            model.pack()
        drafter = cls(model, str(meta.get("name", folder.name)), parts)
        drafter.metrics = meta.get("metrics") or {}
        return drafter

    def with_head(self, kind: str, size: int = 0) -> EagleDrafter:
        """A drafter that shares this one's body and drafts with another head.

        Args:
            kind: One of HEADS, see `heads.choice`.
            size: Tokens kept or candidates scored; 0 is the kind's default.

        Raises:
            SettingError: This drafter lacks what that head is made of, or the size is out of range.
        """
        choice = HeadChoice(kind, size)
        return self.with_module(self.parts.build(choice, self.name), choice)

    def with_module(self, head: nn.Module, choice: HeadChoice = OWN_HEAD) -> EagleDrafter:
        """A drafter that shares this one's body and drafts with this module, (..., D) and a rank to (..., V)."""
        model = copy.copy(self.model)
        # The copy's own table of parts: without it, both models would change heads.
        model._modules = dict(model._modules)
        model.head = head
        return EagleDrafter(model, self.name, self.parts, choice, self.native)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that tell the weights of its body from others."""
        return fingerprint_of(self.model.fc.detach()[:64], self.model.out.detach()[:64])

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> EagleSession:
        """A session with a cache of its own.

        Raises:
            SettingError: The head has no such rank.
        """
        rank = config.rank
        if not self.max_rank:
            refuse_rank(self.name, rank)
        if not 0 <= rank <= self.max_rank:
            raise SettingError(
                f"rank is {rank}; the head of {self.name} has rank {self.max_rank}. Choose 1 to {self.max_rank}, "
                "or 0 for the highest."
            )
        return EagleSession(self.model, batch_size, capacity, config, self.native)

    def describe(self, rank: int) -> dict[str, object]:
        """JSON facts for the trace; the shared embedding is the target's and not counted.

        `head_size` is how many tokens the head scores exactly, None for all. What a truncated head's ceiling is
        depends on the text: `python -m explorer bench heads` measures it.
        """
        head = self.model.head.num_parameters(rank)
        body = sum(weight.numel() for name, weight in self.model.named_parameters() if not name.startswith("head."))
        return {
            "kind": self.kind,
            "name": self.name,
            "rank": (rank or self.max_rank) or None,
            "num_parameters": body + head,
            "head_parameters": head,
            "head": self.choice.kind,
            "head_size": getattr(self.model.head, "num_kept", None),
        }


def facts_of(target: LanguageModel) -> dict[str, Any]:
    """What identifies a target to a checkpoint."""
    return {
        "name": target.name,
        "fingerprint": target.fingerprint,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "num_layers": target.num_layers,
    }


class EagleSession:
    """Drafting state: keys and values of each row's entries, and how many of them are of confirmed tokens.

    What a rejected draft left behind lies beyond that count, is hidden by position, and is written over.
    """

    def __init__(
        self,
        model: EagleModel,
        batch_size: int,
        capacity: int,
        config: DecodeConfig,
        native: NativeEagle | None = None,
    ) -> None:
        shape, self.native = model.shape, native
        self.model, self.rank, self.min_prob = model, config.rank, config.min_draft_prob
        slots = (batch_size, capacity, shape.num_kv_heads, shape.head_dim)
        self.keys = torch.zeros(slots, dtype=model.dtype, device=model.embedding.device)
        self.values = torch.zeros_like(self.keys)
        self.filled = torch.zeros(batch_size, dtype=torch.int64, device=self.keys.device)
        self.rows = torch.arange(batch_size, device=self.keys.device).unsqueeze(1)
        model.rope(capacity)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.keys, self.values, self.filled = self.keys[rows], self.values[rows], self.filled[rows]
        self.rows = self.rows[: len(rows)]

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:
        """Read what was confirmed since, then chain `draft_length` steps; a row of one token drafts nothing.

        With `draft_length` 0 it only reads, which keeps the session in step while another drafter proposes.
        """
        lengths = sequences.lengths
        longest = int(lengths.max())
        if sequences.features is None or longest < 2:
            return Draft(ids=lengths.new_zeros(len(lengths), 0), lengths=torch.zeros_like(lengths))
        state, normed = self._read(sequences, longest)
        B, K, shape = len(lengths), draft_length, self.model.shape
        counts = torch.where(lengths > 1, K, 0)
        ids = lengths.new_zeros(B, K)
        laws: list[Tensor] = []
        # Greedy drafts are argmaxes; their laws are made if the rule, or a reader, looks at them.
        is_lazy = sampler.is_greedy and not self.min_prob
        hidden = state.new_empty(B, K, shape.hidden_size)
        for step in range(K):
            if step:
                positions = (lengths + (step - 2)).clamp(min=0).unsqueeze(1)
                last = torch.zeros_like(lengths)
                entries = ids[:, step - 1 : step], state.unsqueeze(1), positions
                state, normed = self._advance(*entries, longest + step - 1, last)
            hidden[:, step] = normed
            logits = self.model.head(normed, self.rank)
            if is_lazy:
                laws.append(logits)
                ids[:, step] = best_ids(logits)
                continue
            law = sampler.probs(logits)
            counts = stop_unsure(counts, law, step, self.min_prob)
            if not (counts > step).any():
                K = step
                break
            laws.append(law)
            ids[:, step] = sampler.draw(law, generator)
        draft = Draft(ids=ids[:, :K], lengths=counts, hidden=hidden[:, :K])
        if is_lazy and laws:
            draft.logits = laws
        else:
            draft.probs = torch.stack(laws, dim=1) if laws else state.new_empty(B, 0, shape.vocab_size)
        return draft

    def _read(self, sequences: Sequences, longest: int) -> tuple[Tensor, Tensor]:
        """Outputs (B, D) at each row's last pair, and normed, after one pass over the pairs confirmed since."""
        features, feature_starts = sequences.features, sequences.feature_starts
        last = (sequences.lengths - 2).clamp(min=0)  # a row of one token has no pair: what it computes is thrown away
        starts = torch.minimum(self.filled, last)
        counts = last - starts + 1
        width = int(counts.max())
        # Columns past a row's last pair repeat some token and feature; their entries are written over before any look.
        positions = starts.unsqueeze(1) + torch.arange(width, device=last.device)
        at = (positions - feature_starts.unsqueeze(1)).clamp(0, features.shape[1] - 1)
        ids = sequences.ids.gather(1, (positions + 1).clamp(max=sequences.ids.shape[1] - 1))
        states = self.model.fuse(features[self.rows, at])
        self.filled = (sequences.lengths - 1).clamp(min=0)
        return self._advance(ids, states, positions, longest - 1, counts - 1)

    def _advance(self, ids: Tensor, states: Tensor, positions: Tensor, end: int, last: Tensor) -> tuple[Tensor, Tensor]:
        """Write entries (B, M) into the cache; the output (B, D) of one, `last` (B,), before and after the norm.

        Only that one looks back: nothing ever reads the outputs of the others.
        """
        shape = self.model.shape
        if self.native is not None and ids.numel() <= MAX_TOKENS:
            slots = self.keys, self.values
            return self.native(ids, states, positions, last, self.model.rope(1), slots)
        queries, keys, values = self.model.project(ids, states, positions)
        self.keys[self.rows, positions] = keys
        self.values[self.rows, positions] = values
        if states.shape[1] == 1:
            query, state, at = queries[:, 0], states[:, 0], positions
        else:
            at = last.unsqueeze(1)
            query, state, at = (
                queries[self.rows, at].squeeze(1),
                states[self.rows, at].squeeze(1),
                positions.gather(1, at),
            )
        mask = None
        if len(self.rows) > 1:
            mask = (torch.arange(end, device=at.device) <= at)[:, None, None]
        # The query heads of a group are laid out as a sequence: grouped attention at length 1 is several times slower.
        attended = functional.scaled_dot_product_attention(
            query.unflatten(1, (shape.num_kv_heads, -1)),
            self.keys[:, :end].transpose(1, 2),
            self.values[:, :end].transpose(1, 2),
            attn_mask=mask,
        )
        output = self.model.finish(state, attended.flatten(1))
        return output, self.model.normed(output)


def shape_of(target: LanguageModel, max_rank: int, intermediate_size: int | None = None) -> EagleShape:
    """The shape of a drafter for this target.

    Args:
        target: The model it drafts for.
        max_rank: Of its head; at most the hidden size is used.
        intermediate_size: Hidden units of its feed-forward part; the target's own number if None.

    Raises:
        ModelPairError: The target's states and embeddings differ in size, or its heads do not divide evenly.
    """
    config, D = target.config, target.hidden_size
    num_heads = int(config.num_attention_heads)
    num_kv_heads = int(getattr(config, "num_key_value_heads", None) or num_heads)
    if target.embedding.shape[1] != D or num_heads % num_kv_heads:
        raise ModelPairError(
            f"{target.name} has hidden size {D}, embeddings of {target.embedding.shape[1]}, {num_heads} heads and "
            f"{num_kv_heads} key/value heads; a drafter layer needs embeddings of the hidden size and heads in "
            "equal groups. Choose a Llama-like target."
        )
    if intermediate_size is None:
        intermediate_size = int(getattr(config, "intermediate_size", None) or 4 * D)
    return EagleShape(
        hidden_size=D,
        intermediate_size=intermediate_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, D, num_heads),
        vocab_size=target.vocab_size,
        max_rank=min(max_rank, D),
        norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-5),
        features=features_of(target),
        rope=_rope_arguments(config),
        max_positions=target.context_length,
    )


def features_of(target: LanguageModel) -> tuple[int, ...]:
    """Indices of the hidden states a drafter fuses: after the first layers, in the middle, and near the end."""
    return min(2, target.num_layers), target.num_layers // 2, max(target.num_layers - 3, 1)


def _head_dim(config: Any, hidden_size: int, num_heads: int) -> int:
    """The target's head size where a rotary embedding can use it, which takes an even one."""
    size = int(getattr(config, "head_dim", None) or hidden_size // num_heads)
    return size + size % 2


def _rope_arguments(config: Any) -> dict[str, Any]:
    """The target's rope parameters, those of its full-attention layers where kinds differ; plain ones without any."""
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    known = {key: value for key, value in rope.items() if isinstance(value, (int, float, str, bool, list))}
    # A rotary embedding of a part of each head has another layout; the drafter rotates whole heads instead.
    return {"rope_theta": 10000.0, "rope_type": "default"} | (known if "partial_rotary_factor" not in known else {})
