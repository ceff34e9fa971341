"""The race: what is measured and in which order, what the browser reads off the traces, and the tab."""

import json

import pytest
from playwright.sync_api import expect
from ui.driving import button, until
from ui.fake_pair import FakeBackend, fake_trace

from explorer.engine.config import DecodeConfig
from explorer.engine.trace import read_trace
from explorer.errors import SettingError
from explorer.ui.controls import FIELDS, LABELS
from explorer.ui.loading import Loader
from explorer.ui.runs import Registry
from explorer.ui.tabs.race import race_stream, read_race, updates_for
from explorer.ui.turns import Turns

BROWSER = pytest.mark.browser
RACE = "SpecView.race"
SHOWN = f"{RACE}.shown"
VALUES = {name: FIELDS[name].default for name in LABELS if name in FIELDS and name != "rule"}
VALUES |= {"drafter": "auto", "head": "own", "ensemble": "bundled", "rank": 72, "seed": 5, "temperature": 0.8}


def race_of(*rules, prompt="sky", **change):
    return read_race(prompt, rules, VALUES | change, FakeBackend())


def traces_of(text):
    parts = text.split('{"kind":"meta"')[1:]
    return [read_trace('{"kind":"meta"' + part) for part in parts]


def run_race(race, backend, turns=None):
    return list(race_stream(race, Loader(backend), Registry(), turns or Turns()))


def test_the_runs_differ_in_the_rule_alone_and_one_warms_up():
    race = race_of("static", "dynamic", "exact")
    (words, warm_up), *heats = race.heats()
    assert (words, warm_up.config.max_new_tokens) == ("Warming up", 4)
    assert [run.config.rule for _, run in heats] == ["ar", "exact", "static", "dynamic"]
    assert [run.ensemble for _, run in heats] == ["", "", "", "bundled"]
    assert all(run.stop is race.stop for _, run in race.heats())
    assert {(run.prompt, run.config.seed, run.drafter, run.config.rank) for _, run in heats} == {("sky", 5, "auto", 72)}
    assert heats[1][0] == "Measuring 2 of 4: Exact"


@pytest.mark.parametrize(
    ("rules", "change", "message"),
    [
        (
            (),
            {},
            "0 rules are chosen \\(none\\); a race needs 1 to 3 of exact, lossy, static, dynamic.",
        ),
        (("exact", "lossy", "static", "dynamic"), {}, "4 rules are chosen"),
        (("ar",), {}, "1 rules are chosen \\(ar\\)"),
        (("exact",), {"prompt": " "}, "The prompt is empty"),
        (("exact",), {"seed": None}, "Seed is empty"),
        (("dynamic",), {"ensemble": None}, "No head is trained"),
    ],
)
def test_what_cannot_run_is_refused(rules, change, message):
    with pytest.raises(SettingError, match=message):
        race_of(*rules, **change)


def test_the_runs_are_measured_one_after_the_other():
    backend, turns = FakeBackend(round_s=0.001), Turns()
    updates = run_race(race_of("exact", "lossy"), backend, turns)
    work = [what for what, _, _ in backend.log if what in ("open", "close")]
    assert work == ["open", "close"] * 4
    texts = [text for text, _ in updates if text is not None]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert [trace[0]["rule"] for trace in traces_of(texts[-1])] == ["ar", "exact", "lossy"]
    assert all(trace[-1]["kind"] == "end" for trace in traces_of(texts[-1]))
    assert all(trace[0]["max_new_tokens"] == 128 for trace in traces_of(texts[-1]))
    assert updates[-1][1] == {"state": "idle", "text": ""}
    assert all(status["state"] == "running" for _, status in updates[:-1])
    assert turns.is_free


def test_stop_ends_the_race_and_no_further_run_begins():
    backend, race = FakeBackend(round_s=0.01), race_of("exact", "static")
    texts, last = [], None
    for text, status in race_stream(race, Loader(backend), Registry(), Turns()):
        last = status
        texts += [text] if text else []
        if text and len(text) > 3000:
            race.stop.set()
    assert last == {"state": "idle", "text": "Stopped."}
    assert backend.count("open") == backend.count("close") == 2
    assert traces_of(texts[-1])[-1][-1]["finish"] == "stopped"


def test_a_control_is_on_if_one_of_the_rules_uses_it():
    values = {name: VALUES[name] for name in ("ensemble", "head", "rank", "drafter", "draft_length", "temperature")}
    weight, lenience, ensemble, *rest = updates_for(["exact", "static"], values, FakeBackend())
    assert [one["interactive"] for one in (weight, lenience, ensemble)] == [True, False, False]
    assert all(one["interactive"] for one in rest)
    assert lenience["info"] == "Only the lossy rule uses it."
    assert not any(one["interactive"] for one in updates_for([], values, FakeBackend()))


# In the browser.


@pytest.fixture(scope="module")
def scripts(browser):
    from explorer.ui.theme import head

    context = browser.new_context()
    page = context.new_page()
    page.set_content(f"<html><head>{head()}</head><body><div id='at'><div class='sv-view'></div></div></body></html>")
    yield page
    context.close()


def text_of(rule, slower=1.0, **settings):
    lines = []
    for line in fake_trace("hard race", DecodeConfig(rule=rule, draft_length=3, seed=2, **settings)):
        record = json.loads(line)
        if record["kind"] == "round":
            record["verify_ms"] *= slower
        lines.append(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n")
    return "".join(lines)


def shown(page, *texts):
    page.evaluate(
        f"(text) => {{ {RACE}.view(document.querySelector('#at'), {{value: text}}, () => {{}}); }}", "".join(texts)
    )


@BROWSER
def test_lanes_are_their_traces(scripts):
    texts = [text_of("ar"), text_of("exact"), text_of("lossy", slower=20.0)]
    shown(scripts, *texts)
    lanes = scripts.evaluate(
        f"""() => {SHOWN}.lanes.map((lane) => [lane.name, lane.ms, lane.passes, lane.perSecond, lane.tokens.length])"""
    )
    for text, (_, ms, passes, per_second, tokens) in zip(texts, lanes, strict=True):
        _, *rounds, end = read_trace(text)
        expected = end["prefill_ms"] + sum(one["draft_ms"] + one["verify_ms"] for one in rounds)
        assert (passes, tokens) == (end["num_rounds"], end["num_emitted"])
        assert ms == pytest.approx(expected)
        assert per_second == pytest.approx(1000 * end["num_emitted"] / expected)
    assert [lane[0] for lane in lanes] == ["Autoregressive", "Exact", "Lossy, l = 0.50"]
    fast, slow = lanes[1][3] / lanes[0][3], lanes[2][3] / lanes[0][3]
    verdicts = scripts.locator(".sv-rc-verdicts li").all_inner_texts()
    assert verdicts[0].startswith(f"Exact: {fast:.2f} times as fast as autoregressive.")
    assert verdicts[1].startswith(f"Lossy, l = 0.50: slower than autoregressive here, {slow:.2f} times its speed.")
    assert f"{lanes[2][4] / lanes[2][2]:.2f} tokens per target pass" in verdicts[1]
    order = scripts.locator(".sv-rc-order").inner_text()
    assert order.index("1. Exact") < order.index("2. Autoregressive") < order.index("3. Lossy")
    button(scripts, "Race by target passes").click()
    assert scripts.locator(".sv-rc-order").inner_text().endswith(f"Autoregressive ({lanes[0][2]} passes).")


@BROWSER
def test_the_playhead_fills_the_lanes_on_the_recorded_clock(scripts):
    text = text_of("exact")
    shown(scripts, text_of("ar"), text)
    _, *rounds, end = read_trace(text)
    at = end["prefill_ms"]
    for number, record in enumerate(rounds[:4]):
        at += record["draft_ms"] + record["verify_ms"]
        words = f"{SHOWN}.parts[1].text.querySelectorAll('span:not([hidden])')"
        ask = f"(at) => {{ {SHOWN}.seek(at); return {words}.length; }}"
        emitted = sum(
            (token is not None and token["fate"] in ("accepted", "residual", "bonus"))
            for one in rounds[: number + 1]
            for token in (*one["drafts"], one["next"])
        )
        assert scripts.evaluate(ask, at) == emitted
        assert scripts.evaluate(ask, at - 0.01) < emitted
        passes = f"() => {RACE}.playheadAt({SHOWN}.lanes[1], {number + 1}, 'passes')"
        assert scripts.evaluate(passes) == scripts.evaluate(f"{SHOWN}.lanes[1].trace.rounds[{number}].lastStep")
    scripts.evaluate(f"{SHOWN}.seek(Infinity)")
    assert scripts.locator(".sv-rc-lane img, .sv-rc-lane script, .sv-rc-lane b b").count() == 0
    assert '<img src=x onerror="window.hacked=1">' in scripts.locator(".sv-rc-text").nth(1).inner_text()
    assert scripts.evaluate("window.hacked") is None


@BROWSER
def test_keys_scrub_and_speed(scripts):
    shown(scripts, text_of("ar"), text_of("exact"))
    lanes = scripts.get_by_role("region", name="Lanes")
    lanes.focus()
    for key, expected in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        scripts.keyboard.press(key)
        assert scripts.evaluate(f"{SHOWN}.at / {SHOWN}.total * 50") == pytest.approx(expected)
    scripts.keyboard.press("Space")
    expect(button(scripts, "Pause the race")).to_be_visible()
    scripts.keyboard.press("Space")
    expect(button(scripts, "Play the race")).to_be_visible()
    scripts.get_by_role("slider", name="Playhead of the race").fill("100")
    assert scripts.evaluate(f"{SHOWN}.at / {SHOWN}.total") == pytest.approx(0.5)
    button(scripts, "Race at 4×").click()
    scripts.keyboard.press("Tab")
    button(scripts, "Play the race").click()
    scripts.wait_for_function(f"{SHOWN}.at === Infinity && {SHOWN}.timer === 0")
    expect(scripts.locator(".sv-rc-order")).to_contain_text("Finish order")


@BROWSER
def test_without_a_whole_autoregressive_run_there_is_no_speed_up(scripts):
    cut = "".join(text_of("ar").splitlines(keepends=True)[:-1])
    shown(scripts, cut, text_of("exact"))
    assert "nothing to measure a speed-up against" in scripts.locator(".sv-rc-verdicts").inner_text()
    assert "times" not in scripts.locator(".sv-rc-verdicts").inner_text()


def race_tab(page):
    page.get_by_role("tab", name="Race").click()
    page.wait_for_function(f"{SHOWN} !== null")


@BROWSER
@pytest.mark.parametrize(
    ("name", "width", "scheme", "motion"),
    [("light-360", 360, "light", "reduce"), ("dark-1440", 1440, "dark", "no-preference")],
)
def test_a_race_on_the_page(pages, backend, artifacts, name, width, scheme, motion):
    page = pages.open(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion=motion)
    backend.round_s = 0.005
    race_tab(page)
    expect(page.get_by_text("No race yet.")).to_be_visible()
    page.get_by_label("Prompt of the race").fill(f"hard race {name}")
    button(page, "Start race").click()
    page.wait_for_function(f"{SHOWN}.lanes.length === 3 && {SHOWN}.lanes[2].isDone", timeout=40_000)
    expect(page.locator("#race-view .sv-sr")).to_contain_text("The race is measured. Finish order: 1.", timeout=20_000)
    assert page.evaluate(f"{SHOWN}.timer !== 0") == (motion != "reduce"), "it replays unless no motion is wanted"
    page.wait_for_function(f"{SHOWN}.at === Infinity && {SHOWN}.timer === 0")
    expect(page.locator(".sv-rc-order")).to_contain_text("Finish order: 1.")
    expect(page.locator("#race-status .sv-statustext")).to_have_text("")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hacked") is None
    for target in page.locator(".sv-rc button, .sv-rc input").all():
        assert min(target.bounding_box()["height"], target.bounding_box()["width"]) >= 24
    page.screenshot(path=artifacts / f"race-{name}.png", full_page=True)
    rules = [trace[0]["rule"] for trace in traces_of(page.evaluate(f"{SHOWN}.text"))]
    assert rules == ["ar", "exact", "static"]


@BROWSER
def test_a_fourth_rule_is_refused_and_stop_stops(pages, backend):
    page = pages.open()
    race_tab(page)
    for rule in ("Lossy", "Dynamic ensemble"):
        page.get_by_label(rule, exact=True).check()
    button(page, "Start race").click()
    expect(page.get_by_text("4 rules are chosen")).to_be_visible()
    page.get_by_label("Dynamic ensemble", exact=True).uncheck()
    backend.round_s = 0.1
    page.get_by_label("Prompt of the race").fill("long race to stop")
    button(page, "Start race").click()
    until(lambda: backend.count("enter", "long race to stop") > 8, 20)
    button(page, "Stop race").click()
    expect(page.locator("#race-status .sv-statustext")).to_have_text("Stopped.")
    assert backend.count("open", "long race to stop") == backend.count("close", "long race to stop")
