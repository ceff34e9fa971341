"""Measurements behind the page, with a stand-in for the command."""

import json
import sys
import time

import pytest
from ui.driving import until
from ui.front_report import report

from explorer.errors import SettingError
from explorer.ui.front_reports import measured_folder, read_all
from explorer.ui.jobs import Job
from explorer.ui.measurements import Measurements, check_known, state_line

STAND_IN = """
import pathlib, sys, time
words = sys.argv[1:]
if "--broken" in words:
    sys.exit("The task needs data.")
for name in ("autoregressive", "exact", "static 0.5"):
    print(f"Measuring {name}, K=5, T=1", file=sys.stderr, flush=True)
    time.sleep(60 if "--slow" in words else 0.05)
print(pathlib.Path(sys.argv[0]).with_name("report.json").read_text())
"""


@pytest.fixture
def measurements(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "report.json").write_text(json.dumps(report()))
    made = Measurements(tmp_path / "jobs", (sys.executable, str(tmp_path / "stand_in.py")))
    yield made
    for job in made.all():
        made.stop(job.id)


def test_a_measurement_ends_with_a_report_in_the_list(measurements):
    id_ = measurements.start("arithmetic", ["--json"], 3)
    until(lambda: measurements.find(id_).state == "finished", 20)
    job = measurements.find(id_)
    assert [record["text"] for record in job.records][1] == "exact, K=5, T=1"
    assert [one.id for one in read_all()[0]] == [f"here/{id_}.json"]
    assert state_line(job) == "Finished: arithmetic. Its report is in the list."
    measurements.report_of(id_).unlink()
    assert measurements.find(id_).state == "finished"
    assert read_all()[0] == [], "a report that somebody deleted stays deleted"


def test_it_is_followed_stopped_and_found_by_another_app(measurements):
    id_ = measurements.start("arithmetic", ["--json", "--slow"], 3)
    until(lambda: measurements.find(id_).records, 20)
    other = Measurements(measurements.folder, measurements.command)
    assert state_line(other.find(id_)) == "Rule 1 of 3: autoregressive, K=5, T=1."
    with pytest.raises(SettingError, match="arithmetic is still being measured. Stop it first"):
        other.start("second", [], 3)
    began = time.monotonic()
    measurements.stop(id_)
    assert time.monotonic() - began < 15
    assert measurements.find(id_).state == other.find(id_).state == "stopped"
    assert not list(measured_folder().glob("*"))


def test_one_that_fails_says_why(measurements):
    id_ = measurements.start("arithmetic", ["--broken"], 3)
    until(lambda: measurements.find(id_).state != "running", 20)
    assert state_line(measurements.find(id_)) == "Failed at rule 0 of 3. The task needs data."


def test_an_output_that_is_no_report_is_a_failure(measurements, tmp_path):
    (tmp_path / "report.json").write_text('{"kind": "bench heads"}')
    id_ = measurements.start("arithmetic", [], 3)
    until(lambda: measurements.find(id_).state != "running", 20)
    assert measurements.find(id_).state == "failed"


def test_a_trained_head_gets_a_name_of_its_own(measurements, tmp_path):
    head = tmp_path / "trainings" / "20261130-1" / "head"
    head.mkdir(parents=True)
    (head / "meta.json").write_text("{}")
    link = measurements.linked("20261130-1", head)
    assert link.name == "20261130-1"
    assert (link / "meta.json").is_file()
    assert measurements.linked("20261130-1", head) == link
    assert measurements.all() == []


@pytest.mark.parametrize(("task", "prompts"), [("gsm8k", 5), ("arithmetic", 21), ("arithmetic", 0), ("fidelity", 1.5)])
def test_what_is_not_offered_is_refused(task, prompts):
    with pytest.raises(SettingError, match="choose one of arithmetic, fidelity and 1 to 20 prompts"):
        check_known(task, ("arithmetic", "fidelity"), prompts, 20)


def test_before_the_first_rule():
    assert state_line(Job("1", "x", "running", [], 3)) == "Loading the models."
