"""Runs on the visible page in a real browser, over a backend without weights."""

import itertools
import re
import time

import pytest
from playwright.sync_api import expect
from ui.driving import ENDED, RUNNING, VIEW, button, choose, counts_of, decode, finish, shown_counts, start, until

from explorer.engine.trace import read_trace
from explorer.ui.runs import TURNS

pytestmark = pytest.mark.browser


def test_a_recorded_run_is_there_before_anything_is_loaded(pages, backend):
    page = pages.open()
    expect(page.locator(".sv-statustext")).to_contain_text("A recorded run is shown")
    assert backend.count("prepare") == 0
    assert sum(shown_counts(page).values()) > 20


def test_a_run_streams_and_its_figures_are_the_traces(pages, backend):
    page = pages.open()
    start(page, "Why is the sky blue, exactly?")
    page.wait_for_function(f"{RUNNING} && {VIEW}.trace.rounds.length > 2")
    expect(page.locator(".sv-statustext")).to_have_text("Decoding…")
    finish(page, "Why is the sky blue, exactly?")

    trace = page.evaluate(f"{VIEW}.trace.text")
    end = read_trace(trace)[-1]
    assert shown_counts(page) == counts_of(trace)
    figures = page.locator(".sv-figure").all_inner_texts()
    assert f"{end['num_accepted']} of {end['num_drafted']} drafted" in figures[0]
    assert f"{100 * end['acceptance_rate']:.1f}%" in figures[0]
    assert f"{100 * end['tested_rate']:.1f}%" in figures[1]
    assert f"{end['tokens_per_round']:.2f}" in figures[2]
    assert f"of {3} at most" in figures[2]
    assert f"{end['tokens_per_s']:.1f}" in figures[3]
    assert page.locator(".sv-value strong").last.inner_text() == str(end["num_rounds"])
    assert page.locator(".sv-badge").inner_text() == "exact: output law equals the target's"
    expect(page.locator(".sv-statustext")).to_have_text("The page shows these settings.")


def test_model_text_is_shown_as_it_is(pages):
    page = pages.open()
    decode(page, "hard words ${1+1} {{prompt}} <b>bold</b>")

    assert page.evaluate("window.hacked") is None
    assert page.locator(".sv-prompt").inner_text() == "hard words ${1+1} {{prompt}} <b>bold</b>"
    answer = page.locator(".sv-flow").inner_text()
    for text in ("${7*6}", "`", '<img src=x onerror="window.hacked=1">', "{{this}}", "🙂", "\\n", "</script>", "<b>"):
        assert text in answer, text
    assert "42" not in answer
    assert page.locator(".sv-view img, .sv-view b b, .sv-view script").count() == 0
    page.get_by_role("switch", name="Final text only").check()
    assert '${7*6} `tick` <img src=x onerror="window.hacked=1">' in page.locator(".sv-final").text_content()


def test_stop_while_loading_ends_the_run(pages, backend):
    page = pages.open()
    choose(page, "Drafter", "Slow to load")
    start(page, "stop while loading")
    expect(page.locator(".sv-statustext")).to_have_text("Loading fake weights…")
    expect(page.get_by_role("progressbar", name="Loading")).to_be_visible()
    button(page, "Stop").click()
    expect(page.locator(".sv-statustext")).to_contain_text("Stopped before the first token.", timeout=3000)
    assert backend.count("open", "stop while loading") == 0
    choose(page, "Drafter", "Bundled drafter")
    decode(page, "and the bundled one runs at once")


def test_stop_before_the_first_token_frees_the_engine(pages, backend):
    page = pages.open()
    backend.round_s = 1.0
    start(page, "stop early")
    until(lambda: backend.count("enter", "stop early") == 1)
    button(page, "Stop").click()
    until(lambda: backend.count("close", "stop early") == 1, 3)

    assert backend.count("leave", "stop early") == 1
    assert TURNS.is_free
    finish(page, "stop early")
    backend.round_s = 0.005
    decode(page, "again after stop")
    assert shown_counts(page)["accepted"] > 10


def test_stop_then_run_never_has_two_rounds_in_flight(pages, backend):
    page = pages.open()
    backend.round_s = 0.15
    start(page, "long first")
    until(lambda: backend.count("enter", "long first") > 2)
    button(page, "Stop").click()
    start(page, "long second")
    until(lambda: backend.count("enter", "long second") > 2)
    button(page, "Run").click()
    until(lambda: backend.count("open", "long second") == 2)
    until(lambda: backend.count("enter", "long second") > 6)
    button(page, "Stop").click()
    page.wait_for_function(f"!{VIEW}.isLive")

    work = [what for what, prompt, _ in backend.log if what in ("enter", "leave") and prompt.startswith("long ")]
    assert work == ["enter", "leave"] * (len(work) // 2)
    expect(page.locator(".sv-facts")).to_contain_text("stopped")
    expect(page.locator(".sv-statustext")).to_contain_text("Stopped.")


def test_reload_during_a_run_ends_it_on_the_server(pages, backend):
    page = pages.open()
    backend.round_s = 0.05
    start(page, "long and left alone")
    until(lambda: backend.count("enter", "long and left alone") > 3)
    pages.expected += ["signal is aborted", "Connection errored out"]  # gradio on its own cut streams
    page.reload()
    until(lambda: backend.count("close", "long and left alone") == 1, 6)
    rounds = backend.count("enter", "long and left alone")
    time.sleep(0.3)
    assert backend.count("enter", "long and left alone") == rounds
    assert TURNS.is_free


def test_two_windows_take_turns(pages, backend):
    backend.round_s = 0.03
    one, two = pages.open(), pages.open()
    start(one, "long window one")
    start(two, "long window two")
    until(lambda: min(backend.count("enter", f"long window {name}") for name in ("one", "two")) > 12)
    expect(one.locator(".sv-statustext")).to_have_text("Decoding, in turn with 1 other visitor…")
    for page in (one, two):
        button(page, "Stop").click()
        page.wait_for_function(ENDED)

    order = [prompt for what, prompt, _ in backend.log if what == "enter" and prompt.startswith("long window")]
    together = order[max(order.index(f"long window {name}") for name in ("one", "two")) :][:20]
    streaks = [len(list(streak)) for _, streak in itertools.groupby(together)]
    assert max(streaks) <= 6, "one window kept the engine to itself"
    assert "window one" in one.locator(".sv-prompt").inner_text()
    assert "window two" in two.locator(".sv-prompt").inner_text()


def test_settings_are_read_when_run_is_pressed(pages):
    page = pages.open()
    choose(page, "Verification rule", "Static ensemble")
    weight = page.get_by_role("slider", name="Static weight")
    expect(weight).to_be_enabled()
    weight.fill("0.4")
    page.get_by_role("slider", name="Temperature").fill("0.8")
    page.get_by_label("Seed", exact=True).fill("11")
    decode(page, "with settings")

    meta = read_trace(page.evaluate(f"{VIEW}.trace.text"))[0]
    assert {name: meta[name] for name in ("rule", "target_weight", "temperature", "seed", "rank")} == {
        "rule": "static",
        "target_weight": 0.4,
        "temperature": 0.8,
        "seed": 11,
        "rank": 288,
    }
    assert "static ensemble, w = 0.40: output law differs" in page.locator(".sv-badge").inner_text()
    rounds = page.evaluate(f"{VIEW}.trace.rounds.length")
    page.get_by_role("slider", name="Drafts per round K").fill("6")
    expect(page.locator(".sv-statustext")).to_contain_text("Settings changed: run again")
    assert page.evaluate(f"{VIEW}.trace.rounds.length") == rounds


def test_an_empty_prompt_is_refused_and_the_page_goes_on(pages):
    page = pages.open()
    start(page, "   ")
    expect(page.get_by_text("The prompt is empty. Type a question")).to_be_visible()
    expect(page.locator(".sv-statustext")).to_contain_text("A recorded run is shown")
    decode(page, "now it runs")


def test_a_failed_load_is_said_and_nothing_is_lost(pages):
    page = pages.open()
    before = page.evaluate(f"{VIEW}.trace.text")
    choose(page, "Drafter", "Cannot be loaded")
    start(page, "will not load")
    expect(page.get_by_text("The weights of this drafter are missing.")).to_be_visible()
    page.wait_for_function(f"!{RUNNING}")
    assert page.get_by_label("Prompt", exact=True).input_value() == "will not load"
    assert page.evaluate(f"{VIEW}.trace.text") == before


def test_examples_fill_the_prompt(pages):
    page = pages.open()
    button(page, "Translation").click()
    expect(page.get_by_label("Prompt")).to_have_value(re.compile("^Translate into French"))


def test_the_keyboard_reaches_every_control(pages):
    page = pages.open()
    choose(page, "Verification rule", "Static ensemble")
    expect(page.get_by_role("slider", name="Static weight")).to_be_enabled()
    wanted = {
        "Run",
        "Stop",
        "Verification rule",
        "Drafter head rank r",
        "Static weight",
        "Temperature",
        "Prompt",
        "Seed",
    }
    wanted |= {
        "Drafts per round K",
        "Max new tokens",
        "Top-p",
        "Drafter",
        "Download trace",
        "Open trace",
        "Copy answer",
    }
    wanted |= {"Play", "Playhead", "Lanes", "Table", "Final text only", "Pin"}
    page.locator("body").click(position={"x": 700, "y": 2})
    reached, tokens = set(), 0
    for _ in range(90):
        page.keyboard.press("Tab")
        name, kind = page.evaluate(
            """() => { const e = document.activeElement; const label = e.labels && e.labels[0];
              return [e.getAttribute('aria-label') || (label ? label.textContent : e.textContent).trim(),
                      e.className.toString()]; }"""
        )
        reached.add(name)
        tokens += "sv-token" in kind
    assert wanted <= reached
    assert tokens == 1, "the answer is one tab stop"


def test_a_speed_up_needs_a_measured_baseline(pages):
    page = pages.open()
    decode(page, "how fast")
    assert "×" not in page.locator(".sv-figure").nth(3).inner_text()
    choose(page, "Verification rule", "Autoregressive")
    button(page, "Run").click()
    page.wait_for_function(f"{ENDED} && {VIEW}.trace.meta.rule === 'ar'")
    assert "autoregressive" in page.locator(".sv-badge").inner_text()
    choose(page, "Verification rule", "Exact")
    button(page, "Run").click()
    page.wait_for_function(f"{ENDED} && {VIEW}.trace.meta.rule === 'exact'")
    assert re.search(r"\d\.\d\d×", page.locator(".sv-figure").nth(3).inner_text())
