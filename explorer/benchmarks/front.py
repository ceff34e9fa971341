"""Points, fronts and differences of reward and acceptance, with intervals over prompts. No model, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from explorer.benchmarks.answers import Answer

RESAMPLES = 2000
# Columns of `sums_of`; the last two count the drafts of correct answers only.
_REWARD, _ANSWERS, _ACCEPTED, _DRAFTED, _EMITTED, _ROUNDS, _GOOD_ACCEPTED, _GOOD_DRAFTED = range(8)


@dataclass(slots=True)
class Sample:
    """Answers under one rule.

    Attributes:
        prompts: Number of the prompt of each answer.
        answers: The answers.
        rewards: Of each.
        correct: Whether each is right; None where the task knows no right and wrong.
        seconds: Of decoding.
        wall_s: With rewards and everything else.
    """

    prompts: list[int]
    answers: list[Answer]
    rewards: list[float]
    correct: list[bool | None]
    seconds: float
    wall_s: float


def sums_of(sample: Sample) -> Tensor:
    """(P, 8) sums over each prompt's answers, in the order of the columns above."""
    sums = torch.zeros(max(sample.prompts) + 1, 8, dtype=torch.float64)
    for prompt, answer, reward, good in zip(
        sample.prompts, sample.answers, sample.rewards, sample.correct, strict=True
    ):
        row = [reward, 1, answer.num_accepted, answer.num_drafted, len(answer.ids), answer.num_rounds]
        inside = [answer.num_accepted, answer.num_drafted] if good else [0, 0]
        sums[prompt] += torch.tensor([*row, *inside], dtype=torch.float64)
    return sums


def reward_of(sums: Tensor) -> Tensor:
    """Mean reward from sums (..., 8)."""
    return sums[..., _REWARD] / sums[..., _ANSWERS]


def acceptance_of(sums: Tensor) -> Tensor:
    """Accepted / drafted from sums (..., 8)."""
    return sums[..., _ACCEPTED] / sums[..., _DRAFTED].clamp(min=1)


def point_of(sample: Sample, plain: Sample) -> dict[str, Any]:
    """Figures of one rule; `plain` is decoding without drafts."""
    sums = sums_of(sample)
    total = sums.sum(0)
    drafted = float(total[_DRAFTED])
    tested = sum(answer.num_tested for answer in sample.answers)
    rounds = float(total[_ROUNDS])
    speed, plain_speed = (float(sums_of(s)[:, _EMITTED].sum()) / s.seconds for s in (sample, plain))

    def per_tested(name: str) -> float | None:
        value = sum(getattr(answer, name) for answer in sample.answers)
        return round(value / tested, 4) if tested and value == value else None

    good = float(total[_GOOD_DRAFTED])
    return {
        "reward": _with_interval(sums, reward_of),
        "acceptance": _with_interval(sums, acceptance_of) if drafted else None,
        "acceptance_in_correct": round(float(total[_GOOD_ACCEPTED]) / good, 4) if good else None,
        "tau": _with_interval(sums, lambda s: s[..., _EMITTED] / s[..., _ROUNDS]),
        "tested_rate": round(float(total[_ACCEPTED]) / tested, 4) if tested else None,
        "accepted_per_round": round(float(total[_ACCEPTED]) / rounds, 4),
        "expected_per_round": round(sum(answer.expected for answer in sample.answers) / rounds, 4),
        "rejection": per_tested("rejection"),
        "bias": per_tested("bias"),
        "distance": per_tested("distance"),
        "tokens_per_s": round(speed, 2),
        "ratio_to_ar": round(speed / plain_speed, 4),
        "wall_s": round(sample.wall_s, 2),
        "num_answers": len(sample.answers),
    }


def _chosen(num_prompts: int) -> Tensor:
    return torch.randint(num_prompts, (RESAMPLES, num_prompts), generator=Generator().manual_seed(0))


def _with_interval(sums: Tensor, figure: Callable[[Tensor], Tensor]) -> list[float]:
    """[figure, low, high] of sums (P, F), the interval a 95 % bootstrap over prompts."""
    return _summary(figure(sums.sum(0)), figure(sums[_chosen(len(sums))].sum(1)))


def _summary(value: Tensor, resampled: Tensor) -> list[float]:
    found = resampled[~resampled.isnan()]
    if not len(found):
        return [float("nan")] * 3
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return [round(float(value), 4), round(low, 4), round(high, 4)]


def difference(sample: Sample, other: Sample, what: str) -> list[float]:
    """[difference, low, high] of "reward" or "acceptance" between two rules, paired by prompt."""
    figure = {"reward": reward_of, "acceptance": acceptance_of}[what]
    ours, theirs = sums_of(sample), sums_of(other)
    chosen = _chosen(len(ours))
    return _summary(
        figure(ours.sum(0)) - figure(theirs.sum(0)), figure(ours[chosen].sum(1)) - figure(theirs[chosen].sum(1))
    )


def compare(sample: Sample, front: Sequence[Sample]) -> list[float] | None:
    """[reward above the front at equal acceptance, low, high], paired by prompt; None without two points of a front.

    The front is the straight line between neighbouring points, and flat beyond its ends.
    """
    if len(front) < 2:
        return None
    ours, points = sums_of(sample), [sums_of(point) for point in front]
    chosen = _chosen(len(ours))
    value = _above(ours.sum(0)[None], [point.sum(0)[None] for point in points])[0]
    return _summary(value, _above(ours[chosen].sum(1), [point[chosen].sum(1) for point in points]))


def _above(ours: Tensor, points: Sequence[Tensor]) -> Tensor:
    """(R,) reward of sums (R, 8) above the line through the points, each (R, 8), at the same acceptance."""
    xs = torch.stack([acceptance_of(point) for point in points], dim=1)
    ys = torch.stack([reward_of(point) for point in points], dim=1)
    xs, order = xs.sort(dim=1)
    ys = ys.gather(1, order)
    x = acceptance_of(ours).clamp(xs[:, 0], xs[:, -1]).unsqueeze(1)
    right = torch.searchsorted(xs, x).clamp(1, xs.shape[1] - 1)
    x0, x1, y0, y1 = (t.gather(1, i) for t, i in ((xs, right - 1), (xs, right), (ys, right - 1), (ys, right)))
    share = ((x - x0) / (x1 - x0).clamp(min=1e-12)).clamp(0, 1)
    return reward_of(ours) - (y0 + share * (y1 - y0)).squeeze(1)


def time_sharing(sample: Sample, exact: Sample, drafter: Sample) -> list[float]:
    """[reward above time sharing at equal acceptance, low, high], paired by prompt.

    Time sharing gives a share of the answers to the exact rule and the rest to the drafter alone (w = 0); its
    acceptance is that of all drafts of the mix.
    """
    ours, ends = sums_of(sample), (sums_of(exact), sums_of(drafter))
    chosen = _chosen(len(ours))
    value = _above_mix(ours.sum(0)[None], *(end.sum(0)[None] for end in ends))[0]
    return _summary(value, _above_mix(ours[chosen].sum(1), *(end[chosen].sum(1) for end in ends)))


def _above_mix(ours: Tensor, exact: Tensor, drafter: Tensor) -> Tensor:
    """(R,) reward above the mix of two kinds of answers that has the same acceptance; all sums (R, 8)."""
    wanted = acceptance_of(ours)
    per_answer = [s[:, [_ACCEPTED, _DRAFTED, _REWARD]] / s[:, _ANSWERS, None] for s in (exact, drafter)]
    (a1, d1, r1), (a0, d0, r0) = (part.unbind(1) for part in per_answer)
    # f a1 + (1 - f) a0 = wanted (f d1 + (1 - f) d0)
    slope = (a1 - a0) - wanted * (d1 - d0)
    share = ((wanted * d0 - a0) / torch.where(slope.abs() < 1e-12, 1e-12, slope)).clamp(0, 1)
    return reward_of(ours) - (share * r1 + (1 - share) * r0)
