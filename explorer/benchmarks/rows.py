"""Figures of one head at one batch size, from its timings and those of the full head. No clock, no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Generator

from explorer.benchmarks.cost_model import break_even, rho_tps
from explorer.benchmarks.timing import Timing

RESAMPLES = 2000


def total(timings: Sequence[Timing]) -> Timing:
    """All repetitions as one."""
    whole = Timing()
    for timing in timings:
        whole.add(timing)
    return whole


def tau_interval(timing: Timing) -> tuple[float, float]:
    """95 % bootstrap interval of tokens per round over the prompts; both ends are tau itself for a single prompt."""
    prompts = list(timing.emitted)
    pairs = torch.tensor([(timing.emitted[i], timing.row_rounds[i]) for i in prompts], dtype=torch.float64)
    chosen = torch.randint(len(prompts), (RESAMPLES, len(prompts)), generator=Generator().manual_seed(0))
    tokens, rounds = pairs[chosen].sum(1).unbind(1)
    low, high = (tokens / rounds).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def head_row(runs: Sequence[Timing], full: Sequence[Timing], plain: Sequence[Timing]) -> dict[str, Any]:
    """The measured part of a row; ratios are medians of the ratios within each repetition.

    Args:
        runs: One timing per repetition of this head.
        full: The same of the full head.
        plain: The same of decoding without drafts; empty if it was not measured.
    """
    whole = total(runs)
    rounds = whole.num_rounds
    low, high = tau_interval(whole)
    nu = _median_ratio(runs, full, lambda timing: timing.head_call_s)
    kappa = median(timing.kappa for timing in full)
    rho_tau = whole.tokens_per_round / total(full).tokens_per_round
    speeds = [run.tokens_per_s / other.tokens_per_s for run, other in zip(runs, full, strict=True)]
    return {
        "nu": nu,
        "kappa": kappa,
        "tau": whole.tokens_per_round,
        "tau_low": low,
        "tau_high": high,
        "rho_tau": rho_tau,
        "rho_tps_predicted": rho_tps(nu, rho_tau, kappa),
        "rho_tps_measured": median(speeds),
        "rho_tps_low": min(speeds),
        "rho_tps_high": max(speeds),
        "break_even": break_even(nu, kappa),
        "head_ms": 1000 * median(run.head_call_s for run in runs),
        "draft_rest_ms": 1000 * (whole.draft_s - whole.head_s) / rounds,
        "verify_ms": 1000 * whole.verify_s / rounds,
        "round_ms": 1000 * whole.decode_s / rounds,
        "tokens_per_s": median(run.tokens_per_s for run in runs),
        "ratio_to_ar": _median_ratio(runs, plain, lambda timing: timing.tokens_per_s) if plain else None,
        "num_tokens": sum(whole.emitted.values()),
    }


def _median_ratio(runs: Sequence[Timing], others: Sequence[Timing], of: Callable[[Timing], float]) -> float:
    return median(of(run) / of(other) for run, other in zip(runs, others, strict=True))
