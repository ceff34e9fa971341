"""The hand-made gradient against autograd on the plain formulas, and sampled columns against the whole vocabulary."""

import pytest
import torch

from explorer.training.head_loss import Columns, choose_columns, head_loss

ROWS, RANK, VOCAB = 5, 3, 11
ALL = Columns(torch.arange(VOCAB), torch.zeros(VOCAB), VOCAB)


def case(seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(ROWS, RANK, generator=generator, dtype=torch.float64)
    factor = torch.randn(RANK, VOCAB, generator=generator, dtype=torch.float64)
    target = torch.randn(ROWS, VOCAB, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    return codes, factor, target


def plain(logits, target, loss):
    log_draft = logits.log_softmax(-1)
    cross_entropy = -(target * log_draft).sum(-1)
    overlap = torch.minimum(target, log_draft.exp()).sum(-1)
    if loss == "kl":
        return cross_entropy, overlap
    share = torch.exp(-3.0 * overlap.detach())
    return share * cross_entropy + (1 - share) * (1 - overlap), overlap


@pytest.mark.parametrize("loss", ["kl", "lk"])
@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_that_of_the_plain_formula(loss, seed):
    codes, factor, target = case(seed)
    weights = torch.linspace(0.2, 1.4, ROWS, dtype=torch.float64)
    logits = (codes @ factor).requires_grad_(True)
    value, overlap = plain(logits, target, loss)
    (weights * value).sum().backward()
    kept = target.clone()

    figures, gradient = head_loss(codes, factor, ALL, target, weights, loss)

    torch.testing.assert_close(gradient, logits.grad)
    torch.testing.assert_close(figures.loss, value.detach())
    torch.testing.assert_close(figures.overlap, overlap.detach())
    assert figures.matches.tolist() == (logits.argmax(-1) == target.argmax(-1)).tolist()
    torch.testing.assert_close(target, kept)


def test_equal_laws_have_no_gradient():
    codes, factor, _ = case(0)
    law = (codes @ factor).softmax(-1)
    figures, gradient = head_loss(codes, factor, ALL, law, torch.ones(ROWS, dtype=torch.float64))
    assert figures.overlap.tolist() == pytest.approx([1.0] * ROWS)
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("loss", ["kl", "lk"])
def test_one_column_may_stand_for_several_equal_ones(loss):
    """Tokens 8, 9 and 10 have the same weights and probabilities: one of them, counted three times, says it all."""
    codes, factor, target = case(1)
    factor[:, 8:] = factor[:, 8:9]
    target[:, 8:] = target[:, 8:9]
    target /= target.sum(-1, keepdim=True)
    weights = torch.ones(ROWS, dtype=torch.float64)
    whole, by_all = head_loss(codes, factor, ALL, target, weights, loss)
    columns = Columns(torch.arange(9), torch.tensor([0.0] * 8 + [3.0]).clamp(min=1).log().double(), 8)
    counts = columns.log_counts.exp()

    some, by_some = head_loss(codes, factor[:, :9], columns, target[:, :9] * counts, weights, loss)

    torch.testing.assert_close(some.loss, whole.loss)
    torch.testing.assert_close(some.overlap, whole.overlap)
    torch.testing.assert_close(by_some[:, :8], by_all[:, :8])
    torch.testing.assert_close(by_some[:, 8], by_all[:, 8:].sum(1))


def test_columns_hold_the_frequent_tokens_those_of_the_text_and_a_sample_that_stands_for_the_rest():
    generator = torch.Generator().manual_seed(0)
    columns = choose_columns(torch.tensor([4, 2]), torch.tensor([[7, 2], [9, 7]]), 100, 12, generator)
    assert columns.ids[: columns.num_exact].tolist() == [2, 4, 7, 9]
    assert len(columns.ids) == 16
    assert len(set(columns.ids.tolist())) == 16
    assert columns.log_counts[:4].tolist() == [0.0] * 4
    assert columns.log_counts.exp().sum().item() == pytest.approx(100)


def test_weighted_sums_over_the_columns_are_unbiased():
    values = torch.rand(60, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    sums = []
    for _ in range(4000):
        columns = choose_columns(torch.arange(5), torch.tensor([11]), 60, 9, generator)
        sums.append(float((values[columns.ids] * columns.log_counts.exp()).sum()))
    found = torch.tensor(sums)
    assert float(found.mean()) == pytest.approx(float(values.sum()), abs=4 * float(found.std()) / 4000**0.5)


def test_all_tokens_frequent_leaves_nothing_to_draw():
    columns = choose_columns(torch.arange(10), torch.tensor([3]), 10, 4, torch.Generator().manual_seed(0))
    assert columns.ids.tolist() == list(range(10))
    assert columns.log_counts.tolist() == [0.0] * 10
