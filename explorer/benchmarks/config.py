"""Settings of the benchmarks; the command line's flags are built from these fields."""

from __future__ import annotations

from dataclasses import dataclass, replace

from explorer.engine.config import PRECISIONS
from explorer.engine.loading import DEFAULT_TARGET
from explorer.errors import SettingError
from explorer.settings import check_ranges, setting
from explorer.tasks import TASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsConfig:
    """Settings of `bench heads`. Sizes left out are taken from the drafter and its vocabulary."""

    target: str = setting(DEFAULT_TARGET, "model to draft for: default, a Hub id, a folder or a GGUF file")
    drafter: str = setting("auto", "auto (the bundled one) or a fitted folder")
    full_drafter: str = setting("", "folder of a drafter trained with a full head, to compare with")
    ranks: tuple[int, ...] = setting((), "rank of the low-rank head; may be repeated", low=1, high=16384)
    kept: tuple[int, ...] = setting((), "tokens a truncated head keeps; may be repeated", low=1, high=1_000_000)
    corpus: str = setting("", "JSONL of texts; truncated heads then also keep the tokens most frequent there (FR-Spec)")
    candidates: tuple[int, ...] = setting((), "candidates of a dynamic head; may be repeated", low=1, high=1_000_000)
    batch: tuple[int, ...] = setting((1,), "prompts decoded at once; may be repeated", low=1, high=512)
    draft_length: int = setting(4, "tokens drafted per round (K)", low=1, high=16)
    temperature: float = setting(0.0, "0 is greedy", low=0.0, high=2.0)
    tokens: int = setting(64, "tokens emitted at most per answer", low=2, high=4096)
    prompts: str = setting("", "JSONL with prompt, question or turns; the built-in held-out prompts if empty")
    num_prompts: int = setting(0, "use the first so many prompts; 0 uses all", low=0, high=100_000)
    repetitions: int = setting(3, "times everything is measured, interleaved", low=1, high=100)
    seed: int = setting(0, "of sampled text", low=0, high=2**53)
    precision: str = setting("auto", "of the weights", choices=PRECISIONS)
    quick: bool = setting(False, "fewer prompts, tokens, repetitions and heads: about a minute on the default pair")
    auto_rank: bool = setting(False, "measure the low-rank and the full head alone, and say which rank to use")

    def __post_init__(self) -> None:
        check_ranges(self)

    def shortened(self) -> HeadsConfig:
        """These settings with `quick` applied: nothing grows, and what was asked for by name is still measured."""
        if not self.quick:
            return self
        return replace(
            self,
            num_prompts=min(self.num_prompts or 2, 2),
            tokens=min(self.tokens, 24),
            repetitions=min(self.repetitions, 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftersConfig:
    """Settings of `bench drafters`."""

    target: str = setting(DEFAULT_TARGET, "model to draft for: default, a Hub id, a folder or a GGUF file")
    drafters: tuple[str, ...] = setting((), "drafter to measure; may be repeated; auto, hybrid and ngram if left out")
    draft_length: tuple[int, ...] = setting((), "tokens drafted per round (K); may be repeated", low=1, high=16)
    temperature: tuple[float, ...] = setting((), "0 is greedy; may be repeated; 0 and 1 if left out", low=0.0, high=2.0)
    lookup_length: int = setting(8, "tokens the hybrid drafter looks up per round at most", low=1, high=64)
    min_draft_prob: float = setting(0.0, "drafting stops where no token is so likely to the drafter", low=0.0, high=1.0)
    tokens: int = setting(160, "tokens emitted at most per answer", low=2, high=4096)
    prompts: str = setting("", "JSONL with prompt, question or turns; the built-in held-out prompts if empty")
    max_characters: int = setting(420, "longer prompts are left out", low=1, high=10_000_000)
    num_prompts: int = setting(40, "use so many prompts at most, of every kind alike", low=1, high=100_000)
    seed: int = setting(0, "of sampled text", low=0, high=2**53)
    precision: str = setting("auto", "of the weights", choices=PRECISIONS)
    quick: bool = setting(False, "two prompts of 24 tokens")

    def __post_init__(self) -> None:
        check_ranges(self)

    def shortened(self) -> DraftersConfig:
        """These settings with the defaults of repeated flags filled in, and `quick` applied."""
        filled = replace(
            self,
            drafters=self.drafters or ("auto", "hybrid", "ngram"),
            draft_length=self.draft_length or (2, 4),
            temperature=self.temperature or (0.0, 1.0),
        )
        return replace(filled, num_prompts=2, tokens=min(self.tokens, 24)) if self.quick else filled


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoConfig:
    """Settings of `bench pareto`."""

    pair: str = setting(DEFAULT_TARGET, "target: default, a Hub id, a folder or a GGUF file")
    drafter: str = setting("auto", "drafter: auto, a folder, or a smaller model")
    precision: str = setting("auto", "of the weights", choices=PRECISIONS)
    task: str = setting("arithmetic", "what is rewarded", choices=tuple(TASKS))
    data: str = setting("", "JSONL file or folder of the task's examples")
    num_shots: int = setting(0, "solved examples in front of each question", low=0, high=8)
    allow_code: bool = setting(False, "whether code that the model writes may be run")
    ensemble: tuple[str, ...] = setting((), "folder of an ensemble head; may be repeated; the bundled ones if left out")
    weight: tuple[float, ...] = setting((), "static weight; may be repeated", low=0.0, high=1.0)
    lenience: tuple[float, ...] = setting((), "lenience of the lossy rule; may be repeated", low=0.01, high=1.0)
    temperature: tuple[float, ...] = setting((), "may be repeated; 1 if left out", low=0.0, high=2.0)
    draft_length: tuple[int, ...] = setting((), "K; may be repeated; 5 if left out", low=1, high=16)
    limit: int = setting(200, "held-out prompts", low=1, high=1_000_000)
    answers: int = setting(4, "answers to each prompt", low=1, high=1000)
    batch: int = setting(64, "answers written at once", low=1, high=512)
    seed: int = setting(0, "of prompts and answers", low=0, high=2**53)

    def __post_init__(self) -> None:
        check_ranges(self)

    def filled(self) -> ParetoConfig:
        """These settings with the defaults of repeated flags filled in."""
        return replace(
            self,
            weight=self.weight or (1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.0),
            lenience=self.lenience or (0.9, 0.7, 0.5, 0.3, 0.1, 0.03),
            temperature=self.temperature or (1.0,),
            draft_length=self.draft_length or (5,),
        )


HF_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedConfig:
    """Settings of `bench speed`."""

    pair: str = setting(DEFAULT_TARGET, "target: default, a Hub id, a folder or a GGUF file")
    drafters: tuple[str, ...] = setting((), "drafter of ours; may be repeated; auto, ngram and hybrid if left out")
    assistant: str = setting("", "smaller language model: HF's assistant_model, and one more drafter of ours")
    ensemble: str = setting("", "folder of the dynamic rule's head; the bundled one, if any, if left out")
    gguf: str = setting("", "GGUF file that llama.cpp reads; that of the pair if left out")
    draft_length: int = setting(2, "tokens drafted per round (K)", low=1, high=16)
    lookup_length: int = setting(8, "tokens the hybrid drafter looks up per round at most", low=1, high=64)
    hf_lookup: int = setting(10, "HF's prompt_lookup_num_tokens", low=1, high=64)
    target_weight: float = setting(0.7, "w of the static rule", low=0.0, high=1.0)
    batch: tuple[int, ...] = setting(
        (), "answers sampled at once, beside 1; may be repeated; 4, 16 and 32 if left out", low=2, high=512
    )
    tokens: int = setting(64, "tokens emitted at most per answer", low=2, high=4096)
    prompts: str = setting("", "JSONL with prompt, question or turns; the built-in held-out prompts if empty")
    num_prompts: int = setting(8, "use the first so many prompts", low=1, high=100_000)
    repetitions: int = setting(3, "times everything is measured, interleaved", low=1, high=100)
    seed: int = setting(0, "of sampled text", low=0, high=2**53)
    precision: str = setting("auto", "of our weights", choices=PRECISIONS)
    hf_precision: tuple[str, ...] = setting((), "of HF's weights; may be repeated; float32 and bfloat16 if left out")
    quick: bool = setting(False, "two prompts of 16 tokens, once, batches of 4, and no long decode")

    def __post_init__(self) -> None:
        check_ranges(self)
        for precision in self.hf_precision:
            if precision not in HF_PRECISIONS:
                raise SettingError(f"hf_precision is {precision!r}; it must be one of {', '.join(HF_PRECISIONS)}.")

    def shortened(self) -> SpeedConfig:
        """These settings with the defaults of repeated flags filled in, and `quick` applied: nothing grows."""
        filled = replace(
            self,
            drafters=self.drafters or ("auto", "ngram", "hybrid"),
            batch=tuple(dict.fromkeys(self.batch or ((4,) if self.quick else (4, 16, 32)))),
            hf_precision=tuple(dict.fromkeys(self.hf_precision or HF_PRECISIONS)),
        )
        if not self.quick:
            return filled
        return replace(filled, num_prompts=min(self.num_prompts, 2), tokens=min(self.tokens, 16), repetitions=1)
