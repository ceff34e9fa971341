"""axe-core finds no serious or critical violation: every tab, a finished run, a replay; light and dark."""

import json
import re
from importlib.resources import files

import pytest
from playwright.sync_api import expect
from ui.conftest import Pages
from ui.driving import button, choose, decode
from ui.fake_pair import FakeBackend, fake_trace

from explorer.engine.config import DecodeConfig
from explorer.engine.replay import replay_page
from explorer.ui.jobs import Jobs

pytestmark = pytest.mark.browser
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


@pytest.fixture(scope="module")
def axe():
    """The source of axe-core, which the test's own package ships."""
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path)


@pytest.fixture
def url_with_all_tabs(jobs):
    from explorer.ui.app import build_app, launch_options

    backend = FakeBackend(round_s=0.01)
    backend.jobs = jobs
    app = build_app(backend)
    _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    yield address
    app.close()


def write_training(jobs):
    """A training that was stopped after three steps."""
    run = jobs.folder / "20260101-000000" / "head-run"
    run.mkdir(parents=True)
    seen = [{"step": n, "reward": n / 9, "acceptance": 0.5, "weight": 0.9, "tokens_per_s": 100.0} for n in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in seen))
    record = {"title": "arithmetic", "flags": [], "num_steps": 9, "is_stopped": True}
    (run.parent / "job.json").write_text(json.dumps(record))


def violations(page, axe):
    """What is seriously wrong, one line per element."""
    page.wait_for_timeout(200)  # colours fade in 120 ms
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{rule['impact']} {rule['id']}: {node['target'][0]} {node['html'][:200]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


@SCHEMES
def test_every_tab_with_a_run_shown(browser, context, url_with_all_tabs, jobs, axe, artifacts, scheme):
    pages = Pages(browser, context, url_with_all_tabs)
    page = pages.open(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    choose(page, "Verification rule", "Dynamic ensemble")
    page.get_by_role("slider", name="Temperature").fill("1")
    decode(page, "hard words for axe")
    for tab in page.get_by_role("tab").all_inner_texts():
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(300)
        assert violations(page, axe) == [], tab
    write_training(jobs)
    page.get_by_role("tab", name="Train").click()
    expect(page.get_by_label("State")).to_have_value(re.compile("^Stopped: step 3 of 9"))
    expect(page.locator("#train-weight .vega-embed")).to_be_visible()
    page.screenshot(path=artifacts / f"train-curves-{scheme}.png", full_page=True)
    assert violations(page, axe) == [], "curves"
    pages.close()


@SCHEMES
def test_every_state_of_the_view(browser, axe, scheme):
    """As a replay: the same view, without gradio around it."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    lines = "".join(fake_trace("hard words", DecodeConfig(rule="dynamic", draft_length=6, temperature=1.0)))
    page.set_content(replay_page(lines))
    assert violations(page, axe) == [], "as it opens"
    page.locator(".sv-token.sv-is-rejected").first.click()
    page.locator(".sv-more").first.click()
    page.get_by_role("button", name=re.compile("^How Acceptance rate")).click()
    page.get_by_text("Keys in the answer and the rounds").click()
    assert violations(page, axe) == [], "a pinned token, and what folds unfolded"
    button(page, "Table").click()
    page.get_by_role("switch", name="Final text only").check()
    assert violations(page, axe) == [], "the table and the final text"
    button(page, "Lanes").click()
    page.get_by_role("switch", name="Final text only").uncheck()
    page.get_by_role("slider", name="Playhead").fill("1")
    assert violations(page, axe) == [], "a pending round"
    context.close()


def test_a_missing_name_is_found(browser, axe):
    """The check can fail."""
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.set_content(replay_page("".join(fake_trace("unnamed", DecodeConfig()))))
    page.evaluate("document.querySelector('.sv-key').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('.sv-key').removeAttribute('title')")
    assert any(line.startswith("critical button-name") for line in violations(page, axe))
    context.close()
