"""Settings of the benchmarks; the command line's flags are built from these fields."""

from __future__ import annotations

from dataclasses import dataclass, replace

from explorer.engine.config import PRECISIONS
from explorer.engine.loading import DEFAULT_TARGET
from explorer.settings import check_ranges, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsConfig:
    """Settings of `bench heads`. Sizes left out are taken from the drafter and its vocabulary."""

    target: str = setting(DEFAULT_TARGET, "model to draft for: default, a Hub id, a folder or a GGUF file")
    drafter: str = setting("auto", "auto (the bundled one) or a fitted folder")
    full_drafter: str = setting("", "folder of a drafter trained with a full head, to compare with")
    ranks: tuple[int, ...] = setting((), "rank of the low-rank head; may be repeated", low=1, high=16384)
    kept: tuple[int, ...] = setting((), "tokens a truncated head keeps; may be repeated", low=1, high=1_000_000)
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
