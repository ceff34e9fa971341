"""What the page tests do with a page: press, type, wait, count."""

import json
import time

from explorer.engine.trace import read_trace

VIEW = "window.SpecView.page.viewer"
RUNNING = f"{VIEW}.isLive"
ENDED = f"!{VIEW}.isLive && {VIEW}.origin === 'run' && {VIEW}.trace.end"
FATES = ("accepted", "rejected", "discarded", "residual", "bonus")


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def choose(page, box, option):
    page.get_by_role("combobox", name=box, exact=True).click()
    page.get_by_role("option", name=option).click()


def start(page, prompt):
    page.get_by_label("Prompt", exact=True).fill(prompt)
    button(page, "Run").click()


def finish(page, prompt):
    """Wait until that prompt's run is over."""
    page.wait_for_function(f"{ENDED} && {VIEW}.trace.meta.prompt === {json.dumps(prompt)}", timeout=20_000)


def decode(page, prompt):
    start(page, prompt)
    finish(page, prompt)


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def shown_counts(page):
    return {fate: int(page.locator(f".sv-legend .sv-is-{fate} b").inner_text()) for fate in FATES}


def counts_of(trace):
    tokens = [token for record in read_trace(trace)[1:-1] for token in (*record["drafts"], record["next"]) if token]
    return {fate: sum(token["fate"] == fate for token in tokens) for fate in FATES}
