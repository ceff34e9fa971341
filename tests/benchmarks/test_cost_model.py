"""The cost model against the paper's own measurements, and its two edges."""

import pytest

from explorer.benchmarks.cost_model import break_even, rho_tps, suggest_rank

# SlimSpec, Table 3, batch 1, kappa = 0.25: (rho_tau, nu, measured speed-up over the full head).
PAPER = {
    "low rank d/8": (0.99, 0.21, 1.19),
    "low rank d/16": (0.98, 0.14, 1.18),
    "dynamic": (1.01, 0.46, 1.16),
    "truncated": (1.00, 0.58, 1.09),
}


@pytest.mark.parametrize("name", PAPER)
def test_prediction_is_within_2_5_percent_of_the_paper_s_measurement(name):
    rho_tau, nu, measured = PAPER[name]

    assert rho_tps(nu, rho_tau, 0.25) == pytest.approx(measured, rel=0.025)


def test_formula_by_hand():
    assert rho_tps(0.2, 0.9, 0.5) == pytest.approx(0.9 * 1.5 / 1.1)
    assert break_even(0.2, 0.5) == pytest.approx(1.1 / 1.5)


@pytest.mark.parametrize("nu", [0.0, 0.3, 1.0, 1.4])
@pytest.mark.parametrize("kappa", [0.0, 0.25, 2.0])
def test_at_break_even_nothing_is_won_or_lost(nu, kappa):
    assert rho_tps(nu, break_even(nu, kappa), kappa) == pytest.approx(1)
    assert rho_tps(1.0, 0.9, kappa) == pytest.approx(0.9), "a head as slow as the full one wins nothing"


def row(head, rank, batch, predicted):
    return {"head": head, "rank": rank, "batch": batch, "rho_tps_predicted": predicted}


def test_the_suggested_rank_is_the_best_low_rank_row_of_its_batch():
    rows = [
        row("full", None, 1, 1.0),
        row("low-rank", 36, 1, 1.1),
        row("low-rank", 72, 1, 1.3),
        row("low-rank", 144, 1, 1.2),
        row("dynamic", 72, 1, 1.9),
        row("low-rank", 144, 16, 0.9),
        row("low-rank", 36, 16, 0.8),
    ]

    assert suggest_rank(rows, 1) == 72
    assert suggest_rank(rows, 16) == 144
    assert suggest_rank(rows, 4) is None


def test_of_two_equal_ranks_the_smaller_is_suggested():
    rows = [row("low-rank", 144, 1, 1.1), row("low-rank", 36, 1, 1.1)]

    assert suggest_rank(rows, 1) == suggest_rank(rows[::-1], 1) == 36
