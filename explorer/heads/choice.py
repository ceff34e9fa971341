"""Which head a drafter drafts with, chosen when it is loaded, and what each kind is made from.

Any of them may draft for the same body: the rule judges a draft by the law it was drawn from, whichever head gave it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from explorer.errors import SettingError
from explorer.heads.draft import DynamicHead, FullHead, LowRankHead, TruncatedHead, frequent_ids

HEADS = ("own", "full", "truncated", "dynamic")
# Tokens kept, and candidates scored, where no size is given.
DEFAULT_SIZES = {"truncated": 8192, "dynamic": 2048}


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """A kind of head and its size.

    Attributes:
        kind: "own" (what the checkpoint holds), "full" (a row per token), "truncated" (frequent tokens only) or
            "dynamic" (candidates that a low-rank head picks at every position).
        size: Tokens kept or candidates scored; 0 is the kind's default, and the only size of the other two.

    Raises:
        SettingError: The kind is unknown, or the size is negative or given to a kind that has none.
    """

    kind: str = "own"
    size: int = 0

    def __post_init__(self) -> None:
        if self.kind not in HEADS:
            raise SettingError(f"head is {self.kind!r}; it must be one of {', '.join(HEADS)}.")
        if self.size < 0:
            raise SettingError(f"head size is {self.size}; it must be at least 1, or 0 for the default.")
        if self.size and self.kind not in DEFAULT_SIZES:
            raise SettingError(
                f"head size is {self.size}, but the {self.kind} head has no size to choose. Leave it out, or choose "
                "the truncated or the dynamic head."
            )


OWN_HEAD = HeadChoice()


class HeadParts:
    """What the heads of one drafter are made of; they share its weights.

    Attributes:
        own: The head the checkpoint came with.
        end_ids: Tokens that end an answer: no head may leave them out.
        counts: (V,) how often each token was seen, or None.
        scorer: Ranks tokens for the dynamic head; the own head serves where it is a low-rank one.
        is_packed: Whether heads multiply with packed float16 copies, see `heads.packed`.
    """

    def __init__(
        self,
        own: nn.Module,
        *,
        end_ids: frozenset[int] = frozenset(),
        counts: Tensor | None = None,
        scorer: LowRankHead | None = None,
        is_packed: bool = False,
    ) -> None:
        self.own, self.end_ids, self.counts, self.is_packed = own, end_ids, counts, is_packed
        self.scorer = scorer or (own if isinstance(own, LowRankHead) else None)

    @cached_property
    def full_weight(self) -> Tensor | None:
        """(V, D) a row per token: the own head's, or the product of its factors; None if it lacks rows."""
        if isinstance(self.own, LowRankHead):
            product = self.own.up_t.detach().t().float() @ self.own.down.detach().float()
            return product.to(self.own.down.dtype)
        return self.own.weight.detach() if isinstance(self.own, FullHead) else None

    def build(self, choice: HeadChoice, name: str) -> nn.Module:
        """The chosen head, ready to multiply.

        Args:
            choice: Kind and size.
            name: Of the drafter, for messages.

        Raises:
            SettingError: The drafter lacks what this head is made of, or the size does not fit its vocabulary.
        """
        if choice.kind == "own" or (choice.kind == "full" and isinstance(self.own, FullHead)):
            return self.own
        weight = self.full_weight
        if weight is None:
            raise SettingError(
                f"The head of {name} has no rows for some tokens, so it gives no {choice.kind} head. Choose --head own."
            )
        makers = {"full": self._full, "truncated": self._truncated, "dynamic": self._dynamic}
        head = makers[choice.kind](weight, choice, name)
        if self.is_packed:
            head.pack()
        return head

    def _full(self, weight: Tensor, choice: HeadChoice, name: str) -> FullHead:  # noqa: ARG002 (makers share one call)
        return FullHead(weight)

    def _truncated(self, weight: Tensor, choice: HeadChoice, name: str) -> TruncatedHead:
        if self.counts is None:
            raise SettingError(
                f"{name} does not say how often each token is written (it has no token_counts), so no token can be "
                "left out. Choose --head own, full or dynamic, or a drafter with token_counts."
            )
        ends = [i for i in sorted(self.end_ids) if i < len(weight)]
        size = _size_in(choice, len(weight), least=max(len(ends), 1))
        ids = frequent_ids(self.counts, size, ends).to(weight.device)
        return TruncatedHead(weight[ids], ids, len(weight))

    def _dynamic(self, weight: Tensor, choice: HeadChoice, name: str) -> DynamicHead:
        if self.scorer is None:
            raise SettingError(
                f"{name} has a full head and no scorer (scorer.down.weight, scorer.up.weight) to pick candidates. "
                "Choose --head own, or a drafter with a low-rank head."
            )
        return DynamicHead(self.scorer, weight, _size_in(choice, len(weight)))


def _size_in(choice: HeadChoice, vocab_size: int, least: int = 1) -> int:
    """The size asked for, or the default, where the vocabulary has so many tokens.

    Raises:
        SettingError: It has not.
    """
    if choice.size and not least <= choice.size <= vocab_size:
        raise SettingError(
            f"head size is {choice.size}; the {choice.kind} head takes {least} to {vocab_size:,} tokens here. Change "
            "--head-size."
        )
    return choice.size or max(min(DEFAULT_SIZES[choice.kind], vocab_size), least)


def mass_outside(laws: Tensor, kept: Tensor) -> float:
    """Mean mass in [0, 1] that laws (..., V) give to tokens outside `kept` (N,); 1 minus it bounds acceptance.

    A head that drafts only the kept tokens has sum_x min(p, q) <= P(kept) at every position, however good it is.

    Source:
        SlimSpec, arXiv:2605.10453 (the ceiling of truncation).
    """
    inside = laws.index_select(-1, kept).double().sum(-1)
    return float((1 - inside).clamp(min=0).mean())


def read_counts(counts: Tensor | None, vocab_size: int) -> Tensor | None:
    """The `token_counts` of a checkpoint; raises ValueError unless they are (V,) and not negative."""
    if counts is not None and (counts.shape != (vocab_size,) or bool((counts < 0).any())):
        raise ValueError(f"token_counts is {tuple(counts.shape)}; it must be ({vocab_size},), none negative")
    return counts
