"""What proposes tokens: the `Drafter` protocol, a smaller language model, and prompt lookup.

A drafter is shared by all decodes; `start` gives each decode a session with its own cache. A session sees every
confirmed token in `Sequences` and is never told what to roll back: it keeps, per row, how many of its entries are
confirmed, and writes over the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.models import LanguageModel
from explorer.engine.sampling import Sampler
from explorer.errors import SettingError


@dataclass(slots=True)
class Sequences:
    """The confirmed tokens of a batch, and what the target's last pass left behind.

    Attributes:
        ids: (B, S) int64; row b holds `lengths[b]` tokens (prompt and answer), then anything.
        lengths: (B,) int64. The last confirmed token has not been through the target yet.
        features: (B, T, F) states of the target's last pass, for drafters that ask for them, else None. Entry t of row
            b belongs to position `feature_starts[b] + t`; positions up to `lengths[b] - 2` are valid.
        feature_starts: (B,) int64.
    """

    ids: Tensor
    lengths: Tensor
    features: Tensor | None = None
    feature_starts: Tensor | None = None


@dataclass(slots=True)
class Draft:
    """Proposed tokens.

    Attributes:
        ids: (B, K) int64; columns from `lengths[b]` on are padding.
        lengths: (B,) int64 in [0, K].
        probs: (B, K, V) float32 law each id was drawn from (greedy: the untempered softmax whose argmax it is). None
            for a drafter that is certain of its one token (prompt lookup): the law is one-hot.
        hidden: (B, K, D) last hidden state, after the final norm, that produced each law; None if there is none.
        logits: (B, V) per column, of greedy drafts whose laws nobody may ever look at; `laws` makes them.
    """

    ids: Tensor
    lengths: Tensor
    probs: Tensor | None = None
    hidden: Tensor | None = None
    logits: list[Tensor] | None = None

    @property
    def laws(self) -> Tensor | None:
        """(B, K, V), `probs`, made of the logits at the first look."""
        if self.probs is None and self.logits is not None:
            self.probs, self.logits = Sampler(temperature=0.0).probs(torch.stack(self.logits, dim=1)), None
        return self.probs

    def cut(self, width: int) -> None:
        """Keep the first `width` columns."""
        self.ids = self.ids[:, :width]
        self.probs = None if self.probs is None else self.probs[:, :width]
        self.hidden = None if self.hidden is None else self.hidden[:, :width]
        self.logits = None if self.logits is None else self.logits[:width]

    def prob_of_ids(self) -> Tensor:
        """(B, K) q of each drafted id; 1 in padding."""
        if self.laws is None:
            return torch.ones(self.ids.shape, dtype=torch.float32, device=self.ids.device)
        inside = torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths.unsqueeze(1)
        at_ids = self.laws.gather(2, self.ids.unsqueeze(2)).squeeze(2)
        return torch.where(inside, at_ids, 1.0)

    def law(self, row: int, position: int, vocab_size: int) -> Tensor:
        """(V,) the law one id was drawn from."""
        if self.laws is not None:
            return self.laws[row, position]
        one_hot = torch.zeros(vocab_size, dtype=torch.float32, device=self.ids.device)
        one_hot[self.ids[row, position]] = 1.0
        return one_hot


class DraftSession(Protocol):
    """One decode's drafting state."""

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:
        """Propose up to `draft_length` tokens after each row's confirmed tokens."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order ((B',) int64)."""


class Drafter(Protocol):
    """Shared by all decodes, read-only.

    Attributes:
        kind: What it is, in a word.
        name: For people.
        features: Indices of the target's hidden states it needs, () for none.
        rank_choices: Ranks of its low-rank head to offer, () if it has none.
        hidden_size: Of the states its drafts come with; 0 if there are none for a learned weight to look at.
    """

    kind: str
    name: str
    features: tuple[int, ...]
    rank_choices: tuple[int, ...]
    hidden_size: int

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> DraftSession:
        """A session for `batch_size` rows of at most `capacity` positions, drafts included.

        Raises:
            SettingError: `config.rank` is not 0 and the drafter has no low-rank head, or a smaller one.
        """

    def describe(self, rank: int) -> dict[str, object]:
        """JSON facts for the trace: kind, name, rank, num_parameters, head_parameters."""


def stop_unsure(counts: Tensor, law: Tensor, step: int, min_prob: float) -> Tensor:
    """(B,) how many tokens each row drafts, cut to `step` where the next law (B, V) has no token of `min_prob`.

    Whether to stop depends on the law alone, never on the token that would be drawn: the rules stay exact.
    """
    if not min_prob:
        return counts
    return torch.where(law.amax(-1) < min_prob, counts.clamp(max=step), counts)


# Up to this many new tokens, their logits are computed together with the last one's; beyond, in a pass of their own.
_SMALL_PASS = 16


class ModelDrafter:
    """Any smaller language model with the target's tokenizer."""

    kind = "model"
    features: tuple[int, ...] = ()
    rank_choices: tuple[int, ...] = ()

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.name, self.hidden_size = model, model.name, model.hidden_size

    @property
    def fingerprint(self) -> str:
        """Tells its weights from others."""
        return self.model.fingerprint

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> ModelSession:
        """A session with a cache of its own."""
        refuse_rank(self.name, config.rank)
        return ModelSession(self.model, batch_size, capacity, config.min_draft_prob)

    def describe(self, rank: int) -> dict[str, object]:  # noqa: ARG002 (the protocol's signature)
        """JSON facts for the trace."""
        return {"kind": self.kind, "name": self.name, "rank": None, "num_parameters": self.model.num_parameters}


class ModelSession:
    """Drafting state of a `ModelDrafter`: a cache, and per row how much of it holds confirmed tokens."""

    def __init__(self, model: LanguageModel, batch_size: int, capacity: int, min_prob: float) -> None:
        self.model, self.min_prob = model, min_prob
        self.cache = model.new_cache(capacity)
        # How many tokens of each row were confirmed at the last call, and what was drafted after them (B, K).
        self.confirmed = torch.zeros(batch_size, dtype=torch.int64, device=model.device)
        self.drafted = self.confirmed.new_zeros(batch_size, 0)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.cache.select(rows)
        self.confirmed, self.drafted = self.confirmed[rows], self.drafted[rows]

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:
        """Read what was confirmed since, then propose token after token.

        With `draft_length` 0 it only reads, which keeps the session in step while another drafter proposes.
        """
        lengths = sequences.lengths
        logits, state = self._catch_up(sequences)
        self.confirmed, self.drafted = lengths, lengths.new_zeros(len(lengths), 0)
        if not draft_length:
            return Draft(ids=self.drafted, lengths=torch.zeros_like(lengths))
        room = self.model.context_length - lengths
        counts = torch.where(room >= draft_length, draft_length, 0)
        ids, laws, states = [], [], []
        for step in range(draft_length):
            if step:
                starts = lengths + step - 1
                result = self.model.forward(ids[-1].unsqueeze(1), self.cache, starts, keep=1, last_hidden=True)
                logits, state = result.logits[:, 0], result.last_hidden[:, 0]
            law = sampler.probs(logits)
            counts = stop_unsure(counts, law, step, self.min_prob)
            if not (counts > step).any():
                break
            states.append(state)
            laws.append(law)
            ids.append(sampler.draw(law, generator))
        if not ids:
            return Draft(ids=self.drafted, lengths=counts)
        self.drafted = torch.stack(ids, dim=1)
        return Draft(
            ids=self.drafted, lengths=counts, probs=torch.stack(laws, dim=1), hidden=torch.stack(states, dim=1)
        )

    def _catch_up(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Run the tokens the cache lacks; logits (B, V) and states (B, D) at each row's last token."""
        lengths = sequences.lengths
        starts = torch.minimum(self.confirmed + self._num_right(sequences), lengths - 1)
        width = int((lengths - starts).max())
        if width > _SMALL_PASS:
            self.model.forward(self._tokens(sequences, starts, width - 1), self.cache, starts, keep=0)
            starts, width = lengths - 1, 1
        tokens = self._tokens(sequences, starts, width)
        result = self.model.forward(tokens, self.cache, starts, keep=width, last_hidden=True)
        last = torch.arange(len(lengths), device=lengths.device), lengths - 1 - starts
        return result.logits[last], result.last_hidden[last]

    def _num_right(self, sequences: Sequences) -> Tensor:
        """(B,) how many drafts of the last call, the last excepted, are cached and turned out to be the text."""
        fed = self.drafted[:, :-1]
        places = self.confirmed.unsqueeze(1) + torch.arange(fed.shape[1], device=fed.device)
        return (sequences.ids.gather(1, places) == fed).long().cumprod(dim=1).sum(dim=1)

    @staticmethod
    def _tokens(sequences: Sequences, starts: Tensor, width: int) -> Tensor:
        """(B, width) confirmed tokens from `starts` on; what runs past a row's end is written over later."""
        places = starts.unsqueeze(1) + torch.arange(width, device=starts.device)
        return sequences.ids.gather(1, places.clamp(max=sequences.ids.shape[1] - 1))


class NgramDrafter:
    """Prompt lookup: repeats what followed the last occurrence of the current ending. No weights.

    Source:
        Saxena 2023, prompt lookup decoding; here the longest ending of 3 to 1 tokens, its most recent occurrence.
    """

    kind = "ngram"
    name = "prompt lookup"
    features: tuple[int, ...] = ()
    rank_choices: tuple[int, ...] = ()
    hidden_size = 0

    def __init__(self, longest: int = 3, shortest: int = 1) -> None:
        self.longest, self.shortest = longest, shortest

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> NgramDrafter:  # noqa: ARG002
        """The drafter itself: it keeps no state."""
        refuse_rank(self.name, config.rank)
        return self

    def select(self, rows: Tensor) -> None:
        """Nothing to select."""

    def describe(self, rank: int) -> dict[str, object]:  # noqa: ARG002 (the protocol's signature)
        """JSON facts for the trace."""
        return {"kind": self.kind, "name": self.name, "rank": None, "num_parameters": 0}

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:  # noqa: ARG002
        """Propose the continuation of each row's match; rows without one draft nothing."""
        lengths = sequences.lengths
        proposals = [
            self.lookup(row[:length], draft_length)
            for row, length in zip(sequences.ids.cpu(), lengths.tolist(), strict=True)
        ]
        padded = [found + [0] * (draft_length - len(found)) for found in proposals]
        counts = torch.tensor([len(found) for found in proposals], device=lengths.device)
        return Draft(ids=torch.tensor(padded, device=lengths.device), lengths=counts)

    def lookup(self, ids: Tensor, draft_length: int) -> list[int]:
        """The `draft_length` tokens after the match of `ids` (1-D), or [] if there is none.

        A match close to the end is continued with the tokens it proposes, so that a repeating text stays one.
        """
        for size in range(min(self.longest, len(ids) - 1), self.shortest - 1, -1):
            windows = ids[:-1].unfold(0, size, 1)
            found = (windows == ids[-size:]).all(dim=1).nonzero()
            if len(found):
                sequence, at = ids.tolist(), int(found[-1]) + size
                for offset in range(draft_length):
                    sequence.append(sequence[at + offset])
                return sequence[len(ids) :]
        return []


def refuse_rank(name: str, rank: int) -> None:
    """Raise `SettingError` if a rank is asked of a drafter without a low-rank head."""
    if rank:
        raise SettingError(
            f"rank is {rank}, but {name} has no low-rank head. Set rank to 0, or choose another drafter."
        )
