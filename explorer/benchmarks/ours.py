"""Rows of this engine: without drafts, with every drafter, under other rules, and with a page attached."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from explorer.benchmarks.config import SpeedConfig
from explorer.benchmarks.contestants import GREEDY, PLAIN, SAMPLERS, Contestant, Prompt, Write, Written
from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.drafters import Drafter
from explorer.engine.models import LanguageModel
from explorer.engine.pair import ModelPair
from explorer.engine.run import run_trace
from explorer.engine.sampling import Sampler

AUTOREGRESSIVE, ATTACHED = "ours autoregressive", ", page attached"


@dataclass(frozen=True, slots=True)
class Ours:
    """What of ours is measured.

    Attributes:
        target: In our precision.
        drafters: By name, the first for the static rule and the page.
        dynamic: Name and pair of the dynamic rule, None without a head.
        plain: The target in HF's precisions, as HF gets it.
    """

    target: LanguageModel
    drafters: Mapping[str, Drafter]
    dynamic: tuple[str, ModelPair] | None = None
    plain: Mapping[str, LanguageModel] = field(default_factory=dict)


def our_contestants(ours: Ours, config: SpeedConfig) -> Iterator[Contestant]:
    """Every row of ours; the config's repeated flags are filled in."""
    target = ours.target
    alone = ModelPair(target, None)
    for sampler in SAMPLERS:
        yield _row(AUTOREGRESSIVE, alone, "ar", sampler, config)
    for batch in config.batch:
        for sampler in SAMPLERS[1:]:
            yield _row(AUTOREGRESSIVE, alone, "ar", sampler, config, batch)
    for precision, model in ours.plain.items():
        if precision != target.precision:  # the same weights as HF's: its text must be the same, too
            yield _row(AUTOREGRESSIVE, ModelPair(model, None), "ar", GREEDY, config)
    for name, drafter in ours.drafters.items():
        for sampler in SAMPLERS:
            yield _row(f"ours exact {name}", ModelPair(target, drafter), "exact", sampler, config)
    yield from _of_first(ours, config)
    if ours.dynamic is not None:
        name, pair = ours.dynamic
        for sampler in (GREEDY, PLAIN):
            yield _row(f"ours dynamic {name}", pair, "dynamic", sampler, config)


def _of_first(ours: Ours, config: SpeedConfig) -> Iterator[Contestant]:
    """The static rule, and the exact one with a page attached, with the first drafter."""
    for name, drafter in list(ours.drafters.items())[:1]:
        pair = ModelPair(ours.target, drafter)
        for sampler in (GREEDY, PLAIN):
            yield _row(f"ours static {name}", pair, "static", sampler, config)
            write = attached_writer(pair, decoding("exact", sampler, config))
            yield Contestant(
                f"ours exact {name}{ATTACHED}",
                ours.target.precision,
                sampler,
                write,
                draft_length=config.draft_length,
            )


def _row(name: str, pair: ModelPair, rule: str, sampler: Sampler, config: SpeedConfig, batch: int = 1) -> Contestant:
    settings = decoding(rule, sampler, config)
    draft_length = None if rule == "ar" else config.draft_length
    return Contestant(name, pair.target.precision, sampler, writer(pair, settings), batch, draft_length=draft_length)


def decoding(rule: str, sampler: Sampler, config: SpeedConfig) -> dict[str, float | int | str]:
    """Settings of a decode, but for seed and length."""
    return {
        "rule": rule,
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "draft_length": config.draft_length,
        "lookup_length": config.lookup_length,
        "target_weight": config.target_weight,
    }


def writer(pair: ModelPair, settings: Mapping[str, float | int | str]) -> Write:
    """What answers prompts with `decode`."""

    def write(prompts: Sequence[Prompt], seed: int, tokens: int) -> Written:
        answers: list[list[int]] = [[] for _ in prompts]
        num_rounds = 0
        config = DecodeConfig(**settings, seed=seed, max_new_tokens=tokens)
        began = time.perf_counter()
        for event in decode(pair, [prompt.ids for prompt in prompts], config):
            answers[event.row] += event.emitted_ids
            num_rounds += 1
        seconds = time.perf_counter() - began
        return Written(sum(map(len, answers)), seconds, tuple(map(tuple, answers)), num_rounds)

    return write


def attached_writer(pair: ModelPair, settings: Mapping[str, float | int | str]) -> Write:
    """What answers a prompt as the page does: every token described, every round a line of the trace."""

    def write(prompts: Sequence[Prompt], seed: int, tokens: int) -> Written:
        (prompt,) = prompts
        config = DecodeConfig(**settings, seed=seed, max_new_tokens=tokens)
        began = time.perf_counter()
        *_, last = run_trace(pair, prompt.text, config)
        seconds = time.perf_counter() - began
        end = json.loads(last)
        return Written(len(end["token_ids"]), seconds, (tuple(end["token_ids"]),), end["num_rounds"])

    return write
