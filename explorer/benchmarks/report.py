"""The report of a benchmark as text for a terminal. Pure: JSON values in, lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = (
    "head",
    "rank",
    "size",
    "tau [95 %]",
    "rho_tau",
    "nu",
    "head ms",
    "predicted",
    "measured [range]",
    "break-even",
    "tokens/s",
    "vs AR",
    "ceiling",
)


def heads_text(report: Mapping[str, Any]) -> str:
    """Tables of `bench heads`, one per batch size, with what is needed to read them."""
    lines = [
        f"{report['target']} with {report['drafter']}: K = {report['draft_length']}, temperature "
        f"{report['temperature']:g}, {report['num_prompts']} prompts, {report['repetitions']} repetitions",
        f"{report['cpu']}, {report['threads']} threads, {report['precision']} on {report['device']}",
        _about_full(report),
    ]
    for batch, rank in report["suggested_rank"].items():
        rows = [row for row in report["rows"] if row["batch"] == int(batch)]
        plain = report["autoregressive"].get(batch)
        without = "" if plain is None else f", {plain:.1f} tokens/s without drafts"
        lines += ["", f"Batch {batch}: kappa {rows[0]['kappa']:.3f}{without}", *_table(rows)]
        if rank is not None:
            lines.append(_advice(rows, rank))
    lines += [f"Left out: {reason}" for reason in report["left_out"]]
    return "\n".join(lines) + "\n"


def _about_full(report: Mapping[str, Any]) -> str:
    if report["full_twin"]:
        return f"full is {report['full_drafter']}, trained with a full head."
    return (
        "full is the whole head of the same checkpoint, not a twin trained with a full head: rho_tau says what cutting "
        "this head costs, not what training another would give."
    )


def _advice(rows: Sequence[Mapping[str, Any]], rank: int) -> str:
    predicted = next(row["rho_tps_predicted"] for row in rows if (row["head"], row["rank"]) == ("low-rank", rank))
    if predicted > 1:
        return f"Use --rank {rank}: predicted {predicted:.2f} times the speed of the full head."
    return f"No rank is predicted to beat the full head; rank {rank} comes closest, at {predicted:.2f} of its speed."


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return _aligned([list(_COLUMNS), *(_cells(row) for row in rows)])


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, every column as wide as its widest cell."""
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def _cells(row: Mapping[str, Any]) -> list[str]:
    def number(name: str, digits: int = 2) -> str:
        return "-" if row[name] is None else f"{row[name]:.{digits}f}"

    return [
        row["head"],
        "-" if row["rank"] is None else str(row["rank"]),
        "-" if row["size"] is None else f"{row['size']:,}",
        f"{number('tau')} [{number('tau_low')}, {number('tau_high')}]",
        number("rho_tau"),
        number("nu", 3),
        number("head_ms"),
        number("rho_tps_predicted"),
        f"{number('rho_tps_measured')} [{number('rho_tps_low')}, {number('rho_tps_high')}]",
        number("break_even"),
        number("tokens_per_s", 1),
        number("ratio_to_ar"),
        number("ceiling", 3),
    ]


_DRAFTER_COLUMNS = ("drafter", "K", "T", "tau [95 %]", "tokens/s", "vs AR [95 %]", "ms a round")


def drafters_text(report: Mapping[str, Any]) -> str:
    """The table of `bench drafters`, and tokens per round by kind of prompt."""
    cells = [list(_DRAFTER_COLUMNS)]
    for row in report["rows"]:
        cells.append(
            [
                row["drafter"],
                str(row["draft_length"] or "-"),
                f"{row['temperature']:g}",
                f"{row['tau']:.2f} [{row['tau_low']:.2f}, {row['tau_high']:.2f}]",
                f"{row['tokens_per_s']:.1f}",
                f"{row['ratio_to_ar']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]",
                f"{row['round_ms']:.1f}",
            ]
        )
    lines = [
        f"{report['target']}: {report['num_prompts']} prompts, {report['tokens']} tokens at most",
        f"{report['cpu']}, {report['threads']} threads, {report['precision']} on {report['device']}",
        "",
        *_aligned(cells),
    ]
    drafted = [row for row in report["rows"] if row["draft_length"] and len(row["tau_by_kind"]) > 1]
    if drafted:
        lines += ["", "Tokens per round by kind of prompt:"]
        for row in drafted:
            kinds = ", ".join(f"{kind or 'none'} {tau:.2f}" for kind, tau in row["tau_by_kind"].items())
            lines.append(f"{row['drafter']} K={row['draft_length']} T={row['temperature']:g}: {kinds}")
    return "\n".join(lines) + "\n"


_PARETO_COLUMNS = ("rule", "reward [95 %]", "acceptance [95 %]", "in correct", "tau", "per round", "expected", "vs AR")


def pareto_text(report: Mapping[str, Any]) -> str:
    """A table of `bench pareto` for each K and temperature, and what the learned weights gain."""
    lines = [
        f"{report['target']} with {report['drafter']} on {report['task']}: {report['num_prompts']} held-out prompts, "
        f"{report['num_answers']} answers a point",
        f"{report['cpu']}, {report['threads']} threads, {report['precision']} on {report['device']}",
    ]
    for place in dict.fromkeys((row["draft_length"], row["temperature"]) for row in report["rows"]):
        rows = [row for row in report["rows"] if (row["draft_length"], row["temperature"]) == place]
        lines += [
            "",
            f"K = {place[0]}, temperature {place[1]:g}",
            *_aligned([_PARETO_COLUMNS, *map(_pareto_cells, rows)]),
        ]
        lines += [_gains(row) for row in rows if row["rule"] == "dynamic"]
    return "\n".join(lines) + "\n"


def _pareto_cells(row: Mapping[str, Any]) -> list[str]:
    inside = row["acceptance_in_correct"]
    return [
        row["label"],
        _spread(row["reward"]),
        "-" if row["acceptance"] is None else _spread(row["acceptance"]),
        "-" if inside is None else f"{inside:.3f}",
        f"{row['tau'][0]:.2f}",
        f"{row['accepted_per_round']:.3f}",
        f"{row['expected_per_round']:.3f}",
        f"{row['ratio_to_ar']:.2f}",
    ]


def _gains(row: Mapping[str, Any]) -> str:
    parts = [
        f"{name} {_spread(row[key])}"
        for key, name in (
            ("above_static", "above the static front by"),
            ("above_time_sharing", "above time sharing by"),
            ("reward_to_exact", "reward less exact's"),
            ("acceptance_to_exact", "acceptance less exact's"),
        )
        if row[key] is not None
    ]
    return f"{row['label']}: " + ", ".join(parts)


def _spread(values: Sequence[float]) -> str:
    return f"{values[0]:.3f} [{values[1]:.3f}, {values[2]:.3f}]"


_SPEED_COLUMNS = (
    "what", "batch", "weights", "T", "top-p", "tokens/s [range]", "vs HF [95 %]", "tau", "HF's text"
)  # fmt: skip


def speed_text(report: Mapping[str, Any]) -> str:
    """The table of `bench speed`, what a round is made of, and what the machine allows."""
    facts = report["machine"]
    gigabytes = report["bytes_per_pass"] / 1e9
    lines = [
        f"{report['target']}: K = {report['draft_length']}, {report['num_prompts']} prompts "
        f"({report['num_prompt_tokens']} tokens), {report['tokens']} tokens at most, "
        f"repetitions {report['repetitions']}, seed {report['seed']}",
        f"{facts['cpu']}, {facts['threads']} threads, ours in {facts['precision']} on {facts['device']}",
        f"vs HF: over the fastest HF generate of the same batch, T and top-p; {report['interval']}",
        "",
        *_aligned([_SPEED_COLUMNS, *(_speed_cells(row, report["num_prompts"]) for row in report["rows"])]),
        "",
        "Milliseconds per round: draft (body, head), target's pass, rule, rest",
        *_aligned([_phase_cells(part) for part in report["phases"]]),
        "",
        f"Memory is read at {report['bandwidth_gb_s']:.1f} GB/s; a pass of ours reads {gigabytes:.3f} GB: at most "
        f"{report['bandwidth_gb_s'] / gigabytes:.1f} passes/s",
    ]
    if report["peak_memory_mb"] is not None:
        lines.append(f"Peak memory {report['peak_memory_mb']:,.0f} MB, with all of these models loaded")
    for cost in report["attached_cost"]:
        spread = _spread([cost["ratio"], cost["low"], cost["high"]])
        lines.append(f"Without a page, {cost['name']} at T={cost['temperature']:g} is {spread} times as fast")
    if report["drift"] is not None:
        lines.append(
            f"A token at the end of {report['drift_tokens']} takes {report['drift']:.2f} times as long as at the start"
        )
    lines += [f"Left out: {reason}" for reason in report["left_out"]]
    return "\n".join(lines) + "\n"


def _speed_cells(row: Mapping[str, Any], num_prompts: int) -> list[str]:
    return [
        row["name"],
        str(row["batch"]),
        row["precision"],
        f"{row['temperature']:g}",
        f"{row['top_p']:g}",
        f"{row['tokens_per_s']:.1f} [{row['tokens_per_s_low']:.1f}, {row['tokens_per_s_high']:.1f}]",
        f"{row['ratio_to_hf']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]",
        "-" if row["tokens_per_round"] is None else f"{row['tokens_per_round']:.2f}",
        "-" if row["agreed"] is None else f"{row['agreed']} of {num_prompts} ({row['agreed_with']})",
    ]


def _phase_cells(part: Mapping[str, Any]) -> list[str]:
    def number(name: str) -> str:
        return "-" if part[name] is None else f"{part[name]:.2f}"

    return [
        part["name"],
        f"T={part['temperature']:g}",
        f"{number('round_ms')} =",
        f"{number('draft_ms')} ({number('draft_body_ms')}, {number('draft_head_ms')}) +",
        f"{number('verify_ms')} +",
        f"{number('rule_ms')} +",
        number("rest_ms"),
    ]
