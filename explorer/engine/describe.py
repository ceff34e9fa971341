"""Why each token of a round lived or died, in plain numbers. Reads what the round left; draws no randomness."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from explorer.engine.drafters import Draft
from explorer.engine.events import LawEntry, RoundEvent, TokenDetail
from explorer.engine.judge import Judgement
from explorer.engine.text import TextReader, TextState
from explorer.rules.verify import residual

TOP = 5


def describe_round(
    event: RoundEvent,
    batch_row: int,
    draft: Draft,
    judged: Judgement,
    reader: TextReader,
    state: TextState,
    since: float,
) -> RoundEvent:
    """The event with one `TokenDetail` per draft and one for the token that follows.

    Args:
        event: The round, without details.
        batch_row: Row of the tensors.
        draft: The round's proposals.
        judged: What became of them; `target_probs` must be there.
        reader: Reads tokens.
        state: The row's text before this round.
        since: `perf_counter` when the rule was done; the time from there is reported as overhead.
    """
    assert judged.target_probs is not None
    laws = judged.target_probs[batch_row]
    texts, after_accepted = _texts(event, reader, state)
    details = []
    for position, token_id in enumerate(event.draft_ids):
        own_law = draft.law(batch_row, position, laws.shape[1])
        details.append(
            _draft_detail(texts[position], token_id, laws[position], own_law, judged, batch_row, position, reader)
        )
    if event.next_id is not None:
        at = event.num_accepted
        rejected = event.num_tested > event.num_accepted
        own_law = draft.law(batch_row, at, laws.shape[1]) if rejected else None
        text = reader.read(after_accepted, event.next_id)[1]
        law = _next_law(laws[at], own_law, judged, batch_row, at)
        details.append(_next_detail(text, event.next_id, laws[at], own_law, law, reader))
    return replace(event, details=tuple(details), overhead_s=time.perf_counter() - since)


def _texts(event: RoundEvent, reader: TextReader, state: TextState) -> tuple[list[str], TextState]:
    """Text of each draft after the drafts before it, and the state after the accepted ones."""
    texts, after_accepted = [], state
    for position, token_id in enumerate(event.draft_ids, start=1):
        state, text = reader.read(state, token_id)
        texts.append(text)
        if position == event.num_accepted:
            after_accepted = state
    return texts, after_accepted


def _draft_detail(
    text: str,
    token_id: int,
    target_law: Tensor,
    draft_law: Tensor,
    judged: Judgement,
    batch_row: int,
    position: int,
    reader: TextReader,
) -> TokenDetail:
    target_prob, draft_prob = float(target_law[token_id]), float(draft_law[token_id])
    weight = None if judged.weight is None else float(judged.weight[batch_row, position])
    accept = float(judged.accept_probs[batch_row, position])
    # The lossy rule has no verifier distribution of its own: its chance to pass times q is what it lets through.
    verifier = accept * draft_prob if weight is None else weight * target_prob + (1 - weight) * draft_prob
    return TokenDetail(
        text=text,
        target_prob=target_prob,
        draft_prob=draft_prob,
        verifier_prob=verifier,
        accept_prob=accept,
        coin=None if judged.coins is None else float(judged.coins[batch_row, position]),
        target_weight=weight,
        target_entropy=_entropy(target_law),
        draft_entropy=_entropy(draft_law),
        target_rank=_rank(target_law, token_id),
        draft_rank=_rank(draft_law, token_id),
        overlap=float(torch.minimum(target_law, draft_law).sum()),
        top=_top_of_both(target_law, draft_law, weight, token_id, reader),
    )


def _next_law(target_law: Tensor, draft_law: Tensor | None, judged: Judgement, batch_row: int, position: int) -> Tensor:
    """(V,) what the token after the kept drafts was drawn from; in greedy decoding, what it is the argmax of."""
    if draft_law is None:
        return target_law
    if judged.coins is not None:
        return residual(target_law, draft_law)
    if judged.weight is None:
        return target_law
    return torch.lerp(draft_law, target_law, judged.weight[batch_row, position])


def _next_detail(
    text: str, token_id: int, target_law: Tensor, draft_law: Tensor | None, law: Tensor, reader: TextReader
) -> TokenDetail:
    """The token after the kept drafts; `draft_law` is that of the rejected draft, None for a bonus token."""
    entries = []
    for prob, index in zip(*_top(law), strict=True):
        p, q = float(target_law[index]), None if draft_law is None else float(draft_law[index])
        entries.append(LawEntry(id=index, text=reader.piece(index), target_prob=p, draft_prob=q, prob=prob))
    return TokenDetail(
        text=text,
        target_prob=float(target_law[token_id]),
        draft_prob=None if draft_law is None else float(draft_law[token_id]),
        verifier_prob=float(law[token_id]),
        target_entropy=_entropy(target_law),
        target_rank=_rank(target_law, token_id),
        top=tuple(entries),
    )


def _entropy(law: Tensor) -> float:
    return float(torch.special.entr(law).sum())


def _rank(law: Tensor, token_id: int) -> int:
    return int((law > law[token_id]).sum()) + 1


def _top(law: Tensor) -> tuple[list[float], list[int]]:
    best = law.topk(min(TOP, len(law)))
    pairs = [(p, i) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True) if p > 0]
    return [p for p, _ in pairs], [i for _, i in pairs]


def _top_of_both(
    target_law: Tensor, draft_law: Tensor, weight: float | None, token_id: int, reader: TextReader
) -> tuple[LawEntry, ...]:
    """Best tokens of either law and the draft itself, likeliest for the verifier first."""
    ids = {*_top(target_law)[1], *_top(draft_law)[1], token_id}
    entries = []
    for index in ids:
        p, q = float(target_law[index]), float(draft_law[index])
        share = p if weight is None else weight * p + (1 - weight) * q
        entries.append(LawEntry(id=index, text=reader.piece(index), target_prob=p, draft_prob=q, prob=share))
    return tuple(sorted(entries, key=lambda entry: (-entry.prob, entry.id)))
