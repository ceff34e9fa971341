"""Ensemble heads on disk: written for a pair, found again for it, refused for another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from explorer.engine.eagle import facts_of
from explorer.engine.loading import CHECKPOINTS
from explorer.engine.models import LanguageModel
from explorer.engine.pair import ModelPair
from explorer.errors import ModelPairError, WeightsError
from explorer.heads import checkpoint
from explorer.heads.ensemble import EnsembleHead

KIND = "ensemble"


def drafter_facts(drafter: Any) -> dict[str, Any]:
    """What identifies a drafter to a head that looks at its states."""
    return {
        "kind": drafter.kind,
        "name": drafter.name,
        "fingerprint": getattr(drafter, "fingerprint", ""),
        "hidden_size": drafter.hidden_size,
    }


def save_ensemble(folder: Path, head: EnsembleHead, pair: ModelPair, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Write a head; returns the whole `meta.json` record.

    Args:
        folder: Where to.
        head: The head.
        pair: The pair it was trained with.
        meta: What else to say of it.

    Raises:
        WeightsError: A weight is not finite, or the disk refuses.
    """
    facts = {
        "kind": KIND,
        "target": facts_of(pair.target),
        "drafter": drafter_facts(pair.drafter),
        "ensemble": head.describe(),
    }
    record = {**meta, **facts}
    checkpoint.save(folder, {name: value.float() for name, value in head.state_dict().items()}, record)
    return record


def load_ensemble(folder: Path, target: LanguageModel, drafter: Any) -> EnsembleHead:
    """Read a head for a pair.

    Raises:
        WeightsError: A file is missing, damaged or no ensemble head.
        ModelPairError: It was made for another target or another drafter.
    """
    weights, meta = checkpoint.load(folder, target=facts_of(target))
    try:
        made_for, shape = meta["drafter"], meta["ensemble"]
        head = EnsembleHead(int(shape["draft_size"]), int(shape["target_size"]), shape["inputs"])
        head.load_state_dict(dict(weights))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise WeightsError(f"{folder} is no ensemble head ({str(error).splitlines()[0]}). Train one again.") from error
    ours = drafter_facts(drafter)
    if made_for.get("fingerprint") != ours["fingerprint"]:
        raise ModelPairError(
            f"The ensemble head {folder} was trained with the drafter {made_for.get('name')!r}, whose states it knows; "
            f"this one is {ours['name']!r} with other weights. Choose that drafter, or train a head for this one."
        )
    return head.requires_grad_(False).to(target.device).eval()


def bundled_ensembles(target: LanguageModel, drafter: Any, folder: Path = CHECKPOINTS) -> dict[str, Path]:
    """Name and folder of the heads in `checkpoints/` (or another folder) that were made for this pair."""
    found = {}
    for path in sorted(folder.glob("*/meta.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            is_ours = (
                record["kind"] == KIND
                and record["target"]["fingerprint"] == target.fingerprint
                and record["drafter"]["fingerprint"] == getattr(drafter, "fingerprint", None)
            )
        except (OSError, ValueError, LookupError, TypeError):
            continue  # a damaged file of another head must not stand in the way
        if is_ours:
            found[path.parent.name] = path.parent
    return found


def with_ensemble(pair: ModelPair, name: str) -> ModelPair:
    """The pair with an ensemble head: a folder's, or for "auto" the first bundled one.

    Raises:
        ModelPairError: No head is bundled for this pair, or the folder's is of another.
        WeightsError: The folder holds no head.
    """
    if pair.drafter is None or not getattr(pair.drafter, "hidden_size", 0):
        raise ModelPairError(
            "The dynamic rule looks at the drafter's states, and this drafter has none. Choose a trained drafter or a "
            "smaller model."
        )
    folder = Path(name)
    if name == "auto":
        bundled = bundled_ensembles(pair.target, pair.drafter)
        if not bundled:
            raise ModelPairError(
                f"No ensemble head for {pair.target.name} with {pair.drafter.name} is bundled. Train one: python -m "
                "explorer train --task arithmetic --out DIR"
            )
        folder = next(iter(bundled.values()))
    with torch.no_grad():
        return ModelPair(pair.target, pair.drafter, load_ensemble(folder, pair.target, pair.drafter))
