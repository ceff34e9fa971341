"""The fast path of Llama models and packed weights, against the plain path they stand in for."""

import copy

import pytest
import torch
from toys import DRAFTERS, VOCAB, answers, language_model, perturbed, prompts_of, random_network, run, texts_of

from explorer.engine.drafters import ModelDrafter, NgramDrafter
from explorer.engine.metrics import count
from explorer.engine.pair import ModelPair
from explorer.heads import packed

pytestmark = pytest.mark.skipif(not packed.is_supported(), reason="needs FBGEMM")
KINDS = ("llama", "wide_llama", "qwen3", "gpt2")  # rebuilt; compiled; only packed; no linear layer in its blocks
PROMPTS = prompts_of((1, 2, 9, 30, 5, 17))


def rounded(network):
    """The network with float16 values in its linear layers, norms folded in where the fast path folds them."""
    twin = copy.deepcopy(network)
    for module in twin.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.half().float()
    return twin


def packed_model(network, **options):
    model = language_model(copy.deepcopy(network), **options)
    model.pack()
    return model


def packed_pair(kind: str, drafter: str, **options) -> ModelPair:
    network = random_network(kind)
    target = packed_model(network, **options)
    return ModelPair(
        target, ModelDrafter(packed_model(perturbed(network, 0.3))) if drafter == "model" else NgramDrafter()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_pass_is_a_plain_pass_up_to_float16(kind):
    model, plain = packed_model(random_network(kind)), rounded(random_network(kind))
    assert (model.fused is not None) == ("llama" in kind)
    ids = torch.tensor(prompts_of((30, 30)))
    with torch.inference_mode():
        found = model.forward(
            ids, model.new_cache(40), torch.tensor([0, 0]), keep=5, features=(0, 1, 2), last_hidden=True
        )
        expected = plain(ids, output_hidden_states=True)
    for ours, theirs in (
        (found.logits, expected.logits[:, -5:]),
        (found.features, torch.cat(expected.hidden_states[:3], dim=-1)),
        (found.last_hidden, expected.hidden_states[-1]),
    ):
        assert ours.shape == theirs.shape
        assert (ours - theirs).norm() < 5e-3 * theirs.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_roll_back_like_in_the_plain_path(kind):
    """Ragged starts, drafts thrown away, written over: each row like alone and from the beginning."""
    model = packed_model(random_network(kind))
    generator = torch.Generator().manual_seed(0)
    ids, lengths = torch.randint(VOCAB, (3, 40), generator=generator), torch.tensor([1, 9, 20])
    with torch.inference_mode():
        cache = model.new_cache(64)
        model.forward(ids[:, :20], cache, torch.zeros(3, dtype=torch.long), keep=1)
        model.forward(torch.randint(VOCAB, (3, 6), generator=generator), cache, lengths, keep=6)
        new = torch.stack([ids[b, length : length + 4] for b, length in enumerate(lengths.tolist())])
        found = model.forward(new, cache, lengths, keep=3).logits
        for b, length in enumerate(lengths.tolist()):
            alone = model.forward(ids[b : b + 1, : length + 4], model.new_cache(40), torch.tensor([0]), keep=3).logits[
                0
            ]
            torch.testing.assert_close(found[b], alone, atol=2e-4, rtol=1e-4)
            one_by_one = model.new_cache(40)
            steps = [
                model.forward(ids[b : b + 1, t : t + 1], one_by_one, torch.tensor([t]), keep=1).logits[0, 0]
                for t in range(length + 4)
            ]
            torch.testing.assert_close(torch.stack(steps[-3:]), alone, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wide_llama"])  # test_native has that one
def test_exact_greedy_text_is_the_autoregressive_text(kind, drafter):
    pair = packed_pair(kind, drafter)
    events = run(pair, PROMPTS, draft_length=4, max_new_tokens=20)
    alone = [answers(pair, [prompt], rule="ar", max_new_tokens=20)[0] for prompt in PROMPTS]
    assert texts_of(events, len(PROMPTS)) == alone
    assert 0 < count(events).num_accepted < count(events).num_tested


def test_rows_end_at_the_context_edge():
    pair = packed_pair("llama", "model")
    prompts = prompts_of((63, 60, 50, 40))
    texts = answers(pair, prompts, draft_length=5, max_new_tokens=64)
    assert [len(text) for text in texts] == [1, 4, 14, 24]
    assert texts == answers(pair, prompts, rule="ar", max_new_tokens=64)


def test_packing_keeps_identity_and_size():
    plain, fast = language_model(random_network("llama")), packed_model(random_network("llama"))
    assert fast.fingerprint == plain.fingerprint
    assert fast.num_parameters == plain.num_parameters
    assert (fast.vocab_size, fast.dtype) == (plain.vocab_size, torch.float32)
