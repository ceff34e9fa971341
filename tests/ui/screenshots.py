"""Make the pictures in assets/screenshots anew: `PYTHONPATH=.:tests python tests/ui/screenshots.py`."""

import shutil
import sys
from pathlib import Path

from explorer.ui.app import build_app, launch_options
from explorer.ui.backend import PairBackend
from explorer.ui.jobs import Jobs

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "screenshots"
SIZE = {"width": 1440, "height": 900}
# File name: tab, colour scheme.
PICTURES = {
    "decode-light": ("Decode", "light"),
    "decode-dark": ("Decode", "dark"),
    "learn-light": ("Learn", "light"),
}


def main() -> int:
    """Open the page as it is before any run, and take its pictures."""
    from playwright.sync_api import sync_playwright

    app = build_app(PairBackend(jobs=Jobs.in_cache()))
    _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (tab, scheme) in PICTURES.items():
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(f"{address}?__theme={scheme}")
            page.locator(".sv-token").first.wait_for()
            page.get_by_role("tab", name=tab, exact=True).click()
            page.wait_for_timeout(1500)
            page.screenshot(path=FOLDER / f"{name}.png")
            page.close()
        browser.close()
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
