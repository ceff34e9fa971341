"""`python -m explorer distill`: train a drafter on text the target writes, from a closed-form fit on.

The target answers prompts once (`corpus`), a drafter is fitted to some of the answers or read from a folder, learns
from all of them (`trainer`), and answers that were kept apart score it on the way. Everything is on disk, so that a run
that was stopped goes on with `--resume`.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from explorer.engine import weights
from explorer.engine.config import PRECISIONS
from explorer.engine.eagle import EagleDrafter, facts_of, features_of
from explorer.engine.loading import DEFAULT_TARGET, load_model
from explorer.engine.models import LanguageModel, Progress
from explorer.errors import SettingError
from explorer.heads import checkpoint
from explorer.heads.draft import FullHead
from explorer.heads.eagle import EagleModel
from explorer.settings import check_ranges, setting
from explorer.training import corpus
from explorer.training.closed_form import TargetHead, fit_model
from explorer.training.fit import DRAFT_LENGTH, commit_of_this_code, score_rows
from explorer.training.text import Name, Text
from explorer.training.trainer import TrainConfig, Trainer, copy_of, with_head

LOG = "metrics.jsonl"
STATE = "training.safetensors"
RECORD = "run.json"
START = "start"
SAVE_S = 300.0  # seconds between saved states
FIT_TOKENS = 60_000  # more than this changes the closed-form start little
SIZES_TOKENS = 10_000  # looked at for the sizes of features and the frequent tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig(TrainConfig):
    """Settings of a distillation; those of the steps are `TrainConfig`'s."""

    out: str = setting("", "folder to write the drafter to")
    prompts: tuple[str, ...] = setting((), "JSONL file with a prompt, question or turns in every line")
    holdout: tuple[str, ...] = setting((), "JSONL file of prompts that must not be trained on")
    pair: str = setting(DEFAULT_TARGET, "target to draft for: default, a Hub id, a folder or a GGUF file")
    head: str = setting("low-rank", "head of the drafter; full is the target's own, kept", choices=("low-rank", "full"))
    max_rank: int = setting(144, "highest rank of a low-rank head; every lower one works too", low=1, high=16384)
    feed_forward: bool = setting(True, "whether the layer has a feed-forward part")
    start: str = setting("", "folder of a drafter to start from; fitted to the text in closed form if empty")
    tokens: int = setting(1_000_000, "answer tokens the target writes", low=100, high=1_000_000_000)
    answer_tokens: int = setting(160, "longest answer", low=8, high=4096)
    corpus: str = setting("", "folder of the sampled answers, kept for later runs; OUT-corpus if empty")
    precision: str = setting("auto", "of the target while it writes", choices=PRECISIONS)
    evaluate_steps: int = setting(200, "optimizer steps between looks at the answers kept apart", low=1, high=1_000_000)
    patience: int = setting(8, "looks without a gain after which training stops", low=1, high=1_000_000)
    resume: bool = setting(False, "go on from the last state in OUT-run")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.out.strip() or not self.prompts:
            raise SettingError("Give the folder to write to and a file of prompts: --out DIR --prompts FILE.jsonl")


def run(config: DistillConfig, progress: Progress) -> dict[str, Any]:
    """Sample, train, score and save; returns the `meta.json` record.

    Args:
        config: Settings.
        progress: Called with (what, done, total).

    Raises:
        SettingError: The prompts cannot be used.
        ModelPairError: The target or the drafter cannot be used.
        WeightsError: A folder cannot be read or written.
        ExplorerError: The training left the finite numbers; the last state is kept.
    """
    target = load_model(config.pair, config.precision, progress)
    out = Path(config.out)
    paths = corpus.extend(
        target,
        corpus.read_prompts([Path(p) for p in config.prompts], [Path(p) for p in config.holdout]),
        Path(config.corpus) if config.corpus else out.with_name(out.name + "-corpus"),
        features=(*features_of(target), target.num_layers),
        num_tokens=config.tokens,
        answer_tokens=config.answer_tokens,
        seed=config.seed,
        progress=progress,
    )
    text = Text.of(paths)
    head = TargetHead.of(target)
    folder = out.with_name(out.name + "-run")
    if not config.resume:
        start = _start(config, target, head, text, progress)
        checkpoint.save(folder / START, _saved(start), _facts(start, target))
    # Read back even when just written: a run and its continuation must begin from the same numbers.
    start = EagleDrafter.load(folder / START, target).model
    trainer = Trainer(start, head, text.sample(SIZES_TOKENS), config, len(_plan(config, text)))
    return _Run(config, target, text, trainer, folder, progress).go()


def _plan(config: DistillConfig, text: Text) -> list[list[Name]]:
    return text.plan(config.rows_per_step, config.epochs, config.seed)


def _saved(model: EagleModel) -> dict[str, Tensor]:
    """The weights as a checkpoint holds them; a full head is the target's and left out."""
    return {name: weight.bfloat16() for name, weight in model.named_weights().items()}


def _facts(model: EagleModel, target: LanguageModel) -> dict[str, Any]:
    """What loading a checkpoint asks for."""
    return {
        "kind": "drafter",
        "head": "full" if isinstance(model.head, FullHead) else "low-rank",
        "target": facts_of(target),
        "shape": dataclasses.asdict(model.shape),
        "dtype": "bfloat16",
    }


def _start(
    config: DistillConfig, target: LanguageModel, head: TargetHead, text: Text, progress: Progress
) -> EagleModel:
    """The drafter that training begins with."""
    if config.start:
        return EagleDrafter.load(Path(config.start), target).model
    progress("Fitting the start in closed form", 0, 1)
    rows = text.sample(FIT_TOKENS)
    with torch.no_grad():
        model = fit_model(target, head, rows, config.max_rank, Generator().manual_seed(config.seed))
        if config.head == "full":
            model = with_head(model, FullHead(head.weight * head.scale))
        return with_feed_forward(model, target, config.seed) if config.feed_forward else model


def with_feed_forward(model: EagleModel, target: LanguageModel, seed: int) -> EagleModel:
    """The same function with the hidden units of the target's last layer, silent as yet; else with random ones."""
    D = model.shape.hidden_size
    layer = target.last_feed_forward()
    if layer is None:
        size = int(getattr(target.config, "intermediate_size", None) or 4 * D)
        layer = torch.randn(2 * size, D, generator=Generator().manual_seed(seed)) * D**-0.5
    gate, up = layer.float().chunk(2)
    return model.with_feed_forward(gate, up)


class _Run:
    """Training with looks at held-out answers; the best drafter so far is in OUT, the last state in OUT-run."""

    def __init__(
        self,
        config: DistillConfig,
        target: LanguageModel,
        text: Text,
        trainer: Trainer,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.config, self.target, self.text, self.trainer = config, target, text, trainer
        self.folder, self.progress = folder, progress
        self.plan = _plan(config, text)
        self.record: dict[str, Any] = {"seconds": 0.0, "best": -1.0, "looks_without_gain": 0, "before": {}, "meta": {}}

    def go(self) -> dict[str, Any]:
        """Train to the end, or until nothing is gained; returns the `meta.json` record of the best drafter."""
        if self.config.resume:
            self.trainer.load_state(self.folder / STATE)
            self.record = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        else:
            (self.folder / LOG).unlink(missing_ok=True)
            self._look()
        saved = time.monotonic()
        while self.trainer.step < len(self.plan) and self.record["looks_without_gain"] < self.config.patience:
            began = time.monotonic()
            seen = self.trainer.train_step(self.text.rows(self.plan[self.trainer.step]))
            self.record["seconds"] += time.monotonic() - began
            self._log({key: round(value, 6) for key, value in seen.items()})
            self.progress(f"Training, overlap {seen['overlap']:.3f}", self.trainer.step, len(self.plan))
            is_last = self.trainer.step == len(self.plan)
            if is_last or self.trainer.step % self.config.evaluate_steps == 0:
                self._look()
            if is_last or time.monotonic() - saved > SAVE_S:
                self._save_state()
                saved = time.monotonic()
        return self._finish()

    def _finish(self) -> dict[str, Any]:
        """Add the scores of lower ranks to the best drafter's record."""
        out, meta = Path(self.config.out), self.record["meta"]
        drafter = EagleDrafter.load(out, self.target)
        if self.trainer.model.shape.max_rank and drafter.rank_choices:
            self.progress("Scoring lower ranks", 0, 1)
            model = copy_of(drafter.model)
            meta["metrics"]["by_rank"] = {str(rank): self._scores(model, rank) for rank in drafter.rank_choices}
            checkpoint.write_meta(out, meta)
        return meta

    def _look(self) -> None:
        """Score the held-out answers; write the drafter if it is the best yet."""
        self.progress("Scoring", self.trainer.step, len(self.plan))
        model = self.trainer.trained()
        with torch.no_grad():
            for weight in model.named_weights().values():
                weight.copy_(weight.bfloat16())
        scores = self._scores(model)
        rounds = [score["tokens_per_round"] for score in scores.values()]
        gain = sum(rounds) / len(rounds)
        self._log({"tokens_per_round": {key: score["tokens_per_round"] for key, score in scores.items()}})
        self.record["before"] = self.record["before"] or scores
        self.record["looks_without_gain"] += 1
        if gain > self.record["best"]:
            meta = self._meta(model, scores)
            counts = self.text.counts(len(self.trainer.head.weight)).int()
            checkpoint.save(Path(self.config.out), _saved(model) | {"token_counts": counts}, meta)
            self.record |= {"best": gain, "looks_without_gain": 0, "meta": meta}

    def _scores(self, model: EagleModel, rank: int = 0) -> dict[str, dict[str, Any]]:
        """Figures of a drafter, by temperature of the answers."""
        scores = {}
        with torch.no_grad():
            for temperature in (0.0, 1.0):
                names = [name for name in self.text.held_out if corpus.temperature_of(name[0]) == temperature]
                if names:
                    rows, greedy = self.text.rows(names), temperature == 0
                    scores[f"{temperature:g}"] = score_rows(model, self.trainer.head, rows, greedy=greedy, rank=rank)
        return scores

    def _log(self, record: dict[str, Any]) -> None:
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            step = {"step": self.trainer.step, "seconds": round(self.record["seconds"], 1)}
            log.write(json.dumps(step | record) + "\n")

    def _save_state(self) -> None:
        self.trainer.save_state(self.folder / STATE)
        (self.folder / RECORD).write_text(json.dumps(self.record), encoding="utf-8")

    def _meta(self, model: EagleModel, scores: dict[str, Any]) -> dict[str, Any]:
        config = self.config
        name = weights.NAME if config.pair == DEFAULT_TARGET else self.target.name
        lengths = [length for path in self.text.paths for length in corpus.answer_lengths(path)]
        facts = _facts(model, self.target)
        facts["target"] |= {"name": name}
        return facts | {
            "name": f"trained drafter for {Path(name).name}",
            "method": "distillation",
            "command": _command(config),
            "commit": commit_of_this_code(),
            "seed": config.seed,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
            "data": {
                "prompts": [Path(path).name for path in config.prompts],
                "num_answers": len(lengths),
                "num_tokens": sum(lengths),
                "epochs": round(self.trainer.step / len(self.plan) * config.epochs, 3),
                "precision": self.target.precision,
            },
            # Expected of an exact decode with DRAFT_LENGTH drafts a round, on answers that were kept apart.
            "metrics": {"draft_length": DRAFT_LENGTH, "temperature": scores, "before": self.record["before"]},
            "seconds": {"training": round(self.record["seconds"], 1)},
        }


def _command(config: DistillConfig) -> str:
    """The command line of a run, files by their names alone and settings at their defaults left out."""
    flags = []
    for spec in dataclasses.fields(config):
        value, flag = getattr(config, spec.name), f"--{spec.name.replace('_', '-')}"
        if value == spec.default or spec.name in ("resume", "corpus"):
            continue
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        else:
            items = [str(item) for item in (value if isinstance(value, tuple) else (value,))]
            flags += [
                part for item in items for part in (flag, str(Path(str(item)).name if "/" in str(item) else item))
            ]
    return shlex.join(["python", "-m", "explorer", "distill", *flags])
