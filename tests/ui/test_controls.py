"""Controls say what the settings say; what does nothing is off, with a reason."""

import json

import pytest
from ui.fake_pair import FakeBackend

from explorer.engine.config import DecodeConfig
from explorer.errors import SettingError
from explorer.rules import RULES
from explorer.ui import controls
from explorer.ui.backend import PairBackend
from explorer.ui.theme import ASSETS

BACKEND = FakeBackend()
DEFAULTS = {name: controls.FIELDS[name].default for name in controls.LABELS if name in controls.FIELDS}
DEFAULTS |= {"drafter": "auto", "head": "own", "ensemble": "bundled"}


@pytest.fixture(scope="module")
def built():
    import gradio as gr

    with gr.Blocks():
        return controls.build_controls(BACKEND)


def test_names_are_the_ones_promised(built):
    names = {"Verification rule", "Drafter head rank r", "Static weight", "Temperature", "Drafts per round K", "Seed"}
    assert names | {"Max new tokens", "Top-p", "Lenience", "Drafter", "LM head", "Trained weight"} == {
        box.label for box in built.values()
    }


@pytest.mark.parametrize("name", ["target_weight", "lenience", "draft_length", "temperature", "top_p"])
def test_sliders_have_the_range_and_default_of_the_settings(built, name):
    spec = controls.FIELDS[name]
    slider = built[name]
    assert (slider.minimum, slider.maximum, slider.value) == (spec.metadata["low"], spec.metadata["high"], spec.default)


def test_rules_are_those_of_the_engine(built):
    assert [value for _, value in built["rule"].choices] == list(RULES)


def test_defaults_give_the_default_settings():
    assert controls.read_settings(DEFAULTS, BACKEND).config == DecodeConfig()


def test_whole_numbers_may_come_as_floats():
    settings = controls.read_settings(DEFAULTS | {"draft_length": 3.0, "seed": 5.0, "rank": 72}, BACKEND)
    assert settings.config == DecodeConfig(draft_length=3, seed=5, rank=72)


def test_rank_is_left_out_where_the_drafter_has_none():
    assert controls.read_settings(DEFAULTS | {"drafter": "ngram", "rank": 72}, BACKEND).config.rank == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": None}, "Seed is empty; type a number"),
        ({"max_new_tokens": 0}, r"max_new_tokens is 0; it must be in \[1, 4096\]"),
        ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
        ({"temperature": 9}, "temperature is 9"),
    ],
)
def test_bad_values_are_named(change, message):
    with pytest.raises(SettingError, match=message):
        controls.read_settings(DEFAULTS | change, BACKEND)


@pytest.mark.parametrize("prompt", [None, "", "  \n\t "])
def test_an_empty_prompt_is_refused(prompt):
    with pytest.raises(SettingError, match="The prompt is empty"):
        controls.check_prompt(prompt)


@pytest.mark.parametrize(
    ("rule", "drafter", "off"),
    [
        ("exact", "auto", {"target_weight", "lenience", "ensemble"}),
        ("static", "auto", {"lenience", "ensemble"}),
        ("dynamic", "auto", {"target_weight", "lenience"}),
        ("lossy", "auto", {"target_weight", "ensemble"}),
        ("exact", "ngram", {"target_weight", "lenience", "ensemble", "rank", "head"}),
        ("ar", "auto", set(controls.DEPENDENT)),
    ],
)
def test_what_does_nothing_is_off_with_a_reason(rule, drafter, off):
    updates = updates_of(rule, "own", 72, drafter)
    assert {name for name in controls.DEPENDENT if not updates[name]["interactive"]} == off
    assert all(updates[name]["info"] for name in off)


def updates_of(rule, head, rank, drafter="auto"):
    where = controls.Where(drafter, 2.0, 0.0)
    found = controls.dependent_updates(rule, head, rank, where, BACKEND)
    return dict(zip(("rule", *controls.DEPENDENT), found, strict=True))


@pytest.mark.parametrize(("head", "is_on"), [("own", True), ("dynamic", True), ("truncated", False), ("full", False)])
def test_only_heads_with_factors_have_a_rank(head, is_on):
    updates = updates_of("exact", head, 72)
    assert updates["rank"]["interactive"] == is_on
    assert updates["head"]["value"] == head
    settings = controls.read_settings(DEFAULTS | {"head": head, "rank": 72}, BACKEND)
    assert (settings.head, settings.config.rank) == (head, 72 if is_on else 0)


def test_a_head_that_the_new_drafter_lacks_is_replaced():
    updates = updates_of("exact", "dynamic", 72, drafter="ngram")
    assert (updates["head"]["value"], updates["head"]["interactive"]) == ("own", False)
    assert controls.read_settings(DEFAULTS | {"drafter": "ngram", "head": "dynamic"}, BACKEND).head == "own"


def test_rank_tells_what_it_costs_and_what_it_is_worth():
    assert controls.rank_help(144, BACKEND) == "7.2 M parameters, 25 % of the full head."
    assert controls.rank_help(72, BACKEND, controls.Where("auto", 2.0, 0.0)) == (
        "3.6 M parameters, 13 % of the full head. Predicted: 1.05 times the speed of no drafts. "
        "Best predicted rank: 144 (1.30)."
    )


def test_a_rank_that_the_new_drafter_lacks_is_replaced():
    rank = updates_of("exact", "own", 5000)["rank"]
    assert (rank["value"], rank["minimum"], rank["maximum"], rank["step"]) == (288, 36, 288, 36)


def test_bundled_prompts_can_be_read():
    prompts = controls.read_prompts((ASSETS / "prompts.jsonl").read_text("utf-8"))
    assert {"Chat", "Code", "Maths", "Translation", "Facts"} <= {label for label, _ in prompts}


def test_the_real_backend_loads_nothing_when_made():
    backend = PairBackend()
    assert [name for _, name in backend.drafters] == ["auto", "hybrid", "ngram"]
    assert PairBackend(drafter="some/model").drafters[0] == ("model", "some/model")


def test_the_command_line_that_repeats_a_run_holds_what_differs():
    import shlex

    from explorer.engine.config import DecodeConfig as Config

    words = shlex.split(PairBackend()._command("it's", Config(rule="static", seed=3), "ngram", "own"))
    assert words[3:] == ["decode", "--prompt", "it's", "--drafter", "ngram", "--rule", "static", "--seed", "3"]


def test_the_bundled_trace_is_a_trace():
    from explorer.engine.trace import read_trace
    from explorer.ui.tabs.decode import first_trace

    kinds = [record["kind"] for record in read_trace(first_trace(ASSETS / "traces"))]
    assert (kinds[0], kinds[-1]) == ("meta", "end")
    assert json.loads(first_trace(ASSETS / "traces").splitlines()[0])["version"] == 1


def test_the_dynamic_rule_takes_a_trained_head():
    settings = controls.read_settings(DEFAULTS | {"rule": "dynamic"}, BACKEND)
    assert (settings.config.rule, settings.ensemble) == ("dynamic", "bundled")
    assert controls.read_settings(DEFAULTS, BACKEND).ensemble == ""
    with pytest.raises(SettingError, match="No head is trained for the dynamic rule yet. Train one in the Train tab"):
        controls.read_settings(DEFAULTS | {"rule": "dynamic", "ensemble": None}, BACKEND)
    box = updates_of("dynamic", "own", 72)["ensemble"]
    assert (box["value"], box["interactive"]) == ("bundled", True)


def test_heads_trained_on_the_page_come_before_bundled_ones(tmp_path):
    from explorer.ui.jobs import Jobs

    jobs = Jobs(tmp_path)
    (tmp_path / "1" / "head").mkdir(parents=True)
    (tmp_path / "1" / "job.json").write_text('{"title": "Arithmetic", "flags": [], "num_steps": 0}')
    (tmp_path / "1" / "head" / "meta.json").write_text("{}")
    assert PairBackend(jobs=jobs).ensembles()[0] == ("Arithmetic (1)", str(tmp_path / "1" / "head"))
