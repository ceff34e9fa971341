"""`export`: what is written reads back as the same drafter, whole or not at all."""

import json

import pytest
import torch
from exporting import RANK, run, save_drafter
from plain_eagle import LAYERS, VOCAB, D, PlainEagle, deep_network, deep_target
from safetensors.torch import load_file
from torch import Generator
from toys import answers, language_model, prompts_of, random_network

from explorer.engine import export, loading
from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Sequences
from explorer.engine.eagle import EagleDrafter, facts_of
from explorer.engine.pair import ModelPair
from explorer.engine.published import read
from explorer.engine.sampling import Sampler
from explorer.heads import checkpoint
from explorer.heads.draft import LowRankHead, TruncatedHead


@pytest.fixture
def target(monkeypatch):
    """What `export` loads instead of a model."""
    toy = deep_target()
    monkeypatch.setattr(export, "load_model", lambda *_: toy)
    return toy


@torch.inference_mode()
def draft_of(model, ids):
    """A greedy chain of four after `ids`, with its laws at temperature 1."""
    states = deep_network()(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
    features = torch.cat([states[i] for i in model.shape.features], dim=2)
    padded = torch.zeros(1, 40, dtype=torch.int64)
    padded[0, : len(ids)] = torch.tensor(ids)
    sequences = Sequences(padded, torch.tensor([len(ids)]), features, torch.tensor([0]))
    session = EagleDrafter(model, "x").start(1, 40, DecodeConfig())
    greedy = session.draft(sequences, 4, Sampler(temperature=0.0), Generator())
    laws = model.head(greedy.hidden).softmax(-1)
    return greedy.ids[0], laws[0]


@pytest.mark.parametrize("norms_first", [False, True])
@pytest.mark.parametrize("width", [0, 20])
@pytest.mark.parametrize("merge", ["--merge", "--no-merge"])
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_what_is_written_drafts_the_same(tmp_path, target, capsys, layout, merge, width, norms_first):
    source = save_drafter(tmp_path / "source", target, width=width, norms_first=norms_first)
    out = tmp_path / "made" / "here"

    assert run("--drafter", source, "--layout", layout, merge, "--out", out) == 0

    assert capsys.readouterr().out == f"{out}\n"
    ours, theirs = EagleDrafter.load(source, target).model, read(out, target)
    for seed in range(3):
        ids = prompts_of((8,), seed)[0]
        (our_ids, our_laws), (their_ids, their_laws) = draft_of(ours, ids), draft_of(theirs, ids)
        assert our_ids.tolist() == their_ids.tolist()
        torch.testing.assert_close(their_laws, our_laws, atol=0.02 if merge == "--merge" else 1e-6, rtol=0)
    assert theirs.shape.norm_before_residual is norms_first
    assert isinstance(theirs.head, LowRankHead) is (merge == "--no-merge")
    drafter, prompts = loading.load_drafter(target, str(out)), prompts_of((5, 1))
    alone = answers(ModelPair(target, None), prompts, rule="ar", max_new_tokens=10)
    assert answers(ModelPair(target, drafter), prompts, draft_length=3, max_new_tokens=10) == alone
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in out.parent.iterdir()] == ["here"]


@pytest.mark.parametrize("norms_first", [False, True])
@pytest.mark.parametrize(("merge", "layout"), [("--merge", "eagle3"), ("--no-merge", "speculators")])
@torch.inference_mode()
def test_a_plain_forward_of_the_file_is_our_drafter(tmp_path, target, merge, layout, norms_first):
    """Run by what its config.json says, in double precision, without any code of ours."""
    source = save_drafter(tmp_path / "source", target, norms_first=norms_first)
    assert run("--drafter", source, merge, "--layout", layout, "--out", tmp_path / "out") == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    layer = config.get("transformer_layer_config", config)
    options = {
        "norms_first": config["norm_before_residual"],
        "eps": layer["rms_norm_eps"],
        "theta": layer["rope_theta"],
    }
    plain = PlainEagle(tensors, target.embedding, **options)
    ids = prompts_of((8,))[0]
    hidden = deep_network()(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
    chain, tokens = plain.fused([hidden[i][0] for i in (2, LAYERS // 2, LAYERS - 3)]), ids[1:]

    drafted, laws = draft_of(EagleDrafter.load(source, target).model, ids)

    for token, law in zip(drafted.tolist(), laws, strict=True):
        output = plain.entries(chain, tokens)[-1]["output"]
        torch.testing.assert_close(plain.logits(output).softmax(0), law.double(), atol=0.02, rtol=0)
        chain, tokens = [*chain, output], [*tokens, token]


def test_the_files_in_the_plain_layout(tmp_path, target):
    """Names, shapes and dtypes as other loaders ask for them."""
    source = save_drafter(tmp_path / "source", target, width=0)
    assert run("--drafter", source, "--out", tmp_path / "out") == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))

    assert {name: tuple(t.shape) for name, t in tensors.items() if "midlayer" not in name} == {
        "fc.weight": (D, 3 * D), "norm.weight": (D,), "lm_head.weight": (VOCAB, D), "d2t": (VOCAB,), "t2d": (VOCAB,)
    }  # fmt: skip
    layer = {name.removeprefix("midlayer."): tuple(t.shape) for name, t in tensors.items() if "midlayer" in name}
    assert layer == {
        "self_attn.q_proj.weight": (32, 2 * D), "self_attn.k_proj.weight": (16, 2 * D),
        "self_attn.v_proj.weight": (16, 2 * D), "self_attn.o_proj.weight": (D, 32),
        "mlp.gate_proj.weight": (64, D), "mlp.up_proj.weight": (64, D), "mlp.down_proj.weight": (D, 64),
        "hidden_norm.weight": (D,), "input_layernorm.weight": (D,), "post_attention_layernorm.weight": (D,),
    }  # fmt: skip
    assert {t.dtype for name, t in tensors.items() if name not in ("d2t", "t2d")} == {torch.bfloat16}
    assert tensors["d2t"].dtype == torch.int64
    assert not tensors["d2t"].any()
    assert tensors["t2d"].dtype == torch.bool
    assert tensors["t2d"].all()
    weights, _ = checkpoint.load(source, target=facts_of(target))
    product = weights["lm_head.up.weight"].float() @ weights["lm_head.down.weight"].float()
    assert torch.equal(tensors["lm_head.weight"], product.bfloat16())
    assert not any(tensors[f"midlayer.mlp.{name}_proj.weight"].any() for name in ("gate", "up", "down"))
    expected = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "hidden_size": D, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "vocab_size": VOCAB, "draft_vocab_size": VOCAB, "target_hidden_size": D, "tie_word_embeddings": False,
        "norm_before_residual": False, "rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "bfloat16",
        "hidden_act": "silu", "use_cache": True, "eagle_config": {"use_aux_hidden_state": True},
    }  # fmt: skip
    assert config | expected == config
    assert {"rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"} <= config.keys()
    assert "lm_head_rank" not in config


def test_the_files_of_speculators_and_of_factors(tmp_path, target):
    source = save_drafter(tmp_path / "source", target, features=(1, 2, 4))
    words = ("--drafter", source, "--no-merge", "--out")
    assert run(*words, tmp_path / "wrapped", "--layout=speculators") == 0
    assert run(*words, tmp_path / "plain") == 0
    config, plain = (
        json.loads((tmp_path / name / "config.json").read_text(encoding="utf-8")) for name in ("wrapped", "plain")
    )
    tensors = load_file(tmp_path / "wrapped" / "model.safetensors")

    assert tensors["lm_head.down.weight"].shape == (RANK, D)
    assert tensors["lm_head.up.weight"].shape == (VOCAB, RANK)
    assert "layers.0.self_attn.q_proj.weight" in tensors
    assert not {name for name in tensors if "midlayer" in name} | tensors.keys() & {"d2t", "t2d", "lm_head.weight"}
    assert (config["lm_head_rank"], config["lm_head_rank_divisor"]) == (RANK, D // RANK)
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    assert plain["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 4]
    assert (config["speculators_model_type"], config["norm_before_residual"]) == ("eagle3", False)
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": "deep toy", "architectures": ["LlamaForCausalLM"]
    }  # fmt: skip
    assert config["speculators_config"]["proposal_methods"][0]["proposal_type"] == "greedy"


def test_trimmed(tmp_path, target):
    """The most frequent tokens stay, and those that end an answer; a plain forward that follows d2t agrees."""
    target.end_ids = frozenset({40, 50})
    counts = torch.zeros(VOCAB, dtype=torch.int32)
    counts[[3, 60, 7, 9, 10]] = torch.tensor([9, 8, 7, 6, 1], dtype=torch.int32)
    source = save_drafter(tmp_path / "source", target, token_counts=counts)
    assert run("--drafter", source, "--trim=6", "--out", tmp_path / "out") == 0
    model, tensors = read(tmp_path / "out", target), load_file(tmp_path / "out" / "model.safetensors")

    assert isinstance(model.head, TruncatedHead)
    assert model.head.ids.tolist() == [3, 7, 9, 40, 50, 60]
    assert (tensors["d2t"] + torch.arange(6)).tolist() == [3, 7, 9, 40, 50, 60]
    assert tensors["t2d"].nonzero().flatten().tolist() == [3, 7, 9, 40, 50, 60]
    hidden = torch.randn(3, D)
    whole = EagleDrafter.load(source, target).model.head(hidden)
    kept = model.head(hidden)
    assert kept.isinf().sum() == 3 * (VOCAB - 6)
    torch.testing.assert_close(kept[:, model.head.ids], whole[:, model.head.ids], atol=0.1, rtol=0.01)
    plain = PlainEagle(tensors, target.embedding, norms_first=False, eps=model.shape.norm_eps).logits(
        hidden[0].double()
    )
    torch.testing.assert_close(model.head(model.normed(hidden[0])).double(), plain, atol=1e-4, rtol=1e-4)
    counted = EagleDrafter.load(source, target)
    assert counted.max_rank == RANK, "the counts do not disturb a drafter of ours"


def test_a_padded_target(tmp_path, monkeypatch):
    """Rows that no token stands for are in the config's vocabulary and in t2d, not in the head."""
    target = language_model(random_network("qwen3", 3, VOCAB + 6))
    monkeypatch.setattr(export, "load_model", lambda *_: target)
    source = save_drafter(tmp_path / "source", target)
    assert run("--drafter", source, "--out", tmp_path / "out") == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert (len(tensors["lm_head.weight"]), len(tensors["t2d"]), int(tensors["t2d"].sum())) == (64, 70, 64)
    assert read(tmp_path / "out", target).head.weight.shape == (VOCAB, D)


def test_the_bundled_drafter(tmp_path, target, monkeypatch):
    monkeypatch.setattr(loading, "CHECKPOINTS", tmp_path / "bundled")
    save_drafter(tmp_path / "bundled" / "toy", target)
    assert run("--out", tmp_path / "out") == 0
    assert read(tmp_path / "out", target).shape.features == (2, LAYERS // 2, LAYERS - 3)
