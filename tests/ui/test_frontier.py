"""The Frontier tab: rows into settings, and chart, table and hand-over in a real browser."""

import json
import re
import sys

import gradio as gr
import pytest
from playwright.sync_api import expect
from ui.conftest import Pages, served
from ui.driving import until
from ui.fake_pair import FakeBackend
from ui.front_report import ABOVE, BELOW, ZERO, dynamic, report, row, write
from ui.test_measurements import STAND_IN

from explorer.errors import SettingError
from explorer.ui import front_reports
from explorer.ui.jobs import Jobs
from explorer.ui.measurements import Measurements
from explorer.ui.tabs.frontier import cells, chosen_row, most_prompts, settings_of, shown, start_measuring

EVIL = '<img src=x onerror="window.hacked=1">{{this}} ${7*6} <b>head</b>'
HEADS = (("bundled", ABOVE, ZERO), (EVIL, ZERO, BELOW))


def test_a_row_becomes_settings_of_the_decode_tab():
    backend = FakeBackend()
    at = {"draft_length": 3, "temperature": 0.5}
    common = at | {}
    assert settings_of(row("autoregressive", "ar", None, None, 1.0, **at), backend) == common | {"rule": "ar"}
    found = settings_of(row("static 0.5", "static", 0.5, 0.5, 0.5, **at), backend)
    assert found == common | {"rule": "static", "target_weight": 0.5}
    found = settings_of(row("lossy 0.3", "lossy", 0.3, 0.5, 0.5, **at), backend)
    assert found == common | {"rule": "lossy", "lenience": 0.3}
    found = settings_of(dynamic("bundled", None, 0.5, 0.5, ABOVE, ZERO, **at), backend)
    assert found == common | {"rule": "dynamic", "ensemble": "bundled"}
    with pytest.raises(SettingError, match="one-line rule is only measured"):
        settings_of(dynamic("sure where H(p) < 1", 1.0, 0.5, 0.5, ABOVE, ZERO), backend)
    with pytest.raises(SettingError, match="The head 'gone' is not on this machine"):
        settings_of(dynamic("gone", None, 0.5, 0.5, ABOVE, ZERO), backend)


def test_a_trained_head_is_known_by_its_training(monkeypatch):
    backend = FakeBackend()
    monkeypatch.setattr(backend, "ensembles", lambda: (("Arithmetic (20261130-1)", "/c/trainings/20261130-1/head"),))
    found = settings_of(dynamic("20261130-1", None, 0.5, 0.5, ABOVE, ZERO), backend)
    assert found["ensemble"] == "/c/trainings/20261130-1/head"


def test_cells_of_a_row():
    assert cells(dynamic("h", None, 0.4, 0.55, ABOVE, None)) == [
        "h",
        "0.400 [0.380, 0.420]",
        "0.550 [0.510, 0.590]",
        "0.410",
        "2.00",
        "1.25",
        "0.100 [0.050, 0.150]",
        "–",
    ]
    assert cells(row("autoregressive", "ar", None, None, 0.6))[1:4] == ["–", "0.600 [0.560, 0.640]", "–"]


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(front_reports, "SHIPPED", tmp_path / "shipped")
    return front_reports.measured_folder()


@pytest.mark.parametrize(
    "asked",
    [
        None,
        {},
        {"report": "here/a.json", "place": "5 1.0", "row": 99},
        {"report": "here/a.json", "place": "9 1.0", "row": 0},
        {"report": "here/a.json", "place": "5 1.0", "row": "0"},
        {"report": "here/../a.json", "place": "5 1.0", "row": 0},
    ],
)
def test_a_row_that_is_not_there(empty, asked):
    write(empty, "a.json", report())
    assert chosen_row({"report": "here/a.json", "place": "5 1.0", "row": 1})["label"] == "exact"
    with pytest.raises(SettingError, match="That row is not in the reports any more"):
        chosen_row(asked)


def test_without_a_report_the_page_says_how_to_make_one(empty):
    parts = shown(FakeBackend(), None, None)
    value = json.loads(parts[3])
    assert value["kind"] == "none"
    assert value["command"] == "python -m explorer bench pareto --task arithmetic --json"
    assert value["folder"] == str(empty)
    assert parts[2]["visible"] is False


def test_a_place_that_is_gone_gives_way_to_the_first(empty):
    write(empty, "a.json", report(places=((5, 1.0), (2, 0.5))))
    assert shown(FakeBackend(), "here/a.json", "2 0.5")[1]["value"] == "2 0.5"
    assert shown(FakeBackend(), "here/gone.json", "7 0.5")[1]["value"] == "5 1.0"
    choices = shown(FakeBackend(), None, None)[1]
    assert choices["choices"] == [("K = 5, temperature 1", "5 1.0"), ("K = 2, temperature 0.5", "2 0.5")]
    assert choices["visible"] is True


def test_measuring_takes_the_flags_of_the_command(empty, tmp_path, monkeypatch):
    backend = FakeBackend()
    backend.jobs = Jobs(tmp_path / "trainings")
    measurements = Measurements(tmp_path / "jobs", (sys.executable, "-c", "import sys; sys.exit('no')"))
    assert start_measuring(backend, measurements, "arithmetic", 7.0, "")
    record = json.loads(next(measurements.folder.glob("*/job.json")).read_text())
    import argparse

    from explorer.benchmarks.config import ParetoConfig
    from explorer.cli import bench
    from explorer.settings import from_flags

    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    flags = parser.parse_args(["pareto", *record["flags"]])
    config = from_flags(ParetoConfig, flags)
    assert (config.task, config.limit, config.pair, config.drafter) == ("arithmetic", 7, "default", "auto")
    assert flags.json
    with pytest.raises(SettingError, match="There is no trained head 'x'"):
        start_measuring(backend, measurements, "arithmetic", 7, "x")
    monkeypatch.setenv("SPACE_ID", "someone/explorer")
    assert most_prompts() == 20
    with pytest.raises(SettingError, match="1 to 20 prompts"):
        start_measuring(backend, measurements, "arithmetic", 21, "")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A cache with one report of two settings, and a damaged one."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(front_reports, "SHIPPED", folder / "shipped")
        here = front_reports.measured_folder()
        write(here, "one.json", report(heads=HEADS, places=((5, 1.0), (3, 0.5))))
        (here / "torn.json").write_text('{"kind": "bench pareto", "<b>')
        yield folder


def visit(page):
    page.get_by_role("tab", name="Frontier").click()
    page.locator("#frontier-reward .js-plotly-plot .scatterlayer .point").first.wait_for()
    expect(page.locator(".sv-frontier tbody tr").first).to_be_visible()


@pytest.mark.browser
def test_chart_table_and_hand_over_to_the_decode_tab(home, pages, artifacts):
    page = pages.open()
    visit(page)
    expect(page.locator(".fr-verdict")).to_contain_text("bundled lies above the static front: +0.100 [+0.050, +0.150]")
    expect(page.locator(".fr-verdict")).to_contain_text("it is not shown to beat time sharing")
    expect(page.locator(".fr-problems")).to_contain_text("torn.json was left out")
    assert page.locator(".sv-frontier tbody tr").count() == 9
    assert page.locator("#frontier-reward .scatterlayer .point").count() == 8, "all but the autoregressive row"
    assert page.locator(".frontier b, .frontier img, .sv-frontier tbody a").count() == 0
    assert page.evaluate("window.hacked") is None
    decode = page.get_by_role("button", name="Decode with this rule")
    expect(decode).to_be_disabled()
    page.get_by_role("radio", name="sure where").check()
    expect(page.locator(".fr-chosen")).to_contain_text("only measured, to compare with")
    expect(decode).to_be_disabled()
    page.screenshot(path=str(artifacts / "frontier-light.png"), full_page=True)

    page.get_by_role("combobox", name="Drafts and temperature").click()
    page.get_by_role("option", name="K = 3, temperature 0.5").click()
    expect(page.locator(".fr-basis").first).to_contain_text("K = 3, temperature 0.5")
    page.get_by_role("radio", name="static 0.5").check()
    decode.click()
    expect(page.get_by_role("tab", name="Decode")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("combobox", name="Verification rule", exact=True)).to_have_value("Static ensemble")
    weight = page.get_by_role("slider", name="Static weight")
    expect(weight).to_be_enabled()
    expect(weight).to_have_value("0.5")
    expect(page.get_by_role("slider", name="Drafts per round K")).to_have_value("3")
    expect(page.get_by_role("slider", name="Temperature")).to_have_value("0.5")


@pytest.mark.browser
def test_a_mark_of_the_chart_chooses_its_row(home, pages):
    page = pages.open()
    visit(page)
    star = page.locator("#frontier-reward .scatterlayer .trace").filter(has=page.locator(".point")).nth(3)
    box = star.locator(".point").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2 - 3)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#frontier-reward .hoverlayer").get_by_text(re.compile("K = 5, T = 1")).wait_for()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".fr-chosen")).to_have_text("Chosen: bundled")
    page.get_by_role("button", name="Decode with this rule").click()
    expect(page.get_by_role("combobox", name="Verification rule", exact=True)).to_have_value("Dynamic ensemble")
    expect(page.get_by_role("combobox", name="Trained weight")).to_have_value("Arithmetic, lambda 0.05")
    expect(page.get_by_role("combobox", name="Trained weight")).to_be_enabled()


@pytest.mark.browser
@pytest.mark.parametrize(("name", "width", "scheme"), [("dark", 1440, "dark"), ("phone", 360, "light")])
def test_dark_and_narrow(home, pages, artifacts, name, width, scheme):
    page = pages.open(viewport={"width": width, "height": 800}, color_scheme=scheme)
    visit(page)
    page.wait_for_timeout(500)
    page.screenshot(path=str(artifacts / f"frontier-{name}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colour, back = page.evaluate(
        """() => [getComputedStyle(document.querySelector('#frontier-reward .xtick text')).fill,
                  getComputedStyle(document.body).backgroundColor]"""
    )
    light = [sum(map(float, re.findall(r"[\d.]+", value)[:3])) / 765 for value in (colour, back)]
    assert abs(light[0] - light[1]) > 0.6, "text of the chart stands out from the page"


@pytest.mark.browser
def test_measuring_here_adds_a_report(browser, context, tmp_path, monkeypatch, artifacts):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(front_reports, "SHIPPED", tmp_path / "shipped")
    (tmp_path / "stand_in.py").write_text(STAND_IN.replace("0.05", "3"))
    (tmp_path / "report.json").write_text(json.dumps(report()))
    measurements = Measurements(tmp_path / "jobs", (sys.executable, str(tmp_path / "stand_in.py")))
    monkeypatch.setattr(Measurements, "in_cache", classmethod(lambda cls: measurements))
    backend = FakeBackend()
    backend.jobs = Jobs(tmp_path / "trainings")
    with served(backend) as address:
        pages = Pages(browser, context, address)
        page = pages.open()
        page.get_by_role("tab", name="Frontier").click()
        expect(page.locator(".fr-verdict")).to_contain_text("There is no report yet")
        expect(page.locator(".fr-command")).to_have_text("python -m explorer bench pareto --task arithmetic --json")
        page.screenshot(path=str(artifacts / "frontier-none.png"), full_page=True)
        page.get_by_role("button", name="Measure here").click()
        state = page.get_by_label("Progress")
        page.get_by_role("button", name="Measure", exact=True).click()
        expect(state).to_have_value(re.compile(r"^Rule \d of 17: "), timeout=20_000)
        page.get_by_role("button", name="Stop measuring").click()
        expect(state).to_have_value(re.compile("^Stopped at rule"))
        page.get_by_role("button", name="Measure", exact=True).click()
        expect(state).to_have_value(re.compile("^Finished"), timeout=30_000)
        expect(page.locator(".sv-frontier tbody tr")).to_have_count(8)
        page.locator("#frontier-reward .scatterlayer .point").first.wait_for()
        until(lambda: len(measurements.all()) == 2)
        pages.close()


def test_no_gradio_error_is_left_unsaid(empty, tmp_path):
    from explorer.ui.tabs.frontier import _said

    with pytest.raises(gr.Error, match="There is no measurement 'x'"):
        _said(lambda: Measurements(tmp_path).find("x"))
