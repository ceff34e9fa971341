"""The Learn tab on the visible page: questions, answers, keys, the toy, pictures."""

import json
import re

import pytest
from playwright.sync_api import expect
from ui.driving import button

from explorer.ui.tabs.learn import lesson
from explorer.ui.theme import ASSETS

pytestmark = pytest.mark.browser

STEPS = json.loads(lesson(ASSETS))["lesson"]["steps"]


@pytest.fixture
def learn(pages):
    page = pages.open()
    page.get_by_role("tab", name="Learn", exact=True).click()
    page.locator(".sl-panel").wait_for()
    return page


def step(page, number):
    page.locator(".sl-tab").nth(number - 1).click()


def test_every_step_asks_first_and_tells_afterwards(learn):
    page = learn
    for number, text in enumerate(STEPS, 1):
        step(page, number)
        expect(page.locator(".sl-panel h3")).to_have_text(text["title"])
        expect(page.locator(".sl-why")).to_be_empty()
        assert page.locator(".sl-said:not(:empty)").count() == 0
        shown = page.locator(".sl-panel").inner_text()
        assert not re.search(r"[{}*]|–\B|undefined|NaN|null", shown), shown
        pending = page.locator(".sl-main-box.sv-is-pending, .sl-box:last-child.sv-is-pending")
        assert pending.count() == (2 if text["id"] in ("accept", "weight") else 1), "what is asked is not shown yet"
        page.locator(".sl-choice").first.click()
        own = page.locator(".sl-choice").first
        expect(own).to_have_attribute("aria-pressed", "true")
        expect(own.locator(".sl-said")).to_contain_text("your answer")
        why = page.locator(".sl-why").inner_text()
        assert why.startswith("You said “")
        assert not re.search(r"[{}*]|undefined|NaN|null", why), why
        assert page.locator(".sl-choice.sl-true").count() == 1
        assert page.locator(".sl-main-box.sv-is-pending").count() == 0
    expect(page.locator(".sl-score")).to_contain_text("6 of 6 answered")


def test_the_numbers_of_a_question_are_the_traces(learn):
    page = learn
    step(page, 3)
    trace = json.loads(lesson(ASSETS))["trace"]
    drafts = [d for line in trace.splitlines()[1:-1] for d in json.loads(line)["drafts"]]
    question = page.locator(".sl-ask legend").inner_text()
    p, q, u = re.fullmatch(r"Will .+ pass\? p = (\S+), q = (\S+), u = (\S+)", question).groups()
    assert (float(p), float(q), float(u)) in {tuple(round(d[name], 3) for name in "pqu") for d in drafts}
    assert u not in page.locator(".sl-why").inner_text()
    page.get_by_role("button", name="it is rejected").click()
    expect(page.locator(".sl-why")).to_contain_text("You said “it is rejected”: right.")
    assert u in page.locator(".sl-why").inner_text()
    button(page, "Answer again").click()
    page.get_by_role("button", name="it passes").click()
    expect(page.locator(".sl-why")).to_contain_text("You said “it passes”. In the run: “it is rejected”.")
    page.get_by_role("button", name="it is rejected").click(force=True)
    expect(page.locator(".sl-why")).to_contain_text("You said “it passes”.")


def test_what_was_answered_stays_while_the_page_is_open(learn):
    page = learn
    page.locator(".sl-choice").nth(1).click()
    button(page, "Next step").click()
    page.get_by_role("tab", name="Decode", exact=True).click()
    expect(page.locator(".sl-panel")).to_be_hidden()
    page.get_by_role("tab", name="Learn", exact=True).click()
    expect(page.locator(".sl-panel h3")).to_have_text(STEPS[1]["title"])
    expect(page.locator(".sl-score")).to_contain_text("1 of 6 answered")
    button(page, "Back").click()
    expect(page.locator(".sl-choice").nth(1)).to_have_attribute("aria-pressed", "true")


def test_the_steps_are_reached_by_keyboard(learn):
    page = learn
    page.locator(".sl-tab").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".sl-tab").nth(2)).to_be_focused()
    expect(page.locator(".sl-panel h3")).to_have_text(STEPS[2]["title"])
    page.keyboard.press("Tab")
    expect(page.locator(".sl-choice").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".sl-why")).to_contain_text("You said")
    expect(page.locator(".sl-choice").first).to_be_focused()
    page.locator(".sl-tab").nth(2).focus()
    page.keyboard.press("End")
    expect(page.locator(".sl-tab").nth(5)).to_have_attribute("aria-selected", "true")
    assert page.locator('.sl-tab[tabindex="0"]').count() == 1
    page.keyboard.press("Home")
    button(page, "Next step").focus()
    for _ in STEPS[1:]:
        page.keyboard.press("Enter")
    expect(button(page, "Next step")).to_be_disabled()
    expect(button(page, "Back")).to_be_focused()


def test_the_toy_parts_the_laws_only_under_a_relaxed_rule(learn):
    page = learn
    verdict = page.locator(".sl-verdict")
    expect(verdict).to_have_text("The emitted law is the target's.")
    for name, value in (("p, target's probability of blue", "0.15"), ("q, drafter's probability of grey", "0.02")):
        page.get_by_role("slider", name=name).fill(value)
        expect(verdict).to_have_text("The emitted law is the target's.")
    expect(page.get_by_role("slider", name="p, target's probability of grey")).to_have_value("0.85")

    button(page, "Static").click()
    page.get_by_role("slider", name="Weight w").fill("0.5")
    # v = (p + q) / 2, so TV(p, v) is half of TV(p, q) = .83
    expect(verdict).to_have_text("The emitted law differs from the target's: TV .415.")
    button(page, "Lossy").click()
    expect(verdict).to_contain_text("differs from the target's")
    page.get_by_role("slider", name="Lenience l").fill("1")
    expect(verdict).to_have_text("The emitted law is the target's.")
    assert page.locator(".sl-figures strong").all_inner_texts()[0] == ".170"


def test_the_toy_moves_by_keyboard_and_grows_to_three(learn):
    page = learn
    slider = page.get_by_role("slider", name="q, drafter's probability of blue")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(slider).to_have_value("0.33")
    expect(slider).to_be_focused()
    expect(page.locator(".sl-lawrow[role=group] .sv-number").nth(1)).to_have_text(".33")
    button(page, "3 tokens").click()
    assert page.locator(".sl-laws input").count() == 6
    expect(page.locator(".sl-toy .sv-sr")).to_contain_text("Emitted: blue .50, grey .30, red .20.")


def test_coins_fill_the_histogram_until_something_changes(learn):
    page = learn
    button(page, "Throw 1,000 coins").click()
    count = page.locator(".sl-count")
    expect(count).to_contain_text("1,000 tokens thrown")
    first = count.inner_text()
    for _ in range(9):
        button(page, "Throw 1,000 coins").click()
    expect(count).to_contain_text("10,000 tokens thrown")
    assert float(re.search(r"TV (\S+) away", count.inner_text())[1].replace("<", "")) < 0.02
    button(page, "Clear").click()
    expect(count).to_contain_text("Each throw drafts from q")
    button(page, "Throw 1,000 coins").click()
    assert count.inner_text() == first, "the seed repeats the throws"
    page.get_by_role("slider", name="p, target's probability of blue").fill("0.5")
    expect(count).to_contain_text("Each throw drafts from q")


SMALL = """() => [...document.querySelectorAll('.sl button, .sl input')].filter((e) => e.offsetParent &&
  (e.offsetHeight < 24 || e.offsetWidth < 24)).map((e) => e.outerHTML)"""


@pytest.mark.parametrize(("name", "width", "scheme"), [("light-360", 360, "light"), ("dark-1440", 1440, "dark")])
def test_pictures(pages, artifacts, name, width, scheme):
    page = pages.open(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.get_by_role("tab", name="Learn", exact=True).click()
    page.locator(".sl-panel").wait_for()
    step(page, 4)
    page.locator(".sl-choice").first.click()
    button(page, "Throw 1,000 coins").click()
    page.screenshot(path=artifacts / f"learn-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SMALL) == []
