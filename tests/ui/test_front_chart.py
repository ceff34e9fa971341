"""The figures of a report with known numbers."""

import json

import pytest
from ui.front_report import ABOVE, ZERO, dynamic, report, row

from explorer.ui.front_chart import accepted_figure, distance_figure, hover, reward_figure, time_sharing_line

ROWS = report()["rows"]


def traces(figure):
    return {trace["name"]: trace for trace in json.loads(figure.to_json())["data"]}


def test_every_kind_of_rule_has_its_own_mark():
    found = traces(reward_figure(ROWS))
    assert set(found) == {
        "time sharing",
        "static front",
        "lossy",
        "exact",
        "arithmetic-head",
        "sure where H(p) &lt; 1",
    }
    marks = [(t["marker"]["symbol"], t["marker"]["color"]) for t in found.values() if "marker" in t]
    assert len({symbol for symbol, _ in marks}) == len({colour for _, colour in marks}) == 5
    assert found["exact"]["customdata"] == [1]
    assert found["arithmetic-head"]["customdata"] == [7]
    assert (found["arithmetic-head"]["x"], found["arithmetic-head"]["y"]) == ([0.4], [0.55])


def test_the_static_front_runs_by_acceptance_with_its_intervals():
    rows = [ROWS[4], ROWS[2], ROWS[3]]
    front = traces(reward_figure(rows))["static front"]
    assert front["x"] == [0.2, 0.5, 1.0]
    assert front["y"] == [0.61, 0.4, 0.1]
    assert front["customdata"] == [1, 2, 0]
    assert "lines" in front["mode"]
    assert front["error_y"]["array"] == pytest.approx([0.04] * 3)
    assert front["error_x"]["arrayminus"] == pytest.approx([0.02] * 3)


def test_an_interval_that_is_not_alike_on_both_sides():
    one = row("exact", "exact", None, 0.5, 0.5) | {"reward": [0.5, 0.4, 0.9]}
    bars = traces(reward_figure([one]))["exact"]["error_y"]
    assert bars["array"] == pytest.approx([0.4])
    assert bars["arrayminus"] == pytest.approx([0.1])


def test_time_sharing_goes_from_exact_to_static_0_through_the_mixes_of_the_report():
    line = [(x, round(y, 6)) for x, y in time_sharing_line(ROWS)]
    assert line == [(0.2, 0.6), (0.4, 0.54), (0.6, 0.4), (1.0, 0.1)]
    assert time_sharing_line([r for r in ROWS if r["label"] != "static 0"]) == []
    assert time_sharing_line([r for r in ROWS if r["rule"] != "exact"]) == []
    outside = dynamic("lazy", None, 0.1, 0.5, ABOVE, ZERO)
    assert time_sharing_line([*ROWS, outside])[0] == (0.2, 0.6)
    assert "time sharing" not in traces(reward_figure(ROWS[:3]))


def test_rejection_and_bias_add_up_to_the_distance():
    found = traces(distance_figure(ROWS))
    assert set(found) == {"P(reject)", "bias", "TV"}
    rejection, bias, distance = (found[name]["x"] for name in ("P(reject)", "bias", "TV"))
    assert len(distance) == 7, "all but the autoregressive row"
    for r, b, tv in zip(rejection, bias, distance, strict=True):
        assert (r is None and b is None) or r + b == pytest.approx(tv)
    assert rejection.count(None) == 1, "the lossy rule has no weight"
    layout = json.loads(distance_figure(ROWS).to_json())["layout"]
    assert layout["barmode"] == "stack"
    assert found["bias"]["marker"]["pattern"]["fillmode"] == "overlay", "the colour shows under the pattern"
    assert layout["yaxis"]["ticktext"][:2] == ["exact", "static 1"]


def test_expected_stands_beside_measured():
    found = traces(accepted_figure(ROWS))
    assert found["measured"]["x"] == [1.0] * 7
    assert found["expected"]["x"] == [1.1] * 7


def test_the_pointer_says_settings_and_numbers():
    text = hover(ROWS[7])
    assert text.startswith("arithmetic-head, K = 5, T = 1<br>reward 0.550 [0.510, 0.590]<br>acceptance 0.400 [")
    assert "τ 2.00, 1.25 times the speed of no drafts" in text
    assert "above the static front 0.100 [0.050, 0.150]<br>above time sharing 0.010" in text


def test_a_name_is_no_markup_and_equal_names_stay_apart():
    evil = "<a href='https://x.y'>z</a> %{x}\n<b>"
    rows = report(heads=((evil, ABOVE, ZERO), (evil, ABOVE, ZERO)))["rows"]
    for figure in (reward_figure(rows), distance_figure(rows), accepted_figure(rows)):
        data = json.loads(figure.to_json())
        shown = json.dumps(data["data"] + [data["layout"].get("yaxis", {})])
        assert "<a" not in shown
        assert "<b>" not in shown
        assert not any("hovertemplate" in trace for trace in data["data"])
    assert len(json.loads(distance_figure(rows).to_json())["layout"]["yaxis"]["ticktext"]) == 8
    stars = [
        t["marker"]["symbol"] for t in json.loads(reward_figure(rows).to_json())["data"] if t["name"][:4] == "&lt;"
    ]
    assert len(set(stars)) == 2


def test_a_report_of_one_row_still_has_figures():
    alone = [row("autoregressive", "ar", None, None, 0.5, distance=None, rejection=None)]
    for make in (reward_figure, distance_figure, accepted_figure):
        make(alone).to_json()
