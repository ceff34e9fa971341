"""GGUF to safetensors: the same model as transformers reads, with the tokenizer the file asks for."""

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from explorer.engine import conversion
from explorer.errors import WeightsError


def permuted(weight, heads):
    """What the GGUF converter does to query and key rows, straight from its definition."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


SIZES = {"hidden": 16, "heads": 4, "kv_heads": 2, "inner": 24, "layers": 2}


def write_facts(writer, tokens):
    writer.add_block_count(SIZES["layers"])
    writer.add_context_length(128)
    writer.add_embedding_length(SIZES["hidden"])
    writer.add_feed_forward_length(SIZES["inner"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv_heads"])
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ċ Ċ", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    turn = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    writer.add_chat_template("{% for m in messages %}" + turn + "{% endfor %}")


def random_tensors(num_tokens):
    """GGUF name -> values in transformers' row order."""
    hidden, inner = SIZES["hidden"], SIZES["inner"]
    kv_rows = hidden * SIZES["kv_heads"] // SIZES["heads"]
    shapes = {"attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (kv_rows, hidden)}
    shapes |= {"attn_v": (kv_rows, hidden), "attn_output": (hidden, hidden), "ffn_down": (hidden, inner)}
    shapes |= {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden)}
    names = {f"blk.{i}.{part}.weight": shape for i in range(SIZES["layers"]) for part, shape in shapes.items()}
    names |= {"token_embd.weight": (num_tokens, hidden), "output_norm.weight": (hidden,)}
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in names.items()}


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    """A Llama of two layers as GGUF, and its tensors under transformers' names and in its layout."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ĊĊ", "Ġa"]
    writer = gguf.GGUFWriter(path, "llama")
    write_facts(writer, tokens)
    heads = {"attn_q": SIZES["heads"], "attn_k": SIZES["kv_heads"]}
    tensors = random_tensors(len(tokens))
    for name, values in tensors.items():
        part = name.split(".")[-2]
        rows = permuted(values, heads[part]) if part in heads else values
        writer.add_tensor(name, np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, {conversion.tensor_name(name): torch.from_numpy(values) for name, values in tensors.items()}


@pytest.fixture(scope="module")
def converted(tiny_gguf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    steps = []
    conversion.convert(tiny_gguf[0], folder, lambda *step: steps.append(step))
    assert steps[-1][1] == steps[-1][2] == len(tiny_gguf[1])
    return folder


def test_converted_tensors_are_the_model_s_own(tiny_gguf, converted):
    found = load_file(converted / "model.safetensors")
    assert found.keys() == tiny_gguf[1].keys()
    for name, values in tiny_gguf[1].items():
        assert torch.equal(found[name], values), name


def test_transformers_reads_the_same_model_from_both(tiny_gguf, converted):
    path = tiny_gguf[0]
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(converted, local_files_only=True, dtype=torch.float32)
    ids = torch.tensor([[1, 40, 50, 60, 70]])
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits)
    assert ours.config.max_position_embeddings == 128
    assert ours.generation_config.eos_token_id == 2


def test_converted_tokenizer(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted, local_files_only=True)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("<|im_start|>a<|im_end|>")) == [
        "<|im_start|>",
        "a",
        "<|im_end|>",
    ]
    # A number starts a new piece, so both line feeds before it merge; before a letter, one belongs to what follows.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("\n\n12")) == ["ĊĊ", "1", "2"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("\n\na")) == ["Ċ", "Ċ", "a"]
    for text in ("  two  spaces 123", "日本語 🙂\n\n1.\t", "a a"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n"


def test_another_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        WeightsError, match="holds gpt2 gpt2 qwen2; only a llama model with a smollm tokenizer converts"
    ):
        conversion.convert(tmp_path / "x.gguf", tmp_path, lambda *step: None)
