r"""One GGUF file of a Llama-shaped model, rewritten once as the folder that transformers loads in a second.

transformers reads such a file itself, but takes half a minute each time, refuses to save the result, and drops the
"smollm" pre-tokenizer: without it "\n\n1" becomes other tokens than those the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from explorer.errors import WeightsError

# GGUF's names of the tensors of layer i, `blk.i.NAME.weight`, and transformers', `model.layers.i.NAME.weight`.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL_TOKEN = 3  # GGUF's token type of <|im_start|> and the like


def convert(gguf_path: Path, folder: Path, progress: Callable[[str, int, int], None]) -> None:
    """Write model.safetensors (float32), config and tokenizer files of `gguf_path` into the existing `folder`.

    Raises:
        WeightsError: The file is not a Llama-shaped GGUF with a byte-level BPE tokenizer that isolates digits.
        OSError: A file could not be written.
    """
    from gguf import GGUFReader

    progress("Converting the weights, once", 0, 1)
    reader = GGUFReader(gguf_path)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    kind = (facts["general.architecture"], facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if kind != ("llama", "gpt2", "smollm"):
        raise WeightsError(f"{gguf_path} holds {' '.join(kind)}; only a llama model with a smollm tokenizer converts.")
    _write_json(folder / "config.json", model_config(facts, [tensor.name for tensor in reader.tensors]))
    _write_tokenizer(facts, folder)
    _write_tensors(reader.tensors, facts, folder / "model.safetensors", progress)


def model_config(facts: dict[str, Any], tensor_names: list[str]) -> dict[str, Any]:
    """The config.json of a model with these GGUF facts."""
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "head_dim": facts["llama.embedding_length"] // heads,
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": facts["llama.block_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        **_special_ids(facts),
    }


def _special_ids(facts: dict[str, Any]) -> dict[str, int]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{ours}_token_id": facts[f"tokenizer.ggml.{theirs}_token_id"] for ours, theirs in names.items()}


def _write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_tokenizer(facts: dict[str, Any], folder: Path) -> None:
    """tokenizer.json, its config with the special tokens, the chat template and the generation config."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # Every digit stands alone, so what comes before a number splits as if the text ended there.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))

    ids = _special_ids(facts)
    special = {name.removesuffix("_id"): tokens[i] for name, i in ids.items()}
    special["unk_token"] = tokens[facts["tokenizer.ggml.unknown_token_id"]]
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings | special)
    _write_json(folder / "generation_config.json", ids)
    (folder / "chat_template.jinja").write_text(facts["tokenizer.chat_template"], encoding="utf-8")


def _write_tensors(tensors: list[Any], facts: dict[str, Any], path: Path, progress: Callable[..., None]) -> None:
    import numpy as np
    from gguf import dequantize
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    state = {}
    for done, tensor in enumerate(tensors, start=1):
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = _rotary_halves(values, heads[part])
        state[tensor_name(tensor.name)] = np.ascontiguousarray(values)
        progress("Converting the weights, once", done, len(tensors))
    try:
        save_file(state, path, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, mostly; not an OSError in that library
        raise OSError(str(error)) from error


def tensor_name(name: str) -> str:
    """The transformers name of a GGUF tensor."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.weight"
    return OUTER_TENSORS[parts[0]] + ".weight"


def _rotary_halves(weight: Any, num_heads: int) -> Any:
    """Query or key rows in transformers' order: GGUF interleaves each head's two halves, transformers does not."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
