"""The decode loop: text, lengths, endings, laws. On random models of every kind, and on models whose law is a table."""

import dataclasses
import gc
import itertools
import math
import weakref
from collections import Counter
from functools import lru_cache

import pytest
import torch
from enumeration import assert_same_law, chi_square_p, enumerated_law
from toys import (
    DRAFTERS,
    KINDS,
    VOCAB,
    AnswerLaw,
    ScriptDrafter,
    accept_of,
    answers,
    generated,
    prompts_of,
    random_table,
    run,
    table_laws,
    table_model,
    table_pair,
    texts_of,
    toy_pair,
)

from explorer.engine import judge as judge_module
from explorer.engine.config import DecodeConfig
from explorer.engine.decode import autoregressive, decode
from explorer.engine.drafters import ModelDrafter, NgramDrafter
from explorer.engine.events import Finish, TokenFate
from explorer.engine.metrics import count
from explorer.engine.pair import ModelPair
from explorer.errors import ModelPairError, SettingError

PROMPTS = prompts_of((1, 2, 9, 30, 5, 17))
N = 20


@lru_cache(maxsize=32)
def plain_texts(kind: str, num_tokens: int = N) -> list[list[int]]:
    """The target's own greedy text after each of PROMPTS, without our loop."""
    target = toy_pair(kind, "none").target
    return [generated(target, prompt, num_tokens) for prompt in PROMPTS]


# Greedy text, lengths, the edge of the context.


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_exact_greedy_text_is_the_targets_own(kind, drafter):
    """Every kind of model and drafter, rows of unequal length in one batch, past the sliding window (7 tokens)."""
    events = run(toy_pair(kind, drafter), PROMPTS, draft_length=4, max_new_tokens=N)

    assert texts_of(events, len(PROMPTS)) == plain_texts(kind)
    counts = count(events)
    if drafter == "model":
        assert 0.3 < counts.tested_rate < 0.75, "the test needs both verdicts"
    assert counts.num_accepted > 0
    assert counts.num_tested > counts.num_accepted


@pytest.mark.parametrize("kind", KINDS)
def test_autoregressive_text_is_that_of_generate(kind):
    events = list(autoregressive(toy_pair(kind, "none"), PROMPTS, DecodeConfig(max_new_tokens=N)))
    assert texts_of(events, len(PROMPTS)) == plain_texts(kind)
    assert all(event.draft_ids == () and event.fates == (TokenFate.BONUS,) for event in events)


def test_token_zero_is_a_token_like_any_other():
    assert any(0 in prompt for prompt in PROMPTS)
    assert any(0 in text[:-1] for text in plain_texts("llama"))


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_a_batch_writes_what_its_rows_write_alone(kind):
    prompts = prompts_of((3, 1, 12, 7, 2, 20, 5, 5), seed=1)
    pair = toy_pair(kind)
    together = answers(pair, prompts, draft_length=3, max_new_tokens=12)
    assert together == [answers(pair, [prompt], draft_length=3, max_new_tokens=12)[0] for prompt in prompts]


@pytest.mark.parametrize("draft_length", [1, 5, 16])
def test_any_draft_length_gives_the_same_text(draft_length):
    events = run(toy_pair("gpt2"), PROMPTS[:4], draft_length=draft_length, max_new_tokens=N)
    assert texts_of(events, 4) == plain_texts("gpt2")[:4]
    assert max(len(event.draft_ids) for event in events) == draft_length


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("draft_length", range(1, 17))
def test_exactly_max_new_tokens_come_out(draft_length, drafter):
    """Every draft length, and every limit up to where two full rounds and more fit."""
    pair = table_pair(6, mix=0.8)
    pair = pair if drafter == "model" else ModelPair(pair.target, NgramDrafter())
    prompts = [[0], [1, 5, 1, 5], [2] * 9]
    texts = answers(pair, prompts, rule="ar", max_new_tokens=40)
    for num_tokens in range(1, 2 * draft_length + 4, 1 if draft_length < 5 else 5):
        events = run(pair, prompts, draft_length=draft_length, max_new_tokens=num_tokens)
        assert texts_of(events, 3) == [text[:num_tokens] for text in texts]
        assert [event.finish for event in events if event.finish] == [Finish.LENGTH] * 3


def test_a_perfect_drafter_reaches_exactly_max_new_tokens():
    """Full acceptance is where an off-by-one would show: K + 1 tokens a round, and never one too many."""
    target = toy_pair("llama", "none").target
    pair = ModelPair(target, ModelDrafter(target))
    for num_tokens in range(4, 12):
        events = run(pair, PROMPTS[2:3], draft_length=4, max_new_tokens=num_tokens)
        assert texts_of(events, 1)[0] == plain_texts("llama")[2][:num_tokens]
        assert len(events) == math.ceil(num_tokens / 5)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", ["gpt2", "opt", "mistral"])
def test_rows_end_at_the_context_edge(kind, drafter):
    """Columns that pad short rows run past the learned positions; rows end one by one, the batch shrinks."""
    context = 24
    pair = toy_pair(kind, drafter, context=context)
    prompts = prompts_of((23, 22, 17, 10, 1), seed=2)
    events = run(pair, prompts, draft_length=5, max_new_tokens=64)
    texts = texts_of(events, len(prompts))
    assert [len(text) for text in texts] == [context - len(prompt) for prompt in prompts]
    assert texts == [generated(pair.target, prompt, context - len(prompt)) for prompt in prompts]
    assert [event.finish for event in events if event.finish] == [Finish.CONTEXT] * len(prompts)


def test_a_limit_that_the_context_just_allows_is_a_length_finish():
    pair = toy_pair("gpt2", context=24)
    finishes = [run(pair, [PROMPTS[2]], max_new_tokens=limit)[-1].finish for limit in (14, 15, 16)]
    assert finishes == [Finish.LENGTH, Finish.LENGTH, Finish.CONTEXT]


def test_padding_rows_of_the_vocabulary_are_never_seen():
    """The model's rows go beyond the tokenizer, by unequal amounts; nothing is drafted or emitted from there."""
    pair = toy_pair("llama", padding=16)
    for temperature in (0.0, 2.0):
        events = run(pair, PROMPTS, draft_length=3, max_new_tokens=N, temperature=temperature, details=True)
        seen = {i for event in events for i in (*event.draft_ids, *event.emitted_ids)}
        listed = {entry.id for event in events for detail in event.details for entry in detail.top}
        assert max(seen | listed) < VOCAB
    plain = answers(pair, PROMPTS, rule="ar", max_new_tokens=N)
    assert answers(pair, PROMPTS, draft_length=3, max_new_tokens=N) == plain


def test_no_prompts_no_events():
    assert run(toy_pair(), []) == []


@pytest.mark.parametrize("rule", ["exact", "lossy", "static"])
def test_a_rule_that_needs_a_drafter_says_so(rule):
    with pytest.raises(ModelPairError, match=f"The {rule} rule needs a drafter and none is loaded"):
        run(toy_pair("llama", "none"), [[1]], rule=rule)


def test_prompts_without_room_are_refused():
    pair = toy_pair("llama", context=24)
    with pytest.raises(SettingError, match="The prompt has no tokens"):
        run(pair, [[1], []])
    with pytest.raises(SettingError, match="The prompt has 24 tokens; toy llama reads at most 23"):
        run(pair, [[1] * 24])
    assert len(answers(pair, [[1] * 23], max_new_tokens=9)[0]) == 1


def test_prompts_with_tokens_the_model_does_not_have_are_refused():
    with pytest.raises(SettingError, match="which toy llama cannot read"):
        run(toy_pair(), [[1, VOCAB]])


# Ends.

PROMPT = PROMPTS[2]


@lru_cache(maxsize=1)
def own_text() -> list[int]:
    return plain_texts("llama")[2]


def first_seen() -> list[int]:
    """Places of the text where a token occurs for the first time, in the prompt included."""
    text = own_text()
    return [i for i, token in enumerate(text) if token not in text[:i]]


def absent() -> int:
    """A token that the text does not hold."""
    return min(set(range(VOCAB)) - set(own_text()) - set(PROMPT))


def scripted(wrong: tuple[int, ...] = (), **options) -> ModelPair:
    """The llama and a drafter that proposes its own text, but the absent token at the places `wrong`."""
    text = [absent() if i in wrong else token for i, token in enumerate(own_text())]
    return ModelPair(toy_pair("llama", "none", **options).target, ScriptDrafter([[*PROMPT, *text]]))


@pytest.mark.parametrize("draft_length", [1, 2, 4, 16])
@pytest.mark.parametrize("place", range(8))
def test_end_token_inside_an_accepted_run_as_bonus_or_first(place, draft_length):
    """All drafts are right; whether the end token is a draft or the bonus depends on K. What follows is cut."""
    end = own_text()[place]
    place = own_text().index(end)
    events = run(scripted(end_ids=(end,)), [PROMPT], draft_length=draft_length, max_new_tokens=N)

    assert texts_of(events, 1)[0] == own_text()[: place + 1]
    assert [event.finish for event in events] == [None] * (len(events) - 1) + [Finish.END_TOKEN]
    last = events[-1]
    at = place % (draft_length + 1)
    if at < draft_length:
        assert last.next_id is None
        assert (last.num_accepted, last.num_tested) == (at + 1, at + 1)
        assert last.fates[at:] == (TokenFate.ACCEPTED, *[TokenFate.DISCARDED] * (draft_length - at - 1))
    else:
        assert last.next_id == end
        assert last.fates[-1] == TokenFate.BONUS


@pytest.mark.parametrize("draft_length", [1, 2, 4])
def test_end_token_as_residual(draft_length):
    place = first_seen()[3]
    events = run(
        scripted((place,), end_ids=(own_text()[place],)), [PROMPT], draft_length=draft_length, max_new_tokens=N
    )
    assert texts_of(events, 1)[0] == own_text()[: place + 1]
    assert events[-1].finish == Finish.END_TOKEN
    if place % (draft_length + 1) < draft_length:
        assert events[-1].fates[-1] == TokenFate.RESIDUAL


def test_an_end_token_that_was_drafted_and_rejected_does_not_stop():
    events = run(scripted((2, 3), end_ids=(absent(),)), [PROMPT], draft_length=4, max_new_tokens=N)
    assert absent() in [i for event in events for i in event.draft_ids]
    assert texts_of(events, 1)[0] == own_text()


def test_an_end_token_in_the_prompt_does_not_stop():
    end = next(token for token in PROMPT if token not in own_text())
    for rule in ("ar", "exact"):
        assert answers(scripted(end_ids=(end,)), [PROMPT], rule=rule, max_new_tokens=N)[0] == own_text()


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", ["ar", "exact"])
def test_several_end_tokens_and_rows_that_end_at_different_times(rule, drafter):
    """The batch shrinks row by row; every row still gets its own text."""
    texts = plain_texts("llama")
    ends = {text[5] for text in texts[:4]}
    events = run(toy_pair("llama", drafter, end_ids=tuple(ends)), PROMPTS, rule=rule, draft_length=3, max_new_tokens=N)
    cut = [next((i for i, token in enumerate(text) if token in ends), N - 1) + 1 for text in texts]
    assert len(set(cut)) > 2, "the test needs rows of different lengths"
    assert texts_of(events, len(texts)) == [text[:length] for text, length in zip(texts, cut, strict=True)]
    for row, text in enumerate(texts_of(events, len(texts))):
        finish = [event.finish for event in events if event.row == row]
        assert finish == [None] * (len(finish) - 1) + [Finish.END_TOKEN if text[-1] in ends else Finish.LENGTH]


def test_rounds_of_a_row_are_counted_from_zero():
    events = run(toy_pair(), PROMPTS, draft_length=2, max_new_tokens=9)
    for row in range(len(PROMPTS)):
        indices = [event.index for event in events if event.row == row]
        assert indices == list(range(len(indices)))


@pytest.mark.parametrize("draft_length", [1, 3, 7])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 2, 5])
def test_stop_text_across_tokens_and_inside_a_run(place, size, draft_length):
    """The ids are those of the same run without drafts; they end with the token that completes the text."""
    text = own_text()
    stop = "".join(chr(97 + token) for token in text[place : place + size])
    whole = "".join(chr(97 + token) for token in text)
    length = whole.index(stop) + size
    for pair, rule in ((scripted(), "exact"), (scripted((1, 4)), "exact"), (scripted(), "ar")):
        settings = {"rule": rule, "draft_length": draft_length, "max_new_tokens": N, "stop": ("~never~", stop)}
        events = run(pair, [PROMPT], **settings)
        assert texts_of(events, 1)[0] == text[:length]
        assert events[-1].finish == Finish.STOP_TEXT


def test_a_stop_text_in_the_prompt_or_across_its_end_does_not_stop():
    stops = tuple("".join(chr(97 + t) for t in ids) for ids in (PROMPT[:2], [PROMPT[-1], own_text()[0]]))
    assert answers(scripted(), [PROMPT], draft_length=3, max_new_tokens=N, stop=stops)[0] == own_text()


def test_the_first_of_several_stop_texts_wins():
    text = "".join(chr(97 + token) for token in own_text())
    stops = (text[9:11], text[3:5])
    length = min(text.index(stop) + 2 for stop in stops)
    assert len(answers(scripted(), [PROMPT], draft_length=16, max_new_tokens=N, stop=stops)[0]) == length


# Laws, by enumeration: every coin and every draw of decode() is replaced by a branch.


RULES = {
    "exact": ({"rule": "exact"}, accept_of("exact")),
    "static 0.3": ({"rule": "static", "target_weight": 0.3}, accept_of("static", 0.3)),
    "static 0.7": ({"rule": "static", "target_weight": 0.7}, accept_of("static", 0.7)),
    "static 0": ({"rule": "static", "target_weight": 0.0}, accept_of("static", 0.0)),
    "lossy 0.5": ({"rule": "lossy", "lenience": 0.5}, accept_of("lossy", 0.5)),
}
SAMPLING = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.8, "temperature": 1.3},
}


def draft_laws(pair: ModelPair, **sampling_settings):
    """(round's start, prefix, K) -> q, from the drafter's own description, not from its code paths in decode."""
    if isinstance(pair.drafter, ModelDrafter):
        laws = table_laws(pair.drafter.model, **sampling_settings)
        return lambda begin, prefix, K: laws(prefix)

    def looked_up(begin, prefix, K):
        found = pair.drafter.lookup(torch.tensor(begin), K)
        place = len(prefix) - len(begin)
        return [float(i == found[place]) for i in range(pair.target.vocab_size)] if place < len(found) else None

    return looked_up


def small_pair(drafter: str, seed: int = 0) -> ModelPair:
    pair = table_pair(3, seed)
    return pair if drafter == "model" else ModelPair(pair.target, NgramDrafter())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("drafter", "sampled"),
    [
        ("model", "plain"),
        ("ngram", "plain"),
        ("model", "cold"),
        ("model", "top-k"),
        ("model", "top-p"),
        ("ngram", "top-k"),
    ],
)
def test_law_of_three_tokens_by_enumeration(monkeypatch, rule, drafter, sampled):
    """Every path through decode(), weighed and summed, against a recursion over the rule's formula. No sampling."""
    pair, prompt = small_pair(drafter), (1, 0, 2, 1, 0)
    settings, accept = RULES[rule]
    sampled = SAMPLING[sampled]
    found = enumerated_law(
        monkeypatch, pair, prompt, **settings, **({"temperature": 1.0} | sampled), draft_length=2, max_new_tokens=3
    )
    target = table_laws(pair.target, **sampled)
    assert_same_law(found, AnswerLaw(target, draft_laws(pair, **sampled), accept).of(prompt, 2, 3))
    if rule == "exact":
        assert_same_law(found, AnswerLaw(target, lambda *_: None, accept).of(prompt, 0, 3))
    if rule == "lossy 0.5":
        first, p = marginal(found, 0), target(prompt)
        assert all(first[token] <= p[token] / 0.5 + 1e-6 for token in first)


def marginal(law, place):
    total = Counter()
    for answer, prob in law.items():
        total[answer[place]] += prob
    return total


@pytest.mark.parametrize("target_weight", [0.3, 0.7])
def test_static_rule_emits_the_mixture_first_and_the_target_as_bonus(monkeypatch, target_weight):
    """The formulas as the page states them: w p + (1 - w) q where a draft was judged, p after a full run."""
    pair, prompt = small_pair("model"), (1, 2)
    law = enumerated_law(
        monkeypatch, pair, prompt, rule="static", target_weight=target_weight, temperature=1.0, draft_length=1,
        max_new_tokens=2,
    )  # fmt: skip
    p, q = table_laws(pair.target), table_laws(pair.drafter.model)
    first = marginal(law, 0)
    for token in range(3):
        mixed = target_weight * p(prompt)[token] + (1 - target_weight) * q(prompt)[token]
        assert first[token] == pytest.approx(mixed, abs=1e-5)
        # The second token is a bonus after an accepted draft, else the last token allowed, which nothing drafts: p.
        for after in range(3):
            expected = mixed * p((*prompt, token))[after]
            assert law.get((token, after), 0) == pytest.approx(expected, abs=1e-5)


def masked_pair(target_tokens, draft_tokens) -> ModelPair:
    """Laws with only these tokens possible, by -inf logits."""
    tables = []
    for seed, tokens in ((0, target_tokens), (1, draft_tokens)):
        table = random_table(4, seed)
        table[:, :, [i for i in range(4) if i not in tokens]] = -torch.inf
        tables.append(table_model(table))
    return ModelPair(tables[0], ModelDrafter(tables[1]))


@pytest.mark.parametrize("rule", RULES)
def test_disjoint_laws(monkeypatch, rule):
    """Target and drafter share no token: exact keeps none and still emits p."""
    pair, prompt = masked_pair((0, 1), (2, 3)), (1,)
    settings, accept = RULES[rule]
    found = enumerated_law(monkeypatch, pair, prompt, **settings, temperature=1.0, draft_length=2, max_new_tokens=2)
    target, draft = table_laws(pair.target), draft_laws(pair)
    assert_same_law(found, AnswerLaw(target, draft, accept).of(prompt, 2, 2))
    if rule in ("exact", "lossy 0.5"):
        assert {token for answer in found for token in answer} == {0, 1}


# Laws, by counting: real coins, thousands of rows in one batch.


@pytest.mark.parametrize(
    ("rule", "drafter", "sampled"),
    [
        ("exact", "model", "plain"),
        ("exact", "ngram", "plain"),
        ("exact", "model", "top-p"),
        ("exact", "model", "cold"),
        ("static 0.3", "model", "plain"),
        ("static 0.7", "ngram", "plain"),
        ("static 0.7", "model", "top-k"),
        ("lossy 0.5", "model", "plain"),
    ],
)
def test_law_of_three_tokens_by_counting(rule, drafter, sampled):
    """Catches what enumeration cannot: coins shared by positions or rows, a draw that does not follow its law."""
    pair, prompt, rows = small_pair(drafter, seed=3), (1, 0, 2, 1, 0), 4000
    settings, accept = RULES[rule]
    sampled = SAMPLING[sampled]
    written = answers(
        pair, [list(prompt)] * rows, **settings, **({"temperature": 1.0} | sampled), draft_length=2, max_new_tokens=3
    )
    law = AnswerLaw(table_laws(pair.target, **sampled), draft_laws(pair, **sampled), accept).of(prompt, 2, 3)
    counts = Counter(map(tuple, written))
    assert counts.keys() <= {answer for answer, prob in law.items() if prob > 0}
    assert chi_square_p(counts, law, rows) > 1e-4


def test_the_chi_square_test_notices_another_law():
    """A test that cannot fail proves nothing: the drafter's law in place of the target's is refused."""
    pair, prompt = small_pair("model", seed=3), (1, 0)
    written = answers(pair, [list(prompt)] * 6000, temperature=1.0, draft_length=2, max_new_tokens=2)
    law = AnswerLaw(table_laws(pair.drafter.model), lambda *_: None, accept_of("exact")).of(prompt, 0, 2)
    assert chi_square_p(Counter(map(tuple, written)), law, 6000) < 1e-9


@pytest.mark.parametrize("coin", [0.0, 1 - 2**-24])
def test_coins_at_the_ends_of_their_range(monkeypatch, coin):
    """A draft the target calls impossible never passes, not even at u = 0; one with p >= q always does."""
    real = torch.rand
    monkeypatch.setattr(judge_module.torch, "rand", lambda *a, **k: torch.full_like(real(*a, **k), coin))
    events = run(masked_pair((0, 1), (2, 3)), [[1]] * 8, temperature=1.0, draft_length=2, max_new_tokens=6)
    assert all(event.num_accepted == 0 for event in events)
    same = table_pair(4, mix=1.0)
    events = run(same, [[1]] * 8, temperature=1.0, draft_length=2, max_new_tokens=6)
    assert all(event.num_accepted == len(event.draft_ids) for event in events)


# Rules that meet.


def plain_events(events):
    """Events without their timings."""
    return [dataclasses.replace(event, draft_s=0, verify_s=0, overhead_s=0) for event in events]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("other", [{"rule": "static", "target_weight": 1.0}, {"rule": "lossy", "lenience": 1.0}])
def test_static_at_one_and_lossy_at_one_are_exact(other, drafter, temperature):
    """Not only the text: the same drafts, the same verdicts, from the same seed."""
    pair = toy_pair("llama", drafter)
    settings = {"draft_length": 3, "max_new_tokens": N, "temperature": temperature, "seed": 5}
    assert plain_events(run(pair, PROMPTS, **other, **settings)) == plain_events(run(pair, PROMPTS, **settings))


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_static_at_zero_keeps_every_draft(drafter, temperature):
    pair = toy_pair("llama", drafter)
    settings = {"draft_length": 3, "max_new_tokens": 2 * N, "temperature": temperature}
    events = run(pair, PROMPTS, rule="static", target_weight=0.0, **settings)
    counts = count(events)
    assert counts.num_accepted == counts.num_tested == counts.num_drafted > 0


def test_identical_laws_are_never_rejected():
    pair = table_pair(5, mix=1.0)
    for sampled in SAMPLING.values():
        events = run(pair, [[1, 2]] * 50, **({"temperature": 1.0} | sampled), draft_length=4, max_new_tokens=20)
        assert count(events).tested_rate == 1


def test_greedy_rules_follow_their_formulas():
    """Temperature 0 on tables: argmax of the mixture (static), p(x) >= l max p (lossy), written out plainly."""
    pair = table_pair(8, seed=2, mix=0.4)
    p_of, q_of = table_laws(pair.target), table_laws(pair.drafter.model)

    def walk(prompt, choose, K, total):
        """`choose(p, q, draft)` names the verifier's token; a wrong draft ends the round."""
        text = list(prompt)
        while len(text) < len(prompt) + total:
            room = len(prompt) + total - len(text) - 1
            for _ in range(min(K, room)):
                p, q = p_of(tuple(text)), q_of(tuple(text))
                drafted = q.index(max(q))
                text.append(choose(p, q, drafted))
                if text[-1] != drafted:
                    break
            else:
                p = p_of(tuple(text))
                text.append(p.index(max(p)))
        return text[len(prompt) :]

    def static(weight):
        def choose(p, q, _):
            mixed = [weight * a + (1 - weight) * b for a, b in zip(p, q, strict=True)]
            return mixed.index(max(mixed))

        return choose

    def lossy(lenience):
        return lambda p, q, drafted: drafted if p[drafted] >= lenience * max(p) else p.index(max(p))

    prompts = [[i, j] for i in range(8) for j in range(0, 8, 3)]
    texts = {}
    for rule, amount, choose in (
        ("static", 0.3, static(0.3)),
        ("static", 0.7, static(0.7)),
        ("lossy", 0.4, lossy(0.4)),
        ("exact", 1.0, static(1.0)),
    ):
        settings = {"rule": rule, "target_weight": amount, "lenience": amount, "draft_length": 3, "max_new_tokens": 12}
        texts[rule, amount] = answers(pair, prompts, **settings)
        assert texts[rule, amount] == [walk(prompt, choose, 3, 12) for prompt in prompts], (rule, amount)
    assert all(a != b for a, b in itertools.combinations(texts.values(), 2)), "the rules must differ here"


# Randomness, resources, bad numbers.


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_seed_reproduces_the_events(drafter):
    pair = toy_pair("llama", drafter)
    settings = {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "draft_length": 3, "max_new_tokens": 12}
    before = torch.get_rng_state()
    first, again, other = (plain_events(run(pair, PROMPTS, details=True, seed=s, **settings)) for s in (7, 7, 8))
    assert first == again
    assert first != other
    assert torch.equal(before, torch.get_rng_state()), "decode must not touch the global generator"


def test_a_generator_that_is_passed_in_is_the_one_used():
    config = DecodeConfig(temperature=1.0, max_new_tokens=12)
    texts = [
        texts_of(list(decode(toy_pair(), PROMPTS, config, generator=torch.Generator().manual_seed(seed))), 6)
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", ["ar", "exact", "static", "lossy"])
def test_details_do_not_change_the_tokens(rule, drafter, temperature):
    pair = toy_pair("llama", drafter)
    settings = {"rule": rule, "temperature": temperature, "draft_length": 3, "max_new_tokens": 12}
    plain, detailed = (run(pair, PROMPTS[:3], details=details, **settings) for details in (False, True))
    bare = [dataclasses.replace(event, details=()) for event in detailed]
    assert plain_events(bare) == plain_events(plain)
    for event in detailed:
        assert len(event.details) == len(event.draft_ids) + (event.next_id is not None)


def test_closing_early_frees_the_caches_and_leaves_no_mode_on():
    pair = toy_pair("llama")
    caches = []
    for model in (pair.target, pair.drafter.model):
        new_cache = model.new_cache

        def kept(capacity, new_cache=new_cache):
            cache = new_cache(capacity)
            caches.append(weakref.ref(cache))
            return cache

        model.new_cache = kept
    events = decode(pair, PROMPTS, DecodeConfig(max_new_tokens=N))
    next(events)
    assert not torch.is_inference_mode_enabled()
    assert len(caches) == 2
    assert all(cache() is not None for cache in caches)
    events.close()
    gc.collect()
    assert all(cache() is None for cache in caches)
    assert not torch.is_inference_mode_enabled()
    assert torch.ones(1, requires_grad=True).sum().requires_grad


def test_nothing_is_run_before_the_first_event_is_asked_for():
    decode(toy_pair("llama", "none"), [[]], DecodeConfig())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("where", ["target", "drafter"])
def test_logits_that_are_no_numbers_are_refused(where, broken, temperature):
    """Not decoded into token 0 or into whatever argmax makes of a NaN."""
    table = random_table(4, 0)
    if math.isinf(broken) and broken < 0:
        table[:] = broken
    else:
        table[:, :, 2] = broken
    models = {"target": table_model(random_table(4, 0)), "drafter": table_model(random_table(4, 1))}
    models[where] = table_model(table)
    pair = ModelPair(models["target"], ModelDrafter(models["drafter"]))
    with pytest.raises(ModelPairError, match="logits that are not numbers"):
        run(pair, [[1, 2]], temperature=temperature, max_new_tokens=8)


def test_a_single_possible_token_is_always_taken():
    """-inf everywhere else is a law like any other."""
    pair = masked_pair((3,), (3,))
    for temperature in (0.0, 1e-6, 2.0):
        assert answers(pair, [[1, 2]], temperature=temperature, max_new_tokens=8) == [[3] * 8]


def test_a_tiny_temperature_is_greedy():
    pair = toy_pair()
    assert answers(pair, PROMPTS, temperature=1e-30, max_new_tokens=N) == plain_texts("llama")
