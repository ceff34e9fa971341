"""config.json of a drafter that is given to other engines; `export` writes it beside the weights."""

from __future__ import annotations

from typing import Any

from explorer.engine import weights
from explorer.engine.models import LanguageModel
from explorer.engine.published_config import FEATURES
from explorer.heads.eagle import EagleShape

LAYOUTS = ("eagle3", "speculators")
# The default target is a quantised file; this is the model it was made from.
_VERIFIERS = {weights.NAME: f"HuggingFaceTB/{weights.NAME}"}


def config_for(shape: EagleShape, target: LanguageModel, layout: str, num_drafted: int, rank: int) -> dict[str, Any]:
    """The record that describes a drafter.

    Args:
        shape: Of its layer.
        target: The model it drafts for.
        layout: One of LAYOUTS.
        num_drafted: Tokens its head scores.
        rank: Of a head in two factors, 0 of a whole one.
    """
    head = {"lm_head_rank": rank, "lm_head_rank_divisor": shape.hidden_size // rank} if rank else {}
    layer, drafter = _layer(shape, target), _drafter(shape, num_drafted) | head
    if layout == "speculators":
        return _wrapped(layer, drafter, shape, target)
    features = {} if shape.features == _usual_features(target) else {FEATURES: list(shape.features)}
    return {
        **layer,
        "architectures": ["LlamaForCausalLMEagle3"],
        **drafter,
        # Left out where they are the usual ones: older SGLang counts explicit ones from the layer before.
        "eagle_config": {"use_aux_hidden_state": True, **features},
    }


def _usual_features(target: LanguageModel) -> tuple[int, ...]:
    return 2, target.num_layers // 2, target.num_layers - 3


def _layer(shape: EagleShape, target: LanguageModel) -> dict[str, Any]:
    """A complete Llama config of one layer: engines have other defaults than transformers."""
    rope = {key: value for key, value in shape.rope.items() if key != "rope_theta"}
    special = {key: getattr(target.config, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        **special,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
        "rope_theta": shape.rope["rope_theta"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": target.num_rows,
    }


def _drafter(shape: EagleShape, num_drafted: int) -> dict[str, Any]:
    """What both layouts say besides the layer."""
    return {
        "draft_vocab_size": num_drafted,
        "target_hidden_size": shape.hidden_size,
        "norm_before_residual": shape.norm_before_residual,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _wrapped(
    layer: dict[str, Any], drafter: dict[str, Any], shape: EagleShape, target: LanguageModel
) -> dict[str, Any]:
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {
        "name_or_path": _VERIFIERS.get(target.name, target.name),
        "architectures": list(getattr(target.model.config, "architectures", None) or [type(target.model).__name__]),
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",  # whose config this is
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
        "transformer_layer_config": layer,
        **drafter,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        FEATURES: list(shape.features),
        "embed_requires_grad": False,
    }
