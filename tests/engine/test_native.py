"""The compiled pass against the operators it stands in for, on every kind of vector it is written for."""

import copy
import logging

import pytest
import torch
from eagles import random_eagle
from toys import VOCAB, answers, language_model, perturbed, prompts_of, random_network, run, texts_of

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import ModelDrafter
from explorer.engine.eagle import EagleDrafter, EagleSession
from explorer.engine.metrics import count
from explorer.engine.pair import ModelPair
from explorer.heads import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs a C compiler and an x86-64-v3 processor")
FLAGS = {"native": native.PROCESSOR_FLAGS, "avx2": ("-mavx2", "-mfma", "-mf16c")}
PROMPTS = prompts_of((2, 9, 30, 5))


@pytest.fixture(params=FLAGS, autouse=True)
def code(request, monkeypatch):
    """Every test runs on both widths of vectors."""
    monkeypatch.setattr(native, "PROCESSOR_FLAGS", FLAGS[request.param])
    assert native.library() is not None


def model_of(network=None):
    model = language_model(copy.deepcopy(network or random_network("wide_llama")))
    model.pack()
    assert model.fused.native is not None
    return model


def without(model):
    """The same model, operator by operator."""
    twin = copy.copy(model)
    twin.fused = copy.copy(model.fused)
    twin.fused.native = None
    return twin


def passes(model, width, starts, keep, seed=1):
    """A pass of `width` tokens behind prompts of 20, rows at starts of their own."""
    generator = torch.Generator().manual_seed(seed)
    B = len(starts)
    prompt, ids = (torch.randint(VOCAB, (B, n), generator=generator) for n in (20, width))
    cache = model.new_cache(40)
    with torch.inference_mode():
        without(model).forward(prompt, cache, torch.zeros(B, dtype=torch.long), keep=0)
        found = model.forward(ids, cache, torch.tensor(starts), keep=keep, features=(0, 1, 2), last_hidden=True)
    return found, cache


@pytest.mark.parametrize(
    ("width", "starts", "keep"),
    [(1, [20], 1), (5, [20], 5), (9, [7], 4), (4, [20, 11, 0], 2), (2, [3, 20, 9, 20, 1, 0, 4], 1), (3, [20, 20], 0)],
)
def test_a_compiled_pass_is_the_pass_of_the_operators(width, starts, keep):
    model = model_of()
    (found, cache), (expected, other) = passes(model, width, starts, keep), passes(without(model), width, starts, keep)
    for name in ("logits", "features", "last_hidden"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=2e-4, rtol=2e-5)
    for ours, theirs in zip(cache.layers, other.layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=2e-4, rtol=2e-5)
        torch.testing.assert_close(ours.values, theirs.values, atol=2e-4, rtol=2e-5)


def test_a_tokens_logits_do_not_depend_on_what_stands_beside_it():
    """To the last bit: the draft of one round must not change the law by which another is judged."""
    model = model_of()
    ids = torch.randint(VOCAB, (3, 5), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        together = model.forward(ids, model.new_cache(8), torch.zeros(3, dtype=torch.long), keep=5).logits
        for b in range(3):
            cache = model.new_cache(8)
            for t in range(5):
                alone = model.forward(ids[b : b + 1, t : t + 1], cache, torch.tensor([t]), keep=1).logits
                assert torch.equal(alone[0, 0], together[b, t])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(threads):
    model, before = model_of(), torch.get_num_threads()
    expected = passes(model, 3, [5, 9], 3)[0].logits
    try:
        torch.set_num_threads(threads)
        assert torch.equal(passes(model, 3, [5, 9], 3)[0].logits, expected)
    finally:
        torch.set_num_threads(before)


def test_greedy_text_is_the_text_of_the_operators():
    network = random_network("wide_llama")
    pair = ModelPair(model_of(network), ModelDrafter(model_of(perturbed(network, 0.3))))
    events = run(pair, PROMPTS, draft_length=4, max_new_tokens=20)
    slow = ModelPair(without(pair.target), ModelDrafter(without(pair.drafter.model)))
    assert texts_of(events, len(PROMPTS)) == answers(slow, PROMPTS, rule="ar", max_new_tokens=20)
    assert 0 < count(events).num_accepted < count(events).num_tested


def eightfold(weight):
    """The weights as eight bits and a scale per row give them."""
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (weight / scale).round() * scale


def eagle_of(target, **changes):
    """A drafter whose weights are already what eight bits can say, and its operators."""
    model = random_eagle(target, 12)
    for name, value in changes.items():
        object.__setattr__(model.shape, name, value)
    for weight in (model.fc, model.qkv, model.out, model.gate_up, model.mlp_down, model.head.down):
        weight.data = eightfold(weight.data)
    model.head.up_t.data = eightfold(model.head.up_t.data.t()).t().contiguous()
    plain = copy.deepcopy(model)
    model.pack()
    fast, slow = EagleDrafter(model, "eagle"), EagleDrafter(plain, "eagle")
    assert fast.native is not None
    assert slow.native is None
    return fast, slow


@pytest.mark.parametrize("changes", [{}, {"norm_before_residual": True}, {"intermediate_size": 0}])
def test_a_compiled_drafter_is_the_drafter_of_the_operators(changes):
    generator = torch.Generator().manual_seed(2)
    fast, slow = eagle_of(model_of(), **changes)
    ours, theirs = (EagleSession(one.model, 3, 40, DecodeConfig(), one.native) for one in (fast, slow))
    with torch.inference_mode():
        for width, start in ((4, 0), (1, 4), (2, 3)):
            ids = torch.randint(VOCAB, (3, width), generator=generator)
            states = torch.randn(3, width, 64, generator=generator)
            positions = torch.tensor([[start], [start + 1], [start]]) + torch.arange(width)
            last = torch.tensor([width - 1, 0, width - 1])
            entries = ids, states, positions, start + width + 1, last
            for found, expected in zip(ours._advance(*entries), theirs._advance(*entries), strict=True):
                torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-5)
    torch.testing.assert_close(ours.keys, theirs.keys, atol=2e-4, rtol=2e-5)
    torch.testing.assert_close(ours.values, theirs.values, atol=2e-4, rtol=2e-5)


@pytest.mark.parametrize("rank", [1, 5, 12, 0])
def test_every_prefix_of_a_compiled_head_is_that_rank(rank):
    fast, slow = eagle_of(model_of())
    hidden = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(fast.model.head(hidden, rank), slow.model.head(hidden, rank), atol=2e-4, rtol=2e-5)


@pytest.mark.parametrize("shape", [(1, 1), (70, 33), (32, 64), (97, 5)])
@pytest.mark.parametrize("bits", [8, 16])
def test_a_packed_matrix_multiplies_like_its_rounded_weights(bits, shape):
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(shape, generator=generator)
    weight[0] = 0
    rounded = weight.half().float() if bits == 16 else eightfold(weight)
    for n in (1, 2, 7, 8, 9, 16):
        inputs = torch.randn(n, shape[1], generator=generator)
        product = native.PackedMatrix(weight, bits=bits)(inputs)
        torch.testing.assert_close(product, inputs @ rounded.t(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_decode_with_a_compiled_drafter_drafts_the_same(temperature):
    target = model_of()
    settings = {"draft_length": 3, "max_new_tokens": 16, "temperature": temperature}
    fast, slow = (run(ModelPair(target, one), PROMPTS, **settings) for one in eagle_of(target))
    assert [(e.draft_ids, e.num_accepted, e.next_id) for e in fast] == [
        (e.draft_ids, e.num_accepted, e.next_id) for e in slow
    ]


def test_sizes_that_are_no_whole_vectors_go_operator_by_operator():
    narrow = language_model(copy.deepcopy(random_network("llama")))
    narrow.pack()
    assert narrow.fused is not None
    assert narrow.fused.native is None


def test_without_a_compiler_it_says_so_and_decodes(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert native.library() is None
    assert "no-such-compiler" in caplog.text
    model = language_model(copy.deepcopy(random_network("wide_llama")))
    model.pack()
    assert model.fused.native is None
    eagle = random_eagle(model, 12)
    eagle.pack()
    pair = ModelPair(model, EagleDrafter(eagle, "eagle"))
    assert pair.drafter.native is None
    assert answers(pair, PROMPTS, max_new_tokens=4) == answers(pair, PROMPTS, rule="ar", max_new_tokens=4)


def test_it_is_compiled_once_and_can_be_switched_off(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = native._compiled("cc", native.PROCESSOR_FLAGS)
    stamp = first.stat().st_mtime_ns
    assert native._compiled("cc", native.PROCESSOR_FLAGS) == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    monkeypatch.setenv("EXPLORER_NATIVE", "0")
    assert native.library() is None
