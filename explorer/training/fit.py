"""`python -m explorer fit`: a drafter for any target in closed form, without training.

The target writes some text, a closed form makes a drafter of its states, answers to prompts that were kept apart score
it, and the folder can be given to `--drafter`.
"""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from explorer.engine import weights
from explorer.engine.eagle import facts_of, features_of
from explorer.engine.loading import DEFAULT_TARGET, PRECISIONS, load_model
from explorer.engine.models import LanguageModel, Progress
from explorer.errors import SettingError
from explorer.heads import checkpoint
from explorer.heads.eagle import EagleModel
from explorer.settings import check_ranges, setting
from explorer.training.calibration import PROMPTS, Row, load_prompts, sample_rows
from explorer.training.closed_form import TargetHead, fit_model, split_states
from explorer.training.replay import Score, score

HELD_OUT_SHARE = 10  # every tenth prompt scores the drafter
DRAFT_LENGTH = 4
_DTYPE = torch.bfloat16  # of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """Settings of a closed-form fit."""

    out: str = setting("", "folder to write the drafter to")
    target: str = setting(DEFAULT_TARGET, "model to draft for: default, a Hub id, a folder or a GGUF file")
    tokens: int = setting(30_000, "answer tokens the target writes to fit on", low=50, high=5_000_000)
    max_rank: int = setting(144, "highest rank of the drafter's head; every lower one works too", low=1, high=16384)
    prompts: str = setting("", "JSONL file with a prompt in every line; a small built-in set if empty")
    seed: int = setting(0, "of the sampled text", low=0, high=2**53)
    precision: str = setting("auto", "of the target while it writes", choices=PRECISIONS)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.out.strip():
            raise SettingError("out is empty; give the folder that the drafter is written to, as in --out DIR.")


def run(config: FitConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Load the target, fit a drafter for it and save it; returns the `meta.json` record.

    Args:
        config: Settings.
        progress: Called with (what, done, total) during long steps.

    Raises:
        SettingError: The prompts cannot be used.
        ModelPairError: The target cannot be loaded, or has no shape a drafter can share.
        WeightsError: The folder cannot be written.
    """
    prompts = load_prompts(Path(config.prompts) if config.prompts else PROMPTS)
    target = load_model(config.target, config.precision, progress)
    model, meta = fit(target, prompts, config, progress)
    saved = {name: weight.to(_DTYPE) for name, weight in model.named_weights().items()}
    checkpoint.save(Path(config.out), saved, meta)
    return meta


def fit(
    target: LanguageModel, prompts: Sequence[str], config: FitConfig, progress: Progress | None = None
) -> tuple[EagleModel, dict[str, Any]]:
    """A drafter for a loaded target and its `meta.json` record, with nothing written.

    Args:
        target: The model to draft for.
        prompts: User messages; every tenth is kept apart for the score.
        config: Settings.
        progress: Called with (what, done, total).

    Raises:
        ModelPairError: The target has no shape a drafter can share.
        SettingError: Too few tokens, or a prompt that the target cannot read.
    """
    report = progress or _silent
    generator = Generator(device=target.device).manual_seed(config.seed)
    host = Generator().manual_seed(config.seed)
    began = time.perf_counter()
    held_out = list(prompts[::HELD_OUT_SHARE])
    fitted = [prompt for i, prompt in enumerate(prompts) if i % HELD_OUT_SHARE] or held_out
    states = (*features_of(target), target.num_layers)
    rows = _write(target, fitted, states, config.tokens, generator, 1.0, report)
    share = max(config.tokens // HELD_OUT_SHARE, 1)
    tests = {
        "1": _write(target, held_out, states, share, generator, 1.0, report),
        "0": _write(target, held_out, states, min(share, len(held_out)), generator, 0.0, report),
    }
    sampled = time.perf_counter()
    report("Fitting", 0, 1)
    with torch.no_grad():  # not inference mode: training may start from these tensors
        head = TargetHead.of(target)
        model = fit_model(target, head, rows, config.max_rank, host)
        model = _rounded(model)
        report("Fitting", 1, 1)
        fitted_at = time.perf_counter()
        scores = {name: _score(model, head, test, name == "0", report) for name, test in tests.items()}
    seconds = {"sampling": sampled - began, "fitting": fitted_at - sampled, "scoring": time.perf_counter() - fitted_at}
    return model, _meta(target, model, config, rows, scores, seconds)


def _write(
    target: LanguageModel,
    prompts: Sequence[str],
    states: tuple[int, ...],
    tokens: int,
    generator: Generator,
    temperature: float,
    report: Progress,
) -> list[Row]:
    """Answers of the target; greedy ones once per prompt, since they are always the same."""
    what = "Sampling the target" if temperature else "Sampling the target, greedily"
    return sample_rows(
        target,
        prompts,
        states,
        tokens,
        generator,
        temperature=temperature,
        once=temperature == 0,
        report=lambda done: report(what, min(done, tokens), tokens),
    )


def _rounded(model: EagleModel) -> EagleModel:
    """The model as its file will hold it, so that the scores are the file's."""
    for weight in model.named_weights().values():
        weight.copy_(weight.to(_DTYPE))
    return model


def _score(model: EagleModel, head: TargetHead, rows: Sequence[Row], greedy: bool, report: Progress) -> dict[str, Any]:
    report("Scoring", int(greedy), 2)
    return score_rows(model, head, rows, greedy=greedy)


def score_rows(
    model: EagleModel, head: TargetHead, rows: Sequence[Row], *, greedy: bool, rank: int = 0
) -> dict[str, Any]:
    """Figures of a drafter on answers the target wrote, for `meta.json`; see `replay.score`."""
    replayed = [(row.ids, row.prompt_length, *split_states(row, model.shape)) for row in rows]
    result: Score = score(model, replayed, head, DRAFT_LENGTH, greedy=greedy, rank=rank)
    return {
        "tokens_per_round": round(result.tokens_per_round, 4),
        "overlap": [round(x, 4) for x in result.overlap],
        "agreement": [round(x, 4) for x in result.agreement],
        "num_tokens": result.num_tokens,
        "num_answers": len(rows),
    }


def _meta(
    target: LanguageModel,
    model: EagleModel,
    config: FitConfig,
    rows: Sequence[Row],
    scores: dict[str, dict[str, Any]],
    seconds: dict[str, float],
) -> dict[str, Any]:
    name = weights.NAME if config.target == DEFAULT_TARGET else target.name
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in dataclasses.asdict(config).items() if value != ""]
    return {
        "kind": "drafter",
        "name": f"instant drafter for {Path(name).name}",
        "method": "closed form",
        "target": facts_of(target) | {"name": name},
        "shape": dataclasses.asdict(model.shape),
        "dtype": str(_DTYPE).removeprefix("torch."),
        "config": dataclasses.asdict(config),
        "command": shlex.join(["python", "-m", "explorer", "fit", *flags]),
        "commit": commit_of_this_code(),
        "seed": config.seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "data": {
            "prompts": config.prompts or f"assets/{PROMPTS.name}",
            "num_answers": len(rows),
            "num_tokens": sum(len(row.ids) - row.prompt_length for row in rows),
            "temperature": 1.0,
            "precision": target.precision,
        },
        # Expected of an exact decode with DRAFT_LENGTH drafts a round, on answers to prompts that were not fitted on.
        "metrics": {"draft_length": DRAFT_LENGTH, "temperature": scores},
        "seconds": {key: round(value, 1) for key, value in seconds.items()},
    }


def commit_of_this_code() -> str:
    """The commit this code is at, or "" outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""
