"""Trainings behind the page, with a stand-in for the command that logs a step every few milliseconds."""

import sys
import time

import pytest

from explorer.errors import SettingError
from explorer.ui.jobs import Jobs

STAND_IN = """
import json, pathlib, sys, time
words = sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1])
run = out.with_name(out.name + "-run")
run.mkdir(parents=True, exist_ok=True)
log = run / "metrics.jsonl"
first = len(log.read_text().splitlines()) if "--resume" in words else 0
steps = int(words[words.index("--steps") + 1])
for step in range(first + 1, steps + 1):
    if "--broken" in words:
        sys.exit("lambda is 99; it must be in [0, 10].")
    time.sleep(0.05)
    with log.open("a") as file:
        file.write(json.dumps({"step": step, "reward": step / steps}) + "\\n")
    (run / "training.safetensors").write_bytes(b"x")
out.mkdir(exist_ok=True)
(out / "meta.json").write_text("{}")
"""


@pytest.fixture
def jobs(tmp_path):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    made = Jobs(tmp_path / "jobs", (sys.executable, str(tmp_path / "stand_in.py")))
    yield made
    for job in made.all():
        made.stop(job.id)


def wait_for(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_training_runs_to_its_end_and_leaves_a_head(jobs):
    id_ = jobs.start("Arithmetic", ["--steps", "4"], 4)
    assert jobs.find(id_).state == "running"
    wait_for(lambda: jobs.find(id_).state == "finished")
    job = jobs.find(id_)
    assert [record["step"] for record in job.records] == [1, 2, 3, 4]
    assert jobs.heads() == {f"Arithmetic ({id_})": jobs.head_of(id_)}


def test_a_training_is_stopped_and_resumed(jobs):
    id_ = jobs.start("Arithmetic", ["--steps", "30"], 30)
    wait_for(lambda: len(jobs.find(id_).records) > 2)
    jobs.stop(id_)
    job = jobs.find(id_)
    assert job.state == "stopped"
    assert jobs.heads() == {}
    jobs.resume(id_)
    wait_for(lambda: jobs.find(id_).state == "finished")
    steps = [record["step"] for record in jobs.find(id_).records]
    assert steps == list(range(1, 31))


def test_only_one_runs_at_a_time(jobs):
    id_ = jobs.start("First", ["--steps", "100"], 100)
    with pytest.raises(SettingError, match="First is still training. Stop it first"):
        jobs.start("Second", ["--steps", "1"], 1)
    jobs.stop(id_)
    second = jobs.start("Second", ["--steps", "1"], 1)
    assert second != id_
    assert [job.title for job in jobs.all()] == ["Second", "First"]


def test_a_training_that_fails_says_why(jobs):
    id_ = jobs.start("Broken", ["--steps", "3", "--broken"], 3)
    wait_for(lambda: jobs.find(id_).state != "running")
    job = jobs.find(id_)
    assert (job.state, job.message) == ("failed", "lambda is 99; it must be in [0, 10].")


def test_another_app_finds_a_running_training_and_can_stop_it(jobs):
    id_ = jobs.start("Arithmetic", ["--steps", "200"], 200)
    wait_for(lambda: jobs.find(id_).records)
    other = Jobs(jobs.folder, jobs.command)
    assert other.find(id_).state == "running"
    other.stop(id_)
    wait_for(lambda: other.find(id_).state == "stopped" or jobs.find(id_).state == "stopped")


@pytest.mark.parametrize("id_", ["nothing", "../jobs", "", "a/b"])
def test_a_job_that_is_not_there(jobs, id_):
    with pytest.raises(SettingError, match="There is no training"):
        jobs.find(id_)


def test_a_line_still_being_written_is_left_for_later(jobs):
    id_ = jobs.start("Arithmetic", ["--steps", "2"], 2)
    wait_for(lambda: jobs.find(id_).state == "finished")
    log = jobs.head_of(id_).with_name("head-run") / "metrics.jsonl"
    log.write_text(log.read_text() + '{"step": 3, "rew')
    assert len(jobs.find(id_).records) == 2
