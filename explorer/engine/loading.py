"""Names to models: the default pair, Hub ids, folders, GGUF files; precision by measurement or by request."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from explorer.engine import published, weights
from explorer.engine.config import PRECISIONS
from explorer.engine.drafters import Drafter, ModelDrafter, NgramDrafter
from explorer.engine.eagle import EagleDrafter
from explorer.engine.hybrid import HybridDrafter
from explorer.engine.models import LanguageModel, Progress, check_rows
from explorer.engine.pair import ModelPair, check_vocab
from explorer.errors import ExplorerError, ModelPairError, SettingError, WeightsError
from explorer.heads import packed
from explorer.heads.choice import OWN_HEAD, HeadChoice

_DTYPES = {"float32": torch.float32, "float16": torch.float16}
DEFAULT_TARGET = "default"
CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def load_pair(
    target: str = DEFAULT_TARGET,
    drafter: str = "auto",
    precision: str = "auto",
    progress: Progress | None = None,
    head: HeadChoice = OWN_HEAD,
) -> ModelPair:
    """Load a target and its drafter.

    Args:
        target: "default", a Hub id, a folder, or a GGUF file (also "repo:file.gguf").
        drafter: "auto" (the bundled drafter made for this target, else prompt lookup), "hybrid" (prompt lookup first,
            the bundled drafter otherwise), "ngram", "none", a folder that `fit` wrote, the folder or Hub id of a
            published EAGLE-3 drafter, or a smaller language model's Hub id, folder or GGUF file.
        precision: One of PRECISIONS.
        progress: Called with (what, done, total) during long steps.
        head: Which head a fitted drafter drafts with.

    Raises:
        ModelPairError: A model cannot be loaded, or the two do not fit.
        WeightsError: Weights are missing or damaged.
        SettingError: `precision` is not one of PRECISIONS, or the drafter has no such head.
    """
    model = load_model(target, precision, progress)
    return ModelPair(model, load_drafter(model, drafter, precision, progress, head))


def load_drafter(
    target: LanguageModel,
    name: str,
    precision: str = "auto",
    progress: Progress | None = None,
    head: HeadChoice = OWN_HEAD,
) -> Drafter | None:
    """The drafter called `name` for this target; see `load_pair`."""
    drafter = _drafter_called(name, target, precision, progress)
    if head == OWN_HEAD:
        return drafter
    if not isinstance(drafter, EagleDrafter | HybridDrafter):
        raise SettingError(
            f"head is {head.kind}, but the drafter {name!r} has no head to replace. Choose --head own, or a fitted "
            "drafter."
        )
    return drafter.with_head(head.kind, head.size)


def _drafter_called(name: str, target: LanguageModel, precision: str, progress: Progress | None) -> Drafter | None:
    if name == "none":
        return None
    if name == "ngram":
        return NgramDrafter()
    if name in ("auto", "hybrid"):
        folder = bundled_drafter(target)
        if folder is None and name == "hybrid":
            raise ModelPairError(
                f"No drafter for {target.name} is bundled, so there is nothing to combine with prompt lookup. Choose "
                "ngram, or fit one: python -m explorer fit --target ID --out DIR"
            )
        if folder is None:
            return NgramDrafter()
        bundled = EagleDrafter.load(folder, target)
        return HybridDrafter(bundled) if name == "hybrid" else bundled
    if (Path(name) / "meta.json").is_file():
        return EagleDrafter.load(Path(name), target)
    folder = published_drafter(name)
    if folder is not None:
        return EagleDrafter(published.read(folder, target), name)
    drafter = load_model(name, precision, progress)
    check_vocab(target, drafter)
    return ModelDrafter(drafter)


def bundled_drafter(target: LanguageModel) -> Path | None:
    """Folder in `checkpoints/` of the drafter made for this target, or None."""
    for meta in sorted(CHECKPOINTS.glob("*/meta.json")):
        try:
            record = json.loads(meta.read_text(encoding="utf-8"))
            found = record["kind"] == "drafter" and record["target"]["fingerprint"] == target.fingerprint
        except (OSError, ValueError, LookupError, TypeError):
            continue  # a damaged file of some other drafter must not stand in this one's way
        if found:
            return meta.parent
    return None


def published_drafter(name: str) -> Path | None:
    """Folder of the published EAGLE-3 drafter with this name, a folder or a Hub id, or None if it is none.

    From the Hub come its config and, if that says so, one file of safetensors.

    Raises:
        WeightsError: The Hub has such a drafter, but does not give it.
    """
    if Path(name).exists() or name.count("/") != 1 or ":" in name:
        return Path(name) if published.is_published(Path(name)) else None
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=[published.CONFIG]))
    except Exception:  # noqa: BLE001 - whatever the transport raises; loading it as a model says why
        return None
    if not published.is_published(folder):
        return None
    try:
        return Path(snapshot_download(name, allow_patterns=[published.CONFIG, published.WEIGHTS]))
    except Exception as error:  # whatever the transport raises: its errors share no base class
        first = str(error).strip().split("\n")[0]
        raise WeightsError(f"The drafter {name} could not be fetched: {first} Fetch its folder another way.") from error


def load_model(name: str, precision: str = "auto", progress: Progress | None = None) -> LanguageModel:
    """One language model with its tokenizer; see `load_pair`."""
    if precision not in PRECISIONS:
        raise SettingError(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        source, options = _source(name, progress)
        if progress:
            progress(f"Loading {name}", 0, 1)
        model, tokenizer, chosen = _from_pretrained(source, options, precision, device)
    except ExplorerError:
        raise
    except Exception as error:
        # Damaged and foreign files raise anything, tokenizers a bare Exception.
        first = str(error).strip().split("\n")[0]
        raise ModelPairError(
            f"{name} could not be loaded: {first} Give a Hugging Face id of a causal language model (the Hub must be "
            "reachable or the model cached), a folder with safetensors, or a .gguf file."
        ) from error
    if progress:
        progress(f"Loading {name}", 1, 1)
    loaded = LanguageModel(weights.NAME if name == DEFAULT_TARGET else name, model, tokenizer, chosen)
    check_rows(loaded)
    if chosen == "float16" and device == "cpu":
        loaded.pack()
    return loaded


def _source(name: str, progress: Progress | None) -> tuple[str, dict[str, Any]]:
    """What to hand to transformers: a folder or Hub id, and options such as the GGUF file in it."""
    if name == DEFAULT_TARGET:
        return str(weights.default_folder(progress)), {"local_files_only": True}
    path = Path(name)
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), {"gguf_file": path.name, "local_files_only": True}
    if path.is_dir():
        return name, {"local_files_only": True}
    repository, _, file = name.partition(":")
    return (repository, {"gguf_file": file}) if file.endswith(".gguf") else (name, {})


def _from_pretrained(source: str, options: dict[str, Any], precision: str, device: str) -> tuple[Any, Any, str]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # `progress` tells

    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    if precision in ("int8", "nf4"):
        quantization = BitsAndBytesConfig(
            load_in_8bit=precision == "int8",
            load_in_4bit=precision == "nf4",
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        options = options | {"quantization_config": quantization, "device_map": device}
    chosen = measured_precision(device) if precision == "auto" else precision
    packs = chosen == "float16" and device == "cpu"
    if packs and not packed.is_supported():
        raise ModelPairError("float16 needs an x86 processor or a GPU. Choose float32 or bfloat16.")
    # Pickled weights and code from the Hub are never run: safetensors or GGUF only, no remote code.
    model = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=torch.float32 if packs else _DTYPES.get(chosen, torch.bfloat16),
        use_safetensors=None if "gguf_file" in options else True,
        trust_remote_code=False,
        **options,
    )
    if precision not in ("int8", "nf4"):
        model = model.to(device)
    return model, tokenizer, chosen


def measured_precision(device: str) -> str:
    """The precision that takes the few tokens of a round through a large matrix fastest here.

    Three rows, as in a round of two drafts: without bfloat16 instructions, for one, the cost grows with every row.
    """
    if device == "cuda":
        return "bfloat16"
    layer = torch.nn.Linear(2048, 8192, bias=False)
    candidates: dict[str, torch.nn.Module] = {"float32": layer}
    candidates["bfloat16"] = torch.nn.Linear(2048, 8192, bias=False, dtype=torch.bfloat16)
    if packed.is_supported():
        candidates["float16"] = packed.PackedLinear(layer.weight)
    seconds = {name: _best_time(module, name == "bfloat16") for name, module in candidates.items()}
    return min(seconds, key=seconds.__getitem__)


@torch.inference_mode()
def _best_time(layer: torch.nn.Module, is_bfloat16: bool) -> float:
    tokens = torch.zeros(3, 2048, dtype=torch.bfloat16 if is_bfloat16 else torch.float32)
    times = []
    for _ in range(6):
        began = time.perf_counter()
        layer(tokens)
        times.append(time.perf_counter() - began)
    return min(times)
