"""Figures of a row against sums by hand."""

import pytest

from explorer.benchmarks.cost_model import break_even, rho_tps
from explorer.benchmarks.rows import head_row, tau_interval, total
from explorer.benchmarks.timing import Timing


def timing(decode_s, head_s, calls, tokens, rounds):
    """One repetition over two prompts."""
    return Timing(
        decode_s=decode_s,
        draft_s=head_s + 0.2,
        verify_s=0.5,
        head_s=head_s,
        num_rounds=sum(rounds),
        num_head_calls=calls,
        emitted=dict(enumerate(tokens)),
        row_rounds=dict(enumerate(rounds)),
    )


FULL = [timing(decode_s, head_s, 40, (12, 8), (6, 4)) for decode_s, head_s in ((2.0, 0.5), (2.2, 0.6), (9.0, 3.0))]
LOW = [timing(decode_s, head_s, 50, (12, 8), (8, 5)) for decode_s, head_s in ((1.6, 0.1), (1.5, 0.2), (6.0, 0.9))]
PLAIN = [timing(2.5, 0.0, 0, (12, 8), (12, 8)) for _ in range(3)]


def test_a_row_by_hand():
    row = head_row(LOW, FULL, PLAIN)

    nu = sorted([(0.1 / 50) / (0.5 / 40), (0.2 / 50) / (0.6 / 40), (0.9 / 50) / (3.0 / 40)])[1]
    kappa = sorted([0.5 / 1.5, 0.6 / 1.6, 3.0 / 6.0])[1]
    tau, tau_full = 20 / 13, 20 / 10
    speeds = sorted([2.0 / 1.6, 2.2 / 1.5, 9.0 / 6.0])
    assert row["nu"] == pytest.approx(nu)
    assert row["nu"] < 1, "the cheaper head has the smaller nu"
    assert row["kappa"] == pytest.approx(kappa)
    assert row["tau"] == pytest.approx(tau)
    assert row["rho_tau"] == pytest.approx(tau / tau_full)
    assert row["rho_tps_predicted"] == pytest.approx(rho_tps(nu, tau / tau_full, kappa))
    assert row["break_even"] == pytest.approx(break_even(nu, kappa))
    assert (row["rho_tps_low"], row["rho_tps_measured"], row["rho_tps_high"]) == pytest.approx(tuple(speeds))
    assert row["head_ms"] == pytest.approx(1000 * 0.2 / 50)
    assert row["tokens_per_s"] == pytest.approx(20 / 1.6)
    assert row["ratio_to_ar"] == pytest.approx(2.5 / 1.6)
    assert row["draft_rest_ms"] == pytest.approx(1000 * 0.6 / 39)
    assert row["verify_ms"] == pytest.approx(1000 * 1.5 / 39)
    assert row["round_ms"] == pytest.approx(1000 * 9.1 / 39)
    assert row["num_tokens"] == 60


def test_the_full_head_against_itself_is_one():
    row = head_row(FULL, FULL, [])

    assert [row[name] for name in ("nu", "rho_tau", "rho_tps_predicted", "rho_tps_measured", "break_even")] == [1] * 5
    assert row["ratio_to_ar"] is None


def test_the_prediction_is_exact_where_only_the_head_changes():
    """Same rounds, same everything else: the model must give what the clock gives."""
    full, low = timing(2.0, 0.5, 40, (10, 10), (5, 5)), timing(1.6, 0.1, 40, (10, 10), (5, 5))
    row = head_row([low], [full], [])

    assert row["rho_tps_predicted"] == pytest.approx(row["rho_tps_measured"])


def test_the_interval_holds_tau_and_is_a_point_where_prompts_agree():
    whole = total(LOW)
    low, high = tau_interval(whole)
    assert low <= whole.tokens_per_round <= high
    assert (low, high) == pytest.approx((12 / 8, 8 / 5))
    alike = timing(1, 0.1, 9, (10, 20), (5, 10))
    assert tau_interval(alike) == pytest.approx((2, 2))
    assert tau_interval(alike) == tau_interval(alike), "the same figures every time"


def test_repetitions_are_added_prompt_by_prompt():
    whole = total(LOW)

    assert whole.emitted == {0: 36, 1: 24}
    assert whole.row_rounds == {0: 24, 1: 15}
    assert LOW[0].emitted == {0: 12, 1: 8}, "what was added is left as it was"
