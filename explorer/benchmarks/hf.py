"""Rows of transformers' own `generate`: plain, with prompt lookup, and with an assistant model."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from explorer.benchmarks.config import SpeedConfig
from explorer.benchmarks.contestants import GREEDY, PLAIN, SAMPLERS, Contestant, Prompt, Write, Written
from explorer.engine.models import LanguageModel
from explorer.engine.sampling import Sampler

NAME, LOOKUP, ASSISTANT = "HF generate", "HF prompt lookup", "HF assistant"


def hf_contestants(
    models: Mapping[str, LanguageModel], assistants: Mapping[str, LanguageModel], config: SpeedConfig
) -> Iterator[Contestant]:
    """Every row of HF's.

    Args:
        models: The target by precision, its weights as transformers loads them.
        assistants: The assistant by precision; empty if there is none.
        config: Settings with the defaults of repeated flags filled in.
    """
    for precision, model in models.items():
        for sampler in SAMPLERS:
            yield Contestant(NAME, precision, sampler, writer(model, sampler), is_hf=True)
        for batch in config.batch:
            for sampler in SAMPLERS[1:]:
                yield Contestant(NAME, precision, sampler, writer(model, sampler), batch, is_hf=True)
        for sampler in (GREEDY, PLAIN):
            lookup = writer(model, sampler, prompt_lookup_num_tokens=config.hf_lookup)
            yield Contestant(LOOKUP, precision, sampler, lookup)
            if precision in assistants:
                write = writer(model, sampler, assistants[precision])
                yield Contestant(ASSISTANT, precision, sampler, write)


def writer(model: LanguageModel, sampler: Sampler, assistant: LanguageModel | None = None, **options: Any) -> Write:
    """What answers prompts with `generate`.

    Args:
        model: The target, not packed.
        sampler: How tokens are drawn; HF draws from the same law.
        assistant: Drafts, with HF's own settings for it.
        options: Of HF's `GenerationConfig`.
    """
    from transformers import GenerationConfig

    network = _with_own_settings(model)
    end_ids = sorted(model.end_ids)
    pad_id = next((i for i in (model.tokenizer.pad_token_id, *end_ids) if i is not None), 0)
    # Spelled out, because `generate` takes what is left open from elsewhere: without top_k=0, the best 50 tokens only.
    law = {"do_sample": True, "temperature": sampler.temperature, "top_p": sampler.top_p, "top_k": 0}
    options |= {"do_sample": False} if sampler.is_greedy else law
    drafting = {} if assistant is None else {"assistant_model": _with_own_settings(assistant)}

    def write(prompts: Sequence[Prompt], seed: int, tokens: int) -> Written:
        settings = GenerationConfig(max_new_tokens=tokens, eos_token_id=end_ids or None, pad_token_id=pad_id, **options)
        longest = max(len(prompt.ids) for prompt in prompts)
        gaps = [longest - len(prompt.ids) for prompt in prompts]
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(seed)  # noqa: TID251 (`generate` takes no generator)
            began = time.perf_counter()
            ids = [[pad_id] * gap + prompt.ids for gap, prompt in zip(gaps, prompts, strict=True)]
            mask = [[0] * gap + [1] * (longest - gap) for gap in gaps]
            output = network.generate(
                torch.tensor(ids, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                generation_config=settings,
                **drafting,
            )
            rows = output[:, longest:].tolist()
            seconds = time.perf_counter() - began
        answers = tuple(tuple(_until_end(row, model.end_ids)) for row in rows)
        return Written(sum(map(len, answers)), seconds, answers)

    return write


def _with_own_settings(model: LanguageModel) -> Any:
    """The network, without the penalties and the like that a model's folder may add to `generate`."""
    from transformers import GenerationConfig

    network = copy.copy(model.model)
    network.generation_config = GenerationConfig()
    return network


def _until_end(ids: list[int], end_ids: frozenset[int]) -> list[int]:
    """The ids up to the first that ends an answer; `generate` pads shorter rows behind it."""
    return ids[: next((place + 1 for place, token_id in enumerate(ids) if token_id in end_ids), len(ids))]
