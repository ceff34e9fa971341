"""`bench drafters`: tokens per round and speed of drafters on the same prompts, against no drafter at all.

Every prompt is answered by every drafter in turn before the next prompt comes, so that a machine that slows down slows
all of them. Intervals are over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from explorer.benchmarks.config import DraftersConfig
from explorer.benchmarks.heads import machine
from explorer.benchmarks.prompts import held_out, read_with_kinds
from explorer.benchmarks.rows import RESAMPLES
from explorer.benchmarks.timing import Timing, timed_decode
from explorer.engine.config import DecodeConfig
from explorer.engine.loading import load_drafter, load_model
from explorer.engine.models import LanguageModel, Progress
from explorer.engine.pair import ModelPair, encode_chat
from explorer.errors import SettingError

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the report: a drafter (None: no drafts), its K, and the temperature."""

    name: str | None
    draft_length: int
    temperature: float


def run(config: DraftersConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Load everything, measure, and return the report.

    Raises:
        SettingError: The prompts cannot be used.
        ModelPairError: A model cannot be loaded, or the two do not fit.
        WeightsError: Weights are missing or damaged.
    """
    config = config.shortened()
    prompts = read_with_kinds(Path(config.prompts)) if config.prompts else [(prompt, "") for prompt in held_out()]
    target = load_model(config.target, config.precision, progress)
    drafters = {name: load_drafter(target, name, config.precision, progress) for name in config.drafters}
    return measure(target, drafters, prompts, config, progress)


def measure(
    target: LanguageModel,
    drafters: dict[str, Any],
    prompts: Sequence[tuple[str, str]],
    config: DraftersConfig,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The report for loaded models: JSON values, see `python -m explorer bench drafters --json`.

    Raises:
        SettingError: No prompt is short enough, or one cannot be read.
    """
    chosen = chosen_prompts([p for p in prompts if len(p[0]) <= config.max_characters], config.num_prompts)
    if not chosen:
        raise SettingError(
            f"No prompt has {config.max_characters} characters or fewer. Raise max_characters, or give other prompts."
        )
    settings = [
        Setting(name, K, temperature)
        for temperature in config.temperature
        for name, K in [(None, 1), *((name, K) for name in drafters for K in config.draft_length)]
    ]
    timings: dict[Setting, list[Timing]] = {setting: [] for setting in settings}

    encoded = [encode_chat(target, prompt) for prompt, _ in chosen]

    def decode(setting: Setting, number: int, tokens: int) -> Timing:
        pair = ModelPair(target, None if setting.name is None else drafters[setting.name])
        return timed_decode(pair, [encoded[number]], [number], _decoding(setting, config, tokens), None)

    for setting in settings:
        decode(setting, 0, WARM_UP_TOKENS)
    steps = len(chosen) * len(settings)
    for number in range(len(chosen)):
        turn = number % len(settings)
        for place, setting in enumerate((*settings[turn:], *settings[:turn])):
            if progress is not None:
                progress("Measuring drafters", number * len(settings) + place, steps)
            timings[setting].append(decode(setting, number, config.tokens))
    kinds = [kind for _, kind in chosen]
    plain = {setting.temperature: timings[setting] for setting in settings if setting.name is None}
    return {
        "kind": "bench drafters",
        "rows": [row_of(setting, timings[setting], plain[setting.temperature], kinds) for setting in settings],
        "target": target.name,
        "drafters": {name: "none" if drafter is None else drafter.name for name, drafter in drafters.items()},
        "tokens": config.tokens,
        "num_prompts": len(chosen),
        **machine(target),
    }


def chosen_prompts(prompts: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """The first prompts of every kind in turn, until there are `count`: all kinds have as good as equal shares."""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt[1], []).append(prompt)
    chosen: list[tuple[str, str]] = []
    for turn in range(max(map(len, by_kind.values()), default=0)):
        chosen += [group[turn] for group in by_kind.values() if turn < len(group)]
    return chosen[:count]


def _decoding(setting: Setting, config: DraftersConfig, tokens: int) -> DecodeConfig:
    return DecodeConfig(
        rule="ar" if setting.name is None else "exact",
        draft_length=setting.draft_length,
        lookup_length=config.lookup_length,
        min_draft_prob=config.min_draft_prob,
        temperature=setting.temperature,
        max_new_tokens=tokens,
        seed=config.seed,
    )


def row_of(setting: Setting, runs: Sequence[Timing], plain: Sequence[Timing], kinds: Sequence[str]) -> dict[str, Any]:
    """One row of the report.

    Args:
        setting: What was run.
        runs: One timing per prompt.
        plain: The same without drafts, at the same temperature.
        kinds: What kind each prompt is of.
    """
    counts = _counts(runs)
    speeds = torch.stack([counts[:, 0], counts[:, 2], *_counts(plain)[:, [0, 2]].unbind(1)], dim=1)
    tau_low, tau_high = interval(counts[:, :2], lambda sums: sums[..., 0] / sums[..., 1])
    low, high = interval(speeds, _ratio)
    return {
        "drafter": setting.name or "none",
        "draft_length": setting.draft_length if setting.name else 0,
        "temperature": setting.temperature,
        "tau": _share(counts),
        "tau_low": tau_low,
        "tau_high": tau_high,
        "tau_by_kind": {
            kind: _share(counts[torch.tensor([k == kind for k in kinds])]) for kind in dict.fromkeys(kinds)
        },
        "tokens_per_s": round(float(counts[:, 0].sum() / counts[:, 2].sum()), 3),
        "ratio_to_ar": round(float(_ratio(speeds.sum(0))), 4),
        "ratio_low": low,
        "ratio_high": high,
        "round_ms": round(float(1000 * counts[:, 2].sum() / counts[:, 1].sum()), 3),
        "num_tokens": int(counts[:, 0].sum()),
    }


def _counts(runs: Sequence[Timing]) -> Tensor:
    """(P, 3) tokens, rounds and seconds of each prompt."""
    rows = [(sum(run.emitted.values()), sum(run.row_rounds.values()), run.decode_s) for run in runs]
    return torch.tensor(rows, dtype=torch.float64)


def _share(counts: Tensor) -> float:
    return round(float(counts[:, 0].sum() / counts[:, 1].sum()), 4)


def _ratio(sums: Tensor) -> Tensor:
    """Tokens per second over those of the plain runs, from (..., 4) tokens and seconds of both."""
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])


def interval(values: Tensor, figure: Any) -> tuple[float, float]:
    """95 % bootstrap interval over prompts of a figure of sums.

    Args:
        values: (P, F), one row per prompt.
        figure: Maps sums (..., F) to the figure (...).
    """
    chosen = torch.randint(len(values), (RESAMPLES, len(values)), generator=Generator().manual_seed(0))
    found = figure(values[chosen].sum(1))
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return round(low, 4), round(high, 4)
