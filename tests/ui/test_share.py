"""Runs that leave the page: as a file that comes back the same, as a replay without a server."""

import json

import pytest
from playwright.sync_api import expect
from ui.driving import VIEW, button, counts_of, decode, shown_counts, until
from ui.fake_pair import fake_trace

from explorer import __main__ as command_line
from explorer.engine.config import DecodeConfig
from explorer.engine.replay import embed_snippet
from explorer.engine.trace import read_trace

pytestmark = pytest.mark.browser


@pytest.fixture
def alone(browser):
    """Opens files without a server; nothing may go wrong in them or leave them."""
    contexts, problems = [], []

    def open_(path, **options):
        contexts.append(browser.new_context(viewport={"width": 1440, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "blob:")) else problems.append(request.url),
        )
        page.goto(path.as_uri())
        page.locator(".sv-token").first.wait_for()
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


def save(page, name, folder):
    with page.expect_download() as download:
        button(page, name).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def exported(text, folder):
    """The page that the command makes of a trace."""
    (folder / "run.ndjson").write_text(text, "utf-8")
    assert (
        command_line.main(["export", "--replay", str(folder / "run.ndjson"), "--out", str(folder / "page.html")]) == 0
    )
    return folder / "page.html"


def test_a_trace_saved_and_opened_again_gives_the_same_pixels(pages, tmp_path):
    one, other = pages.open(), pages.open()
    decode(one, "hard words to draw again")
    path = save(one, "Download trace", tmp_path)
    assert path.read_text("utf-8") == one.evaluate(f"{VIEW}.trace.text")
    other.locator(".sv-view input[type=file]").set_input_files(path)
    expect(other.locator(".sv-statustext")).to_contain_text("A run from a file is shown")

    pictures = []
    for page in (one, other):
        page.mouse.move(5, 5)
        page.evaluate("document.activeElement.blur()")
        page.wait_for_timeout(300)  # the map is painted in the next frame, marks fade in 120 ms
        pictures.append(page.locator(".sv-view").screenshot(animations="disabled"))
        assert shown_counts(page) == counts_of(path.read_text("utf-8"))
    assert pictures[0] == pictures[1]
    other.get_by_role("slider", name="Playhead").fill("3")
    assert other.locator(".sv-view").screenshot(animations="disabled") != pictures[1], "the comparison sees a change"


def test_the_page_saves_the_same_replay_as_the_command(pages, tmp_path):
    page = pages.open()
    decode(page, 'hard words </script> <!-- \u2028 "and" more')
    saved = save(page, "Save replay", tmp_path)
    assert saved.name == "replay-exact-seed0.html"
    assert saved.read_bytes() == exported(page.evaluate(f"{VIEW}.trace.text"), tmp_path).read_bytes()

    panel = page.locator(".sv-share")
    expect(panel).to_contain_text("Saved as replay-exact-seed0.html")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button(page, "Copy snippet").click()
    snippet = page.evaluate("navigator.clipboard.readText()")
    assert snippet == page.locator(".sv-snippet").inner_text() == embed_snippet("replay-exact-seed0.html")
    button(page, "Close").click()
    expect(panel).to_be_hidden()
    expect(button(page, "Save replay")).to_be_focused()


def test_a_name_from_a_foreign_trace_stays_a_name(pages, tmp_path):
    page = pages.open()
    lines = "".join(fake_trace("odd rule", DecodeConfig())).replace('"rule":"exact"', '"rule":"../\\"><script>x"')
    page.evaluate(f"(text) => {VIEW}.show(window.SpecView.Trace.read(text), {{ origin: 'file' }})", lines)
    assert save(page, "Save replay", tmp_path).name == "replay-..-script-x-seed0.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_replay_plays_and_explains_without_a_server(alone, artifacts, tmp_path, scheme):
    text = "".join(fake_trace("hard to replay <b>", DecodeConfig(temperature=1.0, draft_length=4)))
    page = alone(exported(text, tmp_path), color_scheme=scheme)

    assert shown_counts(page) == counts_of(text)
    end = read_trace(text)[-1]
    assert f"{end['num_accepted']} of {end['num_drafted']} drafted" in page.locator(".sv-figure").first.inner_text()
    assert page.title() == page.locator(".sv-prompt").inner_text() == "hard to replay <b>"
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(11, 15, 25)"}[scheme]
    page.screenshot(path=artifacts / f"replay-{scheme}.png", full_page=True)

    page.locator(".sv-token.sv-is-rejected").first.click()
    assert "so reject" in page.get_by_role("complementary", name="Inspector").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.token.index > 0")
    page.get_by_role("slider", name="Playhead").fill("1")
    assert sum(shown_counts(page).values()) == 0
    button(page, "Play at four times the speed").click()
    button(page, "Play").click()
    # Not wait_for_function, which needs eval: the replay's content security policy forbids it.
    until(lambda: page.evaluate("SpecView.viewer.playhead === Infinity"))
    assert shown_counts(page) == counts_of(text)
    assert button(page, "Save replay").count() == 0
    assert save(page, "Download trace", tmp_path / "saved").read_text("utf-8") == text


def test_a_replay_follows_the_system_when_it_turns_dark(alone, tmp_path):
    page = alone(exported("".join(fake_trace("dusk", DecodeConfig())), tmp_path), color_scheme="light")
    page.emulate_media(color_scheme="dark")
    until(lambda: page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(11, 15, 25)")
    assert page.evaluate("window.SpecView.viewer.player.colours.accepted.trim()") == "#3f9fdb"


def test_hostile_text_is_shown_literally_in_a_replay(alone, tmp_path):
    texts = [
        "</script><script>window.hacked=1</script>",
        "<!-- <script>",
        "\u2028x\u2029",
        "\u0000\u0007",
        "\ud83d",
        " &lt;",
    ]
    records = [json.loads(line) for line in fake_trace("hostile", DecodeConfig(max_new_tokens=len(texts) * 3))]
    records[0]["prompt"] = "\n".join(texts)
    for record, text in zip(records[1:-1], texts, strict=False):
        record["next"]["text"] = text
    page = alone(exported("".join(json.dumps(record) + "\n" for record in records), tmp_path))

    assert page.evaluate("window.hacked") is None
    assert page.evaluate("SpecView.viewer.trace.text") == (tmp_path / "run.ndjson").read_text("utf-8")
    nexts = page.evaluate("SpecView.viewer.trace.tokens.filter((token) => token.isNext).map((token) => token.text)")
    wanted = [record["next"]["text"] for record in records[1:-1] if record["next"]]
    assert [text.encode("utf-16", "surrogatepass") for text in nexts] == [
        text.encode("utf-16", "surrogatepass") for text in wanted
    ]
    shown = page.locator(".sv-flow").inner_text()
    for text in ("</script><script>window.hacked=1</script>", "<!-- <script>", "&lt;"):
        assert text in shown
    assert page.locator(".sv-view script, .sv-view b b").count() == 0


def test_a_damaged_replay_says_so(browser, tmp_path):
    path = exported("".join(fake_trace("cut", DecodeConfig())), tmp_path)
    path.write_text(path.read_text("utf-8").replace('"{\\"kind\\":\\"meta\\"', '"{\\"kind\\":\\"mate\\"'), "utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    expect(page.get_by_text("Line 1 of the trace is 'mate'; meta must come here.")).to_be_visible()
    context.close()


def test_a_replay_works_inside_the_snippet(browser, tmp_path):
    path = exported("".join(fake_trace("embedded", DecodeConfig())), tmp_path)
    (tmp_path / "host.html").write_text(f"<h1>Mine</h1>{embed_snippet(path.name)}", "utf-8")
    context = browser.new_context(viewport={"width": 800, "height": 900})
    page = context.new_page()
    page.goto((tmp_path / "host.html").as_uri())
    expect(page.frame_locator("iframe").locator(".sv-prompt")).to_have_text("embedded")
    expect(page.frame_locator("iframe").locator(".sv-token").first).to_be_visible()
    context.close()
