"""Logits to laws and laws to tokens."""

import pytest
import torch

from explorer.engine import sampling
from explorer.engine.config import DecodeConfig
from explorer.engine.sampling import Sampler, sample
from explorer.errors import ModelPairError

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 0.0, 3.0, 0.5]])


def support(law):
    return [row.nonzero().squeeze(1).tolist() for row in law]


def test_sampler_takes_its_settings_from_the_config():
    sampler = Sampler.of(DecodeConfig(temperature=0.5, top_k=3, top_p=0.9))
    assert (sampler.temperature, sampler.top_k, sampler.top_p) == (0.5, 3, 0.9)
    assert not sampler.is_greedy
    assert Sampler.of(DecodeConfig(temperature=0.0)).is_greedy


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_temperature_divides_the_logits(temperature):
    torch.testing.assert_close(Sampler(temperature).probs(LOGITS), (LOGITS / temperature).softmax(-1))


def test_greedy_law_is_the_untempered_softmax_of_all_tokens():
    """It is what the ensemble rules mix and the page shows; top-k and top-p do not bite."""
    sampler = Sampler(temperature=0.0, top_k=1, top_p=0.1)
    torch.testing.assert_close(sampler.probs(LOGITS), LOGITS.softmax(-1))
    assert sampler.draw(sampler.probs(LOGITS), torch.Generator()).tolist() == [0, 2]


def test_law_is_float32_whatever_the_model_computes_in():
    law = Sampler().probs(LOGITS.bfloat16())
    assert law.dtype == torch.float32
    torch.testing.assert_close(law.sum(-1), torch.ones(2))


def test_logits_are_not_changed():
    before = LOGITS.clone()
    Sampler(temperature=0.5, top_k=2, top_p=0.5).probs(LOGITS)
    assert torch.equal(LOGITS, before)


@pytest.mark.parametrize(("top_k", "kept"), [(1, [[0], [2]]), (2, [[0, 1], [2, 3]]), (4, None), (0, None), (99, None)])
def test_top_k_keeps_the_k_best(top_k, kept):
    law = Sampler(top_k=top_k).probs(LOGITS)
    assert support(law) == (kept or [[0, 1, 2, 3]] * 2)
    torch.testing.assert_close(law.sum(-1), torch.ones(2))


def test_top_k_keeps_all_tokens_that_tie_for_the_last_place():
    assert support(Sampler(top_k=2).probs(torch.tensor([[3.0, 1.0, 1.0, 0.0]]))) == [[0, 1, 2]]


def test_top_k_counts_the_best_after_temperature_the_same():
    assert support(Sampler(temperature=0.1, top_k=2).probs(LOGITS)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, [0]), (0.5, [0]), (0.51, [0, 1]), (0.8, [0, 1]), (0.81, [0, 1, 3]), (1.0, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(top_p, kept):
    law = torch.tensor([[0.5, 0.3, 0.05, 0.15]])
    assert support(Sampler(top_p=top_p).probs(law.log())) == [kept]


def test_top_p_always_keeps_the_best_token():
    assert support(Sampler(top_p=0.01).probs(torch.zeros(1, 100).index_fill(1, torch.tensor([42]), 1e-3))) == [[42]]


def test_top_p_measures_the_law_that_top_k_and_temperature_left():
    law = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    # Of the two best, 0.4 / 0.7 = 0.57 reaches 0.55 alone; of all four it would not.
    assert support(Sampler(top_k=2, top_p=0.55).probs(law.log())) == [[0]]
    assert support(Sampler(temperature=0.2, top_p=0.7).probs(law.log())) == [[0]]
    assert support(Sampler(top_p=0.7).probs(law.log())) == [[0, 1]]


def test_forbidden_tokens_stay_forbidden():
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    for sampler in (Sampler(), Sampler(top_k=3), Sampler(top_p=0.99), Sampler(temperature=0.0)):
        assert support(sampler.probs(logits)) == [[0, 2]]


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_rows_that_are_no_numbers_are_refused(value):
    rows = torch.stack([LOGITS[0], torch.full((4,), value)])
    for sampler in (Sampler(), Sampler(0.0), Sampler(0.7, top_k=2, top_p=0.9)):
        with pytest.raises(ModelPairError, match="logits that are not numbers. Choose float32 precision"):
            sampler.probs(rows)


def test_one_nan_is_enough_to_refuse_a_row():
    with pytest.raises(ModelPairError):
        Sampler().probs(torch.tensor([[0.0, 1.0, torch.nan, 2.0]]))


def coins(monkeypatch, value):
    monkeypatch.setattr(sampling.torch, "rand", lambda shape, **options: torch.full(tuple(shape), value))


LARGEST = 1 - 2**-24


@pytest.mark.parametrize("coin", [0.0, 1e-38, 0.5, LARGEST])
@pytest.mark.parametrize(
    "law",
    [
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.5, 0.5, 0.0],
        [0.0, 0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 1e-41, 1.0, 0.0],
        [0.0, 0.7, 0.2999, 0.0],  # a sum below 1
        [0.0, 0.7, 0.3001, 0.0],  # a sum above 1
    ],
)
def test_a_token_of_probability_zero_is_never_drawn(monkeypatch, law, coin):
    coins(monkeypatch, coin)
    law = torch.tensor(law)
    assert law[int(sample(law, torch.Generator()))] > 0


@pytest.mark.parametrize("coin", [0.0, LARGEST])
@pytest.mark.parametrize("seed", range(10))
def test_no_zero_is_drawn_from_a_large_law(monkeypatch, seed, coin):
    """Rounding of a long sum is where an inverse CDF can run past the last possible token."""
    law = torch.rand(4, 49152, generator=torch.Generator().manual_seed(seed)).pow(20)
    law[:, :100], law[:, -100:] = 0, 0
    law /= law.sum(-1, keepdim=True)
    coins(monkeypatch, coin)
    ids = sample(law, torch.Generator())
    assert (law.gather(1, ids[:, None]) > 0).all()


def test_coins_fall_on_the_tokens_they_should(monkeypatch):
    law = torch.tensor([0.25, 0.0, 0.5, 0.25])
    for coin, token in ((0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (LARGEST, 3)):
        coins(monkeypatch, coin)
        assert int(sample(law, torch.Generator())) == token


def test_samples_follow_the_law():
    """Chi-square of 40,000 draws, 7 degrees of freedom, and the zero stays empty."""
    law = torch.tensor([0.02, 0.3, 0.0, 0.08, 0.25, 0.05, 0.1, 0.15, 0.05])
    draws = 40_000
    counts = sample(law.expand(draws, 9), torch.Generator().manual_seed(0)).bincount(minlength=9)
    assert counts[2] == 0
    possible = law > 0
    expected = draws * law[possible]
    assert ((counts[possible] - expected) ** 2 / expected).sum() < 24.3  # 0.1 % quantile


def test_rows_of_a_batch_are_independent():
    """One shared coin would make both columns equal."""
    ids = sample(torch.full((2000, 2, 2), 0.5), torch.Generator().manual_seed(0))
    assert 0.45 < (ids[:, 0] == ids[:, 1]).float().mean() < 0.55


def test_the_generator_is_the_only_randomness():
    law = torch.full((50, 100), 0.01)
    first = sample(law, torch.Generator().manual_seed(3))
    torch.rand(10)
    assert torch.equal(first, sample(law, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, sample(law, torch.Generator().manual_seed(4)))


def test_draw_samples_unless_greedy():
    law = torch.tensor([[0.4, 0.6]]).expand(400, 2)
    assert Sampler(1.0).draw(law, torch.Generator().manual_seed(0)).float().mean() == pytest.approx(0.6, abs=0.1)
    assert Sampler(0.0).draw(law, torch.Generator()).float().mean() == 1
