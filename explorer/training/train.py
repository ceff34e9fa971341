"""`python -m explorer train`: teach an ensemble head on a task, step by step on disk."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from explorer.engine.config import PRECISIONS, DecodeConfig
from explorer.engine.ensembles import save_ensemble
from explorer.engine.loading import DEFAULT_TARGET, load_pair
from explorer.engine.models import Progress
from explorer.engine.pair import ModelPair
from explorer.engine.run import run_trace
from explorer.errors import SettingError, WeightsError
from explorer.settings import check_ranges, setting
from explorer.tasks import TASKS, load_task
from explorer.training.fit import commit_of_this_code
from explorer.training.reinforce import Reinforcer, UpdateConfig
from explorer.training.workers import Workers

STATE = "training.safetensors"
LOG = "metrics.jsonl"
PROBE_LENGTH = 5  # drafts per round of a probe


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(UpdateConfig):
    """Settings of a training; those of the updates are `UpdateConfig`'s."""

    out: str = setting("", "folder to write the head to")
    pair: str = setting(DEFAULT_TARGET, "target: default, a Hub id, a folder or a GGUF file")
    drafter: str = setting("auto", "drafter: auto, a folder, or a smaller model")
    precision: str = setting("auto", "of the weights", choices=PRECISIONS)
    task: str = setting("arithmetic", "what is rewarded", choices=tuple(TASKS))
    data: str = setting("", "JSONL file or folder of the task's examples")
    num_shots: int = setting(0, "solved examples in front of each question", low=0, high=8)
    allow_code: bool = setting(False, "whether code that the model writes may be run")
    steps: int = setting(40, "updates of the head", low=1, high=1_000_000)
    probe_steps: int = setting(0, "updates between traces of a held-out prompt in OUT-run; 0 writes none", low=0)
    save_steps: int = setting(5, "updates between saved states", low=1, high=1_000_000)
    resume: bool = setting(False, "go on from the last state in OUT-run")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.out.strip():
            raise SettingError("out is empty; give the folder that the head is written to, as in --out DIR.")


def run(config: TrainConfig, progress: Progress, *, pair: ModelPair | None = None) -> dict[str, Any]:
    """Train a head and save it; returns the `meta.json` record.

    Args:
        config: Settings.
        progress: Called with (what, done, total).
        pair: Target and drafter, if they are loaded already.

    Raises:
        SettingError: The task or the drafter cannot be used.
        ModelPairError: A model cannot be loaded.
        WeightsError: A folder cannot be read or written; the last good state is kept.
        ExplorerError: The gradient left the finite numbers; the last good state is kept.
    """
    task = load_task(
        config.task,
        Path(config.data) if config.data else None,
        allow_code=config.allow_code,
        num_shots=config.num_shots,
    )
    pair = pair or load_pair(config.pair, config.drafter, config.precision, progress)
    workers = Workers()
    reinforcer = Reinforcer(ModelPair(pair.target, pair.drafter), task, config, workers)
    folder = Path(config.out).with_name(Path(config.out).name + "-run")
    if config.resume:
        reinforcer.load_state(folder / STATE)
    elif workers.is_first:
        _start_log(folder)
    record: dict[str, float] = {}
    if reinforcer.step == 0:
        _probe(config, reinforcer, folder)
    while reinforcer.step < config.steps:
        record = reinforcer.train_step()
        is_last = reinforcer.step == config.steps
        if not workers.is_first:
            continue
        _log(folder / LOG, {"step": reinforcer.step} | {key: round(value, 6) for key, value in record.items()})
        progress(
            f"Training: reward {record['reward']:.2f}, acceptance {record['acceptance']:.2f}",
            reinforcer.step,
            config.steps,
        )
        if is_last or (config.probe_steps and reinforcer.step % config.probe_steps == 0):
            _probe(config, reinforcer, folder)
        if is_last or reinforcer.step % config.save_steps == 0:
            meta = save_ensemble(Path(config.out), reinforcer.head, reinforcer.pair, _meta(config, reinforcer, record))
            reinforcer.save_state(folder / STATE)
    return meta if workers.is_first and record else {}


def _probe(config: TrainConfig, reinforcer: Reinforcer, folder: Path) -> None:
    """Write the trace of one held-out prompt, always the same and with the same coins."""
    if not config.probe_steps or not reinforcer.workers.is_first:
        return
    example = reinforcer.task.examples("test", 1)[0]
    settings = DecodeConfig(
        rule="dynamic",
        draft_length=PROBE_LENGTH,
        temperature=config.temperature,
        max_new_tokens=reinforcer.task.max_new_tokens,
        seed=config.seed,
    )
    path = folder / f"probe-{reinforcer.step:06d}.ndjson"
    part = path.with_suffix(".part")
    try:
        with torch.no_grad():
            part.write_text("".join(run_trace(reinforcer.pair, example.prompt, settings)), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise WeightsError(
            f"{path} could not be written ({error.strerror}). Free some space, then go on with --resume."
        ) from error


def _start_log(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder / LOG, *folder.glob("probe-*.ndjson")):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise WeightsError(f"{folder} cannot be written ({error.strerror}). Choose another --out.") from error


def _log(path: Path, record: dict[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
    except OSError as error:
        raise WeightsError(
            f"{path} could not be written ({error.strerror}). Free some space, then go on with --resume."
        ) from error


def _meta(config: TrainConfig, reinforcer: Reinforcer, record: dict[str, float]) -> dict[str, Any]:
    return {
        "name": f"{config.task}, lambda {config.price:g}",
        "task": config.task,
        "command": _command(config),
        "commit": commit_of_this_code(),
        "seed": config.seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "data": {
            "steps": reinforcer.step,
            "answers_per_step": int(record["num_answers"]) * reinforcer.workers.count,
            "temperature": config.temperature,
            "precision": reinforcer.pair.target.precision,
        },
        # Of the batch of the last update, on training prompts.
        "metrics": {key: round(record[key], 4) for key in ("reward", "acceptance", "accepted", "weight", "rejections")},
    }


def _command(config: TrainConfig) -> str:
    """The command line of a run, settings at their defaults left out."""
    flags = []
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        if value == spec.default or spec.name == "resume":
            continue
        flag = "--lambda" if spec.name == "price" else f"--{spec.name.replace('_', '-')}"
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        else:
            flags += [flag, Path(value).name if spec.name in ("out", "data") else str(value)]
    return shlex.join(["python", "-m", "explorer", "train", *flags])
