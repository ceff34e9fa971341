"""Models behind the app's interface: passes, masks, vocabularies, ends, prompts, and what is refused."""

from types import SimpleNamespace

import pytest
import torch
from tokenizers import AddedToken
from toys import (
    CONTEXT,
    KINDS,
    VOCAB,
    WINDOW,
    answers,
    byte_tokenizer,
    generated,
    language_model,
    letter_tokenizer,
    prompts_of,
    random_network,
    random_table,
    randomise,
    table_model,
    toy_pair,
)
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPTNeoConfig,
    LlamaConfig,
    MambaConfig,
    Qwen3NextConfig,
)

from explorer.engine.models import LanguageModel, check_rows
from explorer.engine.pair import ModelPair, check_prompt, check_vocab, encode_chat
from explorer.errors import ModelPairError, SettingError


def tiny(config, **changes):
    """A random network of another kind than the toys'."""
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomise(network, 0)
    return network


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_is_a_plain_pass(kind):
    """Logits, features and the last hidden state, against transformers without cache or mask of ours."""
    model = language_model(random_network(kind))
    ids = torch.tensor(prompts_of((30, 30)))
    with torch.inference_mode():
        found = model.forward(
            ids, model.new_cache(40), torch.tensor([0, 0]), keep=5, features=(0, 1, 2), last_hidden=True
        )
        plain = model.model(ids, output_hidden_states=True)
    assert found.logits.shape == (2, 5, VOCAB)
    torch.testing.assert_close(found.logits, plain.logits[:, -5:], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(found.features, torch.cat(plain.hidden_states[:3], dim=-1), atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(found.last_hidden, plain.hidden_states[-1], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(
        model.model.get_output_embeddings()(found.last_hidden[:, -5:]), found.logits, atol=2e-4, rtol=1e-4
    )


@pytest.mark.parametrize("kind", ["mistral", "qwen3", "gemma3"])
def test_the_window_matters_to_these_models(kind):
    """Else the tests of sliding attention would pass without it."""
    model = language_model(random_network(kind))
    ids = torch.tensor(prompts_of((20,)))
    other = ids.clone()
    other[0, 0] += 1  # token 0 may be seen by the last position only through the layers' overlap, or full attention
    layers = model.num_layers
    assert layers * (WINDOW - 1) < 20 or "full_attention" in model._windows
    with torch.inference_mode():
        first, second = (model.forward(x, model.new_cache(20), torch.tensor([0]), keep=1).logits for x in (ids, other))
    assert torch.equal(first, second) == ("full_attention" not in model._windows)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_eager_attention_gets_a_mask_it_can_add(kind, implementation):
    network = random_network(kind, seed=1)
    config = type(network.config).from_dict(network.config.to_dict())
    twin = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=implementation).eval()
    twin.load_state_dict(network.state_dict())
    twin.generation_config.eos_token_id = None
    model = language_model(twin)
    prompts = prompts_of((9, 3))
    expected = [generated(model, prompt, 8) for prompt in prompts]
    assert answers(ModelPair(model, None), prompts, rule="ar", max_new_tokens=8) == expected


def test_columns_past_the_context_do_not_overflow_learned_positions():
    for kind in ("gpt2", "opt"):
        model = language_model(random_network(kind))
        starts = torch.tensor([0, CONTEXT - 2])
        logits = model.forward(torch.ones(2, 6, dtype=torch.long), model.new_cache(CONTEXT + 8), starts, keep=6).logits
        assert logits.isfinite().all()


def test_sizes_and_weights_are_counted():
    model = language_model(random_network("llama"))
    assert (model.vocab_size, model.context_length, model.num_layers, model.hidden_size) == (VOCAB, CONTEXT, 2, 32)
    assert model.num_parameters == sum(weight.numel() for weight in random_network("llama").parameters())
    assert model.embedding.shape == (VOCAB, 32)
    assert model.dtype == torch.float32


def test_fingerprint_knows_the_weights_and_not_the_precision():
    network = random_network("llama", vocab=128)
    rounded = tiny(network.config)
    rounded.load_state_dict({name: weight.bfloat16().float() for name, weight in network.state_dict().items()})
    same = [language_model(net).fingerprint for net in (network, rounded)]
    same.append(language_model(rounded.bfloat16()).fingerprint)
    assert len(set(same)) == 1
    assert len(same[0]) == 16
    assert language_model(random_network("llama", seed=1, vocab=128)).fingerprint != same[0]


# Vocabularies.


def test_a_model_without_rows_for_the_text_is_refused():
    with pytest.raises(ModelPairError, match="has 70 tokens, but its model covers 64"):
        language_model(random_network("llama"), letter_tokenizer(VOCAB + 6))


def test_special_tokens_without_a_row_are_never_written():
    """Gemma 3 1B: the tokenizer's image token has no row. It is refused in a prompt, and has probability 0."""
    tokenizer = letter_tokenizer(VOCAB)
    tokenizer.add_tokens([AddedToken("<image>", special=True)])
    model = language_model(random_network("llama"), tokenizer)
    assert model.vocab_size == VOCAB + 1
    pair = ModelPair(model, toy_pair("llama").drafter)
    pair.drafter.model.vocab_size = VOCAB + 1  # its padding row, as a larger model of the family has one
    with pytest.raises(SettingError, match="The prompt holds the token '<image>', which toy cannot read"):
        answers(pair, [[1, VOCAB]])
    logits = model.forward(torch.tensor([[1]]), model.new_cache(1), torch.tensor([0]), keep=1).logits
    assert logits.shape[2] == VOCAB + 1
    assert logits[0, 0, VOCAB] == -torch.inf


def test_ids_are_counted_to_the_highest_where_the_tokenizer_has_holes():
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {"a": 0, "b": 5}, added_tokens_decoder={}, eos_token_id=None, __len__=lambda: 2
    )
    assert LanguageModel("holes", random_network("llama"), tokenizer, "float32").vocab_size == 6


def test_unlike_vocabularies_are_refused():
    target, drafter = toy_pair("llama").target, language_model(random_network("llama"), letter_tokenizer(60), name="b")
    check_vocab(target, toy_pair("llama", padding=16).drafter.model)  # the rows may differ, the tokens may not
    with pytest.raises(ModelPairError, match="b cannot draft for toy llama: their tokenizers differ in 4 of 64 tokens"):
        check_vocab(target, drafter)
    with pytest.raises(ModelPairError, match="differ in 4 of 60"):
        check_vocab(drafter, target)


# Ends.


def test_every_end_id_is_gathered():
    network = tiny(
        LlamaConfig(**random_network("llama").config.to_diff_dict() | {"vocab_size": 300, "eos_token_id": 5})
    )
    network.generation_config.eos_token_id = [6, 7]
    model = LanguageModel("ends", network, byte_tokenizer(), "float32")
    assert model.end_ids == {5, 6, 7, byte_tokenizer().eos_token_id}


def test_a_model_may_have_no_end():
    assert LanguageModel("endless", random_network("llama"), letter_tokenizer(VOCAB), "float32").end_ids == frozenset()


# Architectures.


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4), "linear_attention"),
        (GPTNeoConfig(vocab_size=VOCAB, hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]],
                      num_heads=2, intermediate_size=32), "local_attention"),
    ],
)  # fmt: skip
def test_states_that_cannot_be_rolled_back_are_refused(config, kind):
    with pytest.raises(ModelPairError, match=f"toy has layers of kind {kind}; only full and sliding attention"):
        language_model(tiny(config))


def test_layers_that_mix_in_linear_attention_are_refused():
    config = Qwen3NextConfig(num_hidden_layers=4)
    network = SimpleNamespace(
        eval=lambda: None,
        config=config,
        get_input_embeddings=lambda: torch.nn.Embedding(VOCAB, 2),
        get_output_embeddings=lambda: torch.nn.Embedding(VOCAB, 2),
    )
    network.eval = lambda: network
    with pytest.raises(ModelPairError, match="layers of kind linear_attention"):
        LanguageModel("next", network, letter_tokenizer(VOCAB), "float32")


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_follow_rows_pass_the_check(kind):
    check_rows(language_model(random_network(kind)))


def test_a_model_that_ignores_positions_is_refused():
    bloom = tiny(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ModelPairError, match=r"toy \(bloom\) does not decode rows of unequal length"):
        check_rows(language_model(bloom))

    network = random_network("llama")
    forward = network.forward

    class Deaf(torch.nn.Module):
        """Counts positions on its own, as if every row were as long as the longest."""

        config, generation_config = network.config, network.generation_config
        get_input_embeddings, get_output_embeddings = network.get_input_embeddings, network.get_output_embeddings

        def forward(self, input_ids, position_ids=None, **options):
            if position_ids is not None:
                position_ids = position_ids.max(dim=0, keepdim=True).values.expand_as(position_ids)
            return forward(input_ids=input_ids, position_ids=position_ids, **options)

    with pytest.raises(ModelPairError, match=r"toy \(llama\) does not decode rows of unequal length"):
        check_rows(language_model(Deaf()))


# Prompts.


def byte_model(context=CONTEXT):
    return LanguageModel("bytes", random_network("llama", vocab=300, context=context), byte_tokenizer(), "float32")


def test_a_chat_template_is_applied():
    ids = encode_chat(byte_model(), "hi")
    assert byte_tokenizer().decode(ids) == "<|user|>hi<|end|><|assistant|>"
    assert all(type(i) is int for i in ids)


def test_a_model_without_a_template_continues_the_text():
    assert encode_chat(toy_pair().target, "abc") == [0, 1, 2]


@pytest.mark.parametrize("prompt", ["", "  \n\t "])
def test_an_empty_prompt_is_refused(prompt):
    with pytest.raises(SettingError, match="The prompt is empty"):
        encode_chat(byte_model(), prompt)


def test_bytes_that_are_no_text_are_refused():
    """A command line turns them into lone surrogates."""
    with pytest.raises(SettingError, match="The prompt holds bytes that are no text"):
        encode_chat(byte_model(), "a\udcff")


def test_a_prompt_that_fills_the_context_is_refused():
    with pytest.raises(SettingError, match="The prompt has 103 tokens; bytes reads at most 63 and needs room"):
        encode_chat(byte_model(), "x" * 100)
    assert len(encode_chat(byte_model(), "x" * 60)) == 63


def test_a_prompt_is_checked_by_its_ids():
    target = toy_pair().target
    check_prompt(target, [0] * (CONTEXT - 1))
    for ids, message in (([], "no tokens"), ([0] * CONTEXT, "Shorten the prompt"), ([VOCAB], "cannot read")):
        with pytest.raises(SettingError, match=message):
            check_prompt(target, ids)


def test_a_pair_describes_itself_in_json_values():
    pair = toy_pair("llama")
    facts = pair.describe(0)
    assert facts["target"] == {
        "name": "toy llama", "num_parameters": pair.target.num_parameters, "fingerprint": pair.target.fingerprint,
    }  # fmt: skip
    assert facts["drafter"]["kind"] == "model"
    assert (facts["precision"], facts["device"]) == ("float32", "cpu")
    assert ModelPair(table_model(random_table(3, 0)), None).describe(0)["drafter"] is None
