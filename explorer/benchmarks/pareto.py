"""`bench pareto`: reward against acceptance for every rule, on held-out prompts of a task.

Beside the rules stand two honest rivals of a learned weight: time sharing (some answers entirely from the target, the
rest entirely from the drafter), and the one-line rule that trusts the target where it is sure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from explorer.benchmarks.answers import Answer, answer_all
from explorer.benchmarks.config import ParetoConfig
from explorer.benchmarks.front import Sample, compare, difference, point_of, time_sharing
from explorer.benchmarks.heads import machine
from explorer.engine.config import DecodeConfig
from explorer.engine.ensembles import bundled_ensembles, load_ensemble
from explorer.engine.loading import load_pair
from explorer.engine.models import Progress
from explorer.engine.pair import ModelPair, encode_chat
from explorer.errors import SettingError
from explorer.heads.ensemble import EnsembleHead
from explorer.tasks import load_task
from explorer.tasks.base import Example, Task

# Entropy in nats up to which the one-line rule calls the target sure.
SURE = 1.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing to measure: a rule with its knob."""

    label: str
    rule: str
    knob: float | None
    head: EnsembleHead | None = None


def run(config: ParetoConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Load everything, measure, and return the report.

    Raises:
        SettingError: The task cannot be used.
        ModelPairError: A model cannot be loaded, or a head is of another pair.
        WeightsError: Weights are missing or damaged.
    """
    config = config.filled()
    data = Path(config.data) if config.data else None
    task = load_task(config.task, data, allow_code=config.allow_code, num_shots=config.num_shots)
    pair = load_pair(config.pair, config.drafter, config.precision, progress)
    if not getattr(pair.drafter, "hidden_size", 0):
        raise SettingError(
            f"The drafter {config.drafter!r} has no states for a learned weight. Choose a trained drafter or a smaller "
            "model."
        )
    folders = {Path(name).name: Path(name) for name in config.ensemble}
    folders = folders or bundled_ensembles(pair.target, pair.drafter)
    heads = {name: load_ensemble(folder, pair.target, pair.drafter) for name, folder in folders.items()}
    return measure(pair, task, heads, config, progress)


def measure(
    pair: ModelPair,
    task: Task,
    heads: dict[str, EnsembleHead],
    config: ParetoConfig,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The report for loaded models: JSON values, see `python -m explorer bench pareto --json`."""
    examples = task.examples("test", config.limit, seed=config.seed)
    rules = list(rules_of(pair, heads, config))
    rows: list[dict[str, Any]] = []
    done, steps = 0, len(rules) * len(config.temperature) * len(config.draft_length)
    for temperature in config.temperature:
        for K in config.draft_length:
            samples: dict[Rule, Sample] = {}
            for rule in rules:
                if progress is not None:
                    progress(f"Measuring {rule.label}, K={K}, T={temperature:g}", done, steps)
                samples[rule] = _sample(pair, task, examples, rule, K, temperature, config)
                done += 1
            rows += _rows(samples, K, temperature)
    return {
        "kind": "bench pareto",
        "task": task.name,
        "rows": rows,
        "num_prompts": len(examples),
        "num_answers": len(examples) * config.answers,
        "target": pair.target.name,
        "drafter": pair.drafter.name,
        "seed": config.seed,
        **machine(pair.target),
    }


def rules_of(pair: ModelPair, heads: dict[str, EnsembleHead], config: ParetoConfig) -> Iterator[Rule]:
    """Everything that is measured at one K and temperature, the plain target first."""
    yield Rule("autoregressive", "ar", None)
    yield Rule("exact", "exact", None)
    for weight in config.weight:
        yield Rule(f"static {weight:g}", "static", weight)
    for lenience in config.lenience:
        yield Rule(f"lossy {lenience:g}", "lossy", lenience)
    yield Rule(f"sure where H(p) < {SURE:g}", "dynamic", SURE, sure_head(pair, SURE))
    for name, head in heads.items():
        yield Rule(name, "dynamic", None, head)


def sure_head(pair: ModelPair, nats: float) -> EnsembleHead:
    """A head of one line: the target where its law has less entropy than `nats`, the drafter elsewhere."""
    head = EnsembleHead(pair.drafter.hidden_size, pair.target.hidden_size, "figures")
    with torch.no_grad():
        head.figure_weight[0] = -1e4
        head.bias.fill_(1e4 * nats)
    return head.requires_grad_(False)


def _sample(
    pair: ModelPair,
    task: Task,
    examples: Sequence[Example],
    rule: Rule,
    draft_length: int,
    temperature: float,
    config: ParetoConfig,
) -> Sample:
    """Answers of all prompts under one rule, and their rewards."""
    settings = DecodeConfig(
        rule=rule.rule,
        target_weight=rule.knob if rule.rule == "static" else 1.0,
        lenience=rule.knob if rule.rule == "lossy" else 1.0,
        draft_length=draft_length,
        temperature=temperature,
        max_new_tokens=task.max_new_tokens,
    )
    used = ModelPair(pair.target, pair.drafter, rule.head)
    # At temperature 0 every answer to a prompt is the same.
    repeats = config.answers if temperature > 0 else 1
    chosen = [(number, example) for number, example in enumerate(examples) for _ in range(repeats)]
    encoded = {number: encode_chat(pair.target, example.prompt) for number, example in enumerate(examples)}
    generator = Generator(device=pair.target.device).manual_seed(config.seed)
    answers: list[Answer] = []
    seconds = 0.0
    began = time.perf_counter()
    for first in range(0, len(chosen), config.batch):
        part = chosen[first : first + config.batch]
        found, took = answer_all(used, [encoded[number] for number, _ in part], settings, generator)
        answers += found
        seconds += took
    rewards = [_reward(pair, task, answer, example) for answer, (_, example) in zip(answers, chosen, strict=True)]
    return Sample(
        prompts=[number for number, _ in chosen],
        answers=answers,
        rewards=rewards,
        correct=[task.is_correct(reward) for reward in rewards],
        seconds=seconds,
        wall_s=time.perf_counter() - began,
    )


def _reward(pair: ModelPair, task: Task, answer: Answer, example: Example) -> float:
    text = pair.target.tokenizer.decode(answer.ids, skip_special_tokens=True)
    if task.needs_logprobs:
        return task.reward(text, example, answer.logprob / max(len(answer.ids), 1))
    return task.reward(text, example)


def _rows(samples: dict[Rule, Sample], draft_length: int, temperature: float) -> list[dict[str, Any]]:
    """A row per rule; those that learn are compared with the static front and with time sharing."""
    static = [sample for rule, sample in samples.items() if rule.rule == "static"]
    by_knob = {rule.knob: sample for rule, sample in samples.items() if rule.rule == "static"}
    exact = next(sample for rule, sample in samples.items() if rule.rule == "exact")
    plain = next(sample for rule, sample in samples.items() if rule.rule == "ar")
    rows = []
    for rule, sample in samples.items():
        row = {
            "label": rule.label,
            "rule": rule.rule,
            "knob": rule.knob,
            "draft_length": draft_length,
            "temperature": temperature,
            **point_of(sample, plain),
        }
        if rule.rule == "dynamic":
            row["above_static"] = compare(sample, static)
            row["above_time_sharing"] = None
            if 0.0 in by_knob:
                row["above_time_sharing"] = time_sharing(sample, exact, by_knob[0.0])
            row["reward_to_exact"] = difference(sample, exact, "reward")
            row["acceptance_to_exact"] = difference(sample, exact, "acceptance")
        rows.append(row)
    return rows
