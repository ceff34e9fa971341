"""What cannot be read is refused in one sentence that names the folder; nothing is guessed."""

import json

import pytest
import torch
from plain_eagle import (
    KEPT,
    RANK,
    D,
    config_of,
    deep_network,
    deep_target,
    folder_of,
    random_tensors,
    write_folder,
)  # fmt: skip
from toys import language_model, random_network

from explorer.engine import loading
from explorer.engine.eagle import EagleDrafter
from explorer.engine.published import is_published, read
from explorer.errors import ModelPairError, WeightsError


def refused(folder, error, message, target=None):
    with pytest.raises(error, match=message) as caught:
        read(folder, target or deep_target())
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fc_norm": True}, r"has norms on the fused features \(fc_norm\), which this app does not compute"),
        ({"norm_before_fc": True}, r"has a norm on the fused features \(norm_before_fc\)"),
        ({"norm_output": True}, r"has a chain that continues from normed outputs \(norm_output\)"),
        ({"use_sliding_window": True}, "has sliding attention"),
        ({"layer_types": ["sliding_attention"]}, r"attention of the kinds \['sliding_attention'\]"),
        ({"num_hidden_layers": 2}, "has 2 layers, which"),
        ({"hidden_act": "gelu"}, "has the activation gelu"),
        ({"logit_scale": 0.5}, "has logits scaled by 0.5"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "has no fused features"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "a rotary embedding of the kind dynamic on 1 of"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "kind default on 0.5 of each head"),
        ({"rope_scaling": {"type": "default", "mrope_section": [2, 2, 2]}}, "a rotary embedding of the kind default"),
        ({"hidden_size": 48}, "has hidden_size 48; deep toy has hidden size 32 and embeddings of 32, and all must"),
        ({"target_hidden_size": 64}, "has target_hidden_size 64; deep toy has"),
        ({"vocab_size": 70}, "made for a vocabulary of 70; deep toy has 64 rows. Load the target it was made for"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 6]}, r"before layers \[2, 3, 6\] .* deep toy has layers 0 to 5"),
        ({"eagle_aux_hidden_state_layer_ids": [True, 2, 3]}, "reads the states before layers"),
        ({"eagle_aux_hidden_state_layer_ids": 2}, "reads the states before layers 2 of its target"),
        ({"speculators_model_type": "eagle"}, "holds a drafter of the kind eagle; only eagle3 can be read"),
    ],
)
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_what_our_layer_does_not_compute_and_other_targets(tmp_path, layout, changes, message):
    refused(folder_of(tmp_path, layout=layout, **changes), ModelPairError, message)


def test_a_target_too_shallow_for_the_usual_layers(tmp_path):
    shallow = language_model(random_network("llama", 3), name="shallow")
    refused(folder_of(tmp_path), ModelPairError, r"before layers \[2, 1, -1\] of its target; shallow has", shallow)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": 0}, r"intermediate_size in .* is 0; it must be a whole number in \[1, "),
        ({"intermediate_size": "many"}, "intermediate_size in .* is 'many'; it must be a whole number"),
        ({"num_attention_heads": 1 << 40}, "num_attention_heads in .* must be a whole number"),
        ({"draft_vocab_size": True}, "draft_vocab_size in .* is True; it must be a whole number"),
        ({"num_key_value_heads": 3}, "has 4 heads of size 12 and 3 key/value heads; heads come in equal groups"),
        ({"head_dim": 7}, "has 4 heads of size 7"),
        ({"rms_norm_eps": -1}, r"rms_norm_eps in .* is -1; it must be in \[0, 1\)"),
        ({"rope_scaling": 3}, "rope_scaling in .* is 3; it must be an object"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope settings in .* cannot be used"),
        ({"rope_theta": "warm"}, "rope settings in .* cannot be used"),
        ({"head_dim": 16}, r"self_attn.[qkvo]_proj.weight in .* is \(\d+, \d+\); config.json says"),
        ({"intermediate_size": 1 << 20}, r"mlp.gate_proj.weight in .* is \(20, 32\); config.json says \(1048576, 32\)"),
    ],
)
def test_sizes_that_make_no_sense(tmp_path, changes, message):
    refused(folder_of(tmp_path, **changes), WeightsError, message)


@pytest.mark.parametrize("text", ["", "{oops", "[1]", '{"draft_vocab_size": 64, "transformer_layer_config": [1]}'])
def test_a_damaged_config(tmp_path, text):
    folder_of(tmp_path)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    refused(tmp_path, WeightsError, "config.json is damaged")


def test_missing_files(tmp_path):
    folder_of(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    refused(tmp_path, WeightsError, "holds no model.safetensors, and no other file of weights is read")
    (tmp_path / "config.json").unlink()
    refused(tmp_path, WeightsError, "config.json cannot be read")


@pytest.mark.parametrize("size", [0, 5, 500, -100])
def test_damaged_weights(tmp_path, size):
    weights = folder_of(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    refused(tmp_path, WeightsError, "model.safetensors is damaged or cut short")


def _head(**changes):
    """Tensors with a head of chosen tokens, and what a test changes about them."""
    return {name: t for name, t in (random_tensors("d2t") | changes).items() if t is not None}


@pytest.mark.parametrize("name", [name for name in random_tensors() if name != "lm_head.weight"])
def test_a_missing_a_misshapen_and_a_broken_tensor(tmp_path, name):
    tensors = random_tensors()
    whole = tensors.pop(name)
    refused(write_folder(tmp_path, tensors, config_of()), WeightsError, f"{name} in .* is missing; config.json says")
    refused(write_folder(tmp_path, tensors | {name: whole[1:]}, config_of()), WeightsError, f"{name} in .* is .*; con")
    broken = whole.clone()
    broken.view(-1)[3] = torch.nan
    refused(write_folder(tmp_path, tensors | {name: broken}, config_of()), WeightsError, f"{name} in .* not finite")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lm_head.weight": None}, "The head in .* is missing; it must be lm_head.weight, or lm_head.down.weight and"),
        ({"lm_head.down.weight": torch.ones(RANK, D)}, "The head in .* is lm_head.down.weight, lm_head.weight; it"),
        ({"lm_head.weight": torch.ones(KEPT + 1, D)}, r"lm_head.weight in .* is \(25, 32\); config.json says \(24, 3"),
        ({"lm_head.weight": torch.full((KEPT, D), torch.inf)}, "lm_head.weight in .* holds numbers that are not fin"),
        ({"lm_head.weight": torch.ones(KEPT, D, dtype=torch.int8)}, "is torch.int8; weights must be float32, float16"),
        ({"d2t": None}, "has no d2t, which says what the 24 rows of its head stand for, of 64 tokens"),
        ({"d2t": torch.zeros(5, dtype=torch.int64)}, r"d2t in .* is \(5,\); config.json says \(24,\)"),
        ({"d2t": torch.zeros(KEPT)}, "d2t in .* is torch.float32; it must hold whole numbers"),
        ({"d2t": torch.full((KEPT,), 50)}, "d2t in .* leads from row 14 to token 64; it must name 24 of 64 tokens"),
        ({"d2t": torch.full((KEPT,), -1)}, "d2t in .* leads from row 0 to token -1"),
        ({"d2t": -torch.arange(KEPT)}, "d2t in .* names a token twice"),
        ({"d2t": torch.zeros(KEPT, dtype=torch.int64)}, "d2t and t2d in .* name different tokens"),
        ({"t2d": torch.ones(5, dtype=torch.bool)}, r"t2d in .* is \(5,\)"),
    ],
)
def test_heads_and_their_tokens(tmp_path, changes, message):
    folder = write_folder(tmp_path, _head(**changes), config_of(draft_vocab_size=KEPT))
    refused(folder, WeightsError, message)


def test_heads_in_two_factors(tmp_path):
    tensors = random_tensors("factors")
    short = tensors | {"lm_head.up.weight": tensors["lm_head.up.weight"][:, 1:]}
    refused(write_folder(tmp_path, short, config_of()), WeightsError, r"lm_head.up.weight in .* is \(64, 7\)")
    other = config_of(lm_head_rank=5)
    refused(write_folder(tmp_path, tensors, other), WeightsError, r"down.weight in .* is \(8, 32\); .* \(5, 32\)")
    some = tensors | {"d2t": torch.arange(KEPT), "lm_head.up.weight": tensors["lm_head.up.weight"][:KEPT]}
    config = config_of(draft_vocab_size=KEPT)
    refused(write_folder(tmp_path, some, config), ModelPairError, "a low-rank head of 24 of 64 tokens")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fc_norm.0.weight", "norms on the fused features"),
        ("input_norm.weight", "norms on the fused features"),
        ("fc.bias", "a bias on the fused features"),
        ("layers.1.mlp.up_proj.weight", "several layers"),
        ("midlayer.self_attn.q_norm.weight", "norms on queries and keys"),
        ("midlayer.self_attn.q_proj.bias", "an unknown tensor"),
    ],
)
def test_tensors_our_layer_has_no_place_for(tmp_path, name, words):
    folder = write_folder(tmp_path, random_tensors() | {name: torch.ones(3)}, config_of())
    refused(folder, ModelPairError, rf"has {words} \({name}\), which this app does not compute")


def test_a_tensor_under_two_names(tmp_path):
    folder = write_folder(tmp_path, random_tensors() | {"model.fc.weight": torch.ones(D, 3 * D)}, config_of())
    refused(folder, WeightsError, "holds both .*fc.weight and .*fc.weight, which are the same")


def test_embeddings_of_another_model(tmp_path):
    table = deep_network().get_input_embeddings().weight.detach()
    other = table.clone()
    other[-1, -1] += 0.1
    for found in (other, table[1:].clone(), table[:, 1:].clone(), torch.ones(3)):
        folder = write_folder(tmp_path, random_tensors() | {"embed_tokens.weight": found}, config_of())
        refused(folder, ModelPairError, r"has embeddings \(.*\) of its own .* are not those of deep toy \(64, 32\)")


# Which names are published drafters.


def test_published_folders_are_told_from_others(tmp_path):
    assert not is_published(tmp_path)
    for config, expected in (
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, False),
        ({"architectures": "LlamaForCausalLM"}, False),
        ([], False),
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000}, True),
        ({"architectures": ["LlamaEagle3DraftModel"]}, True),
        ({"speculators_model_type": "eagle"}, True),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        assert is_published(tmp_path) is expected


def test_a_name_on_the_hub(tmp_path, monkeypatch):
    """First the config, then the weights if it is a drafter's; nothing else is fetched, least of all pickles."""
    folder, asked = folder_of(tmp_path), []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    drafter = loading.load_drafter(deep_target(), "some/eagle3")
    assert isinstance(drafter, EagleDrafter)
    assert drafter.name == "some/eagle3"
    assert asked == [("some/eagle3", ["config.json"]), ("some/eagle3", ["config.json", "model.safetensors"])]


def test_a_hub_that_breaks_off(tmp_path, monkeypatch):
    folder = folder_of(tmp_path)

    def snapshot_download(name, allow_patterns):
        if len(allow_patterns) > 1:
            raise ConnectionError("gone\naway")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(WeightsError, match="The drafter some/eagle3 could not be fetched: gone Fetch"):
        loading.published_drafter("some/eagle3")
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert loading.published_drafter("some/llama") is None


def test_other_names_ask_nothing(monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the Hub"))
    for name in ("default", "no/repo:file.gguf", "/no/such/folder", "nowhere"):
        assert loading.published_drafter(name) is None
