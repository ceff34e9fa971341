"""Heads of a drafter: hidden states (..., D) in, logits (..., V) out.

All of them speak of the whole vocabulary; a head that leaves tokens out gives them -inf, so that the law a draft is
sampled from is the law it is judged by, and every head is exact under the exact rule. A low-rank head is elastic: its
factors are ordered by importance, so the first r of them are a head of rank r. The up factor lies transposed in memory,
(R, V): a prefix is then one contiguous block, and a smaller rank reads less.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from explorer.heads.native import MAX_TOKENS, PackedMatrix, library
from explorer.heads.packed import DraftLinear, PackedLinear

# Up to this many rows, one matrix-vector product each is faster than converting the factor to float32 first.
_FEW_ROWS = 4
# Packed prefixes in memory, 14 MB each at rank 144: a slider that wanders must not fill it.
_KEPT_PREFIXES = 4


class FullHead(nn.Module):
    """The plain head: one row of D weights per token."""

    max_rank = 0

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # (V, D)
        self._packed: DraftLinear | None = None

    def forward(self, hidden: Tensor, rank: int = 0) -> Tensor:  # noqa: ARG002 (heads share one call)
        """Logits (..., V) of hidden states (..., D); there is no rank to choose."""
        return functional.linear(hidden, self.weight) if self._packed is None else self._packed(hidden)

    def pack(self) -> None:
        """From here on multiply with a packed copy, in float32."""
        self._packed = DraftLinear(self.weight)

    def num_parameters(self, rank: int = 0) -> int:  # noqa: ARG002 (heads share one call)
        """Weights read for one token."""
        return self.weight.numel()


class LowRankHead(nn.Module):
    """Factorised head, z = up (down h), whose first r factors are the head of rank r.

    Source:
        SlimSpec, arXiv:2605.10453: no bias and nothing between the two products. The ordering is ours.
    """

    def __init__(self, down: Tensor, up: Tensor) -> None:
        """Take the factors.

        Args:
            down: (R, D).
            up: (V, R), column i belongs to row i of `down`.
        """
        super().__init__()
        self.down = nn.Parameter(down.contiguous(), requires_grad=False)
        self.up_t = nn.Parameter(up.t().contiguous(), requires_grad=False)  # (R, V)
        self._is_packed = False
        self._packed: dict[int, PackedLinear] = {}
        self._few: tuple[PackedMatrix, PackedMatrix] | None = None

    @property
    def max_rank(self) -> int:
        """R, the number of factors."""
        return len(self.down)

    def forward(self, hidden: Tensor, rank: int = 0) -> Tensor:
        """Logits (..., V) of hidden states (..., D) with the first `rank` factors; 0 uses all."""
        rank = rank or self.max_rank
        if self._few is not None and hidden.numel() <= MAX_TOKENS * hidden.shape[-1]:
            down, up = self._few
            return up(down(hidden)[..., :rank])
        codes = functional.linear(hidden, self.down[:rank])
        return self._prefix(rank)(codes) if self._is_packed else expand(codes, self.up_t[:rank])

    def pack(self) -> None:
        """From here on multiply with packed copies, in float32.

        Compiled code reads any prefix out of one copy; for many inputs, copies of prefixes are made when first used.
        """
        self._is_packed = True
        if library() is not None:
            self._few = PackedMatrix(self.down, bits=8), PackedMatrix(self.up_t.t(), bits=8)

    def _prefix(self, rank: int) -> PackedLinear:
        if rank not in self._packed:
            if len(self._packed) == _KEPT_PREFIXES:
                self._packed.pop(next(iter(self._packed)))
            self._packed[rank] = PackedLinear(self.up_t[:rank].t())
        return self._packed[rank]

    def num_parameters(self, rank: int = 0) -> int:
        """Weights read for one token at this rank."""
        return (rank or self.max_rank) * (self.down.shape[1] + self.up_t.shape[1])


class TruncatedHead(nn.Module):
    """A full head of chosen tokens only; the others cannot be drafted.

    Source:
        VocabTrim, arXiv:2506.22694 (tokens by how often the target writes them); FR-Spec, arXiv:2502.14856 (by how
        often a corpus holds them).
    """

    max_rank = 0

    def __init__(self, weight: Tensor, ids: Tensor, vocab_size: int) -> None:
        """Take the rows of the kept tokens.

        Args:
            weight: (N, D), row i scores token ids[i].
            ids: (N,) int64.
            vocab_size: V.
        """
        super().__init__()
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.register_buffer("ids", ids)
        self.vocab_size, self.num_kept = vocab_size, len(ids)
        self._packed: DraftLinear | None = None

    def forward(self, hidden: Tensor, rank: int = 0) -> Tensor:  # noqa: ARG002 (heads share one call)
        """Logits (..., V), -inf outside the kept tokens."""
        kept = functional.linear(hidden, self.weight) if self._packed is None else self._packed(hidden)
        return kept.new_full((*kept.shape[:-1], self.vocab_size), -torch.inf).index_copy_(-1, self.ids, kept)

    def pack(self) -> None:
        """From here on multiply with a packed copy, in float32."""
        self._packed = DraftLinear(self.weight)

    def num_parameters(self, rank: int = 0) -> int:  # noqa: ARG002 (heads share one call)
        """Weights read for one token."""
        return self.weight.numel()


def frequent_ids(counts: Tensor, size: int, always: Iterable[int] = ()) -> Tensor:
    """(size,) ids of the most frequent tokens in ascending order; those of `always` are among them.

    Args:
        counts: (V,) how often each token was seen; of equals, the smaller id is more frequent.
        size: Tokens to keep, in [1, V].
        always: Ids that must stay, such as the ends of an answer.
    """
    ranked = counts.to(torch.float64, copy=True)
    ranked[list(always)] = torch.inf
    return ranked.sort(descending=True, stable=True).indices[:size].sort().values


class DynamicHead(nn.Module):
    """A full head that scores only the tokens which a low-rank head ranks highest, anew at every position.

    Source:
        SpecVocab, arXiv:2602.13836 (the idea; no code was read).
    """

    def __init__(self, scorer: LowRankHead, weight: Tensor, num_candidates: int) -> None:
        """Put the two together.

        Args:
            scorer: Ranks the tokens.
            weight: (V, D), the exact rows.
            num_candidates: Tokens scored at each position, at most V.
        """
        super().__init__()
        self.scorer = scorer
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.num_candidates = min(num_candidates, len(weight))

    @property
    def num_kept(self) -> int:
        """Tokens scored at each position."""
        return self.num_candidates

    @property
    def max_rank(self) -> int:
        """Highest rank of the scorer."""
        return self.scorer.max_rank

    def forward(self, hidden: Tensor, rank: int = 0) -> Tensor:
        """Logits (..., V), -inf outside the candidates, which a scorer of this rank chooses (0: its highest)."""
        scores = self.scorer(hidden, rank)
        ids = scores.topk(self.num_candidates, sorted=False).indices
        exact = (self.weight[ids] @ hidden.unsqueeze(-1)).squeeze(-1)
        return torch.full_like(scores, -torch.inf).scatter_(-1, ids, exact)

    def pack(self) -> None:
        """From here on the scorer multiplies with a float16 copy; the exact rows are gathered, not multiplied whole."""
        self.scorer.pack()

    def num_parameters(self, rank: int = 0) -> int:
        """Weights read for one token."""
        return self.scorer.num_parameters(rank) + self.num_candidates * self.weight.shape[1]


def expand(codes: Tensor, factor: Tensor) -> Tensor:
    """Product (..., V) of codes (..., r) and factor (r, V), by whichever kernel is fast for so many rows.

    Measured with caches cold on a CPU without bfloat16 instructions, r = 144, V = 49,152, in bfloat16: one row 1.7 ms
    by `mv`, 27 ms by `matmul`; the (V, r) layout takes 1.9 ms whole and 3.9 ms as a prefix of 288.
    """
    rows = codes.reshape(-1, codes.shape[-1])
    if len(rows) == 1:
        logits = torch.mv(factor.t(), rows[0]).unsqueeze(0)
    elif factor.dtype != torch.bfloat16 or _multiplies_bfloat16(factor):
        logits = rows @ factor
    elif len(rows) <= _FEW_ROWS:
        logits = torch.stack([torch.mv(factor.t(), row) for row in rows])
    else:
        logits = (rows.float() @ factor.float()).to(factor.dtype)
    return logits.view(*codes.shape[:-1], factor.shape[1])


def _multiplies_bfloat16(factor: Tensor) -> bool:
    """Whether matrices of bfloat16 are multiplied by hardware where this tensor lives."""
    return factor.device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
