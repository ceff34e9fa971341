"""The same pair through transformers' own assisted generation: an independent implementation of two of our rules."""

import copy

import pytest
import torch
from toys import answers, language_model, perturbed, prompts_of, run, toy_pair

from explorer.engine.drafters import ModelDrafter
from explorer.engine.loading import load_model
from explorer.engine.metrics import count
from explorer.engine.models import LanguageModel
from explorer.engine.pair import ModelPair, encode_chat


def assisted(
    pair: ModelPair, prompt: list[int], max_new_tokens: int, draft_length: int, weight: float | None
) -> list[int]:
    """What `generate` writes with the drafter as its assistant, `draft_length` drafts in every round."""
    drafter = pair.drafter.model.model
    settings = drafter.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = draft_length, "constant"
    settings.assistant_confidence_threshold = 0
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = pair.target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=drafter,
            assistant_ensemble_weight=weight,
            do_sample=False,
            max_new_tokens=max_new_tokens,
        )
    return output[0, len(prompt) :].tolist()


def compare(
    pair: ModelPair, prompts: list[list[int]], max_new_tokens: int, *, draft_length: int = 4, weights=(None, 0.3, 0.7)
) -> dict:
    """Our texts by weight, each equal to transformers' own."""
    found = {}
    for weight in weights:
        rule = {"rule": "exact"} if weight is None else {"rule": "static", "target_weight": weight}
        found[weight] = answers(pair, prompts, **rule, draft_length=draft_length, max_new_tokens=max_new_tokens)
        for prompt, ours in zip(prompts, found[weight], strict=True):
            assert ours == assisted(pair, prompt, max_new_tokens, draft_length, weight), (weight, prompt)
    return found


PROMPTS = prompts_of((2, 9, 30, 5, 17))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2_moe"])
def test_random_models(kind):
    pair = toy_pair(kind)
    found = compare(pair, PROMPTS, 16)
    assert found[None] == answers(pair, PROMPTS, rule="ar", max_new_tokens=16)
    assert found[None] != found[0.7] != found[0.3], "the weight must matter here"


def test_random_models_that_end():
    """An end token inside, at the edge of and after a run of drafts."""
    texts = answers(toy_pair("llama"), PROMPTS, rule="ar", max_new_tokens=20)
    ends = [texts[0][3], texts[1][4], texts[2][11]]
    networks = [copy.deepcopy(model.model) for model in (toy_pair("llama").target, toy_pair("llama").drafter.model)]
    for network in networks:
        network.generation_config.eos_token_id = ends
        network.generation_config.pad_token_id = ends[0]
    target, drafter = (language_model(network, end_ids=tuple(ends)) for network in networks)
    found = compare(ModelPair(target, ModelDrafter(drafter)), PROMPTS, 20)
    assert any(len(text) < 20 for text in found[None])


SUBJECTS = (
    "the sky is blue", "bread rises", "ships float", "cats purr", "leaves fall", "ice melts",
    "planes fly", "we dream", "salt tastes", "rivers bend", "clocks tick", "glass breaks",
)  # fmt: skip
QUESTIONS = [
    f"{ask} {subject}?" for subject in SUBJECTS for ask in ("Why do people say that", "List three reasons why")
]


# How far the copy is off, in spreads of each weight: it gets about half of its drafts accepted.
AMOUNT = 0.1


@pytest.fixture(scope="module")
def default_pair(default_weights) -> ModelPair:
    """The default target in float32, and a copy of it that is a little off."""
    target = load_model(default_weights, "float32")
    twin = LanguageModel("twin", perturbed(target.model, AMOUNT), target.tokenizer, "float32")
    return ModelPair(target, ModelDrafter(twin))


@pytest.mark.weights
@pytest.mark.parametrize(
    ("weight", "number"),
    [(0.7, 4), *(pytest.param(weight, 24, marks=pytest.mark.slow) for weight in (None, 0.3, 0.7))],
)
def test_the_default_target(default_pair, weight, number):
    """The texts are short, because transformers takes one prompt at a time."""
    prompts = [encode_chat(default_pair.target, question) for question in QUESTIONS[:number]]
    assert len(prompts) == number
    ((_, texts),) = compare(default_pair, prompts, 12, draft_length=2, weights=(weight,)).items()
    if number < 24:
        return
    if weight is None:
        events = run(default_pair, prompts, draft_length=2, max_new_tokens=12)
        assert 0.4 < count(events).tested_rate < 0.75
    else:
        assert texts != answers(default_pair, prompts, draft_length=2, max_new_tokens=12)
