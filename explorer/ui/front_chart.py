"""Plotly figures of a `bench pareto` report: reward against acceptance, and what the rules give up. Pure.

Text and grid get their colours from `assets/frontier.css`, which follows the page from light to dark; only the marks
are coloured here (Okabe-Ito), and each kind also has a shape of its own.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from explorer.ui.front_reports import Row, is_head

BLUE, ORANGE, PINK, GREEN, GREY = "#0072B2", "#D55E00", "#CC79A7", "#009E73", "#8A8A8A"
HEAD_SHAPES = ("star", "triangle-up", "hexagram", "pentagon", "bowtie", "triangle-down")
MAX_LABEL = 26
PATTERN = {"fillmode": "overlay", "fgcolor": "#ffffff", "size": 6}


def label_of(row: Row) -> str:
    """A row's name, cut and made harmless: plotly reads tags in every text it shows."""
    return _harmless(row["label"])


def _harmless(text: str) -> str:
    short = text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"
    return html.escape(" ".join(short.split()), quote=False)  # plotly knows no &quot;


def reward_figure(rows: Sequence[Row]) -> go.Figure:
    """Reward against acceptance, a mark per row; `customdata` holds the row's number among `rows`.

    Args:
        rows: Those of one K and temperature.
    """
    points = [(number, row) for number, row in enumerate(rows) if row.get("acceptance") is not None]
    figure = go.Figure()
    shared = time_sharing_line(rows)
    if shared:
        dashes = {"color": GREY, "width": 2, "dash": "dash"}
        xs, ys = zip(*shared, strict=True)
        figure.add_scatter(x=xs, y=ys, mode="lines", line=dashes, name="time sharing", hoverinfo="skip")
    static = sorted((p for p in points if p[1]["rule"] == "static"), key=lambda p: p[1]["acceptance"][0])
    lossy = [p for p in points if p[1]["rule"] == "lossy"]
    _add(figure, "static front", static, BLUE, "circle", mode="lines+markers")
    _add(figure, "lossy", lossy, ORANGE, "square")
    _add(figure, "exact", [p for p in points if p[1]["rule"] == "exact"], GREEN, "diamond")
    heads = [p for p in points if is_head(p[1])]
    for place, point in enumerate(heads):
        _add(figure, label_of(point[1]), [point], PINK, HEAD_SHAPES[place % len(HEAD_SHAPES)], size=15)
    for point in points:
        if point[1]["rule"] == "dynamic" and not is_head(point[1]):
            _add(figure, label_of(point[1]), [point], GREY, "x", size=11)
    figure.update_xaxes(title="acceptance: accepted / drafted")
    figure.update_yaxes(title="mean reward")
    return _laid_out(figure, 430)


def _add(
    figure: go.Figure,
    name: str,
    points: Sequence[tuple[int, Row]],
    colour: str,
    shape: str,
    *,
    mode: str = "markers",
    size: int = 10,
) -> None:
    if not points:
        return
    found = [row for _, row in points]
    figure.add_scatter(
        x=[row["acceptance"][0] for row in found],
        y=[row["reward"][0] for row in found],
        error_x=_bars([row["acceptance"] for row in found], colour),
        error_y=_bars([row["reward"] for row in found], colour),
        mode=mode,
        name=name,
        marker={"color": colour, "symbol": shape, "size": size},
        line={"color": colour, "width": 2},
        customdata=[number for number, _ in points],
        hovertext=[hover(row) for row in found],
        hoverinfo="text",
    )


def _bars(triples: Sequence[Sequence[float]], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(high - value, 0.0) for value, _, high in triples],
        "arrayminus": [max(value - low, 0.0) for value, low, _ in triples],
        "color": colour,
        "thickness": 1,
        "width": 3,
    }


def hover(row: Row) -> str:
    """What a mark says under the pointer."""
    inside, ratio = row.get("acceptance_in_correct"), row.get("ratio_to_ar")
    lines = [
        f"{label_of(row)}, K = {row['draft_length']}, T = {row['temperature']:g}",
        f"reward {spread(row['reward'])}",
        f"acceptance {spread(row.get('acceptance'))}",
        f"τ {row['tau'][0]:.2f}" + ("" if ratio is None else f", {ratio:.2f} times the speed of no drafts"),
    ]
    if inside is not None:
        lines.append(f"acceptance in correct answers {inside:.3f}")
    for name, words in (("above_static", "above the static front"), ("above_time_sharing", "above time sharing")):
        if row.get(name) is not None:
            lines.append(f"{words} {spread(row[name])}")
    return "<br>".join(lines)


def spread(values: Sequence[float] | None) -> str:
    """A value with its interval, or a dash."""
    return "–" if values is None else f"{values[0]:.3f} [{values[1]:.3f}, {values[2]:.3f}]"


def time_sharing_line(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Points (acceptance, reward) of mixes of exact and static 0 answers, from the one to the other.

    The line is bent where the two write answers of different length; between its ends it goes through the mixes that
    the report compared its dynamic rows with. Empty without both ends.
    """
    exact = next((row for row in rows if row["rule"] == "exact" and row.get("acceptance")), None)
    drafter = next((r for r in rows if r["rule"] == "static" and r["knob"] == 0 and r.get("acceptance")), None)
    if exact is None or drafter is None:
        return []
    ends = [(row["acceptance"][0], row["reward"][0]) for row in (exact, drafter)]
    low, high = sorted(x for x, _ in ends)
    between = []
    for row in rows:
        if row.get("above_time_sharing") is not None and row.get("acceptance") is not None:
            x = row["acceptance"][0]
            if low < x < high:
                between.append((x, row["reward"][0] - row["above_time_sharing"][0]))
    return sorted({*ends, *between})


def distance_figure(rows: Sequence[Row]) -> go.Figure:
    """Per tested draft: P(reject) and bias stacked, and the distance TV they add up to, a bar per rule."""
    found = [row for row in rows if row.get("distance") is not None]
    places = list(range(len(found)))
    figure = go.Figure()
    for key, name, colour, pattern in (("rejection", "P(reject)", BLUE, ""), ("bias", "bias", ORANGE, "/")):
        figure.add_bar(
            y=places,
            x=[row.get(key) for row in found],
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": PATTERN | {"shape": pattern}},
            hovertext=[_said(row, key, name) for row in found],
            hoverinfo="text",
        )
    _diamonds(figure, found, "distance", "TV")
    figure.update_layout(barmode="stack")
    return _by_rule(figure, found, "per tested draft")


def accepted_figure(rows: Sequence[Row]) -> go.Figure:
    """Accepted drafts per round: measured as bars, expected from the laws as diamonds."""
    found = [row for row in rows if row["rule"] != "ar" and row.get("accepted_per_round") is not None]
    figure = go.Figure()
    figure.add_bar(
        y=list(range(len(found))),
        x=[row["accepted_per_round"] for row in found],
        orientation="h",
        name="measured",
        marker={"color": GREEN},
        hovertext=[_said(row, "accepted_per_round", "measured") for row in found],
        hoverinfo="text",
    )
    _diamonds(figure, found, "expected_per_round", "expected")
    return _by_rule(figure, found, "accepted drafts per round")


def _diamonds(figure: go.Figure, found: Sequence[Row], key: str, name: str) -> None:
    figure.add_scatter(
        y=list(range(len(found))),
        x=[row.get(key) for row in found],
        mode="markers",
        name=name,
        marker={"symbol": "diamond", "size": 9, "color": PINK, "line": {"color": "#ffffff", "width": 1}},
        hovertext=[_said(row, key, name) for row in found],
        hoverinfo="text",
    )


def _said(row: Row, key: str, name: str) -> str:
    value = row.get(key)
    return f"{label_of(row)}: {name} " + ("–" if value is None else f"{value:.3f}")


def _by_rule(figure: go.Figure, found: Sequence[Row], title: str) -> go.Figure:
    """One line of the figure per row, from top to bottom. Places are numbers, so that equal names stay apart."""
    names = [label_of(row) for row in found]
    figure.update_yaxes(tickvals=list(range(len(found))), ticktext=names, autorange="reversed", automargin=True)
    figure.update_xaxes(title=title, rangemode="tozero")
    return _laid_out(figure, 110 + 22 * max(len(found), 4))


def _laid_out(figure: go.Figure, height: int) -> go.Figure:
    return figure.update_layout(
        template="none",
        height=height,
        margin={"l": 56, "r": 12, "t": 8, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 12, "color": GREY},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0},
        hoverlabel={"bgcolor": "#1b2430", "bordercolor": "#1b2430", "font": {"color": "#ffffff", "size": 12}},
        hovermode="closest",
        dragmode=False,
        bargap=0.25,
    )
