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
DEFAULTS = {name: controls.FIELDS[name].default for name in controls.LABELS if name != "drafter"} | {"drafter": "auto"}


@pytest.fixture(scope="module")
def built():
    import gradio as gr

    with gr.Blocks():
        return controls.build_controls(BACKEND)


def test_names_are_the_ones_promised(built):
    names = {"Verification rule", "Drafter head rank r", "Static weight", "Temperature", "Drafts per round K", "Seed"}
    assert names | {"Max new tokens", "Top-p", "Lenience", "Drafter"} == {box.label for box in built.values()}


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
        ("exact", "auto", {"target_weight", "lenience"}),
        ("static", "auto", {"lenience"}),
        ("lossy", "auto", {"target_weight"}),
        ("exact", "ngram", {"target_weight", "lenience", "rank"}),
        ("ar", "auto", set(controls.DEPENDENT)),
    ],
)
def test_what_does_nothing_is_off_with_a_reason(rule, drafter, off):
    updates = dict(
        zip(("rule", *controls.DEPENDENT), controls.dependent_updates(rule, drafter, 72, BACKEND), strict=True)
    )
    assert {name for name in controls.DEPENDENT if not updates[name]["interactive"]} == off
    assert all(updates[name]["info"] for name in off)


def test_rank_tells_what_it_costs():
    assert controls.rank_help(144, BACKEND) == "7.2 M parameters, 25 % of the full head."


def test_a_rank_that_the_new_drafter_lacks_is_replaced():
    updates = controls.dependent_updates("exact", "auto", 5000, BACKEND)
    rank = updates[1 + controls.DEPENDENT.index("rank")]
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

    words = shlex.split(PairBackend()._command("it's", Config(rule="static", seed=3), "ngram"))
    assert words[3:] == ["decode", "--prompt", "it's", "--drafter", "ngram", "--rule", "static", "--seed", "3"]


def test_the_bundled_trace_is_a_trace():
    from explorer.engine.trace import read_trace
    from explorer.ui.tabs.decode import first_trace

    kinds = [record["kind"] for record in read_trace(first_trace(ASSETS / "traces"))]
    assert (kinds[0], kinds[-1]) == ("meta", "end")
    assert json.loads(first_trace(ASSETS / "traces").splitlines()[0])["version"] == 1
