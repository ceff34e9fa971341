"""Heads of the drafter: every one of them leaves the target's law alone, and is made of the right rows."""

import math
from collections import Counter

import pytest
import torch
from eagles import counts_of, load_eagle, random_eagle, save_eagle, scorer_of
from enumeration import assert_same_law, chi_square_p, enumerated_law
from torch import Generator
from toys import (
    VOCAB,
    AnswerLaw,
    accept_of,
    answers,
    language_model,
    letter_tokenizer,
    plain_law,
    prompts_of,
    random_network,
    run,
    table_pair,
)

from explorer.engine import loading
from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import NgramDrafter
from explorer.engine.eagle import EagleDrafter
from explorer.engine.hybrid import HybridDrafter
from explorer.engine.pair import ModelPair
from explorer.errors import SettingError, WeightsError
from explorer.heads import packed
from explorer.heads.choice import HeadChoice, HeadParts, mass_outside
from explorer.heads.draft import LowRankHead, TruncatedHead, frequent_ids

TINY = 3
# Kind, size of the head in a vocabulary of three, rank, and whether the checkpoint has a full head.
TINY_HEADS = {
    "low rank 3": ("own", 0, 0, False),
    "low rank 1": ("own", 0, 1, False),
    "full product": ("full", 0, 0, False),
    "full": ("own", 0, 0, True),
    "truncated": ("truncated", 2, 0, True),
    "truncated product": ("truncated", 1, 0, False),
    "dynamic": ("dynamic", 2, 1, False),
    "dynamic with a scorer": ("dynamic", 2, 0, True),
}


def tiny_target():
    network = random_network("llama", 3, TINY)
    return language_model(network, letter_tokenizer(TINY))


def tiny_pair(tmp_path, kind, size, is_full):
    target = tiny_target()
    tensors = {"token_counts": counts_of(TINY)} | (scorer_of(target, 2) if is_full else {})
    drafter = load_eagle(tmp_path / "d", target, 3, full=is_full, **tensors)
    return ModelPair(target, drafter.with_head(kind, size))


@torch.inference_mode()
def target_law(target, prefix, **sampled):
    return plain_law(target.model(torch.tensor([prefix])).logits[0, -1], **sampled)


def law_of(target, prompt, num_tokens, **sampled):
    """The target's own law of the next tokens."""
    laws = AnswerLaw(lambda prefix: target_law(target, prefix, **sampled), lambda *_: None, accept_of("exact"))
    return laws.of(prompt, 0, num_tokens)


@pytest.mark.parametrize("head", TINY_HEADS)
def test_law_of_three_tokens_by_enumeration(monkeypatch, tmp_path, head):
    """Every path through decode(), weighed and summed: the target's law, whatever the head."""
    kind, size, rank, is_full = TINY_HEADS[head]
    pair, prompt = tiny_pair(tmp_path, kind, size, is_full), (1, 0, 2)

    found = enumerated_law(monkeypatch, pair, prompt, temperature=1.0, rank=rank, draft_length=2, max_new_tokens=3)

    assert_same_law(found, law_of(pair.target, prompt, 3))


@pytest.mark.parametrize("min_prob", [0.4, 0.5, 0.7])
def test_law_where_drafting_stops_at_unsure_laws(monkeypatch, tmp_path, min_prob):
    """Whether to stop is decided by the law, not by the token drawn from it: the target's law stays."""
    kind, size, rank, is_full = TINY_HEADS["low rank 3"]
    pair, prompt = tiny_pair(tmp_path, kind, size, is_full), (1, 0, 2)
    settings = {"temperature": 1.0, "rank": rank, "draft_length": 2, "max_new_tokens": 3, "min_draft_prob": min_prob}
    found = enumerated_law(monkeypatch, pair, prompt, **settings)
    assert_same_law(found, law_of(pair.target, prompt, 3))


@pytest.mark.parametrize("sampled", [{"top_k": 2}, {"top_p": 0.7}, {"temperature": 0.5, "top_k": 2}])
@pytest.mark.parametrize("head", ["truncated", "dynamic"])
def test_law_where_top_k_and_top_p_meet_tokens_left_out(monkeypatch, tmp_path, head, sampled):
    """With -inf for two of three tokens, top-k 2 reaches into them and must not make a NaN."""
    kind, _, rank, is_full = TINY_HEADS[head]
    pair, prompt = tiny_pair(tmp_path, kind, 1, is_full), (1, 0, 2)

    found = enumerated_law(
        monkeypatch, pair, prompt, **({"temperature": 1.0} | sampled), rank=rank, draft_length=1, max_new_tokens=2
    )

    assert_same_law(found, law_of(pair.target, prompt, 2, **sampled))


@pytest.mark.parametrize("head", TINY_HEADS)
def test_law_of_three_tokens_by_counting(tmp_path, head):
    """Drawn from one law and judged by another would show here: 3,000 rows with real coins."""
    kind, size, rank, is_full = TINY_HEADS[head]
    pair, prompt, rows = tiny_pair(tmp_path, kind, size, is_full), (1, 0, 2), 3000

    written = answers(pair, [list(prompt)] * rows, temperature=1.0, rank=rank, draft_length=2, max_new_tokens=3)

    assert chi_square_p(Counter(map(tuple, written)), law_of(pair.target, prompt, 3), rows) > 1e-4


# On a vocabulary of 64.

HEADS = {
    "low rank": ("own", 0, 0, False),
    "low rank 3": ("own", 0, 3, False),
    "full product": ("full", 0, 0, False),
    "full": ("full", 0, 0, True),
    "truncated": ("truncated", 9, 0, False),
    "truncated full": ("truncated", 30, 0, True),
    "dynamic": ("dynamic", 7, 3, False),
    "dynamic with a scorer": ("dynamic", 20, 0, True),
}


def target_of(end_ids=()):
    return language_model(random_network("llama", 3), name="toy llama", end_ids=end_ids)


def drafter_of(tmp_path, target, is_full=False, **tensors):
    tensors = {"token_counts": counts_of(VOCAB)} | (scorer_of(target) if is_full else {}) | tensors
    return load_eagle(tmp_path / "drafter", target, full=is_full, **tensors)


def pair_of(tmp_path, head):
    kind, size, rank, is_full = HEADS[head]
    target = target_of()
    return ModelPair(target, drafter_of(tmp_path, target, is_full).with_head(kind, size)), rank


@pytest.mark.parametrize("head", HEADS)
def test_greedy_text_is_the_target_s(tmp_path, head):
    pair, rank = pair_of(tmp_path, head)
    prompts = prompts_of((6, 1, 9))
    alone = answers(pair, prompts, rule="ar", max_new_tokens=12)

    assert answers(pair, prompts, rank=rank, draft_length=3, max_new_tokens=12) == alone


def numbers_in(event):
    for detail in event.details:
        yield from (value for name in detail.__slots__ if isinstance(value := getattr(detail, name), float))
        for entry in detail.top:
            yield from (value for value in (entry.target_prob, entry.draft_prob, entry.prob) if value is not None)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.3, "top_k": 40},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "rule": "static", "target_weight": 0.3},
        {"temperature": 0.0, "rule": "static", "target_weight": 0.3},
        {"temperature": 1.0, "rule": "lossy", "lenience": 0.5},
    ],
)
@pytest.mark.parametrize("head", ["truncated", "dynamic"])
def test_no_figure_on_the_page_is_nan(tmp_path, head, settings):
    pair, rank = pair_of(tmp_path, head)

    events = run(pair, prompts_of((6, 9)), details=True, rank=rank, draft_length=3, max_new_tokens=10, **settings)

    numbers = [number for event in events for number in numbers_in(event)]
    assert len(numbers) > 100
    assert all(map(math.isfinite, numbers))


def test_a_truncated_head_drafts_kept_tokens_only_and_keeps_the_ends(tmp_path):
    counts = counts_of(VOCAB)
    rare = counts.argsort()[:2].tolist()
    target = target_of(end_ids=tuple(rare))
    drafter = drafter_of(tmp_path, target).with_head("truncated", 9)

    ids = drafter.model.head.ids.tolist()

    assert sorted(ids) == ids
    assert set(ids) == set(rare) | set(counts.argsort(descending=True)[:7].tolist())
    weight = drafter.parts.full_weight
    hidden = torch.randn(3, 32, generator=Generator().manual_seed(0))
    logits = drafter.model.head(hidden)
    torch.testing.assert_close(logits[:, ids], hidden @ weight[ids].t())
    assert (logits == -torch.inf).sum() == 3 * (VOCAB - 9)
    events = run(ModelPair(target, drafter), prompts_of((6, 9)), temperature=1.0, draft_length=3, max_new_tokens=10)
    assert {token for event in events for token in event.draft_ids} <= set(ids)


def test_dynamic_with_every_candidate_is_the_full_head(tmp_path):
    drafter = drafter_of(tmp_path, target_of())
    hidden = torch.randn(5, 32, generator=Generator().manual_seed(0))

    every = drafter.with_head("dynamic", VOCAB).model.head(hidden, 2)

    torch.testing.assert_close(every, drafter.with_head("full").model.head(hidden))


@pytest.mark.parametrize("is_full", [False, True])
def test_dynamic_scores_exactly_what_its_scorer_ranks_highest(tmp_path, is_full):
    drafter = drafter_of(tmp_path, target_of(), is_full)
    scorer = drafter.parts.scorer
    hidden = torch.randn(2, 5, 32, generator=Generator().manual_seed(0))

    logits = drafter.with_head("dynamic", 6).model.head(hidden, 4)

    scores = (hidden @ scorer.down[:4].t()) @ scorer.up_t[:4]
    exact = hidden @ drafter.parts.full_weight.t()
    for place in [(a, b) for a in range(2) for b in range(5)]:
        best = scores[place].argsort(descending=True)[:6]
        expected = torch.full((VOCAB,), -torch.inf).index_copy(0, best, exact[place][best])
        torch.testing.assert_close(logits[place], expected)


def test_the_full_head_is_the_product_or_the_target_s_own(tmp_path):
    target = target_of()
    ours, twin = drafter_of(tmp_path / "a", target), drafter_of(tmp_path / "b", target, True)

    product = ours.with_head("full").model.head.weight

    own = ours.model.head
    torch.testing.assert_close(product, own.up_t.t() @ own.down)
    assert torch.equal(twin.model.head.weight, target.model.lm_head.weight)
    assert twin.with_head("full").model.head is twin.model.head
    assert (twin.max_rank, twin.rank_choices) == (0, ())


def test_a_padded_vocabulary_is_cut_to_the_tokenizer_s(tmp_path):
    """Rows beyond the tokenizer's last token are never drafted."""
    target = language_model(random_network("llama", 3, VOCAB + 5), letter_tokenizer(VOCAB))

    head = drafter_of(tmp_path, target, True).model.head

    assert torch.equal(head.weight, target.model.lm_head.weight[:VOCAB])


def test_a_bfloat16_target_has_bfloat16_heads(tmp_path):
    target = target_of()
    target.model = random_network("llama", 3).__class__(random_network("llama", 3).config).bfloat16().eval()
    drafter = drafter_of(tmp_path, target, True)

    for kind in ("full", "truncated", "dynamic"):
        head = drafter.with_head(kind).model.head
        assert head(torch.ones(2, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.skipif(not packed.is_supported(), reason="needs FBGEMM")
@pytest.mark.parametrize("head", HEADS)
def test_heads_of_a_packed_target_are_packed(tmp_path, head):
    kind, size, rank, is_full = HEADS[head]
    target = language_model(random_network("llama", 3).__class__(random_network("llama", 3).config))
    target.pack()
    drafter = drafter_of(tmp_path, target, is_full).with_head(kind, size)
    module = drafter.model.head

    multiplied = getattr(module, "scorer", module)
    assert multiplied._is_packed if isinstance(multiplied, LowRankHead) else multiplied._packed is not None
    plain = HeadParts(drafter.parts.own, counts=drafter.parts.counts, scorer=drafter.parts.scorer)
    hidden = torch.randn(3, 32, generator=Generator().manual_seed(0))
    expected = plain.build(HeadChoice(kind, size), "plain")(hidden, rank)
    # Float16 and eight bits: each of a row's weights is off by at most a 254th of its largest.
    torch.testing.assert_close(module(hidden, rank), expected, atol=0.15, rtol=0.02)
    assert answers(ModelPair(target, drafter), [[1, 2, 3]], rank=rank, max_new_tokens=6) == answers(
        ModelPair(target, drafter), [[1, 2, 3]], rule="ar", max_new_tokens=6
    )


def test_heads_share_the_body_and_leave_each_other_alone(tmp_path):
    drafter = drafter_of(tmp_path, target_of())
    own = drafter.model.head

    other = drafter.with_head("truncated", 9)

    assert drafter.model.head is own
    assert isinstance(other.model.head, TruncatedHead)
    assert other.model.fc is drafter.model.fc
    assert other.model.embedding is drafter.model.embedding
    assert other.with_head("own").model.head is own
    assert other.with_head("truncated", 9).model.head is not own


def test_descriptions(tmp_path):
    drafter = drafter_of(tmp_path, target_of())
    facts = {
        kind: drafter.with_head(kind, size).describe(rank)
        for kind, size, rank in (("own", 0, 3), ("full", 0, 0), ("truncated", 9, 0), ("dynamic", 7, 2))
    }

    assert [facts[kind]["head"] for kind in facts] == list(facts)
    assert [facts[kind]["rank"] for kind in facts] == [3, None, None, 2]
    assert [facts[kind]["head_size"] for kind in facts] == [None, None, 9, 7]
    parameters = [3 * (32 + VOCAB), 32 * VOCAB, 9 * 32, 2 * (32 + VOCAB) + 7 * 32]
    assert [facts[kind]["head_parameters"] for kind in facts] == parameters
    assert len({facts[kind]["num_parameters"] - facts[kind]["head_parameters"] for kind in facts}) == 1


def test_sizes_left_out_are_the_defaults_or_the_vocabulary(tmp_path):
    drafter = drafter_of(tmp_path, target_of())

    assert drafter.with_head("truncated").describe(0)["head_size"] == VOCAB
    assert drafter.with_head("dynamic").describe(0)["head_size"] == VOCAB


def test_lookup_before_another_head(tmp_path):
    target = target_of()
    hybrid = HybridDrafter(drafter_of(tmp_path, target)).with_head("truncated", 9)
    prompts = prompts_of((6, 9))

    assert hybrid.describe(0) | {"kind": "hybrid", "head": "truncated", "head_size": 9} == hybrid.describe(0)
    assert answers(ModelPair(target, hybrid), prompts, draft_length=3, max_new_tokens=12) == answers(
        ModelPair(target, hybrid), prompts, rule="ar", max_new_tokens=12
    )


@pytest.mark.parametrize("name", ["folder", "auto", "hybrid"])
def test_the_head_is_chosen_when_the_drafter_is_loaded(tmp_path, monkeypatch, name):
    target = target_of()
    folder = save_eagle(tmp_path / "d", target, random_eagle(target, 12), token_counts=counts_of(VOCAB))
    monkeypatch.setattr(loading, "CHECKPOINTS", tmp_path)

    drafter = loading.load_drafter(target, str(folder) if name == "folder" else name, head=HeadChoice("truncated", 11))

    assert isinstance(drafter, HybridDrafter if name == "hybrid" else EagleDrafter)
    assert drafter.describe(0)["head_size"] == 11


# The ceiling.


def test_mass_outside_against_a_sum_by_hand():
    laws = torch.tensor([[[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]]])

    assert mass_outside(laws, torch.tensor([0, 2])) == pytest.approx((0.3 + 0.6) / 2)
    assert mass_outside(laws, torch.arange(4)) == pytest.approx(0, abs=1e-7)


def test_no_law_on_the_kept_tokens_overlaps_more_than_the_ceiling():
    generator = Generator().manual_seed(0)
    laws = torch.randn(50, 12, generator=generator).mul(2).softmax(-1)
    kept = frequent_ids(laws.sum(0), 5)
    drafts = torch.full((50, 12), -torch.inf).index_copy_(1, kept, torch.randn(50, 5, generator=generator)).softmax(-1)

    overlap = torch.minimum(laws, drafts).sum(-1).mean()

    assert overlap <= 1 - mass_outside(laws, kept)


# Refusals: one sentence, what to do in it.


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("magic", 0), "head is 'magic'; it must be one of own, full, truncated, dynamic."),
        (("dynamic", -1), "head size is -1; it must be at least 1, or 0 for the default."),
        (("own", 3), "head size is 3, but the own head has no size to choose. Leave it out"),
        (("full", 3), "head size is 3, but the full head has no size"),
        (("truncated", 65), "head size is 65; the truncated head takes 2 to 64 tokens here. Change --head-size."),
        (("truncated", 1), "head size is 1; the truncated head takes 2 to 64 tokens here."),
        (("dynamic", 65), "head size is 65; the dynamic head takes 1 to 64 tokens here."),
    ],
)
def test_choices_that_cannot_be(tmp_path, choice, message):
    drafter = drafter_of(tmp_path, target_of(end_ids=(3, 5)))

    with pytest.raises(SettingError) as caught:
        drafter.with_head(*choice)

    assert str(caught.value).startswith(message)


def test_heads_whose_parts_are_missing(tmp_path):
    target = target_of()
    bare = load_eagle(tmp_path / "a", target)
    twin = load_eagle(tmp_path / "b", target, full=True)
    cut = twin.with_module(TruncatedHead(torch.zeros(3, 32), torch.arange(3), VOCAB))

    with pytest.raises(SettingError, match="a does not say how often .* no token_counts.* Choose --head own, full"):
        bare.with_head("truncated")
    with pytest.raises(SettingError, match="b has a full head and no scorer .* Choose --head own, or"):
        twin.with_head("dynamic")
    with pytest.raises(SettingError, match="The head of cut has no rows for some tokens, .* Choose --head own"):
        EagleDrafter(cut.model, "cut").with_head("full")


def test_a_rank_is_refused_where_the_head_has_none(tmp_path):
    drafter = drafter_of(tmp_path, target_of())
    for kind in ("full", "truncated"):
        with pytest.raises(SettingError, match="rank is 3, but drafter has no low-rank head. Set rank to 0"):
            drafter.with_head(kind).start(1, 10, DecodeConfig(rank=3))
    with pytest.raises(SettingError, match="rank is 13; the head of drafter has rank 12"):
        drafter.with_head("dynamic").start(1, 10, DecodeConfig(rank=13))


def test_drafters_without_a_head_to_replace():
    pair = table_pair()
    head = HeadChoice("full")
    with pytest.raises(SettingError, match="head is full, but the drafter 'none' has no head"):
        loading.load_drafter(pair.target, "none", head=head)
    with pytest.raises(
        SettingError, match="head is full, but the drafter 'ngram' has no head to replace. Choose --head own"
    ):
        loading.load_drafter(pair.target, "ngram", head=head)
    with pytest.raises(SettingError, match="prompt lookup has no head to replace"):
        HybridDrafter(NgramDrafter()).with_head("full")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_counts": torch.ones(VOCAB - 1)}, r"token_counts is \(63,\); it must be \(64,\)"),
        ({"token_counts": -torch.ones(VOCAB)}, "none negative"),
        ({"scorer__down__weight": torch.ones(2, 32)}, "scorer.up.weight"),
        (
            {"scorer__down__weight": torch.ones(2, 32), "scorer__up__weight": torch.ones(VOCAB, 3)},
            r"scorer has factors \(2, 32\) and \(64, 3\)",
        ),
    ],
)
def test_damaged_parts_are_refused_when_loaded(tmp_path, tensors, message):
    with pytest.raises(WeightsError, match=f"does not describe a drafter .*{message}.* Fit or fetch it again"):
        load_eagle(tmp_path, target_of(), **tensors)


def test_a_checkpoint_without_a_head_must_say_so(tmp_path):
    target = target_of()
    model = random_eagle(target, 12)
    model.head = LowRankHead(torch.zeros(1, 32), torch.zeros(VOCAB, 1))
    save_eagle(tmp_path, target, model, full=True)
    meta = (tmp_path / "meta.json").read_text("utf-8").replace('"head": "full"', '"head": "own"')
    (tmp_path / "meta.json").write_text(meta, "utf-8")

    with pytest.raises(WeightsError, match="does not describe a drafter .'lm_head.down.weight'"):
        EagleDrafter.load(tmp_path, target)
