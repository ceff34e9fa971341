"""What if: the browser's arithmetic against the rules and the engine, its panel, and the run it starts."""

import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from playwright.sync_api import expect
from toys import byte_tokenizer, language_model, perturbed, random_network
from ui.driving import ENDED, VIEW, button
from ui.fake_pair import FakeBackend, fake_trace

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import ModelDrafter, NgramDrafter
from explorer.engine.pair import ModelPair
from explorer.engine.run import run_trace
from explorer.engine.trace import read_trace
from explorer.errors import SettingError
from explorer.rules import ensemble, lossy
from explorer.ui.tabs.whatif import continued

BROWSER = pytest.mark.browser
ASK = """([text, settings]) => {
  const trace = SpecView.Trace.read(text);
  const found = SpecView.whatIf(trace, settings);
  const known = (round) => round.tokens.filter((token) => found.fates.has(token));
  const fates = trace.rounds.map((round) => known(round).map((token) => found.fates.get(token)));
  const at = found.at && [found.at.round.number, found.at.place];
  return {...found, at, fates, choice: found.choice && found.choice.id};
}"""
SETTINGS = {"rule": "exact", "target_weight": 0.7, "lenience": 0.5}


@pytest.fixture(scope="module")
def scripts(browser):
    """A page with our scripts and nothing else."""
    from explorer.ui.theme import head

    context = browser.new_context()
    page = context.new_page()
    page.set_content(f"<html><head>{head()}</head><body><div class='sv-view' id='here'></div></body></html>")
    yield page
    context.close()


def pair_of(drafter, end_ids=()):
    network = random_network("llama", vocab=300, context=256)
    target = language_model(network, byte_tokenizer(), name="bytes", end_ids=end_ids)
    other = language_model(perturbed(network, 0.2), byte_tokenizer(), name="bytes too")
    return ModelPair(target, ModelDrafter(other) if drafter == "model" else NgramDrafter())


@cache
def recorded(drafter="model", end_ids=(), **settings):
    settings = {"draft_length": 4, "max_new_tokens": 40, "temperature": 1.0} | settings
    return "".join(run_trace(pair_of(drafter, end_ids), "Say 😀 now", DecodeConfig(**settings)))


def ask(page, text, **settings):
    return page.evaluate(ASK, [text, SETTINGS | settings])


def check_against(found, text, real):
    """What was foretold from `text` is what the run `real` did."""
    was, now = read_trace(text), read_trace(real)
    for number in range(found["numRounds"]):
        for key in ("drafts", "next"):
            first, second = was[number + 1][key], now[number + 1][key]
            for a, b in zip(first, second, strict=True) if key == "drafts" else [(first, second)]:
                assert a is b is None or (a["id"], a["fate"]) == (b["id"], b["fate"])
        assert found["fates"][number] == [draft["fate"] for draft in now[number + 1]["drafts"]]
    if not found["at"]:
        assert was[-1]["token_ids"] == now[-1]["token_ids"]
        return
    number, place = found["at"]
    shared = [draft["fate"] for draft in now[number + 1]["drafts"]]
    assert found["fates"][number] == shared[: len(found["fates"][number])]
    if found["why"] == "undecided":
        return
    if found["why"] == "replaced":
        assert found["choice"] == now[number + 1]["next"]["id"]
    else:
        assert shared[place] == {"passes": "accepted", "fails": "rejected"}[found["why"]]
    assert len(found["fates"][number]) == len(shared) or found["rounds"] == number
    same = [a == b for a, b in zip(was[-1]["token_ids"], now[-1]["token_ids"], strict=False)]
    assert same.index(False) == found["numTokens"]
    drafts = [draft["fate"] for record in now[1 : found["rounds"] + 1] for draft in record["drafts"]]
    tested = len(drafts) - drafts.count("discarded")
    assert found["after"] == {"drafted": len(drafts), "tested": tested, "accepted": drafts.count("accepted")}


@BROWSER
def test_chances_are_those_of_the_rules(scripts):
    generator = torch.Generator().manual_seed(1)
    p, q, amount = torch.rand(3, 500, generator=generator, dtype=torch.float64).clamp(min=0.01)
    p[:20] = 0.0
    rows = torch.stack([p, q, amount], 1).tolist()

    def chances(rule):
        code = """([rows, rule]) => rows.map(([p, q, x]) =>
            SpecView.whatIfChance(p, q, {rule, target_weight: x, lenience: x}))"""
        return torch.tensor(scripts.evaluate(code, [rows, rule]), dtype=torch.float64)

    torch.testing.assert_close(chances("exact"), ensemble.acceptance(p, q, 1.0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(chances("static"), ensemble.acceptance(p, q, amount), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(chances("lossy"), lossy.acceptance(p, q, amount), rtol=1e-12, atol=1e-12)


@BROWSER
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("rule", ["exact", "lossy", "static"])
def test_equal_settings_change_nothing(scripts, rule, drafter, temperature):
    text = recorded(drafter, rule=rule, temperature=temperature)
    was = read_trace(text)
    found = ask(scripts, text, rule=rule)
    assert (found["isSame"], found["at"], found["why"]) == (True, None, "")
    assert (found["numRounds"], found["numTokens"]) == (was[-1]["num_rounds"], was[-1]["num_emitted"])
    assert found["before"] == found["after"]
    assert found["after"] == {name: was[-1][f"num_{name}"] for name in ("drafted", "tested", "accepted")}


@BROWSER
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["exact", "lossy", "static"])
def test_the_coins_judge_as_they_did(scripts, rule, seed):
    """The same settings under another name, so that the verdicts are worked out and not looked up."""
    text = recorded(rule=rule, seed=seed)
    found = ask(scripts, text.replace(f'"rule":"{rule}"', '"rule":"dynamic"', 1), rule=rule)
    assert (found["isSame"], found["at"]) == (False, None)
    assert found["numTokens"] == read_trace(text)[-1]["num_emitted"]


OTHERS = [
    {"rule": "exact"},
    {"rule": "lossy", "lenience": 0.3},
    {"rule": "static", "target_weight": 0.3},
    {"rule": "static", "target_weight": 0.95},
    {"rule": "static", "target_weight": 0.0},
]


@BROWSER
@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_foretold_is_what_the_engine_does(scripts, temperature, seed, other):
    common = {"temperature": temperature, "seed": seed}
    if not temperature:
        common["draft_length"] = seed + 2
    for own in ({"rule": "static", "target_weight": 0.7}, {"rule": "lossy", "lenience": 0.9}):
        text = recorded(**common, **own)
        check_against(ask(scripts, text, **other), text, recorded(**common, **other))


@BROWSER
@pytest.mark.parametrize("seed", range(2))
def test_an_answer_that_ended_inside_its_drafts(scripts, seed):
    """A round may end without a token of the target's, and drafts after an end token are never tested."""
    common = {"seed": seed, "end_ids": tuple(range(40, 80))}
    text = recorded(rule="static", target_weight=0.5, **common)
    assert read_trace(text)[-1]["finish"] == "end_token"
    for weight in (0.45, 0.6, 1.0):
        real = recorded(rule="static", target_weight=weight, **common)
        check_against(ask(scripts, text, rule="static", target_weight=weight), text, real)


@BROWSER
def test_some_of_these_runs_do_part(scripts):
    """The tests above would pass on runs that never differ."""
    found = []
    for seed in range(5):
        for other in OTHERS:
            text = recorded(seed=seed, rule="static", target_weight=0.7)
            found.append(ask(scripts, text, **other))
    reasons = [one["why"] for one in found]
    assert reasons.count("passes") > 3
    assert reasons.count("fails") > 3
    assert any(one["numRounds"] > 2 for one in found)


@BROWSER
def test_a_coin_within_the_rounding_is_left_undecided(scripts):
    text = recorded(rule="static", target_weight=0.7)
    meta, first, *rest = [json.loads(line) for line in text.splitlines()]
    first["drafts"][0] |= {"p": 0.25, "q": 0.5, "u": 0.5, "a": 0.65}
    text = "".join(json.dumps(record) + "\n" for record in (meta, first, *rest))
    found = ask(scripts, text, rule="exact")
    assert (found["why"], found["at"], found["numRounds"], found["rounds"]) == ("undecided", [0, 0], 0, 0)
    assert ask(scripts, text, rule="lossy", lenience=0.9)["why"] != "undecided"


@BROWSER
def test_drafts_after_a_newly_kept_one_are_judged_until_one_fails(scripts):
    text = recorded(rule="static", target_weight=0.7)
    meta, first, *rest = [json.loads(line) for line in text.splitlines()]
    coins, fates = [0.6, 0.5, 0.9, 0.1], ["rejected", "discarded", "discarded", "discarded"]
    for draft, coin, fate in zip(first["drafts"], coins, fates, strict=True):
        draft |= {"p": 0.0, "q": 0.5, "a": 0.3, "u": coin, "fate": fate}
    first["next"]["fate"] = "residual"
    text = "".join(json.dumps(record) + "\n" for record in (meta, first, *rest))
    found = ask(scripts, text, rule="static", target_weight=0.2)
    assert (found["why"], found["at"], found["rounds"]) == ("passes", [0, 0], 1)
    assert found["fates"][0] == ["accepted", "accepted", "rejected", "discarded"]
    assert found["after"] == {"drafted": 4, "tested": 3, "accepted": 2}


# The panel.


WORDS = ".sv-wi-words"


def show(page, text):
    page.evaluate(f"(text) => {VIEW}.show(SpecView.Trace.read(text), {{origin: 'file'}})", text)
    page.evaluate("document.querySelector('.sv-whatif').open = true")
    expect(page.locator(".sv-whatif")).to_have_attribute("open", "")


def fake(**settings):
    settings = {"rule": "static", "draft_length": 4, "temperature": 0.8, "seed": 7} | settings
    return "".join(fake_trace("Why is the sky blue?", DecodeConfig(**settings)))


@BROWSER
def test_the_panel_marks_where_the_runs_part(still):
    page = still
    show(page, fake())
    expect(page.locator(WORDS)).to_contain_text("the recording's own settings: nothing changes")
    assert page.locator(".sv-wi-flip, .sv-wi-unknown").count() == 0
    page.get_by_role("group", name="Rule of the what-if").get_by_role("button", name="Exact").click()
    words = page.locator(WORDS).inner_text()
    found = page.evaluate(
        f"(() => {{ const r = {VIEW}.whatif.result; return [r.numRounds, r.numTokens, r.at.index]; }})()"
    )
    assert words.startswith(f"{found[0]} of ")
    assert f"{found[1]} of" in words
    assert page.locator(".sv-flow .sv-wi-flip").count() == page.locator(".sv-rows .sv-wi-flip").count() == 1
    assert page.evaluate("document.querySelector('.sv-flow .sv-wi-flip').token.index") == found[2]
    described = page.evaluate(
        """() => [...document.querySelectorAll('.sv-flow .sv-wi-unknown[aria-describedby]')].map((node) =>
            [node.token.index, document.getElementById(node.getAttribute('aria-describedby')).textContent])"""
    )
    assert described
    assert min(index for index, _ in described) > found[2]
    assert {text for _, text in described} == {"What if: unknown, the text before it would be another one."}
    button(page, "As recorded").click()
    assert page.locator(".sv-wi-flip, .sv-wi-unknown, .sv-wi-mark").count() == 0


@BROWSER
def test_the_slider_works_from_the_keyboard_and_closing_cleans_up(still):
    page = still
    show(page, fake())
    slider = page.get_by_role("slider", name="Static weight w of the what-if")
    before = page.evaluate("[...document.querySelectorAll('.sv-bars')].map((bar) => bar.style.getPropertyValue('--a'))")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert slider.input_value() == "0.67"
    page.keyboard.press("End")
    expect(page.locator(WORDS)).to_contain_text("would be rejected")
    page.locator(".sv-whatif summary").click()
    after = page.evaluate("[...document.querySelectorAll('.sv-bars')].map((bar) => bar.style.getPropertyValue('--a'))")
    assert after == before
    assert page.locator(".sv-wi-flip, .sv-wi-unknown, .sv-wi-mark, [aria-describedby^='sv-wi']").count() == 0


@BROWSER
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "ar"}, "This run drafted nothing"),
        ({"temperature": 0.0}, "Temperature 0: there are no coins."),
    ],
)
def test_runs_without_coins_say_so(still, settings, words):
    show(still, fake(**settings))
    expect(still.locator(".sv-whatif")).to_contain_text(words)
    assert still.locator(".sv-wi-controls").is_visible() == (settings.get("rule") != "ar")


@BROWSER
def test_model_text_stays_text_and_learned_weights_start_from_their_mean(still):
    page = still
    lines = fake(rule="dynamic").replace('"w":1.0', '"w":0.5')
    show(page, "".join(line for line in fake_hard(lines)))
    assert page.evaluate(f"{VIEW}.whatif.settings") == {"rule": "static", "target_weight": 0.5, "lenience": 0.5}
    page.get_by_role("slider", name="Static weight w of the what-if").fill("0")
    assert "<img" in page.locator(WORDS).inner_text()
    assert page.locator(".sv-whatif img").count() == 0


def fake_hard(lines):
    """Every rejected draft reads as markup."""
    for line in lines.splitlines():
        record = json.loads(line)
        for draft in record.get("drafts", []):
            if draft["fate"] == "rejected":
                draft["text"] = "<img src=x onerror=window.hacked=1>"
        yield json.dumps(record) + "\n"


@BROWSER
def test_continue_puts_the_settings_into_the_controls_and_runs(pages, backend):
    page = pages.open()
    show(page, fake(target_weight=0.9, seed=11, max_new_tokens=24, top_p=0.95))
    page.get_by_role("slider", name="Static weight w of the what-if").fill("0.35")
    button(page, "Continue from here").click()
    page.wait_for_function(f"{ENDED} && {VIEW}.trace.meta.target_weight === 0.35")
    meta = read_trace(page.evaluate(f"{VIEW}.trace.text"))[0]
    wanted = {"rule": "static", "target_weight": 0.35, "seed": 11, "draft_length": 4, "temperature": 0.8, "top_p": 0.95}
    assert {name: meta[name] for name in wanted} == wanted
    assert (meta["prompt"], meta["max_new_tokens"]) == ("Why is the sky blue?", 24)
    assert page.get_by_label("Prompt", exact=True).input_value() == "Why is the sky blue?"
    expect(page.get_by_role("slider", name="Static weight", exact=True)).to_have_value("0.35")
    expect(page.locator(".sv-statustext")).to_have_text("The page shows these settings.")


@BROWSER
def test_a_trace_with_a_setting_that_run_refuses(pages):
    page = pages.open()
    show(page, fake().replace('"max_new_tokens":128', '"max_new_tokens":9999', 1))
    button(page, "Continue from here").click()
    expect(page.get_by_text("max_new_tokens is 9999; it must be in [1, 4096]")).to_be_visible()


@BROWSER
@pytest.mark.parametrize(("name", "width", "scheme"), [("light-360", 360, "light"), ("dark-1440", 1440, "dark")])
def test_pictures_and_targets(pages, artifacts, name, width, scheme):
    page = pages.open(viewport={"width": width, "height": 900}, color_scheme=scheme)
    show(page, fake())
    page.get_by_role("group", name="Rule of the what-if").get_by_role("button", name="Lossy").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for target in page.locator(".sv-whatif button:visible, .sv-whatif input:visible, .sv-whatif summary").all():
        assert min(target.bounding_box()["height"], target.bounding_box()["width"]) >= 24
    page.screenshot(path=artifacts / f"whatif-{name}.png", full_page=True)


# From the panel to the controls, without a browser.

NAMES = ("rule", "target_weight", "drafter", "head", "rank", "temperature", "seed")


def put(**asked):
    values = continued({"prompt": "Why?"} | asked, "ngram", FakeBackend(), NAMES)
    return SimpleNamespace(prompt=values[0], **dict(zip(NAMES, values[1:], strict=True)))


def test_what_the_recording_does_not_say_stays():
    got = put(rule="static", target_weight=1, seed=3.0)
    assert (got.prompt, got.rule, got.target_weight, got.seed, got.drafter) == ("Why?", "static", 1, 3.0, "ngram")
    assert "value" not in got.temperature
    assert "value" not in got.head


@pytest.mark.parametrize(
    ("command", "drafter", "head"),
    [
        ("python -m explorer decode --prompt '--drafter broken'", "auto", "own"),
        ("python -m explorer decode --prompt=x --drafter=slow", "slow", None),
        ("python -m explorer decode --prompt x --head full", "auto", "full"),
        ("python -m explorer decode --drafter unheard-of", "ngram", None),
        ("python -m 'unclosed", "ngram", None),
    ],
)
def test_the_drafter_is_the_one_of_the_recording(command, drafter, head):
    got = put(command=command)
    assert got.drafter == drafter
    assert got.head == head if head else "value" not in got.head


def test_a_rank_must_be_one_of_the_drafters():
    command = "python -m explorer decode"
    assert put(command=command, rank=72).rank == 72
    assert "value" not in put(command=command, rank=5000).rank


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rule": "fast"}, "rule is 'fast'; it must be one of"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"seed": "1"}, "seed is '1'; it must be a whole number"),
        ({"prompt": 3}, "The recording names no prompt"),
    ],
)
def test_what_run_would_refuse_is_refused(asked, message):
    with pytest.raises(SettingError, match=message):
        put(**asked)
