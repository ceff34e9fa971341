"""The gradient of the objective against exact enumeration of every answer of a toy, and what must not be NaN."""

import itertools

import pytest
import torch

from explorer.heads.ensemble import EnsembleHead
from explorer.training.objective import Tokens, advantages, loss, returns_to_go, verifier_prob

VOCAB, LENGTH, SIZE = 3, 3, 4


class Toy:
    """Laws p and q and head inputs for every prefix of a vocabulary of three, and a reward for every text."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        prefixes = [p for n in range(LENGTH) for p in itertools.product(range(VOCAB), repeat=n)]
        self.p = {x: torch.randn(VOCAB, generator=generator).mul(1.5).softmax(-1) for x in prefixes}
        self.q = {x: torch.randn(VOCAB, generator=generator).mul(1.5).softmax(-1) for x in prefixes}
        self.inputs = {x: torch.randn(SIZE, generator=generator) for x in prefixes}
        texts = list(itertools.product(range(VOCAB), repeat=LENGTH))
        self.reward = dict(zip(texts, torch.rand(len(texts), generator=generator).tolist(), strict=True))
        self.head = EnsembleHead(2, 2, "states")
        with torch.no_grad():
            self.head.state_weight.copy_(torch.randn(SIZE, generator=generator) * 0.5)

    def tokens(self, texts):
        rows = [
            (number, place, text[:place], text[place]) for number, text in enumerate(texts) for place in range(LENGTH)
        ]
        tokens = Tokens(
            inputs=torch.stack([self.inputs[prefix] for _, _, prefix, _ in rows]),
            target_prob=torch.stack([self.p[prefix][x] for _, _, prefix, x in rows]),
            draft_prob=torch.stack([self.q[prefix][x] for _, _, prefix, x in rows]),
            distance=torch.stack([1 - torch.minimum(self.p[prefix], self.q[prefix]).sum() for _, _, prefix, _ in rows]),
            old_prob=torch.zeros(len(rows)),
            answer=torch.tensor([number for number, *_ in rows]),
            place=torch.tensor([place for _, place, *_ in rows]),
        )
        with torch.no_grad():
            tokens.old_prob = verifier_prob(tokens, self.head(tokens.inputs))
        return tokens

    def objective(self, price):
        """E[reward - price * sum of w TV], exactly, as a function of the head."""
        total = 0.0
        for text, reward in self.reward.items():
            prob, cost = 1.0, 0.0
            for place in range(LENGTH):
                prefix = text[:place]
                weight = self.head(self.inputs[prefix])
                cost = cost + weight * (1 - torch.minimum(self.p[prefix], self.q[prefix]).sum())
                prob = prob * (weight * self.p[prefix] + (1 - weight) * self.q[prefix])[text[place]]
            total = total + prob * (reward - price * cost)
        return total


def gradients(toy):
    return torch.cat([toy.head.state_weight.grad, toy.head.bias.grad.view(1)])


@pytest.mark.parametrize("price", [0.0, 0.4])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_gradient_is_that_of_the_exact_objective(price, seed):
    """The mean over all pairs of texts, each weighted by its probability, of the gradient of a group of two."""
    toy = Toy(seed)
    toy.head.zero_grad()
    (-toy.objective(price)).backward()
    exact = gradients(toy).clone()

    texts = list(toy.reward)
    rewards = torch.tensor([toy.reward[text] for text in texts])
    single = toy.tokens(texts)
    probs = single.old_prob.view(len(texts), LENGTH).prod(1)
    found = torch.zeros_like(exact)
    for first, second in itertools.combinations_with_replacement(range(len(texts)), 2):
        share = float(probs[first] * probs[second]) * (1 if first == second else 2)
        tokens, pair = toy.tokens([texts[first], texts[second]]), rewards[[first, second]]
        with torch.no_grad():
            returns = returns_to_go(tokens, toy.head(tokens.inputs), pair, price)
        advantage = advantages(tokens, returns, torch.zeros(2, dtype=torch.int64))
        toy.head.zero_grad()
        loss(toy.head, tokens, advantage, 2, price, 0.2)[0].backward()
        found += share * gradients(toy)
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-5)


def test_returns_to_go_by_hand():
    tokens = Toy().tokens([(0, 1, 2), (2, 2, 0)])
    tokens.distance = torch.tensor([0.5, 0.25, 1.0, 0.0, 1.0, 0.5])
    weight = torch.tensor([1.0, 1.0, 0.5, 1.0, 0.5, 1.0])
    found = returns_to_go(tokens, weight, torch.tensor([1.0, 0.0]), 2.0)
    assert found.tolist() == pytest.approx([1 - 2 * 0.75, 1 - 2 * 0.5, 1.0, -2 * 1.0, -2 * 0.5, 0.0])


def test_advantages_leave_the_own_answer_out_and_know_who_got_as_far():
    tokens = Toy().tokens([(0, 1, 2), (2, 2, 0), (1, 1, 1)])
    kept = torch.tensor([True] * 3 + [True, False, False] + [True] * 3)
    tokens = tokens.of(kept)
    tokens.answer = torch.tensor([0, 0, 0, 1, 2, 2, 2])
    rewards = torch.tensor([1.0, 0.0, 0.5])
    returns = rewards[tokens.answer]
    found = advantages(tokens, returns, torch.tensor([0, 0, 1]))
    # Only the first token has a partner: the second answer ended there, and the third is to another prompt.
    assert found.tolist() == pytest.approx([1.0, 0, 0, -1.0, 0, 0, 0])


@pytest.mark.parametrize(("rewards", "groups"), [([0.5, 0.5], [0, 0]), ([1.0], [0]), ([0.0, 1.0], [0, 1])])
def test_equal_rewards_and_lone_answers_give_no_advantage(rewards, groups):
    rewards, groups = torch.tensor(rewards), torch.tensor(groups)
    tokens = Toy().tokens([(0, 1, 2), (2, 2, 0)][: len(rewards)])
    found = advantages(tokens, rewards[tokens.answer], groups)
    assert found.tolist() == [0.0] * len(found)
    value, _ = loss(Toy().head, tokens, found, len(rewards), 0.0, 0.2)
    assert value.item() == 0.0


def test_no_tokens_at_all_cost_nothing():
    toy = Toy()
    tokens = toy.tokens([(0, 1, 2)]).of(torch.zeros(3, dtype=torch.bool))
    rewards = torch.tensor([1.0])
    found = advantages(tokens, returns_to_go(tokens, torch.zeros(0), rewards, 0.1), torch.tensor([0]))
    value, clipped = loss(toy.head, tokens, found, 1, 0.1, 0.2)
    assert (value.item(), clipped.item(), len(found)) == (0.0, 0.0, 0)


def test_a_ratio_that_went_too_far_has_no_pull():
    toy = Toy()
    tokens = toy.tokens([(0, 1, 2)])
    tokens.old_prob = tokens.old_prob / 3
    toy.head.zero_grad()
    value, clipped = loss(toy.head, tokens, torch.ones(3), 1, 0.0, 0.2)
    value.backward()
    assert clipped.item() == 1.0
    assert gradients(toy).abs().max() == 0
    assert value.item() == pytest.approx(-3 * 1.2)
