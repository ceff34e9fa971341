"""One browser and one app over the fake backend; every page is checked for console errors and outside requests."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from ui.fake_pair import FakeBackend

ARTIFACTS = Path(__file__).resolve().parents[2] / ".artifacts"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def backend():
    """One for each file, so that no file depends on what another ran before it."""
    return FakeBackend(round_s=0.02)


@contextmanager
def served(backend):
    """The address of the page over a backend, as long as the block runs."""
    from explorer.ui.app import build_app, launch_options

    app = build_app(backend)
    _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    yield address
    app.close()


@pytest.fixture(scope="module")
def url(backend):
    with served(backend) as address:
        yield address


@pytest.fixture(scope="session")
def artifacts():
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS


class Pages:
    """Opens pages and keeps what went wrong on them."""

    def __init__(self, browser, context, url):
        self.browser, self.context, self.url = browser, context, url
        self.opened, self.problems, self.expected = [], [], []

    def open(self, **options):
        # Pages of one context share the browser's cache, which saves a second each; every page is a visitor of its own.
        context = self.browser.new_context(**options) if options else self.context
        page = context.new_page()
        self.opened.append(context if options else page)
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: self.problems.append(f"error on the page: {error}"))
        page.on("console", self._console)
        page.on("request", self._request)
        page.goto(self.url)
        page.locator(".sv-token").first.wait_for()
        page.wait_for_function("window.SpecView.page.values.length > 0")
        return page

    def close(self):
        for opened in self.opened:
            opened.close()
        assert self.problems == []

    def _console(self, message):
        if message.type == "error" and not any(words in message.text for words in self.expected):
            self.problems.append(f"console: {message.text}")

    def _request(self, request):
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"request to {request.url}")


@pytest.fixture(scope="session")
def context(browser):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    yield context
    context.close()


@pytest.fixture(scope="module")
def one_page(browser, context, url):
    """A page that stays open for all tests that start no run."""
    pages = Pages(browser, context, url)
    yield pages.open()
    pages.close()


@pytest.fixture
def still(one_page):
    """That page, with the recorded run as at first."""
    one_page.evaluate(
        """() => { const { page, Trace } = window.SpecView;
          window.first = window.first || page.viewer.trace.text;
          page.viewer.show(Trace.read(window.first), { origin: 'bundled' });
          page.viewer.header.say('');
          page.viewer.lanes.setMode('lanes'); }"""
    )
    one_page.mouse.move(5, 5)
    return one_page


@pytest.fixture
def pages(browser, context, url, backend):
    backend.round_s, backend.load_s = 0.02, 0.0
    pages = Pages(browser, context, url)
    yield pages
    pages.close()
