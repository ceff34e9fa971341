"""The Head tab: its arithmetic against the benchmarks', its figures against the backend's, the visible page."""

import json
import random

import pytest
from playwright.sync_api import expect
from ui.conftest import served
from ui.driving import button
from ui.fake_pair import FakeBackend

from explorer.benchmarks.cost_model import break_even, rho_tps
from explorer.benchmarks.rank_costs import RankCosts, expected_tokens
from explorer.ui.backend import PairBackend
from explorer.ui.tabs.head import LENGTHS, machine, page_data
from explorer.ui.theme import ASSETS

pytestmark = pytest.mark.browser

TEXTS = json.loads((ASSETS / "head.json").read_text("utf-8"))
COSTS = RankCosts(token_ms=30.0, column_ms=0.5, body_ms=1.5, head_ms={36: 1.0, 144: 4.0}, full_ms=8.0)
SCORES = {
    "by_rank": {
        str(rank): {"0": {"agreement": [agreement, agreement - 0.1]}, "1": {"overlap": [agreement - 0.05]}}
        for rank, agreement in ((36, 0.5), (144, 0.56))
    }
}


@pytest.fixture
def fresh():
    """A backend that has loaded nothing."""
    return FakeBackend(round_s=0.02, load_s=0.3)


@pytest.fixture
def url(fresh):
    with served(fresh) as address:
        yield address


@pytest.fixture
def head(pages):
    page = pages.open()
    page.get_by_role("tab", name="Head", exact=True).click()
    page.locator(".sh-chart svg").wait_for()
    return page


def loaded():
    """The real backend as after a load, with times and scores of our own."""
    backend = PairBackend()
    backend._costs["auto"], backend._scores["auto"] = COSTS, SCORES
    return backend


def test_the_figures_of_a_rank_are_the_predictions(monkeypatch):
    backend = loaded()
    for length in LENGTHS:
        for temperature in (0.0, 1.0):
            figures = backend.rank_figures("auto", length, temperature)
            assert [row.rank for row in figures] == [36, 144]
            for row in figures:
                rates = {0.0: "agreement", 1.0: "overlap"}[temperature]
                scores = SCORES["by_rank"][str(row.rank)][f"{temperature:.0f}"][rates]
                assert row.tokens_per_round == pytest.approx(expected_tokens(scores, length))
                assert row.speed_up == backend.predicted("auto", row.rank, length, temperature).speed_up
                assert row.nu == COSTS.head_ms[row.rank] / 8.0
                assert row.kappa == pytest.approx(length * 8.0 / (30 + length * 2.0))
    assert backend.rank_figures("ngram", 2, 0.0) == ()


def test_kappa_and_nu_predict_the_same_ratio_as_the_clocks():
    """rho_TPS from the ratios is the ratio of two rounds, by definition."""
    full_round = 30 + 3 * (0.5 + 1.5 + 8.0)
    found = rho_tps(COSTS.nu(36), 0.9, COSTS.kappa(3))
    assert found == pytest.approx(0.9 * full_round / COSTS.round_ms(3, 36))
    untimed = RankCosts(token_ms=30.0, column_ms=0.5, body_ms=1.5, head_ms={36: 1.0})
    assert untimed.nu(36) is None
    assert untimed.kappa(2) is None


def test_the_machine_says_what_is_missing_and_then_all_it_knows():
    assert machine(PairBackend())["state"] == "missing"
    assert "is not loaded" in machine(PairBackend())["text"]
    state = machine(loaded())
    assert state["state"] == "ready"
    assert len(state["drafts"]) == 2 * len(LENGTHS)
    first = state["drafts"][0]
    best = max(first["ranks"], key=lambda row: row["speed"])
    assert first["best"] == best["rank"]
    assert first["ranks"][0]["parameters"] == 36 * (576 + 49152)
    assert state["full"] == 576 * 49152
    json.loads(page_data(state))


def test_the_calculator_computes_what_the_benchmarks_compute(head):
    rng = random.Random(0)
    cases = [(rng.random(), rng.uniform(0.3, 1.2), rng.uniform(0, 3)) for _ in range(200)] + [(0, 1, 0), (1, 1, 2)]
    found = head.evaluate(
        "(cases) => cases.map(([n, r, k]) => [SpecView.costs.rhoTps(n, r, k), SpecView.costs.breakEven(n, k)])", cases
    )
    for (nu, rho_tau, kappa), (speed, border) in zip(cases, found, strict=True):
        assert speed == pytest.approx(rho_tps(nu, rho_tau, kappa))
        assert border == pytest.approx(break_even(nu, kappa))
    border = head.evaluate("SpecView.costs.breakEvenNu(0.95, 0.25)")
    assert rho_tps(border, 0.95, 0.25) == pytest.approx(1)
    assert head.evaluate("SpecView.costs.breakEvenNu(1.1, 0.25)") is None
    assert head.evaluate("SpecView.costs.breakEvenNu(0.9, 0)") is None


def test_sliders_presets_and_the_result_agree(head):
    page = head
    result = page.locator(".sh-result")
    llama = TEXTS["presets"][0]
    point = llama["points"][0]
    first = rho_tps(point["nu"], point["rho_tau"], llama["kappa"])
    expect(result).to_contain_text(f"{first:.3f}×")
    rows = page.locator(".sh-reportedtable tbody tr").all_inner_texts()
    assert len(rows) == len(llama["points"])
    assert rows[0].split("\t")[1:] == ["0.21", "0.99", f"{first:.2f}", "1.19"]

    names = [slider["name"] for slider in TEXTS["sliders"]]
    for name, value in zip(names, ("0.8", "1.5", "0.7"), strict=True):
        page.get_by_role("slider", name=name).fill(value)
    expect(result).to_contain_text(f"{rho_tps(0.8, 0.7, 1.5):.3f}×")
    expect(result).to_contain_text("the head loses")
    border = page.locator(".sh-calculator").inner_text()
    assert f"= {break_even(0.8, 1.5):.3f}." in border
    button(page, "Qwen3-30B-A3B").click()
    expect(page.get_by_role("slider", name=names[0])).to_have_value("0.8")
    expect(page.locator(".sh-note")).to_contain_text("no figure for κ, ν or ρτ was found")
    assert page.locator(".sh-reportedtable").count() == 0
    slider = page.get_by_role("slider", name=names[0])
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(result).to_contain_text(f"{rho_tps(0.79, 0.7, 1.5):.3f}×")


def test_the_chart_and_its_table_show_the_same_numbers(head):
    page = head
    page.get_by_text("The chart as a table").click()
    rows = [row.split("\t") for row in page.locator(".sh-twin tbody tr").all_inner_texts()]
    llama = TEXTS["presets"][0]
    own, *others = rows
    assert own[0] == "your setting, predicted"
    reported = [[f"{p['name']}, reported", f"{p['nu']:.2f}", f"{p['reported']:.3f}"] for p in llama["points"]]
    assert others[: len(reported)] == reported
    curve = others[len(reported) :]
    assert len(curve) == 11
    for _, x, y in curve:
        assert float(y) == pytest.approx(rho_tps(float(x), llama["points"][0]["rho_tau"], llama["kappa"]), abs=6e-4)
    assert page.locator(".sh-chart .sh-reported").count() == len(reported)
    # A larger rho is drawn higher: the curve falls from left to right, and level 1 lies below its start.
    path = page.locator(".sh-curve").get_attribute("d")
    ys = [float(part.split(" ")[1]) for part in path[1:].split("L")]
    assert ys == sorted(ys)
    assert float(page.locator(".sh-level").get_attribute("y1")) > ys[0]
    assert f"{float(own[2]):.2f}" in page.get_by_role("img").get_attribute("aria-label")


def test_the_ranks_of_this_machine_come_with_a_load(head, fresh):
    page = head
    panel = page.get_by_role("region", name="This machine")
    expect(panel).to_contain_text("Nothing is measured yet: Bundled drafter is not loaded.")
    expect(button(page, "This machine")).to_be_hidden()
    assert fresh.count("prepare") == 0
    button(page, "Load and measure").click()
    table = panel.locator("table")
    expect(table).to_be_visible()
    assert fresh.count("prepare", "auto") == 1
    rows = [row.replace("\n", " ").split("\t") for row in table.locator("tbody tr").all_inner_texts()]
    figures = fresh.rank_figures("auto", 2, 0.0)
    assert [int(row[0].split()[0]) for row in rows] == [row.rank for row in figures]
    assert [row[3] for row in rows] == [f"{row.tokens_per_round:.2f}" for row in figures]
    assert [row[4].strip() for row in rows] == [f"{row.speed_up:.2f}×" for row in figures]
    assert [row[0].endswith("best") for row in rows] == [row.rank == 144 for row in figures]
    panel.get_by_role("slider", name="Drafts per round K").fill("5")
    button(page, "Temperature 1").click()
    last = table.locator("tbody tr").last.inner_text().replace("\n", " ").split("\t")
    assert last[3] == f"{fresh.rank_figures('auto', 5, 1.0)[-1].tokens_per_round:.2f}"

    button(page, "This machine").click()
    best = next(row for row in fresh.rank_figures("auto", 5, 1.0) if row.rank == 144)
    expect(page.locator(".sh-result")).to_contain_text(f"{rho_tps(best.nu, 0.99, best.kappa):.3f}×")
    expect(page.locator(".sh-note")).to_contain_text("ρτ was not measured")


def test_a_load_that_fails_is_said_and_can_be_tried_again(head, fresh):
    page = head
    fresh.fail = "The weights are gone. Fetch them again."
    button(page, "Load and measure").click()
    panel = page.get_by_role("region", name="This machine")
    expect(panel).to_contain_text("Loading failed. The weights are gone. Fetch them again.")
    fresh.fail = ""
    button(page, "Load and measure").click()
    expect(panel.locator("table")).to_be_visible()


SMALL = """() => [...document.querySelectorAll('.sv-costs button, .sv-costs input, .sv-costs summary')].filter((e) =>
  e.offsetParent && (e.offsetHeight < 24 || e.offsetWidth < 24)).map((e) => e.outerHTML)"""


@pytest.mark.parametrize(("name", "width", "scheme"), [("light-360", 360, "light"), ("dark-1440", 1440, "dark")])
def test_pictures(pages, artifacts, name, width, scheme):
    page = pages.open(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.get_by_role("tab", name="Head", exact=True).click()
    button(page, "Load and measure").click()
    page.locator(".sh-machine table").wait_for()
    page.screenshot(path=artifacts / f"head-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SMALL) == []
