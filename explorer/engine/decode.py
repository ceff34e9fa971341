"""The decode loop: draft, verify, emit, for a batch of rows of unequal length."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.describe import describe_round
from explorer.engine.drafters import Draft, DraftSession, Sequences
from explorer.engine.dynamic import check_ensemble, learned_weight
from explorer.engine.events import Finish, RoundEvent
from explorer.engine.judge import Judgement, judge, rule_weight
from explorer.engine.models import LanguageModel, Pass
from explorer.engine.pair import ModelPair, check_prompt
from explorer.engine.prefill import read_prompts
from explorer.engine.sampling import Sampler
from explorer.engine.text import TextReader, TextState
from explorer.errors import ModelPairError


def decode(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    *,
    details: bool = False,
    generator: Generator | None = None,
) -> Iterator[RoundEvent]:
    """Write an answer to every prompt; yields one event per row and round, row by row within a round.

    Settings and prompts are checked when the first event is asked for. Closing the iterator frees everything.

    Args:
        pair: Target and drafter.
        prompts: Token ids, one list per row, of any lengths.
        config: Rule and settings.
        details: Whether events explain every token (costs a few vocabulary-sized operations a round).
        generator: Source of randomness, on the target's device; by default a new one seeded with `config.seed`.

    Raises:
        SettingError: A prompt is empty or fills the context, or the rank is not one of the drafter's.
        ModelPairError: A rule that needs drafts, and no drafter.
    """
    for ids in prompts:
        check_prompt(pair.target, list(ids))
    if config.rule != "ar" and pair.drafter is None:
        raise ModelPairError(f"The {config.rule} rule needs a drafter and none is loaded. Choose one, or the rule ar.")
    if generator is None:
        generator = torch.Generator(device=pair.target.device).manual_seed(config.seed)
    if config.rule == "dynamic":
        check_ensemble(pair)
    batch = Batch(pair, prompts, config, generator, details)
    with torch.inference_mode():
        batch.prefill()
    while batch.rows:
        # Inference mode is entered per round: a generator must not leave it on in its caller between two yields.
        with torch.inference_mode():
            events = batch.round()
        yield from events


def autoregressive(
    pair: ModelPair, prompts: Sequence[Sequence[int]], config: DecodeConfig, **options: Any
) -> Iterator[RoundEvent]:
    """The baseline: the same loop and settings with nothing drafted."""
    return decode(pair, prompts, replace(config, rule="ar"), **options)


@dataclass(slots=True)
class _Row:
    """One prompt's answer so far, in plain values."""

    index: int
    limit: int
    finish_at_limit: Finish
    state: TextState
    num_rounds: int = 0
    ids: list[int] = field(default_factory=list)
    text: str = ""


class Batch:
    """All tensors of one decode. Row i of every tensor belongs to `rows[i]`; finished rows are taken out.

    Attributes:
        has_bonus: Whether a fully accepted draft is followed by a token of the target's; a pass is one column longer.
    """

    def __init__(
        self,
        pair: ModelPair,
        prompts: Sequence[Sequence[int]],
        config: DecodeConfig,
        generator: Generator,
        details: bool,
        has_bonus: bool = True,
    ) -> None:
        self.has_bonus = has_bonus
        self.pair, self.config, self.generator, self.details = pair, config, generator, details
        self.target: LanguageModel = pair.target
        self.sampler = Sampler.of(config)
        self.reader = TextReader(self.target.tokenizer)
        self.max_draft = 0 if config.rule == "ar" else config.draft_length
        self.rows = [self._row(i, list(ids)) for i, ids in enumerate(prompts)]
        longest = max((len(ids) + row.limit for ids, row in zip(prompts, self.rows, strict=True)), default=0)
        # A short row drafts beside a long one: its padding columns need slots beyond its own last position.
        capacity = longest + max(self.max_draft, config.lookup_length) + 1
        device = self.target.device
        self.sequences = Sequences(
            ids=torch.zeros(len(prompts), capacity, dtype=torch.int64, device=device),
            lengths=torch.tensor([len(ids) for ids in prompts], dtype=torch.int64, device=device),
        )
        for row, ids in enumerate(prompts):
            self.sequences.ids[row, : len(ids)] = torch.as_tensor(ids, device=device)
        self.cache = self.target.new_cache(capacity)
        self.features: tuple[int, ...] = pair.drafter.features if self.max_draft else ()
        self.session: DraftSession | None = None
        if self.max_draft:
            self.session = pair.drafter.start(len(prompts), capacity, config)

    def _row(self, index: int, ids: list[int]) -> _Row:
        room = self.target.context_length - len(ids)
        by_length = self.config.max_new_tokens <= room
        return _Row(
            index=index,
            limit=min(self.config.max_new_tokens, room),
            finish_at_limit=Finish.LENGTH if by_length else Finish.CONTEXT,
            state=self.reader.start(ids),
        )

    def prefill(self) -> None:
        """Run every prompt but its last token; that one opens the first round, beside the first drafts."""
        lengths = self.sequences.lengths
        features = read_prompts(self.target, self.cache, self.sequences.ids, lengths, self.features)
        if features is not None:
            self._keep_features(features, torch.zeros_like(lengths))

    def _keep_features(self, features: Tensor | None, starts: Tensor) -> None:
        self.sequences.features, self.sequences.feature_starts = features, starts

    def round(self) -> list[RoundEvent]:
        """One draft-verify round of every row left."""
        began = time.perf_counter()
        draft = self._draft()
        drafted = time.perf_counter()
        K = draft.ids.shape[1]
        starts = self.sequences.lengths - 1
        last = self.sequences.ids.gather(1, starts.unsqueeze(1))
        ids = torch.cat([last, draft.ids], dim=1)
        width = K + 1 if self.has_bonus else max(K, 1)
        result = self.target.forward(
            ids[:, :width],
            self.cache,
            starts,
            keep=width,
            features=self.features,
            last_hidden=self.config.rule == "dynamic" and K > 0,
        )
        self._keep_features(result.features, starts)
        judged = self._judge(result, draft)
        accepted, next_ids = judged.num_accepted.tolist(), judged.next_ids.tolist()
        verified = time.perf_counter()
        return self._emit(draft, judged, accepted, next_ids, (drafted - began, verified - drafted, verified))

    def _judge(self, result: Pass, draft: Draft) -> Judgement:
        """What becomes of the drafts."""
        weight, probs = rule_weight(self.config, draft), None
        if self.config.rule == "dynamic" and draft.ids.shape[1]:
            weight, probs = learned_weight(self.pair.ensemble, result, draft, self.sampler)
        return judge(result.logits, draft, weight, self.config, self.generator, with_probs=self.details, probs=probs)

    def _draft(self) -> Draft:
        """At most K drafts per row, and never more than the row may still emit beside the target's token."""
        lengths = self.sequences.lengths
        room = torch.tensor([row.limit - len(row.ids) - 1 for row in self.rows], device=lengths.device)
        K = min(self.max_draft, int(room.max()))
        if K <= 0 or self.session is None:
            return Draft(ids=lengths.new_zeros(len(self.rows), 0), lengths=torch.zeros_like(lengths))
        draft = self.session.draft(self.sequences, K, self.sampler, self.generator)
        draft.lengths = torch.minimum(draft.lengths, room)
        widest = int(draft.lengths.max())
        if widest < draft.ids.shape[1]:
            draft.cut(widest)
        return draft

    def _emit(
        self,
        draft: Draft,
        judged: Judgement,
        accepted: list[int],
        next_ids: list[int],
        clock: tuple[float, float, float],
    ) -> list[RoundEvent]:
        """Turn a judgement into events, grow the rows, and take finished ones out."""
        draft_s, verify_s, since = clock
        all_ids, lengths = draft.ids.tolist(), draft.lengths.tolist()
        events, grown = [], []
        for i, row in enumerate(self.rows):
            ids = all_ids[i][: lengths[i]]
            following = [next_ids[i]] if self.has_bonus or accepted[i] < max(draft.ids.shape[1], 1) else []
            written = ids[: accepted[i]] + following
            emitted, finish = self._cut(row, written)
            whole = len(emitted) == len(written)
            num_accepted = min(accepted[i], len(emitted))
            rejected = whole and accepted[i] < lengths[i]
            event = RoundEvent(
                row=row.index,
                index=row.num_rounds,
                draft_ids=tuple(ids),
                num_accepted=num_accepted,
                num_tested=num_accepted + rejected,
                next_id=following[0] if whole and following else None,
                draft_s=draft_s,
                verify_s=verify_s,
                finish=finish,
            )
            if self.details:
                event = describe_round(event, i, draft, judged, self.reader, row.state, since)
            events.append(event)
            self._grow(row, emitted)
            grown.append(emitted)
        self._advance(grown, events)
        return sorted(events, key=lambda event: event.row)

    def _cut(self, row: _Row, emitted: list[int]) -> tuple[list[int], Finish | None]:
        """The part of `emitted` up to where the row ends, and why it ends (None: it goes on)."""
        text, state = row.text, row.state
        for count, token_id in enumerate(emitted, start=1):
            if token_id in self.target.end_ids:
                return emitted[:count], Finish.END_TOKEN
            if self.config.stop:
                state, piece = self.reader.read(state, token_id)
                text += piece
                if any(stop in text for stop in self.config.stop):
                    return emitted[:count], Finish.STOP_TEXT
            if len(row.ids) + count >= row.limit:
                return emitted[:count], row.finish_at_limit
        return emitted, None

    def _grow(self, row: _Row, emitted: list[int]) -> None:
        row.num_rounds += 1
        row.ids += emitted
        if self.config.stop or self.details:
            for token_id in emitted:
                row.state, piece = self.reader.read(row.state, token_id)
                row.text += piece

    def _advance(self, grown: list[list[int]], events: list[RoundEvent]) -> None:
        """Write emitted tokens behind each row and drop the rows that ended."""
        sequences = self.sequences
        device = sequences.ids.device
        width = max(map(len, grown))
        padded = torch.tensor([ids + [0] * (width - len(ids)) for ids in grown], device=device)
        counts = torch.tensor([len(ids) for ids in grown], device=device)
        places = sequences.lengths.unsqueeze(1) + torch.arange(width, device=device)
        # Padding may fall past the end of a row that is about to finish; it is written over or never read.
        sequences.ids.scatter_(1, places.clamp(max=sequences.ids.shape[1] - 1), padded)
        sequences.lengths = sequences.lengths + counts
        left = [i for i, event in enumerate(events) if event.finish is None]
        if len(left) < len(self.rows):
            self._select(left)

    def _select(self, left: list[int]) -> None:
        """Keep these rows. The last ones fill the gaps, so that few rows of the cache have to move."""
        kept, movers = set(left), [i for i in left if i >= len(left)]
        left = [i if i in kept else movers.pop() for i in range(len(left))]
        self.rows = [self.rows[i] for i in left]
        if not left:
            return
        rows = torch.tensor(left, device=self.sequences.ids.device)
        sequences = self.sequences
        sequences.ids, sequences.lengths = sequences.ids[rows], sequences.lengths[rows]
        if sequences.features is not None and sequences.feature_starts is not None:
            sequences.features, sequences.feature_starts = sequences.features[rows], sequences.feature_starts[rows]
        self.cache.select(rows)
        if self.session is not None:
            self.session.select(rows)
