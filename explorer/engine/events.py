"""What a decode yields: plain Python values, no tensors, so events pickle, compare and dump to JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TokenFate(StrEnum):
    """What became of a token."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISCARDED = "discarded"  # drafted after a rejection or a stop: never judged
    RESIDUAL = "residual"  # replaces the rejected draft
    BONUS = "bonus"  # follows a fully accepted draft; every token of plain autoregressive decoding


class Finish(StrEnum):
    """Why a row ended."""

    END_TOKEN = "end_token"
    STOP_TEXT = "stop_text"
    LENGTH = "length"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class LawEntry:
    """One token of a top-k list. `prob` is the probability in the law the list belongs to."""

    id: int
    text: str
    target_prob: float
    draft_prob: float | None
    prob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDetail:
    """Why one token of a round lived or died.

    Attributes:
        text: How the token reads after the text before it. Empty while a character is not complete yet; the token
            that completes it carries the whole character.
        target_prob, draft_prob, verifier_prob: p, q and the verifier's probability of this id, in [0, 1]. At
            temperature 0 they are the untempered softmax's. draft_prob is None for a token that was not drafted.
        accept_prob: Chance to pass, before the coin. None for a token that was not drafted.
        coin: u in [0, 1); the token passes if u < accept_prob. None where no coin was needed.
        target_weight: w of the ensemble rules at this position (1 for exact), None under the lossy rule.
        target_entropy, draft_entropy: In nats.
        target_rank, draft_rank: 1 is the most likely token.
        overlap: sum of min(p, q) over the vocabulary = 1 - TV(p, q).
        top: The likeliest tokens by p and by q (drafts), or of the law the token was drawn from (residual, bonus).
    """

    text: str
    target_prob: float
    draft_prob: float | None = None
    verifier_prob: float
    accept_prob: float | None = None
    coin: float | None = None
    target_weight: float | None = None
    target_entropy: float
    draft_entropy: float | None = None
    target_rank: int
    draft_rank: int | None = None
    overlap: float | None = None
    top: tuple[LawEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvent:
    """One draft-verify round of one row.

    Attributes:
        row: Index of the prompt in the batch.
        index: Round of this row, from 0.
        draft_ids: The drafted token ids, in order; empty in autoregressive decoding.
        num_accepted: Length of the kept prefix of `draft_ids`.
        num_tested: Drafts that were judged: `num_accepted`, plus one if a draft was rejected.
        next_id: Token emitted after that prefix: residual if a draft was rejected, else bonus. None if the row ended
            inside its accepted drafts (end token or stop text).
        draft_s, verify_s, overhead_s: Seconds spent drafting, in the target's pass with the rule, and in describing
            the round (details, text). Of the whole batch.
        finish: Why the row ended with this round, else None.
        details: One per draft, then one for `next_id`; empty when not asked for.
    """

    row: int
    index: int
    draft_ids: tuple[int, ...]
    num_accepted: int
    num_tested: int
    next_id: int | None
    draft_s: float
    verify_s: float
    overhead_s: float = 0.0
    finish: Finish | None = None
    details: tuple[TokenDetail, ...] = ()

    @property
    def emitted_ids(self) -> tuple[int, ...]:
        """The token ids this round adds to the output."""
        kept = self.draft_ids[: self.num_accepted]
        return kept if self.next_id is None else (*kept, self.next_id)

    @property
    def fates(self) -> tuple[TokenFate, ...]:
        """One fate per drafted token, then the fate of `next_id` if there is one."""
        rejected = self.num_tested - self.num_accepted
        fates = [TokenFate.ACCEPTED] * self.num_accepted + [TokenFate.REJECTED] * rejected
        fates += [TokenFate.DISCARDED] * (len(self.draft_ids) - self.num_tested)
        if self.next_id is not None:
            fates.append(TokenFate.RESIDUAL if rejected else TokenFate.BONUS)
        return tuple(fates)
