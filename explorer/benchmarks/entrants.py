"""What `bench speed` loads: the target for HF and for us, drafters, an assistant, and why something is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from explorer.benchmarks.config import SpeedConfig
from explorer.benchmarks.hf import ASSISTANT
from explorer.benchmarks.ours import Ours
from explorer.engine.drafters import Drafter, ModelDrafter, NgramDrafter
from explorer.engine.ensembles import with_ensemble
from explorer.engine.loading import load_drafter, load_model
from explorer.engine.models import LanguageModel, Progress
from explorer.engine.pair import ModelPair, check_vocab
from explorer.errors import ModelPairError, SettingError


@dataclass(frozen=True, slots=True)
class Entrants:
    """Everything loaded that is to be measured.

    Attributes:
        ours: Target, drafters and dynamic pair.
        hf: The target by precision, for `generate`.
        assistants: The assistant by precision.
        left_out: Why some rows are absent.
    """

    ours: Ours
    hf: Mapping[str, LanguageModel]
    assistants: Mapping[str, LanguageModel]
    left_out: list[str]


def load(config: SpeedConfig, progress: Progress | None = None) -> Entrants:
    """Load the models, each precision once; HF and our engine share what they can.

    Raises:
        ModelPairError: A model cannot be loaded, or two do not fit.
        WeightsError: Weights are missing or damaged.
    """
    target = load_model(config.pair, config.precision, progress)
    left_out: list[str] = []

    def in_precision(precision: str, name: str, ready: LanguageModel | None = None) -> LanguageModel:
        # A packed model is no longer one that `generate` can run.
        is_ready = ready is not None and ready.precision == precision and not ready.is_packed
        return ready if is_ready and ready is not None else load_model(name, precision, progress)

    hf = {precision: in_precision(precision, config.pair, target) for precision in config.hf_precision}
    drafters: dict[str, Drafter] = {}
    assistants: dict[str, LanguageModel] = {}
    if config.assistant:
        own = load_model(config.assistant, target.precision, progress)
        check_vocab(target, own)
        drafters["assistant"] = ModelDrafter(own)
        assistants = {precision: in_precision(precision, config.assistant, own) for precision in config.hf_precision}
    else:
        left_out.append(f"{ASSISTANT}: no drafter with a language model of its own was given. Give one: --assistant ID")
    drafters = _drafters(target, config, left_out, progress) | drafters
    dynamic = _dynamic(target, drafters, config, left_out)
    return Entrants(Ours(target, drafters, dynamic, hf), hf, assistants, left_out)


def _drafters(
    target: LanguageModel, config: SpeedConfig, left_out: list[str], progress: Progress | None
) -> dict[str, Drafter]:
    """Those that exist for this target; one that is not bundled is left out."""
    found: dict[str, Drafter] = {}
    for name in dict.fromkeys(config.drafters):
        try:
            drafter = load_drafter(target, name, config.precision, progress)
        except ModelPairError as error:
            if name != "hybrid":
                raise
            left_out.append(f"ours exact hybrid: {error}")
            continue
        if drafter is None:
            raise SettingError(f"drafters holds {name!r}, which drafts nothing. Give auto, ngram, hybrid or a folder.")
        if name == "auto" and isinstance(drafter, NgramDrafter) and "ngram" in config.drafters:
            left_out.append(f"ours exact auto: no drafter for {target.name} is bundled; it would be prompt lookup")
            continue
        found[name] = drafter
    return found


def _dynamic(
    target: LanguageModel, drafters: Mapping[str, Drafter], config: SpeedConfig, left_out: list[str]
) -> tuple[str, ModelPair] | None:
    """The first drafter with states for a head to look at, and that head."""
    names = [name for name, drafter in drafters.items() if getattr(drafter, "hidden_size", 0)]
    drafter = drafters[names[0]] if names else None
    try:
        pair = with_ensemble(ModelPair(target, drafter), config.ensemble or "auto")
    except ModelPairError as error:
        if config.ensemble:
            raise
        left_out.append(f"ours dynamic: {error}")
        return None
    return names[0], pair
