"""The dynamic rule: its weights come from the right states, and at a fixed weight it is the static rule."""

import math

import pytest
import torch
from toys import answers, prompts_of, run, toy_pair

from explorer.engine.drafters import NgramDrafter
from explorer.engine.hybrid import HybridDrafter
from explorer.engine.pair import ModelPair
from explorer.errors import ModelPairError
from explorer.heads.ensemble import EnsembleHead, law_figures

SETTINGS = {"max_new_tokens": 24, "draft_length": 3}
PROMPTS = prompts_of((3, 8, 1, 5))


@pytest.fixture(scope="module")
def pair():
    return toy_pair("llama", seed=2)


def head_for(pair, inputs="states", seed=0, bias=0.3):
    head = EnsembleHead(pair.drafter.hidden_size, pair.target.hidden_size, inputs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in (head.state_weight, head.figure_weight):
            part.copy_(torch.randn(len(part), generator=generator) * 0.3)
        head.mean.copy_(torch.randn(len(head.weight), generator=generator) * 0.1)
        head.bias.fill_(bias)
    return head


class Constant(EnsembleHead):
    """Says one number, even 0 or 1."""

    def __init__(self, pair, value):
        super().__init__(pair.drafter.hidden_size, pair.target.hidden_size, "states")
        self.value = value

    def forward(self, inputs):
        return torch.full(inputs.shape[:-1], self.value)


def fates(events):
    return [(event.row, event.draft_ids, event.num_accepted, event.next_id) for event in events]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.35, 1.0])
def test_at_a_fixed_weight_it_is_the_static_rule(pair, temperature, weight):
    dynamic = ModelPair(pair.target, pair.drafter, Constant(pair, weight))
    settings = SETTINGS | {"temperature": temperature, "seed": 5}
    ours = run(dynamic, PROMPTS, rule="dynamic", **settings)
    static = run(pair, PROMPTS, rule="static", target_weight=weight, **settings)
    assert fates(ours) == fates(static)


def test_at_weight_one_greedy_text_is_the_target_s(pair):
    dynamic = ModelPair(pair.target, pair.drafter, Constant(pair, 1.0))
    assert answers(dynamic, PROMPTS, rule="dynamic", **SETTINGS) == answers(pair, PROMPTS, rule="ar", **SETTINGS)


@pytest.mark.parametrize("inputs", ["states", "figures", "both"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_weights_are_the_head_s_on_the_states_before_each_judged_token(pair, inputs, temperature):
    """Every weight of a trace against plain passes of both models over the text it was judged after."""
    head = head_for(pair, inputs)
    events = run(
        ModelPair(pair.target, pair.drafter, head),
        PROMPTS,
        rule="dynamic",
        details=True,
        temperature=temperature,
        **SETTINGS,
    )
    texts, seen = [list(prompt) for prompt in PROMPTS], 0
    for event in events:
        text = texts[event.row]
        for position, token in enumerate(event.details[: len(event.draft_ids)]):
            expected = plain_weight(pair, head, text + list(event.draft_ids[:position]), temperature)
            assert token.target_weight == pytest.approx(expected, abs=2e-4)
            seen += 1
        text += event.emitted_ids
    assert seen > 60


def plain_weight(pair, head, text, temperature):
    states, laws = [], []
    for model in (pair.drafter.model, pair.target):
        with torch.no_grad():
            output = model.model(torch.tensor([text]), output_hidden_states=True)
        states.append(output.hidden_states[-1][0, -1])
        laws.append((output.logits[0, -1] / (temperature or 1.0)).softmax(-1))
    figures = law_figures(laws[1], laws[0])
    chosen = {"states": states, "figures": [figures], "both": [*states, figures]}[head.inputs]
    standard = (torch.cat(chosen) - head.mean) * head.scale
    return 1 / (1 + math.exp(-max(-6.0, min(6.0, (standard @ head.weight + head.bias).item()))))


def test_law_figures_by_hand():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5])
    found = law_figures(p, q)
    assert found.tolist() == pytest.approx([math.log(2), 1.5 * math.log(2), 0.5, 0.5, 0.5])


def test_a_head_starts_where_it_is_told_and_standardises():
    head = EnsembleHead(2, 3, "both", start=0.95)
    inputs = torch.randn(50, 10) * 7 + 3
    assert head(inputs).tolist() == pytest.approx([0.95] * 50)
    head.standardise(inputs.mean(0), inputs.std(0))
    standard = (inputs - head.mean) * head.scale
    torch.testing.assert_close(standard.mean(0), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(standard.std(0), torch.ones(10))


def test_what_it_cannot_do_without(pair):
    with pytest.raises(ModelPairError, match="needs a trained ensemble head"):
        run(pair, PROMPTS, rule="dynamic", **SETTINGS)
    head = head_for(pair)
    for drafter in (NgramDrafter(), HybridDrafter(pair.drafter)):
        with pytest.raises(ModelPairError, match="has none"):
            run(ModelPair(pair.target, drafter, head), PROMPTS, rule="dynamic", **SETTINGS)
    other = EnsembleHead(pair.drafter.hidden_size + 1, pair.target.hidden_size)
    with pytest.raises(ModelPairError, match="Choose the drafter it was trained with"):
        run(ModelPair(pair.target, pair.drafter, other), PROMPTS, rule="dynamic", **SETTINGS)
