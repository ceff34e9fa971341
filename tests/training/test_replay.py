"""Replay: the chain is the session's chain, and the expected rounds are those of simulated decodes."""

import random

import pytest
import torch
from torch import nn
from toys import language_model, prompts_of, random_network

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Sequences
from explorer.engine.eagle import EagleDrafter, shape_of
from explorer.heads.draft import LowRankHead
from explorer.heads.eagle import EagleModel
from explorer.training.replay import expected_rounds, rollout, score


class Forced:
    """A sampler that draws the text's own tokens."""

    is_greedy = False

    def __init__(self, ids):
        self.ids = iter(ids)

    def probs(self, logits):
        return logits.softmax(-1)

    def draw(self, probs, generator):
        return next(self.ids).unsqueeze(0)


class Oracle(nn.Module):
    """A head that looks logits up by the text position they belong to."""

    def __init__(self, laws):
        super().__init__()
        self.laws, self.sizes = laws, []

    def forward(self, hidden, rank):
        self.sizes.append(len(hidden))
        return self.laws[len(self.laws) - len(hidden) :]


def random_model(target, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = shape_of(target, 12)
    head = LowRankHead(
        torch.randn(12, shape.hidden_size, generator=generator), torch.randn(64, 12, generator=generator)
    )
    model = EagleModel(shape, target.embedding, head)
    for name, weight in model.named_weights().items():
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(1 + 0.3 * noise if "norm" in name else noise * weight.shape[-1] ** -0.5)
    return model


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@torch.inference_mode()
def test_a_rollout_is_what_sessions_draft(kind):
    target = language_model(random_network(kind, 3))
    model = random_model(target)
    ids = torch.tensor(prompts_of((14,))[0])
    cache, zero = target.new_cache(13), torch.zeros(1, dtype=torch.int64)
    features = target.forward(ids[None, :-1], cache, zero, keep=1, features=model.shape.features).features
    K = 4

    steps = rollout(model, ids, features[0], K)

    for length in (2, 5, 9):
        sequences = Sequences(ids[None, :length].clone(), torch.tensor([length]), features[:, : length - 1], zero)
        draft = EagleDrafter(model, "x").start(1, 20, DecodeConfig()).draft(sequences, K, Forced(ids[length:]), None)
        for step, (_, outputs) in enumerate(steps):
            torch.testing.assert_close(draft.hidden[0, step], model.normed(outputs[length - 2]), atol=1e-4, rtol=1e-4)


def test_rollout_of_a_short_row_ends_early():
    target = language_model(random_network("llama", 3))
    model = random_model(target)

    steps = rollout(model, torch.tensor([1, 2, 3]), torch.zeros(2, 3 * 32), 4)

    assert [len(outputs) for _, outputs in steps] == [2, 1]


def test_expected_rounds_of_simple_texts():
    assert expected_rounds(torch.zeros(3, 10)) == 10  # every round writes one token
    assert expected_rounds(torch.ones(3, 8)) == 2  # every round writes four
    assert expected_rounds(torch.ones(3, 9)) == 3
    assert expected_rounds(torch.full((1, 2), 0.5)) == pytest.approx(1.5)


def test_expected_rounds_are_the_mean_of_simulated_ones():
    K, n = 3, 12
    passes = torch.rand(K, n, generator=torch.Generator().manual_seed(0)).double()
    coin = random.Random(0)

    def simulate() -> int:
        at = rounds = 0
        while at < n:
            kept = 0
            while kept < K and at + kept < n and coin.random() < passes[kept, at + kept]:
                kept += 1
            at, rounds = at + kept + 1, rounds + 1
        return rounds

    mean = sum(simulate() for _ in range(20_000)) / 20_000

    assert expected_rounds(passes) == pytest.approx(mean, abs=0.05)


@torch.inference_mode()
def test_a_drafter_with_the_target_law_is_never_rejected():
    target = language_model(random_network("llama", 3))
    model = random_model(target)
    ids = torch.tensor(prompts_of((16,))[0])
    laws = torch.randn(15, 64, generator=torch.Generator().manual_seed(1))
    last = torch.eye(15)  # row t stands for the state at position t
    model.head = Oracle(laws)
    row = (ids, 5, torch.zeros(15, 3 * 32), last)

    for greedy in (True, False):
        result = score(model, [row], lambda states: states @ laws, 3, greedy=greedy)
        assert result.agreement == [1.0] * 3
        assert result.overlap == pytest.approx([1.0] * 3, abs=1e-5)
        assert (result.num_tokens, result.num_rounds) == (11, pytest.approx(3.0, abs=1e-4))
    assert model.head.sizes[:3] == [11, 11, 11]  # positions 4 to 14 predict the answer's tokens
