"""The page over the default pair: a run in the browser gives what the engine gives."""

import pytest
from playwright.sync_api import expect
from ui.conftest import served
from ui.driving import VIEW, button, choose, decode

from explorer.engine.trace import read_trace

pytestmark = [pytest.mark.browser, pytest.mark.weights]


@pytest.fixture(scope="module")
def backend(default_weights):
    from explorer.ui.backend import PairBackend

    return PairBackend(precision="float32")


@pytest.fixture(scope="module")
def url(backend):
    with served(backend) as address:
        yield address


def test_the_page_decodes_with_the_real_pair(browser, context, url, backend):
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(url)
    page.locator(".sv-token").first.wait_for()
    page.get_by_label("Max new tokens").fill("24")
    decode(page, "Name three colours.")
    exact = read_trace(page.evaluate(f"{VIEW}.trace.text"))

    choose(page, "Verification rule", "Autoregressive")
    expect(page.get_by_role("slider", name="Drafts per round K")).to_be_disabled()
    button(page, "Run").click()
    page.wait_for_function(f"!{VIEW}.isLive && {VIEW}.trace.end && {VIEW}.trace.meta.rule === 'ar'")
    plain = read_trace(page.evaluate(f"{VIEW}.trace.text"))

    assert exact[-1]["token_ids"] == plain[-1]["token_ids"]
    assert page.locator(".sv-row:not(.sv-heads)").count() == plain[-1]["num_rounds"]
    if backend.ranks("auto"):
        assert page.get_by_role("slider", name="Drafter head rank r").get_attribute("max") == str(
            backend.ranks("auto")[-1]
        )
    page.close()
