"""Figures of a run, by hand and against a recount of random events."""

import random

import pytest

from explorer.engine.events import RoundEvent, TokenFate
from explorer.engine.metrics import Counts, count


def event(K, num_accepted, *, ended=False, row=0):
    """A round of K drafts; `ended`: the row stopped inside its accepted drafts."""
    rejected = not ended and num_accepted < K
    return RoundEvent(
        row=row, index=0, draft_ids=tuple(range(K)), num_accepted=num_accepted, num_tested=num_accepted + rejected,
        next_id=None if ended else 9, draft_s=0.0, verify_s=0.0,
    )  # fmt: skip


def test_by_hand():
    """Three rounds of K = 3: one kept and one thrown away; all kept; the row ended inside two kept."""
    counts = count([event(3, 1), event(3, 3), event(3, 2, ended=True)])
    assert counts == Counts(
        num_rounds=3, num_drafted=9, num_tested=2 + 3 + 2, num_accepted=6, num_emitted=2 + 4 + 2,
        tested_at=[3, 3, 1], accepted_at=[3, 2, 1],
    )  # fmt: skip
    assert counts.acceptance_rate == pytest.approx(6 / 9)
    assert counts.tested_rate == pytest.approx(6 / 7)
    assert counts.tokens_per_round == pytest.approx(8 / 3)


def test_rates_of_nothing_are_none():
    assert (Counts().acceptance_rate, Counts().tested_rate, Counts().tokens_per_round) == (None, None, None)
    plain = count([event(0, 0), event(0, 0)])
    assert (plain.acceptance_rate, plain.tested_rate, plain.tokens_per_round) == (None, None, 1.0)


def test_against_a_recount_of_the_fates():
    generator = random.Random(0)
    events = []
    for _ in range(200):
        K = generator.randint(0, 5)
        accepted = generator.randint(0, K)
        events.append(event(K, accepted, ended=accepted > 0 and generator.random() < 0.1))
    counts = count(events)
    fates = [(place, fate) for e in events for place, fate in enumerate(e.fates)]
    assert counts.num_accepted == sum(fate == TokenFate.ACCEPTED for _, fate in fates)
    assert counts.num_tested == counts.num_accepted + sum(fate == TokenFate.REJECTED for _, fate in fates)
    assert counts.num_drafted == counts.num_tested + sum(fate == TokenFate.DISCARDED for _, fate in fates)
    assert counts.num_emitted == counts.num_accepted + sum(f in (TokenFate.RESIDUAL, TokenFate.BONUS) for _, f in fates)
    for at in range(5):
        assert counts.accepted_at[at] == sum(p == at and f == TokenFate.ACCEPTED for p, f in fates)
        assert counts.tested_at[at] - counts.accepted_at[at] == sum(
            p == at and f == TokenFate.REJECTED for p, f in fates
        )
    assert sum(counts.tested_at) == counts.num_tested
