"""What an event says about its tokens, recomputed from the models' own laws."""

import math

import pytest
import torch
from toys import (
    DRAFTERS,
    ScriptDrafter,
    byte_tokenizer,
    language_model,
    plain_law,
    prompts_of,
    random_network,
    run,
    table_model,
    toy_pair,
)

from explorer.engine.describe import TOP
from explorer.engine.drafters import ModelDrafter
from explorer.engine.events import Finish, TokenFate
from explorer.engine.pair import ModelPair
from explorer.engine.text import TextReader

PROMPTS = [*prompts_of((5, 2)), [3, 4, 5, 3, 4]]
SETTINGS = {"draft_length": 3, "max_new_tokens": 10}
RULES = [{"rule": "exact"}, {"rule": "static", "target_weight": 0.4}, {"rule": "lossy", "lenience": 0.5}]


def replay(pair, prompts, events):
    """(event, draft position or K, detail, prefix) of every token described."""
    texts = [list(prompt) for prompt in prompts]
    for event in events:
        prefix = texts[event.row]
        for place, detail in enumerate(event.details):
            kept = event.num_accepted if place == len(event.draft_ids) else place
            yield event, place, detail, [*prefix, *event.draft_ids[:kept]]
        prefix += event.emitted_ids


def law_after(model, prefix, **sampling):
    with torch.inference_mode():
        return plain_law(model.model(torch.tensor([prefix])).logits[0, -1, : model.vocab_size], **sampling)


def draft_law_after(pair, event, place, prefix, **sampling):
    if pair.drafter.kind == "model":
        return law_after(pair.drafter.model, prefix, **sampling)
    return [float(i == event.draft_ids[place]) for i in range(pair.target.vocab_size)]


def close(expected):
    return pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 8}])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["rule"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_numbers_of_drafts(rule, sampling, drafter):
    pair = toy_pair("llama", drafter)
    events = run(pair, PROMPTS, details=True, **rule, **sampling, **SETTINGS)
    # At temperature 0 the laws shown are the untempered softmax.
    shown = {} if sampling["temperature"] == 0 else sampling
    seen = 0
    for event, place, detail, prefix in replay(pair, PROMPTS, events):
        if place == len(event.draft_ids):
            continue
        seen += 1
        token, fate = event.draft_ids[place], event.fates[place]
        p, q = law_after(pair.target, prefix, **shown), draft_law_after(pair, event, place, prefix, **shown)
        assert detail.target_prob == close(p[token])
        assert detail.draft_prob == close(q[token])
        assert detail.overlap == close(sum(map(min, p, q)))
        assert detail.overlap == close(1 - sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2)
        assert detail.target_entropy == pytest.approx(-sum(x * math.log(x) for x in p if x), abs=1e-3)
        assert detail.draft_entropy == pytest.approx(-sum(x * math.log(x) for x in q if x), abs=1e-3)
        assert detail.target_rank == 1 + sum(x > p[token] * (1 + 1e-4) for x in p)
        assert detail.draft_rank == 1 + sum(x > q[token] * (1 + 1e-4) for x in q)
        w = {"exact": 1.0, "static": 0.4, "lossy": None}[rule["rule"]]
        assert detail.target_weight == (w if w is None else pytest.approx(w))
        if sampling["temperature"]:
            ratio = detail.target_prob / detail.draft_prob
            expected = ratio / 0.5 if w is None else 1 - w + w * ratio
            assert detail.accept_prob == pytest.approx(min(1, expected), rel=1e-5)
            assert 0 <= detail.coin < 1
            if fate != TokenFate.DISCARDED:
                assert (detail.coin < detail.accept_prob) == (fate == TokenFate.ACCEPTED)
        else:
            assert detail.coin is None
            if fate != TokenFate.DISCARDED:
                assert detail.accept_prob == (fate == TokenFate.ACCEPTED)
        if w is not None:
            assert detail.verifier_prob == pytest.approx(w * detail.target_prob + (1 - w) * detail.draft_prob)
        check_top_of_draft(detail, p, q, w, token)
    assert seen > (20 if drafter == "model" else 2)


def check_top_of_draft(detail, p, q, w, token):
    ids = [entry.id for entry in detail.top]
    assert len(ids) == len(set(ids))
    assert token in ids
    for law in (p, q):
        best = sorted(law, reverse=True)[:TOP]
        assert {i for i, x in enumerate(law) if x > best[-1] * (1 + 1e-3)} <= set(ids)
    for entry in detail.top:
        assert entry.target_prob == close(p[entry.id])
        assert entry.draft_prob == close(q[entry.id])
        assert entry.prob == close(p[entry.id] if w is None else w * p[entry.id] + (1 - w) * q[entry.id])
    assert [entry.prob for entry in detail.top] == sorted((entry.prob for entry in detail.top), reverse=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["rule"])
def test_numbers_of_residual_and_bonus_tokens(rule, temperature):
    pair = toy_pair("llama")
    events = run(pair, prompts_of((5, 2, 12)), details=True, temperature=temperature, **rule, **SETTINGS)
    fates = set()
    for event, place, detail, prefix in replay(pair, prompts_of((5, 2, 12)), events):
        if place < len(event.draft_ids):
            continue
        fate = event.fates[-1]
        fates.add(fate)
        p = law_after(pair.target, prefix)
        law = p
        if fate == TokenFate.RESIDUAL:
            q = draft_law_after(pair, event, event.num_accepted, prefix)
            w = rule.get("target_weight", 1.0)
            if temperature:
                excess = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
                law = [x / sum(excess) for x in excess]
            elif rule["rule"] != "lossy":
                law = [w * a + (1 - w) * b for a, b in zip(p, q, strict=True)]
            assert detail.draft_prob == close(q[event.next_id])
        else:
            assert detail.draft_prob is None
        assert detail.verifier_prob == pytest.approx(law[event.next_id], abs=1e-3)
        assert detail.verifier_prob > 0
        assert detail.target_prob == close(p[event.next_id])
        assert detail.target_entropy == pytest.approx(-sum(x * math.log(x) for x in p if x), abs=1e-3)
        assert detail.target_rank == 1 + sum(x > p[event.next_id] * (1 + 1e-4) for x in p)
        assert (detail.accept_prob, detail.coin, detail.target_weight, detail.overlap) == (None,) * 4
        if temperature == 0:
            assert max(law) == pytest.approx(law[event.next_id], abs=1e-5)
        best = sorted(law, reverse=True)[:TOP]
        assert [entry.prob for entry in detail.top] == pytest.approx([x for x in best if x], abs=1e-3)
    assert fates == {TokenFate.RESIDUAL, TokenFate.BONUS}


def test_a_law_with_few_tokens_lists_only_those():
    table = torch.full((8, 8, 8), -torch.inf)
    table[..., 3], table[..., 5] = 0.0, 1.0
    pair = ModelPair(table_model(table), ScriptDrafter([[3] * 40]))
    event = run(pair, [[1]], details=True, temperature=1.0, draft_length=1, max_new_tokens=4)[0]
    assert {entry.id for entry in event.details[0].top} == {3, 5}
    assert all(entry.prob > 0 for entry in event.details[-1].top)


def test_identical_laws_overlap_fully():
    target = toy_pair("llama").target
    pair = ModelPair(target, ModelDrafter(target))
    for event in run(pair, PROMPTS, details=True, temperature=1.0, **SETTINGS):
        for detail in event.details[: len(event.draft_ids)]:
            assert detail.overlap == pytest.approx(1, abs=1e-4)


# Texts.


def byte_model():
    return language_model(random_network("llama", vocab=300), byte_tokenizer(), name="bytes")


def written(prompt, text, script, **settings):
    """Events of a model that writes `text` whatever it reads, drafted by `script` (same length or shorter)."""
    tokenizer = byte_tokenizer()
    ids, drafts, start = (tokenizer.encode(x, add_special_tokens=False) for x in (text, script, prompt))
    model = byte_model()

    def forward(inputs, cache, starts, *, keep, **_):
        positions = cache.at(starts, inputs.shape[1])[:, -keep:]
        wanted = torch.tensor([*start, *ids, *[0] * 99])[positions + 1]
        logits = torch.full((*wanted.shape, model.vocab_size), -5.0).scatter_(2, wanted.unsqueeze(2), 5.0)
        return type("Pass", (), {"logits": logits, "features": None, "last_hidden": None})()

    model.forward = forward
    pair = ModelPair(model, ScriptDrafter([[*start, *drafts]]))
    return run(pair, [start], details=True, max_new_tokens=len(ids), **settings), ids


def test_texts_of_drafts_that_split_a_character():
    """Each token's text is what it adds to the drafts before it, also where those are thrown away."""
    events, _ = written("say: ", "a😀日b", "a😀日b", draft_length=16)
    texts = [detail.text for event in events for detail in event.details]
    assert texts == ["a", "", "", "", "😀", "", "", "日", "b"]


def test_texts_after_a_rejection_inside_a_character():
    """The drafts begin another emoji; the replacement completes the right one."""
    events, ids = written("x", "😀!", "🍀!", draft_length=4)
    first = events[0]
    assert (first.num_accepted, first.draft_ids[2]) == (2, byte_tokenizer().encode("🍀")[2])
    assert [detail.text for detail in first.details] == ["", "", "", "🍀", ""]
    texts = [
        detail.text
        for event in events
        for detail, fate in zip(event.details, event.fates, strict=True)
        if fate not in (TokenFate.REJECTED, TokenFate.DISCARDED)
    ]
    assert "".join(texts) == "😀!" == byte_tokenizer().decode(ids)


@pytest.mark.parametrize("rule", ["ar", "exact"])
def test_emitted_texts_add_up_to_the_tokenizers_own(rule):
    text = "<b>bold</b> 👩‍👩‍👧 中文 `x` ${7*6} the end"
    events, ids = written("p: ", text, text[:20] + "日本" + text[22:], rule=rule, draft_length=5)
    reader = TextReader(byte_tokenizer())
    pieces = []
    for event in events:
        kept = [*event.details[: event.num_accepted], *event.details[len(event.draft_ids) :]]
        assert len(kept) == len(event.emitted_ids)
        pieces += [detail.text for detail in kept]
    assert "".join(pieces) == text == reader.decode(ids)


def test_tags_and_special_tokens_are_literal():
    text = "<img src=x onerror=alert(1)><|user|><b>"
    events, _ = written("p", text, text, draft_length=16)
    details = [detail for event in events for detail in event.details]
    assert "".join(detail.text for detail in details) == text
    assert "<|user|>" in [detail.text for detail in details]
    for event in events:
        for token, detail in zip((*event.draft_ids, event.next_id), event.details, strict=False):
            entry = next(entry for entry in detail.top if entry.id == token)
            assert entry.text == detail.text


def test_a_round_that_ends_inside_its_drafts_describes_those_only():
    target = toy_pair("llama", "none").target
    text = [event.next_id for event in run(ModelPair(target, None), [PROMPTS[0]], rule="ar", max_new_tokens=6)]
    target.end_ids = frozenset({text[1]})
    pair = ModelPair(target, ScriptDrafter([[*PROMPTS[0], *text]]))
    (event,) = run(pair, [PROMPTS[0]], details=True, draft_length=4, max_new_tokens=9)
    assert (event.finish, event.next_id, len(event.details)) == (Finish.END_TOKEN, None, 4)
    assert event.fates == (TokenFate.ACCEPTED,) * 2 + (TokenFate.DISCARDED,) * 2


def test_describing_takes_time_that_is_reported():
    events = run(toy_pair("llama"), PROMPTS, details=True, **SETTINGS)
    assert all(event.overhead_s > 0 and event.draft_s >= 0 and event.verify_s > 0 for event in events)
    assert all(event.overhead_s == 0 for event in run(toy_pair("llama"), PROMPTS, **SETTINGS))
