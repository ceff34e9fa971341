"""Names to models: folders, GGUF files, precisions, drafters, and one sentence for whatever cannot be loaded."""

import json
import pickle

import pytest
import torch
from toys import VOCAB, answers, byte_tokenizer, letter_tokenizer, perturbed, prompts_of, random_network, toy_pair
from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM

from explorer.engine import loading
from explorer.engine.drafters import ModelDrafter, NgramDrafter
from explorer.engine.loading import load_drafter, load_model, load_pair, measured_precision
from explorer.engine.pair import ModelPair
from explorer.errors import ModelPairError, SettingError, WeightsError
from explorer.heads import packed


def saved(folder, network, tokenizer=None):
    network.save_pretrained(folder)
    (tokenizer or letter_tokenizer(VOCAB)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target, a drafter of the same family, and one with another tokenizer."""
    root = tmp_path_factory.mktemp("models")
    network = random_network("llama")
    return {
        "target": saved(root / "target", network),
        "drafter": saved(root / "drafter", perturbed(network, 0.3)),
        "other": saved(root / "other", random_network("llama", vocab=300), byte_tokenizer()),
    }


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Names that are no folder must fail at once, not ask the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: True, raising=False)


def test_a_folder(folders):
    seen = []
    model = load_model(folders["target"], "float32", progress=lambda *step: seen.append(step))
    assert (model.precision, model.dtype, model.vocab_size) == ("float32", torch.float32, VOCAB)
    assert model.name == folders["target"]
    assert not model.model.training
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model.model(ids).logits, random_network("llama")(ids).logits)
    assert [(done, total) for _, done, total in seen] == [(0, 1), (1, 1)]


def test_a_pair_decodes_like_the_networks_it_was_saved_from(folders):
    pair = load_pair(folders["target"], folders["drafter"], "float32")
    assert isinstance(pair.drafter, ModelDrafter)
    prompts = prompts_of((3, 9))
    plain = answers(pair, prompts, rule="ar", max_new_tokens=12)
    assert answers(pair, prompts, draft_length=3, max_new_tokens=12) == plain


def test_bfloat16(folders):
    model = load_model(folders["target"], "bfloat16")
    assert (model.precision, model.dtype) == ("bfloat16", torch.bfloat16)
    pair = load_pair(folders["target"], folders["drafter"], "bfloat16")
    assert len(answers(pair, prompts_of((3, 9)), max_new_tokens=8, temperature=1.0)[1]) == 8


@pytest.mark.skipif(not packed.is_supported(), reason="needs FBGEMM")
def test_float16_weights_on_a_cpu(folders):
    """Packed linear layers: the text of its own baseline, and the same identity and size as in float32."""
    pair, plain = (load_pair(folders["target"], folders["drafter"], precision) for precision in ("float16", "float32"))
    assert pair.target.precision == "float16"
    assert pair.target.fingerprint == plain.target.fingerprint
    assert pair.target.num_parameters == plain.target.num_parameters
    assert pair.describe(0)["drafter"] == plain.describe(0)["drafter"]
    prompts = prompts_of((3, 9, 1))
    expected = answers(pair, prompts, rule="ar", max_new_tokens=12)
    assert answers(pair, prompts, draft_length=3, max_new_tokens=12) == expected


def test_float16_says_where_it_runs(folders, monkeypatch):
    monkeypatch.setattr(packed, "is_supported", lambda: False)
    with pytest.raises(ModelPairError, match="float16 needs an x86 processor or a GPU. Choose float32 or bfloat16"):
        load_model(folders["target"], "float16")


def test_auto_takes_what_was_measured(folders, monkeypatch):
    assert measured_precision("cuda") == "bfloat16"
    assert measured_precision("cpu") in ("float32", "bfloat16", "float16")
    for chosen, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        monkeypatch.setattr(loading, "measured_precision", lambda device, chosen=chosen: chosen)
        model = load_model(folders["target"])
        assert (model.precision, model.dtype) == (chosen, dtype)


@pytest.mark.parametrize("precision", ["int8", "nf4"])
@pytest.mark.filterwarnings("ignore")
def test_quantised_weights_decode_on_a_cpu(tmp_path, precision):
    network = random_network("even_llama", seed=3)
    model = load_model(saved(tmp_path, network), precision)
    assert model.precision == precision
    assert (
        type(model.model.model.layers[0].mlp.up_proj).__name__
        == {"int8": "Linear8bitLt", "nf4": "Linear4bit"}[precision]
    )
    ids = torch.tensor([[1, 2, 3, 4]])
    found, exact = model.model(ids).logits.float(), network(ids).logits
    assert (found - exact).norm() < 0.5 * exact.norm()
    assert model.num_parameters == sum(weight.numel() for weight in network.parameters())
    assert len(answers(ModelPair(model, NgramDrafter()), [[1, 2, 1, 2]], max_new_tokens=6)[0]) == 6


def test_precision_must_be_known(folders):
    with pytest.raises(SettingError, match="precision is 'float8'; it must be one of auto, float32, float16"):
        load_model(folders["target"], "float8")


# Drafters.


def test_drafters_by_name(folders):
    target = load_model(folders["target"], "float32")
    assert load_drafter(target, "none") is None
    assert isinstance(load_drafter(target, "ngram"), NgramDrafter)
    assert isinstance(load_drafter(target, "auto"), NgramDrafter), "nothing bundled was made for this target"
    with pytest.raises(ModelPairError, match="No drafter for .* is bundled"):
        load_drafter(target, "hybrid")


def test_a_drafter_with_another_tokenizer_is_refused(folders):
    with pytest.raises(ModelPairError, match="cannot draft for .*: their tokenizers differ in .* tokens. Choose"):
        load_pair(folders["target"], folders["other"], "float32")


def test_a_bundled_drafter_is_found_by_the_targets_fingerprint(folders, tmp_path, monkeypatch):
    target = load_model(folders["target"], "float32")
    monkeypatch.setattr(loading, "CHECKPOINTS", tmp_path)
    for name, record in (
        ("a-ensemble", {"kind": "ensemble", "target": {"fingerprint": target.fingerprint}}),
        ("b-other", {"kind": "drafter", "target": {"fingerprint": "0" * 16}}),
        ("c-ours", {"kind": "drafter", "target": {"fingerprint": target.fingerprint}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text(json.dumps(record), encoding="utf-8")
    assert loading.bundled_drafter(target) == tmp_path / "c-ours"
    assert loading.bundled_drafter(load_model(folders["other"], "float32")) is None


# What cannot be loaded.


def test_a_name_that_is_nothing():
    for name in ("no/such-model", "nowhere", "no/repo:file.gguf", "/no/such/folder"):
        with pytest.raises(ModelPairError, match=f"{name} could not be loaded: .* Give a Hugging Face id"):
            load_model(name, "float32")


def test_an_unknown_drafter(folders):
    with pytest.raises(ModelPairError, match="no-such-drafter could not be loaded"):
        load_pair(folders["target"], "no-such-drafter", "float32")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all" * 10])
def test_a_damaged_gguf_file(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelPairError, match=r"model.gguf could not be loaded: "):
        load_model(str(path), "float32")


def test_damaged_safetensors(folders, tmp_path):
    saved(tmp_path, random_network("llama"))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ModelPairError, match="could not be loaded: "):
        load_model(str(tmp_path), "float32")


def test_a_folder_without_weights(tmp_path):
    saved(tmp_path, random_network("llama"))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelPairError, match="could not be loaded: "):
        load_model(str(tmp_path), "float32")


def test_a_config_that_is_no_json(tmp_path):
    saved(tmp_path, random_network("llama"))
    (tmp_path / "config.json").write_text("{oops", encoding="utf-8")
    with pytest.raises(ModelPairError, match="could not be loaded: "):
        load_model(str(tmp_path), "float32")


class Bomb:
    """What a malicious pickle does when it is loaded."""

    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


def test_pickled_weights_are_never_loaded(tmp_path):
    saved(tmp_path, random_network("llama"))
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ModelPairError, match="could not be loaded: "):
        load_model(str(tmp_path), "float32")
    assert not Bomb.exploded


def test_code_that_comes_with_a_model_is_never_run(tmp_path):
    saved(tmp_path, random_network("llama"))
    marker = tmp_path / "ran"
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "mine.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n", encoding="utf-8")
    with pytest.raises(ModelPairError, match="could not be loaded: "):
        load_model(str(tmp_path), "float32")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)),
         "has layers of kind linear_attention; only full and sliding"),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=1, n_head=2)),
         r"\(bloom\) does not decode rows of unequal length"),
    ],
)  # fmt: skip
def test_architectures_that_cannot_roll_back(tmp_path, network, message):
    with pytest.raises(ModelPairError, match=message):
        load_model(saved(tmp_path, network()), "float32")


def test_missing_default_weights_keep_their_own_sentence(monkeypatch):
    def missing(progress):
        raise WeightsError("The weights are missing.")

    monkeypatch.setattr(loading.weights, "default_folder", missing)
    with pytest.raises(WeightsError, match="The weights are missing"):
        load_pair()


@pytest.mark.weights
@pytest.mark.skipif(not packed.is_supported(), reason="float16 on a processor needs FBGEMM")
def test_float16_is_the_fast_path_with_its_drafter(default_weights):
    """What `auto` may choose must really be packed and fused: slow would be right, and nobody would notice."""
    pair = loading.load_pair(precision="float16")
    assert pair.target.is_packed
    assert pair.target.fused is not None
    assert pair.drafter.model._packed
    assert pair.drafter.model.head._is_packed


def test_code_of_a_tokenizer_is_never_run(tmp_path, monkeypatch):
    """Without a word, transformers asks on the terminal whether to run it."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    (tmp_path / "evil.py").write_text("raise SystemExit('run')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ModelPairError, match="could not be loaded"):
        loading.load_model(str(tmp_path))


def test_a_damaged_meta_of_another_drafter_is_passed_over(tmp_path, monkeypatch):
    for number, text in enumerate(("{", "[]", '{"kind": "drafter"}')):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "meta.json").write_text(text)
    monkeypatch.setattr(loading, "CHECKPOINTS", tmp_path)
    assert loading.bundled_drafter(toy_pair("llama").target) is None
