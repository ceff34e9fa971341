"""The estimate beside the rank slider: its arithmetic by hand, its clocks on a toy."""

import pytest
from eagles import random_eagle
from toys import toy_pair

from explorer.benchmarks.rank_costs import RankCosts, best_rank, expected_tokens, measure_ranks, pass_rates
from explorer.engine.eagle import EagleDrafter

COSTS = RankCosts(token_ms=30.0, column_ms=0.5, body_ms=1.5, head_ms={36: 1.0, 144: 4.0})


def test_a_round_by_hand():
    assert COSTS.round_ms(2, 36) == pytest.approx(30 + 2 * (0.5 + 1.5 + 1.0))
    assert COSTS.round_ms(2, 90) == pytest.approx(30 + 2 * (0.5 + 1.5 + 2.5))
    assert COSTS.round_ms(3, 9) == pytest.approx(30 + 3 * 3.0)
    assert COSTS.round_ms(1, 500) == pytest.approx(36)
    assert COSTS.speed_up(2, 36, 1.5) == pytest.approx(1.5 * 30 / 36)


def test_expected_tokens_by_hand():
    assert expected_tokens([0.5, 0.4], 1) == pytest.approx(1.5)
    assert expected_tokens([0.5, 0.4], 2) == pytest.approx(1.7)
    assert expected_tokens([0.5, 0.4], 3) == pytest.approx(1.78)


def test_the_best_rank_weighs_time_against_tokens():
    assert best_rank(COSTS, {36: [0.4], 144: [0.42]}, 2)[0] == 36
    assert best_rank(COSTS, {36: [0.1], 144: [0.6]}, 2)[0] == 144
    assert best_rank(COSTS, {36: [0.4]}, 2)[1] == pytest.approx(COSTS.speed_up(2, 36, 1.56))
    assert best_rank(COSTS, {}, 2) is None


def test_pass_rates_are_those_of_the_temperature():
    scores = {"0": {"agreement": [0.4], "overlap": [0.1]}, "1": {"agreement": [0.2], "overlap": [0.3]}}
    by_rank = {"by_rank": {"36": scores, "144": scores}}
    assert pass_rates(by_rank, 144, 0.0) == {36: [0.4], 144: [0.4]}
    assert pass_rates(by_rank, 144, 0.7) == {36: [0.3], 144: [0.3]}
    assert pass_rates({"temperature": scores}, 144, 0.0) == {144: [0.4]}
    assert pass_rates({}, 144, 0.0) == {}


def test_a_measurement_gives_a_time_for_every_rank():
    target = toy_pair("llama").target
    drafter = EagleDrafter(random_eagle(target, 12), "random")
    costs = measure_ranks(target, drafter)
    assert tuple(costs.head_ms) == drafter.rank_choices
    assert min(costs.head_ms.values()) > 0
    assert costs.token_ms > 0
    assert costs.column_ms >= 0
    assert costs.body_ms >= 0
