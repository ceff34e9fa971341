"""Controls of a decode, built from `DecodeConfig`'s fields and switched off, with the reason, where they do nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from explorer.engine.config import DecodeConfig
from explorer.errors import SettingError
from explorer.heads.choice import DEFAULT_SIZES
from explorer.rules import RULES
from explorer.ui.backend import Backend

FIELDS = {spec.name: spec for spec in dataclasses.fields(DecodeConfig)}
LABELS = {
    "rule": "Verification rule",
    "target_weight": "Static weight",
    "lenience": "Lenience",
    "ensemble": "Trained weight",
    "drafter": "Drafter",
    "head": "LM head",
    "rank": "Drafter head rank r",
    "draft_length": "Drafts per round K",
    "temperature": "Temperature",
    "top_p": "Top-p",
    "seed": "Seed",
    "max_new_tokens": "Max new tokens",
}
STEPS = {"target_weight": 0.01, "lenience": 0.01, "temperature": 0.05, "top_p": 0.01, "draft_length": 1}
NO_DRAFTS = "The autoregressive rule drafts nothing."
DEPENDENT = ("target_weight", "lenience", "ensemble", "drafter", "head", "rank", "draft_length")
HEAD_LABELS = {
    "own": "Low rank, all tokens",
    "truncated": f"Truncated, {DEFAULT_SIZES['truncated']:,} tokens",
    "dynamic": f"Dynamic, {DEFAULT_SIZES['dynamic']:,} tokens",
    "full": "Full, all tokens",
}
HEAD_HELP = {
    "own": "Two thin factors in place of one large matrix.",
    "truncated": "A token that is left out can never be drafted.",
    "dynamic": "A low-rank head picks candidates; exact rows score them.",
    "full": "What the other heads are measured against.",
}

Controls = dict[str, gr.components.Component]


@dataclass(frozen=True, slots=True)
class Where:
    """The other settings that a rank's worth depends on."""

    drafter: str
    draft_length: float
    temperature: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What the controls say: the engine's settings, and the names of the drafter and its head."""

    config: DecodeConfig
    drafter: str
    head: str = "own"
    ensemble: str = ""


def _help(name: str) -> str:
    return sentence(FIELDS[name].metadata["help"])


def sentence(text: str) -> str:
    """With a capital and a full stop; a symbol such as w in front keeps its letter."""
    start = text[0] if text[1:2] == " " else text[0].upper()
    return start + text[1:] + "."


def _rule_label(rule: str) -> str:
    return RULES[rule].partition(":")[0]


def rule_help(rule: str) -> str:
    """What the rule does, in one line."""
    return sentence(RULES[rule].partition(":")[2].strip())


def rank_help(rank: float, backend: Backend, where: Where | None = None) -> str:
    """What a rank costs, and what it is predicted to be worth where that is known."""
    if backend.full_head is None:
        return "Width of the drafter's low-rank head."
    hidden_size, vocab_size = backend.full_head
    size, full = rank * (hidden_size + vocab_size), hidden_size * vocab_size
    text = f"{size / 1e6:.1f} M parameters, {100 * size / full:.0f} % of the full head."
    if where is None:
        return text
    found = backend.predicted(where.drafter, int(rank), int(where.draft_length), where.temperature)
    if found is None:
        return text
    return (
        f"{text} Predicted: {found.speed_up:.2f} times the speed of no drafts. "
        f"Best predicted rank: {found.best_rank} ({found.best_speed_up:.2f})."
    )


def slider(name: str, **options: Any) -> gr.Slider:
    """A slider over a field's range, starting at its default."""
    spec = FIELDS[name]
    low, high = spec.metadata["low"], spec.metadata["high"]
    return gr.Slider(low, high, spec.default, step=STEPS[name], label=LABELS[name], elem_id=f"set-{name}", **options)


def number(name: str) -> gr.Number:
    """A number box for a whole-number field."""
    spec = FIELDS[name]
    return gr.Number(
        spec.default, label=LABELS[name], precision=0, minimum=spec.metadata["low"], elem_id=f"set-{name}", min_width=90
    )


def _rank_slider(backend: Backend) -> gr.Slider:
    """Over the ranks the drafter's head offers, starting at the highest."""
    drafter = backend.drafters[0][1]
    reason = why_off("rank", FIELDS["rule"].default, drafter, backend)
    span = rank_span(backend.ranks(drafter))
    info = reason or rank_help(span["maximum"], backend)
    return gr.Slider(
        **span,
        value=span["maximum"],
        label=LABELS["rank"],
        info=info,
        interactive=reason is None,
        elem_id="set-rank",
    )


ENSEMBLE_HELP = "The head that sets w for every token."


def _ensemble_box(backend: Backend) -> gr.Dropdown:
    """The heads of the dynamic rule, the newest chosen."""
    choices = list(backend.ensembles())
    return gr.Dropdown(
        choices,
        value=choices[0][1] if choices else None,
        label=LABELS["ensemble"],
        info=why_off("ensemble", FIELDS["rule"].default, backend.drafters[0][1], backend),
        interactive=False,
        filterable=False,
        elem_id="set-ensemble",
    )


def _head_box(backend: Backend) -> gr.Dropdown:
    """The heads of the default drafter, its own chosen."""
    drafter = backend.drafters[0][1]
    reason = why_off("head", FIELDS["rule"].default, drafter, backend)
    return gr.Dropdown(
        _head_choices(drafter, backend),
        value="own",
        label=LABELS["head"],
        info=reason or HEAD_HELP["own"],
        interactive=reason is None,
        filterable=False,
        elem_id="set-head",
    )


def _head_choices(drafter: str, backend: Backend) -> list[tuple[str, str]]:
    return [(HEAD_LABELS[name], name) for name in backend.heads(drafter) or ("own",)]


def rank_span(ranks: tuple[int, ...]) -> dict[str, int]:
    """Range and step of a slider over ranks; any rank up to the highest works, so it may stop in between."""
    ranks = ranks or (0, 1)
    return {"minimum": ranks[0], "maximum": ranks[-1], "step": math.gcd(*ranks)}


def build_controls(backend: Backend) -> Controls:
    """The settings in the order of the page; call it inside a layout."""
    rule = FIELDS["rule"].default
    controls: Controls = {
        "rule": gr.Dropdown(
            [(_rule_label(name), name) for name in RULES],
            value=rule,
            label=LABELS["rule"],
            info=rule_help(rule),
            filterable=False,
            elem_id="set-rule",
        )
    }
    for name in ("target_weight", "lenience"):
        reason = why_off(name, rule, backend.drafters[0][1], backend)
        controls[name] = slider(name, interactive=reason is None, info=reason or _help(name))
    controls["ensemble"] = _ensemble_box(backend)
    controls["drafter"] = gr.Dropdown(
        list(backend.drafters),
        value=backend.drafters[0][1],
        label=LABELS["drafter"],
        filterable=False,
        elem_id="set-drafter",
    )
    controls["head"] = _head_box(backend)
    controls["rank"] = _rank_slider(backend)
    controls["draft_length"] = slider("draft_length")
    controls["temperature"] = slider("temperature", info=_help("temperature"))
    controls["top_p"] = slider("top_p")
    with gr.Row(elem_classes="pair"):
        controls["seed"] = number("seed")
        controls["max_new_tokens"] = number("max_new_tokens")
    return controls


def why_off(name: str, rule: str, drafter: str, backend: Backend, head: str = "own") -> str | None:
    """Why a control does nothing under this rule and drafter; None if it matters."""
    if name == "target_weight":
        return None if rule == "static" else "Only the static ensemble uses it."
    if name == "lenience":
        return None if rule == "lossy" else "Only the lossy rule uses it."
    if name == "ensemble":
        if rule != "dynamic":
            return "Only the dynamic ensemble uses it."
        return None if backend.ensembles() else "No head is trained for this pair yet. The Train tab makes one."
    if rule == "ar":
        return NO_DRAFTS
    if name in ("rank", "head") and not backend.ranks(drafter):
        return "Lookup has no head." if drafter == "ngram" else "This drafter has no low-rank head."
    if name == "rank" and head in ("truncated", "full"):
        return f"The {head} head has no rank."
    return None


def dependent_updates(
    rule: str, head: str, rank: float, where: Where, backend: Backend, ensemble: str | None = None
) -> list[Any]:
    """Updates of the rule box and of the `DEPENDENT` controls after a change of what they depend on."""
    drafter = where.drafter
    if head not in backend.heads(drafter):
        head = "own"
    helps = {
        "target_weight": _help("target_weight"),
        "lenience": _help("lenience"),
        "ensemble": ENSEMBLE_HELP,
        "drafter": "",
        "head": HEAD_HELP[head],
        "rank": rank_help(rank, backend, where),
        "draft_length": "",
    }
    updates = [gr.update(info=rule_help(rule))]
    for name in DEPENDENT:
        reason = why_off(name, rule, drafter, backend, head)
        update = {"interactive": reason is None, "info": reason or helps[name]}
        if name == "ensemble":
            choices = list(backend.ensembles())
            known = [value for _, value in choices]
            update |= {"choices": choices, "value": ensemble if ensemble in known else next(iter(known), None)}
        if name == "head":
            update |= {"choices": _head_choices(drafter, backend), "value": head}
        if name == "rank" and reason is None:
            span = rank_span(backend.ranks(drafter))
            update |= span
            if not span["minimum"] <= rank <= span["maximum"]:
                update |= {"value": span["maximum"], "info": rank_help(span["maximum"], backend, where)}
        updates.append(gr.update(**update))
    return updates


def read_settings(values: Mapping[str, Any], backend: Backend) -> Settings:
    """The settings the controls stand for.

    Raises:
        SettingError: A box is empty or a value is out of range; the message names the control.
    """
    drafter, rule, head = values["drafter"], values["rule"], values["head"]
    chosen = {name: _number(name, value) for name, value in values.items() if name in FIELDS}
    if why_off("head", rule, drafter, backend) is not None:
        head = "own"
    if why_off("rank", rule, drafter, backend, head) is not None:
        chosen["rank"] = 0
    ensemble = values.get("ensemble") or ""
    if rule == "dynamic" and not ensemble:
        raise SettingError("No head is trained for the dynamic rule yet. Train one in the Train tab, or choose static.")
    return Settings(DecodeConfig(**chosen), drafter, head, ensemble if rule == "dynamic" else "")


def _number(name: str, value: Any) -> Any:
    """The value as the field's type: sliders and number boxes give a float for a whole number now and then."""
    if value is None:
        raise SettingError(f"{LABELS[name]} is empty; type a number ({FIELDS[name].metadata['help']}).")
    is_whole = isinstance(FIELDS[name].default, int) and isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value


def check_prompt(prompt: str | None) -> str:
    """The prompt, unless there is none.

    Raises:
        SettingError: Nothing but white space.
    """
    if prompt is None or not prompt.strip():
        raise SettingError("The prompt is empty. Type a question or pick an example, then press Run.")
    return prompt


def read_prompts(text: str) -> list[tuple[str, str]]:
    """(label, prompt) of each line of the bundled examples."""
    records = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [(record["label"], record["prompt"]) for record in records]
