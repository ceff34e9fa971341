"""The rule on a batch: rows of unequal drafts, the right row of logits, and edges."""

import pytest
import torch

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Draft
from explorer.engine.judge import judge, rule_weight
from explorer.errors import ModelPairError
from explorer.rules.verify import residual

V = 6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def one_hot_logits(choices):
    """(B, T, V) logits that leave one token possible."""
    return torch.full((*torch.tensor(choices).shape, V), -torch.inf).scatter_(2, torch.tensor(choices)[..., None], 0.0)


def random_round(B=1, K=3, seed=0):
    """Logits (B, K + 1, V) and a draft drawn from a random law."""
    probs = torch.randn(B, K, V, generator=generator(seed)).softmax(-1)
    ids = torch.multinomial(probs.view(-1, V), 1, generator=generator(seed)).view(B, K)
    logits = torch.randn(B, K + 1, V, generator=generator(seed + 1))
    return logits, Draft(ids=ids, lengths=torch.full((B,), K), probs=probs)


def decided(logits, draft, seed=0, **settings):
    config = DecodeConfig(**settings)
    judged = judge(logits, draft, rule_weight(config, draft), config, generator(seed))
    return judged.num_accepted.tolist(), judged.next_ids.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("drafted", "accepted", "following"),
    [([1, 2, 3], 3, 4), ([1, 2, 0], 2, 3), ([1, 0, 3], 1, 2), ([0, 2, 3], 0, 1)],
)
def test_each_draft_is_judged_by_its_own_row(drafted, accepted, following, temperature):
    logits = one_hot_logits([[1, 2, 3, 4]])
    draft = Draft(ids=torch.tensor([drafted]), lengths=torch.tensor([3]))
    assert decided(logits, draft, temperature=temperature) == ([accepted], [following])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_shorter_rows_end_with_their_own_bonus(temperature):
    """Padding (token 0 here, and right by chance) is never accepted; the bonus comes from the row after the drafts."""
    logits = one_hot_logits([[1, 2, 0, 4], [1, 0, 0, 4], [5, 0, 0, 0], [1, 2, 3, 4]])
    draft = Draft(ids=torch.tensor([[1, 2, 0], [1, 0, 0], [0, 0, 0], [1, 2, 3]]), lengths=torch.tensor([2, 1, 0, 3]))
    assert decided(logits, draft, temperature=temperature) == ([2, 1, 0, 3], [0, 0, 5, 4])


@pytest.mark.parametrize("rule", ["exact", "static", "lossy"])
def test_nothing_drafted_is_plain_decoding(rule):
    logits = one_hot_logits([[2], [3]])
    draft = Draft(ids=torch.zeros(2, 0, dtype=torch.long), lengths=torch.zeros(2, dtype=torch.long))
    for temperature in (0.0, 1.0):
        assert decided(logits, draft, rule=rule, temperature=temperature) == ([0, 0], [2, 3])


@pytest.mark.parametrize("rule", ["exact", "static", "lossy"])
def test_acceptance_probabilities_by_their_formulas(rule):
    logits, draft = random_round(B=4)
    config = DecodeConfig(rule=rule, target_weight=0.3, lenience=0.5, temperature=0.7)
    judged = judge(logits, draft, rule_weight(config, draft), config, generator())
    p = (logits / 0.7).softmax(-1)
    torch.testing.assert_close(judged.target_probs, p)
    for b in range(4):
        for j in range(3):
            x = int(draft.ids[b, j])
            ratio = float(p[b, j, x] / draft.probs[b, j, x])
            expected = {"exact": ratio, "static": 0.7 + 0.3 * ratio, "lossy": ratio / 0.5}[rule]
            assert float(judged.accept_probs[b, j]) == pytest.approx(min(1, expected), rel=1e-5)
        passed = (judged.coins[b] < judged.accept_probs[b]).tolist()
        assert int(judged.num_accepted[b]) == ([*passed, False]).index(False)
    assert judged.coins.unique().numel() == judged.coins.numel()


def test_the_replacement_comes_from_the_rejected_position():
    """Law of the token after the kept drafts, by counting, against the residual of that very row."""
    B = 40_000
    logits, draft = random_round(K=3, seed=4)
    many = Draft(ids=draft.ids.expand(B, -1), lengths=draft.lengths.expand(B), probs=draft.probs.expand(B, -1, -1))
    config = DecodeConfig(temperature=1.0)
    judged = judge(logits.expand(B, -1, -1), many, rule_weight(config, many), config, generator())
    p = logits[0].softmax(-1)
    for place in range(4):
        law = residual(p[place], draft.probs[0, place]) if place < 3 else p[3]
        drawn = judged.next_ids[judged.num_accepted == place]
        if len(drawn) > 500:
            share = torch.bincount(drawn, minlength=V) / len(drawn)
            assert (share - law).abs().max() < 4 * (0.25 / len(drawn)) ** 0.5
    assert (judged.num_accepted == 0).sum() > 500
    assert (judged.num_accepted == 3).sum() > 500


def test_a_weight_per_position():
    """What the dynamic rule will bring: w = 0 keeps, w = 1 is exact, each position by its own."""
    logits = one_hot_logits([[1, 1, 1]])
    draft = Draft(ids=torch.tensor([[2, 2]]), lengths=torch.tensor([2]))
    for temperature in (0.0, 1.0):
        config = DecodeConfig(rule="static", temperature=temperature)
        for weight, accepted in (([0.0, 1.0], 1), ([1.0, 0.0], 0), ([0.0, 0.0], 2)):
            judged = judge(logits, draft, torch.tensor([weight]), config, generator())
            assert judged.num_accepted.tolist() == [accepted]
            assert judged.next_ids.tolist() == [1]


@pytest.mark.parametrize("with_probs", [False, True])
@pytest.mark.parametrize("settings", [{}, {"rule": "lossy", "lenience": 1.0}, {"rule": "static", "target_weight": 1.0}])
def test_logits_that_softmax_rounds_to_a_tie_keep_their_argmax(settings, with_probs):
    """Token 1 is one ulp better than token 0, which no probability shows. The text is still the target's."""
    high = torch.tensor(20.0)
    logits = torch.zeros(1, 2, V)
    logits[..., 0], logits[..., 1] = high, torch.nextafter(high, torch.tensor(30.0))
    law = logits.softmax(-1)[0, 0]
    draft = Draft(ids=torch.tensor([[0]]), lengths=torch.tensor([1]), probs=law.view(1, 1, V))
    config = DecodeConfig(**settings)
    judged = judge(logits, draft, rule_weight(config, draft), config, generator(), with_probs=with_probs)
    assert (judged.num_accepted.tolist(), judged.next_ids.tolist()) == ([0], [1])
    assert (judged.target_probs is not None) == with_probs


@pytest.mark.parametrize("rule", ["exact", "static", "lossy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_no_numbers_are_refused(rule, temperature, bad):
    logits, draft = random_round(B=2)
    if bad == -torch.inf:
        logits[1, 2] = bad
    else:
        logits[1, 2, 3] = bad
    with pytest.raises(ModelPairError, match="logits that are not numbers"):
        decided(logits, draft, rule=rule, temperature=temperature)


def test_weights_of_the_rules():
    _, draft = random_round(B=2)
    assert rule_weight(DecodeConfig(), draft).unique().tolist() == [1]
    torch.testing.assert_close(
        rule_weight(DecodeConfig(rule="static", target_weight=0.3), draft), torch.full((2, 3), 0.3)
    )
    assert rule_weight(DecodeConfig(rule="lossy"), draft) is None


def test_a_seed_decides():
    logits, draft = random_round(B=50)
    outcomes = [decided(logits, draft, seed=seed, temperature=1.0) for seed in (1, 1, 2)]
    assert outcomes[0] == outcomes[1] != outcomes[2]
