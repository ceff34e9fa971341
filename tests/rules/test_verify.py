"""Rounds of several drafts: their joint law by full enumeration, and the batched functions against the plain one."""

import itertools

import pytest
import torch

from explorer.rules.ensemble import acceptance as ensemble_acceptance
from explorer.rules.ensemble import mix
from explorer.rules.lossy import acceptance as lossy_acceptance
from explorer.rules.verify import accepted_lengths, residual, verify

V = 3


class Table:
    """A language model that is a table: the law of the next token given the tokens so far, different everywhere."""

    def __init__(self, seed):
        self.seed = seed

    def law(self, prefix):
        seed = self.seed
        for token in prefix:
            seed = seed * 7 + token + 1
        return torch.randn(V, generator=torch.Generator().manual_seed(seed)).mul(1.5).softmax(-1).double()


def pass_probability(accept, num_accepted):
    """Chance that exactly `num_accepted` leading drafts pass, from the batched function, coin by coin.

    The coins of a position matter only by the side of the acceptance they fall on: one coin for each side.
    """
    K = len(accept)
    total = 0.0
    for sides in itertools.product([True, False], repeat=K):
        chance, coins = 1.0, []
        for passes, a in zip(sides, accept.tolist(), strict=True):
            chance *= a if passes else 1 - a
            coins.append(a / 2 if passes else (a + 1) / 2)
        if chance > 0:
            length = accepted_lengths(accept[None], torch.tensor([coins], dtype=accept.dtype), torch.tensor([K]))
            total += chance * (int(length) == num_accepted)
    return total


def round_law(target, drafter, acceptance, K, prefix=()):
    """{emitted tokens: probability} of one round with K drafts, by enumeration of drafts, coins and next tokens."""
    law = {}
    for draft in itertools.product(range(V), repeat=K):
        before = [prefix + draft[:k] for k in range(K + 1)]
        q = [drafter.law(context) for context in before[:K]]
        p = [target.law(context) for context in before]
        chance = 1.0
        for k in range(K):
            chance *= float(q[k][draft[k]])
        p_at = torch.stack([p[k][draft[k]] for k in range(K)]) if K else torch.zeros(0, dtype=torch.float64)
        q_at = torch.stack([q[k][draft[k]] for k in range(K)]) if K else torch.zeros(0, dtype=torch.float64)
        accept = acceptance(p_at, q_at)
        for n in range(K + 1):
            weight = chance * pass_probability(accept, n)
            following = p[K] if n == K else residual(p[n], q[n])
            for token in range(V):
                emitted = (*draft[:n], token)
                law[emitted] = law.get(emitted, 0.0) + weight * float(following[token])
    return law


def decoded_law(target, drafter, acceptance, K, length, prefix=()):
    """(V,) * length law of the first tokens of an answer that is decoded round after round."""
    law = torch.zeros((V,) * length, dtype=torch.float64)
    for emitted, chance in round_law(target, drafter, acceptance, K, prefix).items():
        kept = emitted[:length]
        if len(kept) == length:
            law[kept] += chance
        else:
            law[kept] += chance * decoded_law(target, drafter, acceptance, K, length - len(kept), prefix + kept)
    return law


def model_law(law_of, length):
    law = torch.ones((V,) * length, dtype=torch.float64)
    for tokens in itertools.product(range(V), repeat=length):
        for k in range(length):
            law[tokens] *= law_of(tokens[:k])[tokens[k]]
    return law


@pytest.mark.parametrize("K", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_three_tokens_follow_the_target_under_the_exact_rule(K, seed):
    target, drafter = Table(seed), Table(seed + 50)
    law = decoded_law(target, drafter, lambda p, q: ensemble_acceptance(p, q, 1.0), K, length=3)
    torch.testing.assert_close(law, model_law(target.law, 3))


@pytest.mark.parametrize("target_weight", [0.3, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_static_rule_follows_the_mixture_until_the_bonus_token(seed, target_weight):
    """With K = 2 the first two tokens of a round are judged, and the third is the target's own."""
    target, drafter = Table(seed), Table(seed + 50)
    law = round_law(target, drafter, lambda p, q: ensemble_acceptance(p, q, target_weight), 2)

    def mixture(prefix):
        both = torch.stack([target.law(prefix)] * 2)
        return mix(both, drafter.law(prefix)[None], target_weight)[0]

    first, pairs = torch.zeros(V, dtype=torch.float64), torch.zeros(V, V, V, dtype=torch.float64)
    ends = torch.zeros(V, V, dtype=torch.float64)
    for emitted, chance in law.items():
        first[emitted[0]] += chance
        if len(emitted) == 3:
            pairs[emitted] += chance
        if len(emitted) == 2:
            ends[emitted] += chance
    torch.testing.assert_close(first, mixture(()), atol=1e-6, rtol=0)
    # Rounds of two tokens or more, seen at their second token: the first one passed, the second follows the mixture.
    second = ends + pairs.sum(-1)
    for token in range(V):
        torch.testing.assert_close(second[token] / second[token].sum(), mixture((token,)), atol=1e-6, rtol=0)
    for tokens in itertools.product(range(V), repeat=2):
        bonus = pairs[tokens] / pairs[tokens].sum()
        torch.testing.assert_close(bonus, target.law(tokens), atol=1e-6, rtol=0)


def test_one_draft_round_by_hand():
    """p = (.6, .4), q = (.2, .8): draft 1 passes half the time, and draft 0 replaces it otherwise."""
    accept = torch.tensor([[0.5]])
    assert accepted_lengths(accept, torch.tensor([[0.4999]]), torch.tensor([1])) == 1
    assert accepted_lengths(accept, torch.tensor([[0.5]]), torch.tensor([1])) == 0
    assert residual(torch.tensor([0.6, 0.4]), torch.tensor([0.2, 0.8])).tolist() == [1, 0]


def test_a_coin_of_zero_never_passes_probability_zero():
    lengths = accepted_lengths(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([3, 3]))
    assert lengths.tolist() == [0, 0]


def test_certain_drafts_pass_the_largest_coin():
    largest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    assert accepted_lengths(torch.ones(1, 4), largest.expand(1, 4), torch.tensor([4])) == 4


def test_padding_never_counts():
    accept, coins = torch.ones(4, 3), torch.zeros(4, 3)
    assert accepted_lengths(accept, coins, torch.tensor([0, 1, 2, 3])).tolist() == [0, 1, 2, 3]


def test_a_rejection_ends_the_row_and_no_other():
    accept = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    assert accepted_lengths(accept, torch.full((3, 3), 0.5), torch.tensor([3, 3, 3])).tolist() == [1, 2, 0]


def test_no_drafts_at_all():
    assert accepted_lengths(torch.zeros(2, 0), torch.zeros(2, 0), torch.tensor([0, 0])).tolist() == [0, 0]


ACCEPTANCES = {
    "exact": lambda p, q: ensemble_acceptance(p, q, 1.0),
    "static": lambda p, q: ensemble_acceptance(p, q, 0.3),
    "lossy": lambda p, q: lossy_acceptance(p, q, 0.5),
}


@pytest.mark.parametrize("rule", ACCEPTANCES)
@pytest.mark.parametrize("seed", range(40))
def test_plain_reference_agrees_with_the_batched_functions(rule, seed):
    """Same coins: the same length, and a next token that the residual or the target allows."""
    K, size = 4, 11
    generator = torch.Generator().manual_seed(seed)
    draft_probs = torch.randn(K, size, generator=generator).softmax(-1)
    target_probs = (torch.randn(K + 1, size, generator=generator) + 0.5).softmax(-1)
    target_probs[:, 3] = 0
    target_probs /= target_probs.sum(-1, keepdim=True)
    draft_ids = torch.multinomial(draft_probs, 1, generator=generator)

    verdict = verify(draft_ids[:, 0], draft_probs, target_probs, ACCEPTANCES[rule], torch.Generator().manual_seed(seed))

    coins = torch.rand(1, K, generator=torch.Generator().manual_seed(seed))
    accept = ACCEPTANCES[rule](target_probs[:K].gather(1, draft_ids), draft_probs.gather(1, draft_ids)).view(1, K)
    length = int(accepted_lengths(accept, coins, torch.tensor([K])))
    by_hand = next((k for k in range(K) if coins[0, k] >= accept[0, k]), K)
    assert verdict.num_accepted == length == by_hand
    law = target_probs[K] if length == K else residual(target_probs[length], draft_probs[length])
    assert law[verdict.next_id] > 0


def test_plain_reference_samples_the_target_s_law():
    """One draft: 4,000 seeded rounds, chi-square of the first token against the target (5 degrees of freedom)."""
    target = torch.tensor([0.05, 0.3, 0.1, 0.25, 0.2, 0.1])
    draft = torch.tensor([0.4, 0.05, 0.1, 0.1, 0.3, 0.05])
    generator, counts, rounds = torch.Generator().manual_seed(5), torch.zeros(6), 4000
    for _ in range(rounds):
        ids = torch.multinomial(draft, 1, generator=generator)
        verdict = verify(ids, draft[None], torch.stack([target, target]), ACCEPTANCES["exact"], generator)
        counts[int(ids) if verdict.num_accepted else verdict.next_id] += 1
    statistic = ((counts - rounds * target) ** 2 / (rounds * target)).sum()
    assert statistic < 20.5  # 0.1 % quantile


def test_plain_reference_refuses_a_draft_nobody_can_draw():
    with pytest.raises(ValueError, match=r"draft_ids \[1\] hold a token of draft probability 0"):
        verify(
            torch.tensor([1]),
            torch.tensor([[1.0, 0.0]]),
            torch.full((2, 2), 0.5),
            ACCEPTANCES["exact"],
            torch.Generator(),
        )


@pytest.mark.parametrize("seed", range(30))
def test_greedy_reference_emits_the_target_s_argmax(seed):
    """With one-hot rows on both sides the text is the target's own."""
    K, size = 3, 5
    target_ids = torch.randint(size, (K + 1,), generator=torch.Generator().manual_seed(seed))
    draft_ids = torch.where(torch.rand(K, generator=torch.Generator().manual_seed(seed)) < 0.7, target_ids[:K], 0)
    eye = torch.eye(size)
    verdict = verify(draft_ids, eye[draft_ids], eye[target_ids], ACCEPTANCES["exact"], torch.Generator())
    emitted = [*draft_ids[: verdict.num_accepted].tolist(), verdict.next_id]
    assert emitted == target_ids[: len(emitted)].tolist()
    assert len(emitted) > next((k for k in range(K) if draft_ids[k] != target_ids[k]), K)
