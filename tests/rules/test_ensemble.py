"""The mixture itself, and the greedy rules."""

import pytest
import torch

from explorer.rules import RULES
from explorer.rules.ensemble import greedy as ensemble_greedy
from explorer.rules.ensemble import mix
from explorer.rules.lossy import greedy as lossy_greedy

TARGET = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
DRAFT = torch.tensor([[0.1, 0.8, 0.1], [0.6, 0.2, 0.2]])


@pytest.mark.parametrize("target_weight", [0.0, 0.25, 1.0])
def test_mix_is_w_p_plus_the_rest_of_q(target_weight):
    mixed = mix(TARGET, DRAFT, target_weight)
    torch.testing.assert_close(mixed[:2], target_weight * TARGET[:2] + (1 - target_weight) * DRAFT)
    torch.testing.assert_close(mixed.sum(-1), torch.ones(3))


def test_bonus_row_is_the_target_s_own():
    assert torch.equal(mix(TARGET, DRAFT, 0.25)[2], TARGET[2])


def test_one_weight_per_position():
    mixed = mix(TARGET, DRAFT, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(mixed[0], DRAFT[0])
    torch.testing.assert_close(mixed[1], TARGET[1])


def test_mix_without_drafts():
    assert torch.equal(mix(TARGET[:1], DRAFT[:0], 0.5), TARGET[:1])


@pytest.mark.parametrize("target_weight", [-0.1, 1.1, float("nan"), torch.tensor([0.5, 2.0])])
def test_weight_outside_its_range_is_refused(target_weight):
    with pytest.raises(ValueError, match=r"target_weight spans \[.*\]; it must stay in \[0, 1\]"):
        mix(TARGET, DRAFT, target_weight)


def test_greedy_ensemble_at_its_ends():
    assert ensemble_greedy(TARGET[:2], DRAFT, 1.0).tolist() == [0, 2]
    assert ensemble_greedy(TARGET[:2], DRAFT, 0.0).tolist() == [1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_ensemble_is_the_argmax_of_the_mixture(seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(5, 9, generator=generator).softmax(-1)
    draft = torch.randn(5, 9, generator=generator).softmax(-1)
    expected = [int((0.3 * target[k] + 0.7 * draft[k]).argmax()) for k in range(5)]
    assert ensemble_greedy(target, draft, 0.3).tolist() == expected


def test_greedy_ensemble_at_weight_one_keeps_ties_of_the_target():
    """A tie must fall as the target's argmax alone lets it fall, whatever the drafter thinks."""
    tied = torch.tensor([[0.4, 0.4, 0.2]])
    assert ensemble_greedy(tied, torch.tensor([[0.0, 0.9, 0.1]]), 1.0).tolist() == tied.argmax(-1).tolist()


def test_greedy_ensemble_takes_one_weight_per_position():
    weights = torch.tensor([[1.0], [0.0]])
    assert ensemble_greedy(TARGET[:2], DRAFT, weights).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("draft_id", "lenience", "kept"),
    [(1, 1.0, 0), (1, 0.6, 1), (1, 0.61, 0), (2, 0.4, 2), (0, 1.0, 0)],
)
def test_lossy_greedy_keeps_a_draft_close_to_the_best(draft_id, lenience, kept):
    assert lossy_greedy(TARGET[:1], torch.tensor([draft_id]), lenience).tolist() == [kept]


def test_lossy_greedy_at_one_is_the_argmax():
    drafts = torch.tensor([2, 0])
    assert lossy_greedy(TARGET[:2], drafts, 1.0).tolist() == [0, 2]


def test_rules_by_name():
    assert list(RULES) == ["ar", "exact", "lossy", "static", "dynamic"]
