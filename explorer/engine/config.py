"""Settings of a decode; the command line's flags and the page's controls are built from these fields."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.rules import RULES
from explorer.settings import check_ranges, setting

PRECISIONS = ("auto", "float32", "float16", "bfloat16", "int8", "nf4")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Settings of one decode. Probabilities are those after temperature, top-k and top-p, on both sides."""

    rule: str = setting("exact", "verification rule", choices=tuple(RULES))
    target_weight: float = setting(0.7, "w of the static rule: 1 is exact, 0 keeps every draft", low=0.0, high=1.0)
    lenience: float = setting(0.5, "l of the lossy rule: 1 is exact, smaller keeps more", low=0.01, high=1.0)
    draft_length: int = setting(2, "tokens drafted per round (K)", low=1, high=16)
    lookup_length: int = setting(8, "tokens the hybrid drafter looks up per round at most", low=1, high=64)
    min_draft_prob: float = setting(0.0, "drafting stops where no token is so likely to the drafter", low=0.0, high=1.0)
    rank: int = setting(0, "rank r of the drafter's low-rank head; 0 is the highest it has", low=0, high=16384)
    temperature: float = setting(0.0, "0 is greedy", low=0.0, high=2.0)
    top_p: float = setting(1.0, "nucleus: smallest set of tokens with this mass", low=0.01, high=1.0)
    top_k: int = setting(0, "keep the k most likely tokens; 0 keeps all", low=0, high=1_000_000)
    max_new_tokens: int = setting(128, "tokens emitted at most", low=1, high=4096)
    seed: int = setting(0, "same seed, settings and machine: same text", low=0, high=2**53)
    stop: tuple[str, ...] = setting((), "text that ends the answer; give it several times for several texts")

    def __post_init__(self) -> None:
        check_ranges(self)
