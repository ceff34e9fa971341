"""Drafters: what they propose, from which law, and that their memory follows what was confirmed."""

import pytest
import torch
from toys import (
    CONTEXT,
    VOCAB,
    ScriptDrafter,
    answers,
    language_model,
    perturbed,
    prompts_of,
    random_network,
    random_table,
    run,
    table_model,
    table_pair,
    texts_of,
    toy_pair,
)

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Draft, ModelDrafter, NgramDrafter, Sequences
from explorer.engine.hybrid import HybridDrafter
from explorer.engine.metrics import count
from explorer.engine.pair import ModelPair
from explorer.engine.sampling import Sampler
from explorer.errors import SettingError


def sequences_of(rows, capacity=64):
    ids = torch.full((len(rows), capacity), 4)  # what lies beyond a row is anything
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return Sequences(ids=ids, lengths=torch.tensor([len(row) for row in rows]))


# Prompt lookup.


@pytest.mark.parametrize(
    ("ids", "draft_length", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),  # three tokens match
        ([1, 2, 9, 5, 2, 8, 1, 2], 1, [9]),  # the longer ending wins over the later one
        ([2, 8, 2, 9, 2], 1, [9]),  # of equal endings the latest
        ([1, 2, 3], 4, []),  # no match
        ([5], 3, []),
        ([0, 0], 3, [0, 0, 0]),  # token 0; a repetition is continued
        ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),
        ([4, 1, 2, 3, 4], 16, [1, 2, 3, 4] * 4),
    ],
)
def test_lookup(ids, draft_length, expected):
    assert NgramDrafter().lookup(torch.tensor(ids), draft_length) == expected


def test_lookup_can_ask_for_longer_matches():
    drafter = NgramDrafter(longest=3, shortest=2)
    assert drafter.lookup(torch.tensor([1, 5, 1]), 2) == []
    assert drafter.lookup(torch.tensor([1, 5, 8, 1, 5]), 2) == [8, 1]


def test_lookup_by_brute_force():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        ids = torch.randint(3, (int(torch.randint(1, 12, (1,), generator=generator)),), generator=generator).tolist()
        expected: list[int] = []
        for size in (3, 2, 1):
            ends = [i + size for i in range(len(ids) - size) if ids[i : i + size] == ids[-size:]]
            if ends and size < len(ids):
                text = list(ids)
                for offset in range(4):
                    text.append(text[max(ends) + offset])
                expected = text[len(ids) :]
                break
        assert NgramDrafter().lookup(torch.tensor(ids), 4) == expected


def test_rows_look_up_their_own_text_and_nothing_beyond_it():
    sequences = sequences_of([[1, 2, 1], [3], [4, 5, 6]])  # 4 also lies beyond every row
    draft = NgramDrafter().draft(sequences, 2, Sampler(), torch.Generator())
    assert draft.lengths.tolist() == [2, 0, 0]
    assert draft.ids[0].tolist() == [2, 1]
    assert draft.laws is None


# The law of a draft.


def test_a_draft_without_a_law_is_certain_of_its_tokens():
    draft = Draft(ids=torch.tensor([[2, 0]]), lengths=torch.tensor([1]))
    assert draft.prob_of_ids().tolist() == [[1, 1]]
    assert draft.law(0, 0, 4).tolist() == [0, 0, 1, 0]


def test_padding_of_a_draft_counts_as_certain():
    draft = Draft(
        ids=torch.tensor([[2, 0]]), lengths=torch.tensor([1]), probs=torch.tensor([[[0.1, 0.2, 0.7], [0, 1, 0]]])
    )
    torch.testing.assert_close(draft.prob_of_ids(), torch.tensor([[0.7, 1.0]]))
    torch.testing.assert_close(draft.law(0, 0, 3), torch.tensor([0.1, 0.2, 0.7]))


# Model drafters: the law of every draft, round after round, is that of a fresh pass over the text so far.


class Watch:
    """A drafter that checks what the one inside proposes, against passes without any cache."""

    def __init__(self, inside, model, check_rows=lambda draft: range(len(draft.ids))):
        self.inside, self.model, self.check_rows = inside, model, check_rows
        self.kind, self.name, self.features, self.rank_choices = inside.kind, inside.name, (), ()
        self.num_checked = 0

    def start(self, batch_size, capacity, config):
        self.session = self.inside.start(batch_size, capacity, config)
        return self

    def select(self, rows):
        self.session.select(rows)

    def draft(self, sequences, draft_length, sampler, generator):
        draft = self.session.draft(sequences, draft_length, sampler, generator)
        for row in self.check_rows(draft):
            length = int(sequences.lengths[row])
            text = torch.cat([sequences.ids[row, :length], draft.ids[row]])[None]
            logits = self.model.model(text[:, :-1]).logits[0, length - 1 :, : self.model.vocab_size]
            torch.testing.assert_close(draft.laws[row], sampler.probs(logits), atol=1e-4, rtol=1e-3)
            self.num_checked += 1
        return draft


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_the_drafters_cache_follows_the_text(kind, temperature):
    """Stale entries cost acceptance, not correctness, so no test of the text would see them."""
    pair = toy_pair(kind)
    watch = Watch(pair.drafter, pair.drafter.model)
    prompts = prompts_of((1, 2, 9, 30))
    settings = {"draft_length": 4, "max_new_tokens": 20, "temperature": temperature}
    events = run(ModelPair(pair.target, watch), prompts, **settings)
    assert watch.num_checked > 20
    assert 0 < count(events).num_accepted < count(events).num_tested


def test_the_drafters_cache_follows_a_text_that_others_drafted():
    """Behind prompt lookup, what was accepted need not be what this drafter was fed."""
    pair = toy_pair("llama")
    inner = pair.drafter
    one_hot = lambda draft: [i for i in range(len(draft.ids)) if not (draft.laws[i] == 1).any(-1).all()]  # noqa: E731
    hybrid = HybridDrafter(inner)
    watch = Watch(hybrid, inner.model, one_hot)
    prompts = [[1, 2, 3, 4, 1, 2], [5, 9, 5], [8] * 6, [3, 1]]
    settings = {"draft_length": 3, "lookup_length": 3, "max_new_tokens": 30}
    events = run(ModelPair(pair.target, watch), prompts, temperature=1.0, **settings)
    assert watch.num_checked > 10
    assert any(event.num_accepted for event in events)
    expected = answers(pair, prompts, rule="ar", max_new_tokens=30)
    assert answers(ModelPair(pair.target, hybrid), prompts, **settings) == expected
    assert answers(ModelPair(pair.target, hybrid), prompts, **settings | {"lookup_length": 9}) == expected


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_a_session_reads_again_what_it_did_not_draft_itself(right):
    """Of its three drafts the first `right` became the text; then came tokens of another drafter, as many again."""
    model = toy_pair("llama").drafter.model
    session = ModelDrafter(model).start(1, 64, DecodeConfig())
    draft = session.draft(sequences_of([[1, 2, 3]]), 3, Sampler(temperature=0), torch.Generator())
    drafted = draft.ids[0].tolist()
    text = [1, 2, 3, *drafted[:right], *[(token + 1) % VOCAB for token in drafted[right:]], 9, 8, 7][: 3 + 3 + right]
    draft = session.draft(sequences_of([text]), 2, Sampler(temperature=0), torch.Generator())
    expected = model.model(torch.tensor([[*text, int(draft.ids[0, 0])]])).logits[0, -2:].softmax(-1)
    torch.testing.assert_close(draft.laws[0], expected, atol=1e-4, rtol=1e-3)


def test_a_hybrid_looks_up_first_and_asks_the_drafter_for_the_rest():
    """A lookup may be longer than what the drafter is asked for; behind the shorter draft there is nothing."""
    pair = table_pair(5, mix=1.0)
    session = HybridDrafter(pair.drafter).start(2, 64, DecodeConfig(lookup_length=3))
    sequences = sequences_of([[1, 2, 3, 4, 1, 2], [0, 4]])
    draft = session.draft(sequences, 2, Sampler(temperature=0), torch.Generator())
    assert draft.lengths.tolist() == [3, 2]
    assert draft.ids[0].tolist() == [3, 4, 1]
    assert draft.laws[0].max(-1).values.tolist() == [1, 1, 1]
    session = pair.drafter.start(1, 64, DecodeConfig())
    alone = session.draft(sequences_of([[0, 4]]), 2, Sampler(temperature=0), torch.Generator())
    assert draft.ids[1, :2].tolist() == alone.ids[0].tolist()
    torch.testing.assert_close(draft.laws[1, :2], alone.laws[0])
    assert draft.laws[1, 2].abs().max() == 0


def unsure_stops(drafter, target, temperature):
    """(drafts made with a threshold, drafts made without, least largest probability of the former)."""
    counts, least = [], []
    for min_prob in (0.3, 0.0):
        settings = {"draft_length": 4, "max_new_tokens": 24, "temperature": temperature, "min_draft_prob": min_prob}
        events = run(ModelPair(target, drafter), prompts_of((3, 9, 1)), details=True, **settings)
        tops = [max(e.draft_prob for e in t.top) for event in events for t in event.details[: len(event.draft_ids)]]
        counts.append(len(tops))
        least.append(min(tops))
    return (*counts, least[0])


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_drafting_stops_where_the_drafter_is_unsure(temperature):
    pair = toy_pair("llama")
    fewer, all_of_them, least = unsure_stops(pair.drafter, pair.target, temperature)
    assert 0 < fewer < all_of_them
    assert least >= 0.3
    settings = {"draft_length": 4, "max_new_tokens": 24}
    prompts = prompts_of((3, 9, 1))
    expected = answers(pair, prompts, rule="ar", **settings)
    for min_prob in (0.3, 1.0):
        assert answers(pair, prompts, min_draft_prob=min_prob, **settings) == expected


def test_a_session_that_only_reads_keeps_up():
    pair = table_pair(5)
    session = pair.drafter.start(1, 64, DecodeConfig())
    for length in (1, 4, 9):
        draft = session.draft(sequences_of([[1, 2, 0, 3, 4, 1, 1, 2, 0][:length]]), 0, Sampler(), torch.Generator())
        assert draft.ids.shape == (1, 0)
    assert session.cache.end == 9


def test_a_copy_of_the_target_is_always_right():
    target = toy_pair("qwen3").target
    events = run(ModelPair(target, ModelDrafter(target)), prompts_of((1, 9, 30)), draft_length=4, max_new_tokens=20)
    assert count(events).tested_rate == 1
    assert count(events).tokens_per_round == pytest.approx(5)


def test_a_long_prompt_is_read_once():
    """The first round reads the prompt, later ones only what is new."""
    pair = toy_pair("llama")
    widths, forward = [], pair.drafter.model.forward
    pair.drafter.model.forward = lambda ids, *a, **k: widths.append(ids.shape[1]) or forward(ids, *a, **k)
    run(pair, prompts_of((40, 3)), draft_length=3, max_new_tokens=12)
    assert widths[0] == 39
    assert max(widths[1:]) <= 2


def test_a_drafter_with_a_shorter_context_stops_drafting_at_its_edge():
    target = toy_pair("llama", "none").target
    drafter = language_model(random_network("gpt2", context=16), name="short")
    pair = ModelPair(target, ModelDrafter(drafter))
    prompts = prompts_of((3, 15, 16, 40))
    events = run(pair, prompts, draft_length=4, max_new_tokens=18)
    assert texts_of(events, 4) == answers(pair, prompts, rule="ar", max_new_tokens=18)
    drafted = {row: sum(len(event.draft_ids) for event in events if event.row == row) for row in range(4)}
    assert drafted[0] > 0
    assert drafted[2] == drafted[3] == 0


@pytest.mark.parametrize("drafter", [NgramDrafter(), ModelDrafter(table_model(random_table(3, 0), name="small"))])
def test_a_rank_needs_a_low_rank_head(drafter):
    with pytest.raises(SettingError, match=f"rank is 72, but {drafter.name} has no low-rank head. Set rank to 0"):
        run(ModelPair(table_model(random_table(3, 0)), drafter), [[1]], rank=72)


def test_drafters_describe_themselves():
    pair = toy_pair("llama")
    facts = [drafter.describe(0) for drafter in (pair.drafter, NgramDrafter(), HybridDrafter(pair.drafter))]
    assert [fact["kind"] for fact in facts] == ["model", "ngram", "hybrid"]
    assert facts[0]["num_parameters"] == pair.drafter.model.num_parameters
    assert facts[1]["num_parameters"] == 0
    assert facts[2]["name"] == "prompt lookup, then toy llama drafter"


def test_drafts_are_never_longer_than_the_answer_may_become():
    target = toy_pair("llama", "none").target
    pair = ModelPair(target, ScriptDrafter([[1] * CONTEXT, [2] * CONTEXT]))
    events = run(pair, [[1, 2], [3]], draft_length=8, max_new_tokens=5)
    for row in range(2):
        written = 0
        for event in (event for event in events if event.row == row):
            assert len(event.draft_ids) <= 5 - written - 1
            written += len(event.emitted_ids)


def test_perturbed_copies_differ_from_their_original():
    network = random_network("llama")
    twin = perturbed(network, 0.1)
    ids = torch.tensor([[1, 2, 3]])
    assert not torch.equal(network(ids).logits, twin(ids).logits)
    assert torch.equal(perturbed(network, 0.1)(ids).logits, twin(ids).logits)
    assert network.get_input_embeddings().weight.shape[0] == VOCAB
