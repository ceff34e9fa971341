"""What a cheaper head is worth, from three ratios. Pure functions of numbers.

Source:
    SlimSpec, arXiv:2605.10453, Eq. 4, in its letters: nu, kappa, rho_tau and rho_TPS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def rho_tps(nu: float, rho_tau: float, kappa: float) -> float:
    """Predicted speed with a head over the speed of the same drafter with the full head.

    Args:
        nu: Time of a call of the head over that of the full head.
        rho_tau: Tokens per round with the head over those with the full head.
        kappa: Time of the full head in a round over the time of everything else in it.
    """
    return rho_tau * (1 + kappa) / (1 + nu * kappa)


def break_even(nu: float, kappa: float) -> float:
    """The rho_tau below which a head loses more in tokens per round than it gains in time."""
    return (1 + nu * kappa) / (1 + kappa)


def suggest_rank(rows: Iterable[Mapping[str, Any]], batch: int) -> int | None:
    """Rank of the low-rank row of this batch size with the highest predicted speed; the smaller of two equal ones.

    Args:
        rows: Rows with `head`, `rank`, `batch` and `rho_tps_predicted`, as `bench heads` gives them.
        batch: Rows decoded at once.

    Returns:
        None if no low-rank head was measured at this batch size.
    """
    found = [row for row in rows if row["head"] == "low-rank" and row["batch"] == batch]
    best = max(found, key=lambda row: (row["rho_tps_predicted"], -row["rank"]), default=None)
    return None if best is None else best["rank"]
