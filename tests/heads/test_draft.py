"""Heads: one call, and every prefix of a low-rank head is the truncated product."""

import pytest
import torch
from torch import Generator

from explorer.heads import draft
from explorer.heads.draft import FullHead, LowRankHead, expand

V, D, R = 50, 16, 8


def factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = Generator().manual_seed(0)
    return torch.randn(R, D, generator=generator), torch.randn(V, R, generator=generator)


def hidden_of(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, D, generator=Generator().manual_seed(1))


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)])
def test_a_prefix_is_the_truncated_product(rank, shape):
    down, up = factors()
    hidden = hidden_of(*shape)

    logits = LowRankHead(down, up)(hidden, rank)

    assert logits.shape == (*shape, V)
    torch.testing.assert_close(logits, hidden @ down[:rank].t() @ up[:, :rank].t())


def test_rank_zero_is_the_whole_head():
    down, up = factors()
    head = LowRankHead(down, up)

    torch.testing.assert_close(head(hidden_of(3)), head(hidden_of(3), R))


def test_a_prefix_is_contiguous_memory():
    head = LowRankHead(*factors())

    assert head.up_t[:3].is_contiguous()
    assert head.up_t[:3].data_ptr() == head.up_t.data_ptr()


def test_full_head_is_the_plain_product():
    _, up = factors()
    weight = torch.randn(V, D, generator=Generator().manual_seed(2))

    torch.testing.assert_close(FullHead(weight)(hidden_of(2, 3)), hidden_of(2, 3) @ weight.t())


def test_numbers_of_weights():
    head = LowRankHead(*factors())

    assert (head.num_parameters(), head.num_parameters(2)) == (R * (V + D), 2 * (V + D))
    assert FullHead(torch.zeros(V, D)).num_parameters() == V * D


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("has_hardware", [True, False])
def test_every_bfloat16_kernel_gives_the_product(rows, has_hardware, monkeypatch):
    monkeypatch.setattr(draft, "_multiplies_bfloat16", lambda _: has_hardware)
    codes = torch.randn(rows, R, generator=Generator().manual_seed(3)).bfloat16()
    factor = factors()[1].t().contiguous().bfloat16()

    logits = expand(codes, factor)

    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), codes.float() @ factor.float(), atol=0.05, rtol=0.01)
