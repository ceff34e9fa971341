"""`bench heads`: the heads of a drafter against its full head, timed where they work, inside the decode loop.

On a processor a head measured alone finds its weights in the cache; between two drafts the target has read all of its
own. So every head drafts for the same prompts in the real loop, repetitions interleaved, and only a clock is added.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from explorer.benchmarks.config import HeadsConfig
from explorer.benchmarks.cost_model import suggest_rank
from explorer.benchmarks.prompts import held_out, read_prompts
from explorer.benchmarks.rows import head_row, total
from explorer.benchmarks.timing import Timing, judged_mass_outside, timed_decode
from explorer.benchmarks.variants import Variant, make_variants
from explorer.engine.config import DecodeConfig
from explorer.engine.eagle import EagleDrafter
from explorer.engine.loading import load_drafter, load_model
from explorer.engine.models import LanguageModel, Progress
from explorer.engine.pair import ModelPair, encode_chat
from explorer.errors import SettingError

WARM_UP_TOKENS = 8


def run(config: HeadsConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Load everything, measure, and return the report.

    Args:
        config: Settings.
        progress: Called with (what, done, total) during long steps.

    Raises:
        SettingError: The prompts cannot be used, the drafter has no head to replace, or a size is impossible.
        ModelPairError: A model cannot be loaded.
        WeightsError: Weights are missing or damaged.
    """
    prompts = read_prompts(Path(config.prompts)) if config.prompts else held_out()
    target = load_model(config.target, config.precision, progress)
    drafter = load_drafter(target, config.drafter, config.precision, progress)
    if not isinstance(drafter, EagleDrafter):
        raise SettingError(
            f"The drafter {config.drafter!r} has no head to replace. Give a folder that `fit` wrote with --drafter."
        )
    twin = EagleDrafter.load(Path(config.full_drafter), target) if config.full_drafter else None
    return measure(target, drafter, twin, prompts, config, progress)


def measure(
    target: LanguageModel,
    drafter: EagleDrafter,
    twin: EagleDrafter | None,
    prompts: Sequence[str],
    config: HeadsConfig,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The report for loaded models: JSON values, see `python -m explorer bench heads --json`.

    Raises:
        SettingError: A prompt cannot be read, or a rank or size is impossible.
    """
    config = config.shortened()
    encoded = [encode_chat(target, prompt) for prompt in prompts[: config.num_prompts or len(prompts)]]
    variants, left_out = make_variants(target, drafter, twin, config)
    bench = _Bench(target, encoded, variants, config, progress)
    rows = [row for batch in dict.fromkeys(config.batch) for row in bench.rows(batch)]
    return {
        "kind": "bench heads",
        "rows": [{name: _rounded(value) for name, value in row.items()} for row in rows],
        "suggested_rank": {str(batch): suggest_rank(rows, batch) for batch in dict.fromkeys(config.batch)},
        "full_twin": twin is not None,
        "autoregressive": bench.plain_speeds,
        "left_out": left_out,
        "target": target.name,
        "drafter": drafter.name,
        "full_drafter": None if twin is None else twin.name,
        "draft_length": config.draft_length,
        "temperature": config.temperature,
        "tokens": config.tokens,
        "num_prompts": len(encoded),
        "repetitions": config.repetitions,
        **machine(target),
    }


class _Bench:
    """One comparison; every batch size is measured by itself."""

    def __init__(
        self,
        target: LanguageModel,
        prompts: list[list[int]],
        variants: list[Variant],
        config: HeadsConfig,
        progress: Progress | None,
    ) -> None:
        self.target, self.prompts, self.variants, self.config = target, prompts, variants, config
        self.progress = progress
        self.plain_speeds: dict[str, float] = {}
        self.ceilings: dict[Variant, float | None] = {}

    def rows(self, batch: int) -> list[dict[str, Any]]:
        """A row per head, the full one first."""
        timings = self._timings(batch)
        full = timings[self.variants[0]]
        plain = next((runs for variant, runs in timings.items() if variant.drafter is None), [])
        if plain:
            self.plain_speeds[str(batch)] = _rounded(total(plain).tokens_per_s)
        rows = []
        for variant in self.variants:
            if variant.drafter is None:
                continue
            what = {"head": variant.head, "rank": variant.rank, "size": variant.size, "batch": batch}
            outside = self._outside(variant)
            rows.append(
                what
                | {"temperature": self.config.temperature, **head_row(timings[variant], full, plain)}
                | {"ceiling": None if outside is None else 1 - outside, "mass_outside": outside}
            )
        return rows

    def _timings(self, batch: int) -> dict[Variant, list[Timing]]:
        """One timing per repetition. Heads take turns at every batch of prompts, each time in another order."""
        groups = groups_of(len(self.prompts), batch)
        timings = {variant: [Timing() for _ in range(self.config.repetitions)] for variant in self.variants}
        steps = self.config.repetitions * len(groups) * len(self.variants)
        done = 0
        for variant in self.variants:
            self._report(f"Warming up {variant.label}, batch {batch}", 0, steps)
            self._decode(variant, groups[0], 0, WARM_UP_TOKENS)
        for repetition in range(self.config.repetitions):
            for number, group in enumerate(groups):
                turn = (repetition + number) % len(self.variants)
                for variant in (*self.variants[turn:], *self.variants[:turn]):
                    self._report(f"Measuring at batch {batch}", done, steps)
                    timings[variant][repetition].add(self._decode(variant, group, repetition, self.config.tokens))
                    done += 1
        self._report(f"Measured at batch {batch}", steps, steps)
        if not all(run.num_head_calls for variant, runs in timings.items() if variant.drafter for run in runs):
            raise SettingError("Nothing was drafted: the prompts leave no room in the context. Give shorter prompts.")
        return timings

    def _decode(self, variant: Variant, group: list[int], repetition: int, tokens: int) -> Timing:
        pair = ModelPair(self.target, variant.drafter)
        prompts = [self.prompts[i] for i in group]
        return timed_decode(pair, prompts, group, self._settings(variant, repetition, tokens), variant.timer)

    def _settings(self, variant: Variant, repetition: int, tokens: int) -> DecodeConfig:
        return DecodeConfig(
            rule="ar" if variant.drafter is None else "exact",
            draft_length=self.config.draft_length,
            rank=variant.decode_rank,
            temperature=self.config.temperature,
            max_new_tokens=tokens,
            seed=(self.config.seed + repetition) % 2**53,
        )

    def _outside(self, variant: Variant) -> float | None:
        """Target mass outside a truncated head's tokens, from decodes of their own; the clocks are not running."""
        if variant.kept is None:
            return None
        if variant not in self.ceilings:
            self._report(f"Measuring the ceiling of {variant.label}", 0, 0)
            settings = self._settings(variant, 0, self.config.tokens)
            pair = ModelPair(self.target, variant.drafter)
            self.ceilings[variant] = judged_mass_outside(pair, self.prompts, settings, variant.kept)
        return self.ceilings[variant]

    def _report(self, what: str, done: int, steps: int) -> None:
        if self.progress is not None:
            self.progress(what, done, steps)


def groups_of(count: int, batch: int) -> list[list[int]]:
    """Numbers 0 to count - 1 in groups of exactly `batch`; the last group is filled up from the beginning."""
    return [[i % count for i in range(at, at + batch)] for at in range(0, count, batch)]


def machine(target: LanguageModel) -> dict[str, Any]:
    """What the figures depend on besides the models."""
    return {
        "precision": target.precision,
        "device": str(target.device),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "num_cpus": os.cpu_count(),
        "torch": torch.__version__,
    }


def cpu_name(read: Callable[[], str] = lambda: Path("/proc/cpuinfo").read_text(encoding="utf-8")) -> str:
    """The processor's name, as well as the system knows it."""
    try:
        lines = [line.partition(":")[2].strip() for line in read().splitlines() if line.startswith("model name")]
    except OSError:
        lines = []
    return lines[0] if lines else platform.processor() or platform.machine()


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
