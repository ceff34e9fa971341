"""Fates and emitted tokens of a round."""

import dataclasses
import json
import pickle

import pytest

from explorer.engine.events import Finish, RoundEvent, TokenFate

A, R, D, RES, BON = (
    TokenFate.ACCEPTED,
    TokenFate.REJECTED,
    TokenFate.DISCARDED,
    TokenFate.RESIDUAL,
    TokenFate.BONUS,
)


def event(drafts, num_accepted, num_tested, next_id, **more):
    values = {"row": 0, "index": 0, "draft_s": 0.1, "verify_s": 0.2} | more
    return RoundEvent(
        draft_ids=tuple(drafts), num_accepted=num_accepted, num_tested=num_tested, next_id=next_id, **values
    )


@pytest.mark.parametrize(
    ("round_", "fates", "emitted"),
    [
        pytest.param(event([5, 6, 7], 3, 3, 8), [A, A, A, BON], (5, 6, 7, 8), id="all accepted"),
        pytest.param(event([5, 6, 7], 1, 2, 8), [A, R, D, RES], (5, 8), id="rejected inside"),
        pytest.param(event([5, 6, 7], 0, 1, 0), [R, D, D, RES], (0,), id="rejected at once, token id 0"),
        pytest.param(event([5, 6, 7], 2, 3, 8), [A, A, R, RES], (5, 6, 8), id="last one rejected"),
        pytest.param(event([5, 2, 7], 2, 2, None), [A, A, D], (5, 2), id="end token inside the drafts"),
        pytest.param(event([5, 6, 7], 3, 3, None), [A, A, A], (5, 6, 7), id="ended by the last draft"),
        pytest.param(event([], 0, 0, 9), [BON], (9,), id="autoregressive"),
    ],
)
def test_fates_and_emitted_tokens(round_, fates, emitted):
    assert list(round_.fates) == fates
    assert round_.emitted_ids == emitted
    assert len(round_.fates) == len(round_.draft_ids) + (round_.next_id is not None)


def test_every_emitted_token_has_a_fate_that_is_kept():
    round_ = event([5, 6, 7], 1, 2, 8)
    kept = [
        i for i, fate in zip((*round_.draft_ids, round_.next_id), round_.fates, strict=True) if fate in (A, RES, BON)
    ]
    assert tuple(kept) == round_.emitted_ids


def test_events_are_plain_values():
    round_ = event([5], 1, 1, 8, finish=Finish.LENGTH)
    assert pickle.loads(pickle.dumps(round_)) == round_
    assert json.loads(json.dumps(dataclasses.asdict(round_)))["finish"] == "length"
    with pytest.raises(dataclasses.FrozenInstanceError):
        round_.index = 3
