"""Figures of `bench speed` from tokens and seconds. No clock, no model.

Cells are (R, G, 2): tokens and seconds of every repetition and every group of prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from explorer.benchmarks.contestants import GREEDY, Contestant, Written
from explorer.benchmarks.ours import ATTACHED
from explorer.benchmarks.rows import RESAMPLES

Results = Mapping[Contestant, Sequence[Sequence[Written]]]


def speeds(cells: Tensor) -> Tensor:
    """(..., R) tokens per second of each repetition, from (..., R, G, 2)."""
    tokens, seconds = cells.sum(-2).unbind(-1)
    return tokens / seconds


def speed_figures(cells: Tensor) -> dict[str, float]:
    """Median tokens per second of the repetitions, and the slowest and the fastest of them."""
    found = speeds(cells)
    return {
        "tokens_per_s": round(float(found.quantile(0.5)), 3),
        "tokens_per_s_low": round(float(found.min()), 3),
        "tokens_per_s_high": round(float(found.max()), 3),
    }


def ratio(mine: Tensor, theirs: Tensor) -> tuple[float, float, float]:
    """Median over repetitions of the ratio of two speeds, and its 95 % interval.

    The bootstrap draws prompts and repetitions anew, the same ones for both: what they shared is not taken for noise.

    Args:
        mine: (R, G, 2) cells.
        theirs: (R, G, 2) cells of the same prompts, measured in turn with `mine`.
    """
    R, G = mine.shape[:2]
    generator = Generator().manual_seed(0)
    repetitions = torch.randint(R, (RESAMPLES, R, 1), generator=generator)
    groups = torch.randint(G, (RESAMPLES, 1, G), generator=generator)
    found = _median_ratio(mine[repetitions, groups], theirs[repetitions, groups])
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=found.dtype)).tolist()
    return round(float(_median_ratio(mine, theirs)), 4), round(low, 4), round(high, 4)


def _median_ratio(mine: Tensor, theirs: Tensor) -> Tensor:
    return (speeds(mine) / speeds(theirs)).quantile(0.5, dim=-1)


def report_of(results: Results) -> dict[str, Any]:
    """`rows`, and `attached_cost`: how many times as fast the same answers come without a page."""
    cells = {row: cells_of(runs) for row, runs in results.items()}
    fastest: dict[Any, Contestant] = {}
    for row in results:
        if row.is_hf:
            known = fastest.get(row.setting)
            if known is None or _speed(cells[row]) > _speed(cells[known]):
                fastest[row.setting] = row
    rows = []
    for row in results:
        hf = fastest[row.setting]
        middle, low, high = ratio(cells[row], cells[hf])
        rows.append(
            {
                "name": row.name,
                "batch": row.batch,
                "precision": row.precision,
                "temperature": row.sampler.temperature,
                "top_p": row.sampler.top_p,
                "draft_length": row.draft_length,
                **speed_figures(cells[row]),
                "ratio_to_hf": middle,
                "ratio_low": low,
                "ratio_high": high,
                "hf_precision": hf.precision,
                "num_tokens": int(cells[row][..., 0].sum()),
                "tokens_per_round": tokens_per_round(results[row]),
                **agreement(row, results),
            }
        )
    return {"rows": rows, "attached_cost": [*_attached(cells)]}


def cells_of(runs: Sequence[Sequence[Written]]) -> Tensor:
    """(R, G, 2) tokens and seconds."""
    return torch.tensor([[(w.num_tokens, w.seconds) for w in run] for run in runs], dtype=torch.float64)


def _speed(cells: Tensor) -> float:
    return speed_figures(cells)["tokens_per_s"]


def tokens_per_round(runs: Sequence[Sequence[Written]]) -> float | None:
    """Tokens over rounds of a row; None where nobody counts rounds."""
    written = [w for run in runs for w in run]
    rounds = sum(w.num_rounds for w in written)
    return round(sum(w.num_tokens for w in written) / rounds, 4) if rounds else None


def agreement(row: Contestant, results: Results) -> dict[str, Any]:
    """How many greedy answers are HF's, token by token: those in the same precision if there are any, else the first.

    `agreed` is None where text is sampled, or not told; `agreed_with` is the precision of HF's.
    """
    own = [w.ids for w in results[row][0]]
    rivals = {other.precision: other for other in results if other.is_hf and other.setting == row.setting}
    if row.sampler != GREEDY or not rivals or not all(own):
        return {"agreed": None, "agreed_with": None}
    precision = row.precision if row.precision in rivals else next(iter(rivals))
    theirs = [w.ids for w in results[rivals[precision]][0]]
    return {"agreed": sum(a == b for a, b in zip(own, theirs, strict=True)), "agreed_with": precision}


def _attached(cells: Mapping[Contestant, Tensor]) -> Iterator[dict[str, Any]]:
    """How many times as fast the same answers come without a page."""
    for row, found in cells.items():
        if not row.name.endswith(ATTACHED):
            continue
        name = row.name.removesuffix(ATTACHED)
        plain = next(cells[other] for other in cells if (other.name, other.setting) == (name, row.setting))
        middle, low, high = ratio(plain, found)
        yield {"name": name, "temperature": row.sampler.temperature, "ratio": middle, "low": low, "high": high}
