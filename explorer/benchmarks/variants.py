"""The heads that are compared: one body, one decode loop, and a clock in each head."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from explorer.benchmarks.config import HeadsConfig
from explorer.benchmarks.timing import TimedHead
from explorer.engine.eagle import EagleDrafter
from explorer.engine.models import LanguageModel
from explorer.errors import SettingError
from explorer.heads.choice import HeadParts
from explorer.heads.draft import LowRankHead

# Sizes of truncated and dynamic heads, as parts of the vocabulary: 16,384, 8,192 and 2,048 of 49,152.
KEPT_PARTS = (24, 6, 3)
CANDIDATE_PARTS = (24,)
# The scorer of a dynamic head has this part of the hidden size as its rank (SpecVocab, arXiv:2602.13836).
SCORER_PART = 8
TRUNCATED, BY_CORPUS = "truncated", "truncated by corpus"


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One head to measure.

    Attributes:
        head: "full", "low-rank", "truncated" (tokens the target writes often), "truncated by corpus" (tokens a corpus
            holds often), "dynamic", or "none" for plain decoding.
        rank: Of the low-rank head, or of the dynamic head's scorer; else None.
        size: Tokens kept or candidates; else None.
        drafter: With the clock in its head; None for plain decoding.
        timer: That clock.
        kept: (N,) ids of a truncated head, else None.
    """

    head: str
    rank: int | None = None
    size: int | None = None
    drafter: EagleDrafter | None = None
    timer: TimedHead | None = None
    kept: Tensor | None = None

    @classmethod
    def of(cls, head: str, drafter: EagleDrafter, rank: int | None = None, size: int | None = None) -> Variant:
        """The variant of a drafter that has the head already."""
        timer = TimedHead(drafter.model.head)
        kept = timer.head.ids if head in (TRUNCATED, BY_CORPUS) else None
        return cls(head, rank, size, drafter.with_module(timer, drafter.choice), timer, kept)

    @property
    def decode_rank(self) -> int:
        """What the decode's `rank` setting must be; a low-rank variant holds no more factors than its rank."""
        return self.rank or 0 if self.head == "dynamic" else 0

    @property
    def label(self) -> str:
        """For people."""
        parts = [self.head, f"r={self.rank}" if self.rank else "", f"{self.size:,}" if self.size else ""]
        return " ".join(part for part in parts if part)


def make_variants(
    target: LanguageModel, drafter: EagleDrafter, twin: EagleDrafter | None, config: HeadsConfig
) -> tuple[list[Variant], list[str]]:
    """Every head to measure, the full one first, plain decoding last; and why some are left out.

    Args:
        target: What is drafted for.
        drafter: Gives the low-rank heads.
        twin: The same drafter trained with a full head, or None; then the full head is the product of the factors.
        config: Which ranks and sizes; those asked for must be possible.

    Raises:
        SettingError: A rank or a size that was asked for cannot be measured.
    """
    variants = [Variant.of("full", (twin or drafter).with_head("full")), *_low_rank(drafter, config)]
    if config.auto_rank:
        if len(variants) == 1:
            raise SettingError(f"{drafter.name} has no low-rank head to choose a rank for. Give another --drafter.")
        return variants, []
    left_out: list[str] = []
    sources = [source for source in (twin, drafter) if source is not None]
    V = target.vocab_size
    kept = config.kept or _parts(V, KEPT_PARTS[:1] if config.quick else KEPT_PARTS, len(target.end_ids))
    candidates = config.candidates or _parts(V, CANDIDATE_PARTS)
    variants += _sized(TRUNCATED, kept, sources, bool(config.kept), left_out)
    if config.corpus:
        counts = corpus_counts(target, Path(config.corpus))
        variants += _sized(BY_CORPUS, kept, [_counting(source, counts) for source in sources], True, left_out)
    variants += _sized("dynamic", candidates, sources, bool(config.candidates), left_out)
    return [*variants, Variant("none")], left_out


def corpus_counts(target: LanguageModel, path: Path) -> Tensor:
    """(V,) how often each token occurs in the texts of a JSONL file: every string of every line.

    Raises:
        SettingError: The file cannot be read, or holds no text.
    """
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be used as a corpus ({error}). Give a JSONL file of texts.") from error
    texts = [value for record in records if isinstance(record, dict) for value in record.values()]
    texts = [text for text in texts if isinstance(text, str) and text.strip()]
    if not texts:
        raise SettingError(f"{path} holds no text. Give a JSONL file with a text in every line.")
    counts = torch.zeros(target.vocab_size, dtype=torch.int64)
    for text in texts:
        ids = torch.tensor(target.tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.int64)
        counts += torch.bincount(ids, minlength=target.vocab_size)[: target.vocab_size]
    return counts


def _counting(drafter: EagleDrafter, counts: Tensor) -> EagleDrafter:
    """The drafter, whose truncated heads keep what these counts say."""
    parts = drafter.parts
    counted = HeadParts(parts.own, end_ids=parts.end_ids, counts=counts, scorer=parts.scorer, is_packed=parts.is_packed)
    return EagleDrafter(drafter.model, drafter.name, counted)


def _parts(vocab_size: int, parts: tuple[int, ...], least: int = 1) -> tuple[int, ...]:
    return tuple(sorted({max(vocab_size // part, least, 1) for part in parts}))


def _low_rank(drafter: EagleDrafter, config: HeadsConfig) -> list[Variant]:
    own = drafter.parts.own
    if not isinstance(own, LowRankHead):
        if config.ranks:
            raise SettingError(f"ranks is given, but {drafter.name} has no low-rank head. Leave --ranks out.")
        return []
    choices = drafter.rank_choices[-3::2] if config.quick else drafter.rank_choices
    variants = []
    for rank in sorted(set(config.ranks or choices)):
        if rank > own.max_rank:
            raise SettingError(
                f"ranks holds {rank}; the head of {drafter.name} has rank {own.max_rank}. Choose 1 to {own.max_rank}."
            )
        # A head of its own, on the same memory: packed prefixes of all ranks do not compete for one store.
        head = LowRankHead(own.down[:rank], own.up_t[:rank].t())
        if drafter.parts.is_packed:
            head.pack()
        variants.append(Variant.of("low-rank", drafter.with_module(head), rank))
    return variants


def _sized(
    head: str, sizes: tuple[int, ...], sources: list[EagleDrafter], is_asked: bool, left_out: list[str]
) -> list[Variant]:
    """Truncated or dynamic heads of the first drafter that has what they are made of."""
    for i, source in enumerate(sources):
        try:
            kind = TRUNCATED if head == BY_CORPUS else head
            made = [(size, source.with_head(kind, size)) for size in sorted(set(sizes))]
        except SettingError as error:
            if i + 1 < len(sources):
                continue
            if is_asked:
                raise
            left_out.append(f"{head}: {error}")
            return []
        rank = max(source.model.shape.hidden_size // SCORER_PART, 1)
        ranks = [min(rank, made_of.max_rank) if head == "dynamic" else None for _, made_of in made]
        return [Variant.of(head, made_of, r, size) for (size, made_of), r in zip(made, ranks, strict=True)]
    return []
