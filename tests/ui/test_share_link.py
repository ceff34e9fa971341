"""A run in the hash of an address: it comes back whole, never reaches the server, and damage changes nothing."""

import json

import pytest
from playwright.sync_api import expect
from ui.driving import VIEW, button, counts_of, decode, shown_counts
from ui.fake_pair import fake_trace

from explorer.engine.config import DecodeConfig
from explorer.engine.trace import read_trace

pytestmark = pytest.mark.browser


def short(page):
    """Few enough tokens for a whole trace in a link."""
    page.get_by_label("Max new tokens").fill("10")


def copied_link(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button(page, "Copy link").click()
    expect(button(page, "Copied")).to_be_visible()
    return page.evaluate("navigator.clipboard.readText()")


def opened(pages, link):
    """A visitor who comes by the link, and every request that was made for it."""
    page = pages.context.new_page()
    pages.opened.append(page)
    page.on("pageerror", lambda error: pages.problems.append(f"error on the page: {error}"))
    page.on("console", pages._console)
    requests = []
    page.on("request", lambda request: requests.append(request))
    page.goto(link)
    expect(page.locator(".sv-statustext")).to_contain_text("A run from a link is shown", timeout=20_000)
    return page, requests


def test_a_link_shows_the_run_at_once_and_never_reaches_the_server(pages):
    one = pages.open()
    short(one)
    decode(one, "hard words, linked")
    link = copied_link(one)
    assert link.startswith(f"{pages.url}#trace=")
    assert len(link) - len(pages.url) <= 8192
    expect(one.locator(".sv-share")).to_be_hidden()

    other, requests = opened(pages, link)
    text = one.evaluate(f"{VIEW}.trace.text")
    assert other.evaluate(f"{VIEW}.trace.text") == text
    assert shown_counts(other) == counts_of(text)
    expect(other.locator(".sv-statustext")).to_have_text(
        "A run from a link is shown. Run decodes your prompt on this machine."
    )
    code = link.partition("#")[2][:40]
    other.wait_for_timeout(500)
    for request in requests:
        assert code not in request.url.partition("#")[0]
        assert code not in (request.post_data or "")
        assert code not in json.dumps(request.headers)
    short(other)
    decode(other, "and then a run of one's own")


def test_a_longer_run_leaves_the_likely_tokens_out_and_says_so(pages):
    one = pages.open()
    one.get_by_label("Max new tokens").fill("60")
    decode(one, "long, linked without tables")
    link = copied_link(one)
    expect(one.locator(".sv-share")).to_contain_text("the lists of likely tokens were left out")

    other, _ = opened(pages, link)
    expect(other.locator(".sv-statustext")).to_contain_text("shown, without its lists of likely tokens.")
    full, lean = (read_trace(page.evaluate(f"{VIEW}.trace.text")) for page in (one, other))
    assert lean[0].pop("tables") is False
    for record in full[1:-1]:
        for draft in record["drafts"]:
            del draft["top"]
        if record["next"]:
            record["next"]["top"] = [line for line in record["next"]["top"] if line[0] == record["next"]["id"]]
    assert lean == full
    assert shown_counts(other) == shown_counts(one)
    other.locator(".sv-token.sv-is-rejected").first.click()
    inspector = other.get_by_role("complementary", name="Inspector")
    expect(inspector).to_contain_text("so reject" if lean[0]["temperature"] else "not the target's most likely token")
    assert "Likely tokens" not in inspector.inner_text()


def test_a_run_too_long_for_a_link_is_said_to_be(pages):
    page = pages.open()
    text = "".join(fake_trace("long and linked", DecodeConfig(max_new_tokens=400)))
    page.evaluate(f"(text) => {VIEW}.show(window.SpecView.Trace.read(text), {{ origin: 'file' }})", text)
    button(page, "Copy link").click()
    expect(page.locator(".sv-share")).to_contain_text("This run is too long for a link: it would take ")
    expect(page.locator(".sv-share")).to_contain_text("and 8,192 is the most that travels well. Save a replay")
    button(page, "Close").click()
    expect(button(page, "Copy link")).to_be_focused()


GOOD = "".join(fake_trace("a good link", DecodeConfig(max_new_tokens=8)))
UNDRAWABLE = GOOD.replace('"drafter":{"kind":"eagle","name":"auto"', '"drafter":{"kind":7,"name":""')
DAMAGED = "This link is damaged or cut off, so its run cannot be shown. Copy it again, whole."


@pytest.mark.parametrize(
    ("text", "spoil", "message"),
    [
        (GOOD, "''", DAMAGED),
        (GOOD, "'%E0%A4'", DAMAGED),
        (GOOD, "code.slice(0, -1)", DAMAGED),
        (GOOD, "code.slice(0, code.length / 2)", DAMAGED),
        (GOOD, "code.slice(0, 99) + (code[99] === 'A' ? 'B' : 'A') + code.slice(100)", DAMAGED),
        (
            GOOD,
            "'A'.repeat(9000)",
            "This link holds 9,007 characters; at most 8,192 are read. Ask for the trace as a file.",
        ),
        ("hello\n", "code", 'Line 1 of the trace is not a JSON object with a "kind".'),
        ('{"kind":"meta","version":9}\n', "code", "The trace has version 9; this page reads version 1."),
        (UNDRAWABLE, "code", DAMAGED),
    ],
)
def test_a_damaged_link_gets_one_sentence_and_changes_nothing(still, text, spoil, message):
    page = still
    before = page.evaluate(f"{VIEW}.trace.text")
    page.evaluate(
        f"""async (text) => {{ const {{ hash }} = await window.SpecView.link.hashOf(text);
            const code = hash.slice("#trace=".length);
            location.hash = "#trace=" + ({spoil}); }}""",
        text,
    )
    expect(page.locator(".sv-alert")).to_contain_text(message)
    assert page.evaluate(f"{VIEW}.trace.text") == before
    expect(page.locator(".sv-statustext")).to_contain_text("A recorded run is shown")
    page.evaluate("history.replaceState(null, '', location.pathname)")
    page.locator(".sv-token.sv-is-rejected").first.click()
    expect(button(page, "Pinned")).to_be_visible()


def test_a_hash_about_something_else_is_left_alone(still):
    still.evaluate("location.hash = '#settings'")
    still.wait_for_timeout(200)
    assert still.locator(".sv-alert").inner_text() == ""
    still.evaluate("history.replaceState(null, '', location.pathname)")
