"""The view of one run: keys, playback, inspector, table, files, pictures; in a real browser."""

import json

import pytest
from playwright.sync_api import expect
from ui.driving import VIEW, button, counts_of, decode, shown_counts
from ui.fake_pair import fake_trace

from explorer.engine.config import DecodeConfig
from explorer.ui.tabs.decode import first_trace
from explorer.ui.theme import ASSETS

pytestmark = pytest.mark.browser


def test_a_word_never_breaks_inside(still):
    page = still
    page.set_viewport_size({"width": 420, "height": 900})
    lines = page.evaluate(
        """() => [...document.querySelectorAll('.sv-wordbox')].map((word) => {
            const tokens = [...word.querySelectorAll('.sv-token:not([hidden])')].filter(
                (token) => !token.matches('.sv-is-discarded'));
            return [new Set(tokens.map((token) => Math.round(token.getBoundingClientRect().top))).size,
                    word.getBoundingClientRect().width / word.parentElement.getBoundingClientRect().width];
        })"""
    )
    page.set_viewport_size({"width": 1440, "height": 900})
    assert len(lines) > 20
    assert all(tops <= 1 or width > 0.9 for tops, width in lines)


def test_download_and_upload_give_the_same_picture(pages, tmp_path):
    page = pages.open()
    decode(page, "hard words to save")
    page.mouse.move(5, 5)
    before = page.locator(".sv-body, .sv").inner_text(), shown_counts(page)
    with page.expect_download() as download:
        button(page, "Download trace").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.read_text("utf-8") == page.evaluate(f"{VIEW}.trace.text")

    other = pages.open()
    other.locator(".sv-view input[type=file]").set_input_files(path)
    expect(other.locator(".sv-statustext")).to_contain_text("A run from a file is shown")
    assert (other.locator(".sv-body, .sv").inner_text(), shown_counts(other)) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json\n", 'Line 1 of the trace is not a JSON object with a "kind".'),
        ("", "The trace is empty."),
        ('{"kind":"meta","version":9}\n', "The trace has version 9; this page reads version 1."),
        ('{"kind":"end"}\n', "Line 1 of the trace is 'end'; meta must come here."),
        (
            '{"kind":"meta","version":1}\n{"kind":"round"}\n',
            "Line 2 of the trace is a round without its list of drafts.",
        ),
        ('{"kind":"meta","version":1}\n{"kind":"round","drafts":[{"text":1}]}\n', "a token without text"),
        ('{"kind":"meta","version":1}\n[1]\n', "Line 2 of the trace is not a JSON object"),
    ],
)
def test_a_malformed_file_gets_one_sentence_and_changes_nothing(still, tmp_path, text, message):
    page = still
    before = page.evaluate(f"{VIEW}.trace.text")
    path = tmp_path / "broken.ndjson"
    path.write_text(text, "utf-8")
    page.locator(".sv-view input[type=file]").set_input_files(path)

    expect(page.get_by_role("alert").filter(has_text="broken.ndjson")).to_contain_text(message)
    assert page.evaluate(f"{VIEW}.trace.text") == before


def focused(page):
    return page.evaluate("document.activeElement.token ? document.activeElement.token.index : null")


def test_arrow_keys_move_by_token_and_round(still):
    page = still
    page.locator('.sv-token[tabindex="0"]').focus()
    page.keyboard.press("Home")
    first = focused(page)
    page.keyboard.press("ArrowRight")
    assert focused(page) == first + 4, "untested drafts are folded away"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.token.round.number") == 1
    page.keyboard.press("PageUp")
    assert page.evaluate("document.activeElement.token.round.number") == 0
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.token.isKept")
    page.keyboard.press("Enter")
    expect(button(page, "Pinned")).to_be_visible()
    page.keyboard.press("Escape")
    expect(button(page, "Pin")).to_be_visible()
    page.keyboard.press("Space")
    expect(button(page, "Pause")).to_be_visible()


def accepted_by_round():
    """Of the recorded run that the page shows first."""
    records = [json.loads(line) for line in first_trace(ASSETS / "traces").splitlines()]
    return [sum(d["fate"] == "accepted" for d in r["drafts"]) for r in records if r["kind"] == "round"]


def test_the_recording_can_be_stepped_and_scrubbed(still):
    page = still
    total = shown_counts(page)
    page.get_by_role("slider", name="Playhead").fill("1")
    assert sum(shown_counts(page).values()) == 0
    expect(page.locator(".sv-token.sv-is-pending:visible").first).to_be_visible()
    button(page, "One token on").click()
    assert shown_counts(page)["rejected"] == 1
    accepted = accepted_by_round()
    rounds = next(n for n in range(2, len(accepted)) if sum(accepted[: n - 1]) and accepted[n - 1])
    for _ in range(rounds):
        button(page, "One round on").click()
    assert shown_counts(page)["accepted"] == sum(accepted[:rounds])
    button(page, "One round back").click()
    assert shown_counts(page)["accepted"] == sum(accepted[: rounds - 1])
    button(page, "Play at four times the speed").click()
    button(page, "Play").click()
    page.wait_for_function(f"{VIEW}.playhead === Infinity")
    assert shown_counts(page) == total


def test_the_inspector_explains_a_rejected_draft(still):
    page = still
    page.locator(".sv-token.sv-is-rejected").first.click()
    inspector = page.get_by_role("complementary", name="Inspector")
    token = page.evaluate(f"{VIEW}.pinned.data")
    text = inspector.inner_text()
    assert "rejected, replaced by" in text
    assert f"{token['u']:.3f}"[1:] in text
    assert "so reject" in text
    assert "Residual" in text
    assert f"{1 - token['overlap']:.3f}"[1:] in text
    last = inspector.locator(".sv-top tbody tr").last.inner_text()
    assert last.startswith("all other")


def test_the_table_holds_every_token(still):
    page = still
    button(page, "Table").click()
    assert page.locator(".sv-table tbody tr").count() == sum(shown_counts(page).values())
    button(page, "Lanes").click()
    assert page.locator(".sv-rows .sv-row").count() == page.evaluate(f"{VIEW}.trace.rounds.length")


def test_copying_gives_the_final_text(still):
    still.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button(still, "Copy answer").click()
    expect(button(still, "Copied")).to_be_visible()
    assert still.evaluate("navigator.clipboard.readText()") == still.evaluate(f"{VIEW}.trace.end.text")
    expect(button(still, "Copy answer")).to_be_visible()


@pytest.mark.parametrize(("name", "width", "scheme"), [("light-360", 360, "light"), ("dark-1440", 1440, "dark")])
def test_pictures(pages, artifacts, name, width, scheme):
    page = pages.open(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_timeout(300)
    page.screenshot(path=artifacts / f"page-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")
    if width == 360:
        for label in ("Run", "Stop"):
            box = button(page, label).bounding_box()
            assert box["height"] >= 24
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width


def test_the_view_works_without_gradio(pages, browser):
    """`SpecView.mount` is what a saved replay will use."""
    from explorer.ui.theme import head

    context = browser.new_context()
    page = context.new_page()
    page.set_content(f"<html><head>{head()}</head><body><div class='sv-view' id='here'></div></body></html>")
    text = "".join(fake_trace("alone", DecodeConfig(temperature=1.0)))
    page.evaluate("(text) => { window.v = SpecView.mount(document.querySelector('#here')); v.setTrace(text); }", text)
    assert page.locator(".sv-prompt").inner_text() == "alone"
    assert shown_counts(page) == counts_of(text)
    context.close()
