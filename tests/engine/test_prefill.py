"""Prompts read in pieces and beginnings read once leave what one plain pass over each prompt leaves."""

import pytest
import torch
from toys import DRAFTERS, answers, prompts_of, toy_pair

from explorer.engine import prefill
from explorer.engine.prefill import read_prompts

SHARED = [4, 9, 0, 17, 3, 8, 2]
PROMPTS = [[*SHARED, *rest] for rest in ([1, 5, 6], [2], [7, 7, 7, 7, 7, 3, 1], [1, 5, 9])]


@pytest.fixture(params=[1, 3, 8, 1024])
def tokens_at_once(request, monkeypatch):
    monkeypatch.setattr(prefill, "TOKENS_AT_ONCE", request.param)


def padded(prompts):
    ids = torch.zeros(len(prompts), max(map(len, prompts)) + 3, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    return ids, torch.tensor([len(prompt) for prompt in prompts])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], prompts_of((3, 9, 1)), [[5], [6]]], ids=len)
def test_cache_and_states_are_those_of_plain_passes(tokens_at_once, kind, prompts):
    target = toy_pair(kind).target
    ids, lengths = padded(prompts)
    cache = target.new_cache(ids.shape[1])
    with torch.inference_mode():
        features = read_prompts(target, cache, ids, lengths, (1, 2))
        for row, prompt in enumerate(prompts):
            output = target.model(torch.tensor([prompt]), output_hidden_states=True)
            expected = torch.cat([output.hidden_states[1], output.hidden_states[2]], dim=-1)[0, :-1]
            if len(prompt) > 1:
                torch.testing.assert_close(features[row, : len(prompt) - 1], expected, atol=1e-4, rtol=1e-4)
        last = ids.gather(1, lengths.unsqueeze(1) - 1)
        found = target.forward(last, cache, lengths - 1, keep=1).logits[:, 0]
        for row, prompt in enumerate(prompts):
            plain = target.model(torch.tensor([prompt])).logits[0, -1, : target.vocab_size]
            torch.testing.assert_close(found[row], plain, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_are_those_of_each_prompt_alone(tokens_at_once, drafter):
    pair = toy_pair("llama", drafter)
    settings = {"max_new_tokens": 14, "draft_length": 3}
    together = answers(pair, PROMPTS, **settings)
    assert together == [answers(pair, [prompt], **settings)[0] for prompt in PROMPTS]


def test_what_prompts_share_is_read_once(monkeypatch):
    target = toy_pair("llama").target
    seen, forward = [], target.forward
    target.forward = lambda ids, *a, **k: seen.append(tuple(ids.shape)) or forward(ids, *a, **k)
    ids, lengths = padded(PROMPTS)
    with torch.inference_mode():
        assert read_prompts(target, target.new_cache(ids.shape[1]), ids, lengths, ()) is None
    # The second prompt has one token of its own, which opens the first round and is not read here.
    assert seen == [(1, len(SHARED)), (4, 6)]


def test_nothing_to_read():
    target = toy_pair("llama").target
    ids, lengths = padded([[3], [4]])
    assert read_prompts(target, target.new_cache(8), ids, lengths, (1,)) is None
