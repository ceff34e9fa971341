"""What the config.json of a published EAGLE-3 drafter says, as the shape of our layer; `published` reads the weights.

Two forms exist: flat (EAGLE, SpecForge, AngelSlim, TorchSpec) and wrapped (speculators: the layer's own config inside).
A drafter that computes anything our layer does not is refused: it would run, and draft badly for no visible reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from explorer.engine.models import LanguageModel
from explorer.errors import ModelPairError, WeightsError
from explorer.heads.eagle import EagleShape

CONFIG = "config.json"
FEATURES = "eagle_aux_hidden_state_layer_ids"
# Both forms come from transformers, which leaves out what equals its own default.
_DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
_LARGEST = 1 << 22
_ROPES = ("default", "linear", "llama3", "yarn")
_EXTRAS = {
    "fc_norm": "norms on the fused features",
    "norm_before_fc": "a norm on the fused features",
    "norm_output": "a chain that continues from normed outputs",
    "use_sliding_window": "sliding attention",
}


def is_published(folder: Path) -> bool:
    """Whether the folder's config.json is that of a drafter for speculative decoding, not of a language model."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(config, dict):
        return False
    names = config.get("architectures")
    names = " ".join(map(str, names)).lower() if isinstance(names, list) else ""
    return bool({"speculators_model_type", "draft_vocab_size"} & config.keys()) or "eagle3" in names


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a published drafter in flat form, with nothing absent that has a default.

    Raises:
        WeightsError: It cannot be read.
        ModelPairError: It is of another kind of drafter.
    """
    path = folder / CONFIG
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        layer = record.get("transformer_layer_config")
        config = _present({} if layer is None else layer)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}). Fetch the drafter again.") from error
    except (ValueError, AttributeError) as error:
        raise WeightsError(f"{path} is damaged ({error}). Fetch the drafter again.") from error
    kind = record.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise ModelPairError(
            f"{folder} holds a drafter of the kind {kind}; only eagle3 can be read. Choose such a one."
        )
    # The one default on which the two forms differ.
    return _DEFAULTS | {"norm_before_residual": layer is not None} | _present(record) | config


def _present(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def shape_in(folder: Path, config: dict[str, Any], target: LanguageModel) -> EagleShape:
    """The shape a flat config describes, for use with this target; `max_rank` is 0.

    Raises:
        WeightsError: A size makes no sense.
        ModelPairError: It was made for another target, or computes what our layer does not.
    """
    _check_extras(folder, config)
    _check_target(folder, config, target)
    D, num_heads = size_in(folder, config, "hidden_size"), size_in(folder, config, "num_attention_heads")
    num_kv_heads = size_in(folder, config, "num_key_value_heads", num_heads)
    head_dim = size_in(folder, config, "head_dim", max(D // num_heads, 1))
    if num_heads % num_kv_heads or head_dim % 2:
        raise WeightsError(
            f"{folder / CONFIG} has {num_heads} heads of size {head_dim} and {num_kv_heads} key/value heads; heads "
            "come in equal groups and even sizes. Fetch the drafter again."
        )
    eps = config["rms_norm_eps"]
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < 1:
        raise WeightsError(f"rms_norm_eps in {folder / CONFIG} is {eps!r}; it must be in [0, 1). Fetch it again.")
    return EagleShape(
        hidden_size=D,
        intermediate_size=size_in(folder, config, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=target.vocab_size,
        max_rank=0,
        norm_eps=float(eps),
        features=_features(folder, config, target),
        rope=_rope(folder, config),
        max_positions=size_in(folder, config, "max_position_embeddings"),
        norm_before_residual=bool(config["norm_before_residual"]),
    )


def size_in(folder: Path, config: dict[str, Any], key: str, default: int | None = None) -> int:
    """A size from the config.

    Raises:
        WeightsError: It is no whole number of at least 1.
    """
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise WeightsError(
            f"{key} in {folder / CONFIG} is {value!r}; it must be a whole number in [1, {_LARGEST}]. Fetch the "
            "drafter again."
        )
    return value


def unreadable(folder: Path, what: str) -> ModelPairError:
    """The refusal of a drafter that has something our layer does not compute."""
    return ModelPairError(
        f"The drafter {folder} has {what}, which this app does not compute. Choose a plain EAGLE-3 drafter, or fit one "
        "with `python -m explorer fit`."
    )


def _check_extras(folder: Path, config: dict[str, Any]) -> None:
    for key, words in _EXTRAS.items():
        if config.get(key):
            raise unreadable(folder, f"{words} ({key})")
    num_layers, activation = config.get("num_hidden_layers", 1), config.get("hidden_act", "silu")
    scale, kinds = config.get("logit_scale", 1), config.get("layer_types", [])
    if num_layers != 1:
        raise unreadable(folder, f"{num_layers} layers")
    if activation != "silu":
        raise unreadable(folder, f"the activation {activation}")
    if scale != 1:
        raise unreadable(folder, f"logits scaled by {scale}")
    if kinds not in ([], ["full_attention"]):
        raise unreadable(folder, f"attention of the kinds {kinds}")


def _check_target(folder: Path, config: dict[str, Any], target: LanguageModel) -> None:
    """The sizes a drafter shares with its target; the two hidden sizes may differ elsewhere, not here."""
    ours = {"hidden_size": target.hidden_size, "target_hidden_size": target.hidden_size}
    for key, size in ours.items():
        if config.get(key, size) != size or target.embedding.shape[1] != size:
            raise ModelPairError(
                f"The drafter {folder} has {key} {config.get(key, size)}; {target.name} has hidden size {size} and "
                f"embeddings of {target.embedding.shape[1]}, and all must agree. Load the target it was made for."
            )
    if config["vocab_size"] not in (target.num_rows, target.vocab_size):
        raise ModelPairError(
            f"The drafter {folder} was made for a vocabulary of {config['vocab_size']}; {target.name} has "
            f"{target.num_rows} rows. Load the target it was made for."
        )


def _features(folder: Path, config: dict[str, Any], target: LanguageModel) -> tuple[int, ...]:
    """Indices of the hidden states it fuses: state i enters layer i, as vLLM and the default count them."""
    nested, L = config.get("eagle_config", {}), target.num_layers
    nested = nested if isinstance(nested, dict) else {}
    if nested.get("use_aux_hidden_state", True) is False:
        raise unreadable(folder, "no fused features (use_aux_hidden_state is false)")
    ids = config.get(FEATURES) or nested.get(FEATURES) or [2, L // 2, L - 3]
    # State L is left out: the last layer's output, which transformers has after the final norm and engines before it.
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < L for i in ids):
        raise ModelPairError(
            f"The drafter {folder} reads the states before layers {ids} of its target; {target.name} has layers 0 to "
            f"{L - 1}. Load the target it was made for."
        )
    return tuple(ids)


def _rope(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    rope = {"rope_theta": config["rope_theta"], "rope_type": "default"}
    for key in ("rope_scaling", "rope_parameters"):  # the names in transformers 4 and 5
        given = config.get(key, {})
        if not isinstance(given, dict):
            raise WeightsError(f"{key} in {folder / CONFIG} is {given!r}; it must be an object. Fetch it again.")
        named = {"rope_type": given["type"]} if "type" in given else {}  # in older files
        rope |= named | _present({key: value for key, value in given.items() if key != "type"})
    part = rope.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if rope["rope_type"] not in _ROPES or part != 1 or "mrope_section" in rope:
        raise unreadable(folder, f"a rotary embedding of the kind {rope['rope_type']} on {part} of each head")
    return rope
