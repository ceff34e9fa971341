"""Laws of the rules by enumeration: sums over every draft, every outcome; nothing is sampled."""

import pytest
import torch

from explorer.rules.ensemble import acceptance as ensemble_acceptance
from explorer.rules.ensemble import mix
from explorer.rules.lossy import acceptance as lossy_acceptance
from explorer.rules.verify import residual

WEIGHTS = [0.0, 0.3, 0.7, 1.0]
LENIENCES = [0.25, 0.5, 1.0]
TINY = 1e-41  # subnormal in float32


def one_hot(index, size=4):
    return torch.eye(size)[index]


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


# (target, draft): what really happens at the edges of a softmax with top-k, top-p or temperature 0.
EDGES = {
    "equal": (rows(0.1, 0.2, 0.3, 0.4), rows(0.1, 0.2, 0.3, 0.4)),
    "disjoint": (rows(0.5, 0.5, 0.0, 0.0), rows(0.0, 0.0, 0.25, 0.75)),
    "zeros": (rows(0.0, 0.6, 0.4, 0.0), rows(0.5, 0.0, 0.2, 0.3)),
    "one-hot same": (one_hot(2), one_hot(2)),
    "one-hot other": (one_hot(0), one_hot(3)),
    "one-hot draft": (rows(0.1, 0.2, 0.3, 0.4), one_hot(1)),
    "one-hot target": (one_hot(1), rows(0.1, 0.2, 0.3, 0.4)),
    "subnormal draft": (rows(0.5, 0.25, 0.25, 0.0), rows(TINY, 0.5, 0.5, 0.0)),
    "subnormal target": (rows(TINY, 0.5, 0.5, 0.0), rows(0.5, 0.25, 0.25, 0.0)),
    "subnormal excess": (rows(TINY, 0.5, 0.5, 0.0), rows(0.0, 0.5, 0.5, 0.0)),
    "nearly equal": (rows(0.25, 0.25, 0.25, 0.25), rows(0.25 + 1e-7, 0.25, 0.25, 0.25 - 1e-7)),
}


def random_pair(seed, size=7):
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn(2, size, generator=generator).mul(2).softmax(-1)
    pair[torch.rand(2, size, generator=generator) < 0.2] = 0  # as top-k leaves it
    pair[:, 0] += 1e-3
    return tuple(pair / pair.sum(-1, keepdim=True))


PAIRS = [pytest.param(*pair, id=name) for name, pair in EDGES.items()]
PAIRS += [pytest.param(*random_pair(seed), id=f"random {seed}") for seed in range(20)]


def emitted_law(target, draft, acceptance):
    """(V,) float64 law of the token at one position, and (V,) acceptance of the tokens that can be drafted."""
    possible = draft > 0
    accept = torch.zeros_like(draft)
    accept[possible] = acceptance(target[possible], draft[possible])
    kept = draft.double() * accept
    return kept + (1 - kept.sum()).clamp(min=0) * residual(target, draft).double(), accept


@pytest.mark.parametrize("target_weight", WEIGHTS)
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_emitted_token_follows_the_verifier(target, draft, target_weight):
    verifier = mix(torch.stack([target, target]), draft[None], target_weight)[0]

    emitted, accept = emitted_law(target, draft, lambda p, q: ensemble_acceptance(p, q, target_weight))

    assert 0 <= accept.min() <= accept.max() <= 1
    torch.testing.assert_close(emitted.float(), verifier, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_exact_rule_emits_the_target(target, draft):
    """Without `mix`: the target's own row is what comes out."""
    emitted, _ = emitted_law(target, draft, lambda p, q: ensemble_acceptance(p, q, 1.0))
    torch.testing.assert_close(emitted.float(), target, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("target_weight", [0.3, 0.7, 1.0])
def test_residual_of_the_verifier_is_that_of_the_target(seed, target_weight):
    """The identity all rules share: norm(max(0, nu - q)) = norm(max(0, p - q)) for every w > 0."""
    target, draft = random_pair(seed)
    verifier = mix(torch.stack([target, target]), draft[None], target_weight)[0]
    torch.testing.assert_close(residual(verifier, draft), residual(target, draft), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("lenience", LENIENCES)
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_lossy_rule_stays_below_its_bound(target, draft, lenience):
    emitted, accept = emitted_law(target, draft, lambda p, q: lossy_acceptance(p, q, lenience))

    assert 0 <= accept.min() <= accept.max() <= 1
    assert (emitted <= target / lenience + 1e-6).all()
    torch.testing.assert_close(emitted.sum(), torch.tensor(1.0, dtype=torch.float64), atol=1e-6, rtol=0)
    if lenience == 1:
        torch.testing.assert_close(emitted.float(), target, atol=1e-6, rtol=1e-5)


def test_lossy_rule_keeps_more_with_less_lenience():
    target, draft = rows(0.2, 0.8), rows(0.8, 0.2)
    accept = [lossy_acceptance(target, draft, lenience)[0].item() for lenience in (1.0, 0.5, 0.25)]
    assert accept == pytest.approx([0.25, 0.5, 1.0])


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_residual_is_a_law_that_only_holds_the_target_s_tokens(target, draft):
    law = residual(target, draft)
    assert law.isfinite().all()
    assert (law >= 0).all()
    torch.testing.assert_close(law.sum(), torch.tensor(1.0), atol=1e-5, rtol=0)
    assert (law[target == 0] == 0).all()


def test_residual_of_equal_rows_is_the_target():
    law = rows(0.1, 0.2, 0.3, 0.4)
    assert torch.equal(residual(law, law.clone()), law)


def test_residual_works_on_batches_like_on_rows():
    target = torch.stack([pair[0] for pair in EDGES.values()])
    draft = torch.stack([pair[1] for pair in EDGES.values()])
    expected = torch.stack([residual(t, d) for t, d in EDGES.values()])
    assert torch.equal(residual(target, draft), expected)


def test_a_draft_the_target_never_says_is_never_accepted():
    assert ensemble_acceptance(torch.tensor(0.0), torch.tensor(0.5), 1.0) == 0
    assert lossy_acceptance(torch.tensor(0.0), torch.tensor(0.5), 0.25) == 0


def test_static_ensemble_accepts_with_the_formula_on_the_page():
    target, draft = torch.tensor(0.1), torch.tensor(0.4)
    assert ensemble_acceptance(target, draft, 0.7).item() == pytest.approx(1 - 0.7 + 0.7 * 0.1 / 0.4)
    assert ensemble_acceptance(target, draft, 0.0) == 1


@pytest.mark.parametrize("target_weight", [0.3, 0.7])
def test_price_of_the_static_ensemble(target_weight):
    """Rejection plus bias is TV(p, q), at (w TV, (1 - w) TV)."""
    for seed in range(10):
        target, draft = random_pair(seed)
        distance = 0.5 * (target - draft).abs().sum()
        emitted, accept = emitted_law(target, draft, lambda p, q: ensemble_acceptance(p, q, target_weight))
        rejected = 1 - (draft * accept).sum()
        bias = 0.5 * (emitted.float() - target).abs().sum()
        torch.testing.assert_close(rejected, target_weight * distance, atol=1e-5, rtol=0)
        torch.testing.assert_close(bias, (1 - target_weight) * distance, atol=1e-5, rtol=0)
