"""Reports on disk: found, refused, and put into a sentence and a command."""

import argparse
import json
import os
import shlex

import pytest
from ui.front_report import ABOVE, BELOW, ZERO, report, write

from explorer.cli import bench
from explorer.settings import from_flags
from explorer.ui import front_reports
from explorer.ui.front_reports import Report, basis, command_of, parse, read_all, verdict


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(front_reports, "SHIPPED", tmp_path / "shipped")
    return front_reports.measured_folder()


def test_no_report_is_no_problem(here):
    assert read_all() == ([], [])


def test_reports_of_this_machine_come_first_and_the_newest_of_them_on_top(here):
    write(here.parents[1] / "shipped", "code.json", report(task="code"))
    for age, name in enumerate(("new.json", "old.json")):
        path = write(here, name, report())
        os.utime(path, (1e9 - 1000 * age, 1e9 - 1000 * age))
    found, problems = read_all()
    assert [one.id for one in found] == ["here/new.json", "here/old.json", "shipped/code.json"]
    assert found[0].title == "arithmetic, 20 prompts (new)"
    assert found[2].title == "code, 20 prompts (shipped)"
    assert problems == []


def test_the_whole_output_of_the_command_and_a_file_laid_out_by_hand_are_read(here):
    made = report()
    assert parse("Loading\nMeasuring exact\n" + json.dumps(made) + "\n") == made
    assert parse(json.dumps(made, indent=2)) == made


def spoiled(**row):
    made = report()
    made["rows"][1] |= row
    return json.dumps(made)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "its last line is no JSON object"),
        ('{"kind": "bench pareto", "ta', "its last line is no JSON object"),
        ("[" * 100_000, "its last line is no JSON object"),
        ('{"kind": "bench heads"}', 'its "kind" is not "bench pareto"'),
        (json.dumps(report(task=3)), '"task" is missing or of the wrong kind'),
        (json.dumps(report(rows=[])), "it has no rows or no prompts"),
        (json.dumps(report(rows=[3])), "row 1: no object"),
        (spoiled(reward=[1, 2]), 'row 2: "reward" must be three numbers'),
        (spoiled(acceptance=[0.1, float("nan"), 1]), "is no"),
        (spoiled(acceptance=[0.1, 0.1, 10**400]), 'row 2: "acceptance" must be three numbers or null'),
        (spoiled(rule="magic"), 'row 2: "rule" must be one of ar, exact'),
        (spoiled(draft_length=99), 'row 2: "draft_length" is 99'),
        (spoiled(draft_length=2.0), 'row 2: "draft_length" is 2.0'),
        (spoiled(temperature=-1), 'row 2: "temperature" is -1'),
        (spoiled(rule="static", knob=None), 'row 2: "knob" is None'),
        (spoiled(rule="lossy", knob=0), 'row 2: "knob" is 0'),
        (spoiled(bias="x"), 'row 2: "bias" must be a number or null'),
    ],
)
def test_a_damaged_report_is_named_and_left_out(here, text, reason):
    write(here, "good.json", report())
    (here / "bad.json").write_text(text)
    found, problems = read_all()
    assert [one.id for one in found] == ["here/good.json"]
    assert len(problems) == 1
    assert problems[0].startswith("bad.json was left out: ")
    assert reason in problems[0]
    assert "python -m explorer bench pareto --task NAME --json" in problems[0]


def test_a_file_that_is_too_large_is_not_read(here, monkeypatch):
    monkeypatch.setattr(front_reports, "MAX_BYTES", 10)
    write(here, "large.json", report())
    assert "more than 10 bytes" in read_all()[1][0]


@pytest.mark.parametrize(
    ("above", "shared", "text"),
    [
        (
            ABOVE,
            BELOW,
            "h lies above the static front: +0.100 [+0.050, +0.150] reward at equal acceptance; "
            "it is worse than time sharing: -0.100 [-0.150, -0.050].",
        ),
        (
            ZERO,
            ZERO,
            "h is not shown to lie above the static front: +0.010 [-0.020, +0.040] reward, an interval that holds 0; "
            "it is not shown to beat time sharing: +0.010 [-0.020, +0.040].",
        ),
        (
            BELOW,
            ABOVE,
            "h lies below the static front: -0.100 [-0.150, -0.050] reward at equal acceptance; "
            "it beats time sharing: +0.100 [+0.050, +0.150].",
        ),
        (
            None,
            None,
            "h cannot be compared with the static front, which needs two static points; "
            "time sharing was not measured, which needs static 0.",
        ),
    ],
)
def test_the_sentence_says_what_the_intervals_say(above, shared, text):
    assert verdict(report(heads=(("h", above, shared),))["rows"]) == text


def test_without_a_trained_head_the_sentence_says_so():
    rows = report(heads=())["rows"]
    assert verdict(rows).startswith(
        "No trained head was measured here. Of the one-line rule: sure where H(p) < 1 lies below the static front"
    )
    assert verdict(rows[:2]) == "No trained head was measured here."


def test_what_the_figures_rest_on():
    found = Report("x", "x", report(places=((5, 1.0), (2, 0.0))))
    assert found.places == [(5, 1.0), (2, 0.0)]
    assert len(found.rows((2, 0.0))) == 8
    assert basis(found, (2, 0.0)) == (
        "Each point: 80 answers to 20 held-out prompts of arithmetic, K = 2, temperature 0; "
        "intervals are 95 % bootstraps over prompts."
    )


def read_command(text):
    words = shlex.split(text)
    assert words[:3] == ["python", "-m", "explorer"]
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    from explorer.benchmarks.config import ParetoConfig

    return from_flags(ParetoConfig, parser.parse_args(words[4:])).filled()


def test_the_command_makes_the_same_report_again():
    fields = report(places=((5, 1.0), (2, 0.5)), seed=3, num_prompts=20, num_answers=60)
    config = read_command(command_of(Report("x", "x", fields)))
    assert (config.weight, config.lenience) == ((1.0, 0.5, 0.0), (0.3,))
    assert (config.temperature, config.draft_length) == ((1.0, 0.5), (5, 2))
    assert (config.limit, config.answers, config.seed, config.task) == (20, 3, 3, "arithmetic")
    assert (config.pair, config.drafter, config.precision) == ("default", "auto", "float16")
    assert config.ensemble == ("arithmetic-head",)


def test_a_command_in_the_report_wins_and_defaults_are_left_out():
    assert command_of(Report("x", "x", report(command="python x"))) == "python x"
    short = command_of(Report("x", "x", report(num_prompts=200, num_answers=800, heads=())))
    assert "--limit" not in short
    assert "--answers" not in short
    assert "--draft-length" not in short
