"""`bench speed`: transformers, llama.cpp and this engine on the same prompts, in one run.

All of them answer a group of prompts in turn before the next group comes, so that a machine that slows down slows all.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from explorer.benchmarks.config import SpeedConfig
from explorer.benchmarks.contestants import GREEDY, PLAIN, Contestant, Prompt, Written
from explorer.benchmarks.entrants import Entrants, load
from explorer.benchmarks.gguf import AbsentError, gguf_contestants
from explorer.benchmarks.hardware import bandwidth_gb_s, bytes_per_pass, peak_memory_mb
from explorer.benchmarks.heads import groups_of, machine
from explorer.benchmarks.hf import hf_contestants
from explorer.benchmarks.ours import AUTOREGRESSIVE, Ours, decoding, our_contestants
from explorer.benchmarks.phases import DRIFT_TOKENS, drift, phases
from explorer.benchmarks.prompts import held_out, read_prompts
from explorer.benchmarks.rows import RESAMPLES
from explorer.benchmarks.speed_rows import report_of
from explorer.engine.config import DecodeConfig
from explorer.engine.models import LanguageModel, Progress
from explorer.engine.pair import ModelPair, encode_chat

WARM_UP_TOKENS = 8
READ_BYTES, QUICK_READ_BYTES = 2**29, 2**27
INTERVAL = f"95 % bootstrap over prompts and repetitions, paired, {RESAMPLES} resamples"


def run(config: SpeedConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Load everything, measure, and return the report.

    Raises:
        SettingError: The prompts or the GGUF file cannot be used.
        ModelPairError: A model cannot be loaded, or two do not fit.
        WeightsError: Weights are missing or damaged.
    """
    config = config.shortened()
    texts = read_prompts(Path(config.prompts)) if config.prompts else held_out()
    return measure(load(config, progress), texts, config, progress)


def measure(
    entrants: Entrants, texts: Sequence[str], config: SpeedConfig, progress: Progress | None = None
) -> dict[str, Any]:
    """The report for loaded models: JSON values, see `python -m explorer bench speed --json`.

    Args:
        entrants: Loaded models.
        texts: Users' messages.
        config: Settings with the defaults of repeated flags filled in.
        progress: Called with (what, done, total).

    Raises:
        SettingError: A prompt leaves no room for an answer, or the GGUF file is not there.
        ModelPairError: llama.cpp cannot read the GGUF file.
    """
    target = entrants.ours.target
    prompts = [Prompt(text, encode_chat(target, text)) for text in texts[: config.num_prompts]]
    longest = max(len(prompt.ids) for prompt in prompts)
    tokens = min(config.tokens, target.context_length - longest)
    contestants = [
        *hf_contestants(entrants.hf, entrants.assistants, config),
        *our_contestants(entrants.ours, config),
        *_llama_cpp(config, longest + tokens, entrants.left_out),
    ]
    bandwidth = bandwidth_gb_s(QUICK_READ_BYTES if config.quick else READ_BYTES, target.device)
    results = round_robin(contestants, prompts, tokens, config, progress)
    return {
        "kind": "bench speed",
        **report_of(results),
        "machine": machine(target) | {"python": platform.python_version(), "transformers": _transformers()},
        "bandwidth_gb_s": bandwidth,
        "bytes_per_pass": bytes_per_pass(target),
        "hf_bytes_per_pass": {precision: bytes_per_pass(model) for precision, model in entrants.hf.items()},
        "phases": _phases(entrants.ours, prompts, tokens, config, progress),
        **_drift(target, prompts[0], config, progress),
        "peak_memory_mb": peak_memory_mb(),
        "left_out": entrants.left_out,
        "target": target.name,
        "drafters": {name: drafter.name for name, drafter in entrants.ours.drafters.items()},
        "draft_length": config.draft_length,
        "tokens": tokens,
        "num_prompts": len(prompts),
        "num_prompt_tokens": sum(len(prompt.ids) for prompt in prompts),
        "repetitions": config.repetitions,
        "seed": config.seed,
        "interval": INTERVAL,
    }


def _llama_cpp(config: SpeedConfig, num_positions: int, left_out: list[str]) -> list[Contestant]:
    try:
        return gguf_contestants(config.pair, config.gguf, num_positions)
    except AbsentError as reason:
        left_out.append(f"llama.cpp: {reason}")
        return []


def round_robin(
    contestants: Sequence[Contestant],
    prompts: Sequence[Prompt],
    tokens: int,
    config: SpeedConfig,
    progress: Progress | None = None,
) -> dict[Contestant, list[list[Written]]]:
    """What each wrote, by repetition and group of prompts.

    All take turns at every group, each time beginning with another.
    """
    groups = {batch: groups_of(len(prompts), batch) for batch in {row.batch for row in contestants}}
    results = {row: [[] for _ in range(config.repetitions)] for row in contestants}

    def write(row: Contestant, number: int, seed: int, most: int) -> Written:
        return row.write([prompts[i] for i in groups[row.batch][number]], (config.seed + seed) % 2**53, most)

    steps = config.repetitions * sum(len(groups[row.batch]) for row in contestants)
    done = 0
    for row in contestants:
        _tell(progress, f"Warming up {row.name}", 0, steps)
        write(row, 0, 0, min(WARM_UP_TOKENS, tokens))
    for repetition in range(config.repetitions):
        for number in range(max(map(len, groups.values()))):
            turn = (repetition * len(prompts) + number) % len(contestants)
            for row in (*contestants[turn:], *contestants[:turn]):
                if number >= len(groups[row.batch]):
                    continue
                _tell(progress, f"Measuring {row.name}", done, steps)
                results[row][repetition].append(write(row, number, repetition * len(prompts) + number, tokens))
                done += 1
    return results


def _phases(
    ours: Ours, prompts: Sequence[Prompt], tokens: int, config: SpeedConfig, progress: Progress | None
) -> list[dict[str, Any]]:
    """Where a round's time goes, without drafts and under every rule and drafter."""
    pairs = [(AUTOREGRESSIVE, "ar", ModelPair(ours.target, None))]
    pairs += [(f"ours exact {name}", "exact", ModelPair(ours.target, d)) for name, d in ours.drafters.items()]
    if ours.dynamic is not None:
        pairs.append((f"ours dynamic {ours.dynamic[0]}", "dynamic", ours.dynamic[1]))
    found = []
    for name, rule, pair in pairs:
        for sampler in (GREEDY, PLAIN):
            _tell(progress, f"Measuring the phases of {name}", len(found), 2 * len(pairs))
            settings = DecodeConfig(**decoding(rule, sampler, config), max_new_tokens=tokens, seed=config.seed)
            parts = phases(pair, [prompt.ids for prompt in prompts], settings)
            found.append({"name": name, "temperature": sampler.temperature, **parts})
    return found


def _drift(target: LanguageModel, prompt: Prompt, config: SpeedConfig, progress: Progress | None) -> Mapping[str, Any]:
    if config.quick:
        return {"drift": None, "drift_tokens": 0}
    _tell(progress, "Writing one long answer", 0, 0)
    return drift(target, prompt.ids, DRIFT_TOKENS)


def _transformers() -> str:
    import transformers

    return transformers.__version__


def _tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)
