"""Rollouts come from the verifier's law, and what they remember is what plain passes say."""

import itertools
from collections import Counter

import pytest
import torch
from enumeration import chi_square_p
from toys import prompts_of, toy_pair

from explorer.engine.config import DecodeConfig
from explorer.engine.pair import ModelPair
from explorer.engine.rollout import sample_rollouts
from explorer.errors import ModelPairError, SettingError
from explorer.heads.ensemble import EnsembleHead, law_figures

TEMPERATURE = 0.9


def pair_of(vocab_kind="llama", inputs="both", seed=2):
    pair = toy_pair(vocab_kind, seed=seed)
    head = EnsembleHead(pair.drafter.hidden_size, pair.target.hidden_size, inputs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in (head.state_weight, head.figure_weight):
            part.copy_(torch.randn(len(part), generator=generator) * 0.3)
        head.bias.fill_(0.4)
    return ModelPair(pair.target, pair.drafter, head)


def sample(pair, prompts, seed=0, **settings):
    config = DecodeConfig(**{"rule": "dynamic", "temperature": TEMPERATURE, "max_new_tokens": 12} | settings)
    return sample_rollouts(pair, prompts, config, torch.Generator().manual_seed(seed))


def plain(pair, text):
    """Target's and drafter's law after a text, and the head's weight there, from passes without a cache."""
    states, laws = [], []
    for model in (pair.drafter.model, pair.target):
        with torch.no_grad():
            output = model.model(torch.tensor([text]), output_hidden_states=True)
        states.append(output.hidden_states[-1][0, -1])
        laws.append((output.logits[0, -1] / TEMPERATURE).softmax(-1))
    drafter, target = laws
    inputs = pair.ensemble.gather(*states, law_figures(target, drafter))
    with torch.no_grad():
        return target, drafter, float(pair.ensemble(inputs)), inputs


@pytest.mark.parametrize("draft_length", [1, 2, 5])
@pytest.mark.parametrize("inputs", ["states", "figures", "both"])
def test_what_is_remembered_is_what_plain_passes_say(draft_length, inputs):
    pair, prompts = pair_of(inputs=inputs), prompts_of((3, 8, 1, 5))
    rollouts = sample(pair, prompts, draft_length=draft_length)
    num_judged = 0
    for prompt, rollout in zip(prompts, rollouts, strict=True):
        assert len(rollout.ids) == 12
        assert rollout.places == sorted(set(rollout.places))
        logprob, judged = 0.0, dict(zip(rollout.places, range(len(rollout.places)), strict=True))
        for place, token in enumerate(rollout.ids):
            target, drafter, weight, seen = plain(pair, [*prompt, *rollout.ids[:place]])
            logprob += float(target[token].log())
            if place in judged:
                verifier = weight * target[token] + (1 - weight) * drafter[token]
                distance = 1 - torch.minimum(target, drafter).sum()
                expected = torch.stack([target[token], drafter[token], verifier, distance, torch.tensor(weight)])
                torch.testing.assert_close(rollout.numbers[judged[place]], expected, atol=2e-4, rtol=2e-3)
                torch.testing.assert_close(rollout.inputs[judged[place]], seen, atol=2e-3, rtol=2e-3)
                num_judged += 1
        assert rollout.logprob == pytest.approx(logprob, abs=2e-2)
    # Only the last token of an answer, for which nothing can be drafted, comes from the target alone.
    assert num_judged >= 4 * 10


def test_answers_follow_the_law_of_the_verifier():
    """Two tokens of 4,000 rows against nu(x) nu(y | x) of plain passes."""
    pair, prompt, rows = pair_of(), [3, 1, 4], 4000
    rollouts = sample(pair, [prompt] * rows, draft_length=2, max_new_tokens=3)
    counts = Counter(tuple(rollout.ids[:2]) for rollout in rollouts)
    law = {}
    size = pair.target.vocab_size
    target, drafter, weight, _ = plain(pair, prompt)
    first = weight * target + (1 - weight) * drafter
    for x in range(size):
        target, drafter, weight, _ = plain(pair, [*prompt, x])
        second = first[x] * (weight * target + (1 - weight) * drafter)
        law |= {(x, y): float(second[y]) for y in range(size)}
    assert sum(law.values()) == pytest.approx(1, abs=1e-4)
    assert chi_square_p(counts, law, rows) > 1e-4


def test_one_seed_one_batch():
    pair, prompts = pair_of(), prompts_of((3, 8))
    first, second, other = (sample(pair, prompts, seed=seed, draft_length=2) for seed in (1, 1, 2))
    assert [r.ids for r in first] == [r.ids for r in second] != [r.ids for r in other]
    for one, two in zip(first, second, strict=True):
        torch.testing.assert_close(one.numbers, two.numbers, rtol=0, atol=0)


def test_an_answer_ends_at_its_end_token():
    pair = toy_pair("llama", seed=2, end_ids=(5,))
    head = EnsembleHead(pair.drafter.hidden_size, pair.target.hidden_size, "states", 0.5)
    rollouts = sample(ModelPair(pair.target, pair.drafter, head), [[1, 2]] * 60, max_new_tokens=40, draft_length=3)
    ended = [rollout for rollout in rollouts if 5 in rollout.ids]
    assert ended
    for rollout in rollouts:
        assert rollout.ids.index(5) == len(rollout.ids) - 1 if 5 in rollout.ids else len(rollout.ids) == 40
        assert max(rollout.places, default=0) < len(rollout.ids)
        assert len(rollout.places) == len(rollout.inputs) == len(rollout.numbers)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"rule": "exact"}])
def test_settings_that_sample_no_rollouts(settings):
    with pytest.raises(SettingError, match="Rollouts are sampled"):
        sample(pair_of(), [[1, 2]], **settings)


def test_a_pair_without_a_head_is_refused():
    with pytest.raises(ModelPairError, match="needs a trained ensemble head"):
        sample(toy_pair("llama"), [[1, 2]])


def test_counts_are_those_of_the_drafts():
    rollouts = sample(pair_of(), prompts_of((3, 8, 2)), draft_length=3)
    for rollout in rollouts:
        assert rollout.num_accepted <= len(rollout.places) <= rollout.num_drafted + rollout.num_rounds
        assert rollout.num_rounds >= 4
    assert any(a.num_accepted != b.num_accepted for a, b in itertools.pairwise(rollouts))
