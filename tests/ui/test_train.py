"""The Train tab: its flags and sentences, and a training followed in a real browser with a stand-in command."""

import re
import sys

import gradio as gr
import pytest
from playwright.sync_api import expect
from ui.fake_pair import FakeBackend, fake_trace

from explorer.engine.config import DecodeConfig
from explorer.training.train import TrainConfig
from explorer.ui.jobs import Job, Jobs
from explorer.ui.tabs.train import Caps, state_line, train_flags

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
    time.sleep(0.3)
    seen = {"step": step, "reward": step / steps, "acceptance": 0.5, "weight": 0.9, "tokens_per_s": 100.0}
    with log.open("a") as file:
        file.write(json.dumps(seen) + "\\n")
    (run / "training.safetensors").write_bytes(b"x")
    (run / f"probe-{step:06d}.ndjson").write_text(pathlib.Path(sys.argv[0]).with_name("trace.ndjson").read_text())
out.mkdir(exist_ok=True)
(out / "meta.json").write_text("{}")
"""
RECORD = {"step": 3, "reward": 0.5, "acceptance": 0.61, "weight": 0.93, "tokens_per_s": 120.0}
CAPS = Caps(20, 8)


def test_flags_are_those_of_the_command():
    import argparse

    from explorer.cli import train as command

    flags = train_flags("arithmetic", 0.05, 12.0, 4.0, "default", "hybrid", CAPS)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    config = command.from_flags(TrainConfig, parser.parse_args(["--out", "x", *flags]))
    assert (config.task, config.price, config.steps, config.rollouts) == ("arithmetic", 0.05, 12, 4)
    assert (config.pair, config.drafter) == ("default", "auto")


@pytest.mark.parametrize("values", [("gsm8k", 0.1, 5, 4), ("arithmetic", 0.1, 21, 4), ("arithmetic", 0.1, 5, 9)])
def test_caps_hold_for_requests_that_go_around_the_page(values):
    with pytest.raises(gr.Error, match="1 to 20 steps and 2 to 8 answers"):
        train_flags(*values, "default", "auto", CAPS)


def test_a_public_host_allows_less(monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/explorer")
    assert Caps.here() == Caps(20, 8)
    monkeypatch.delenv("SPACE_ID")
    assert Caps.here().steps > 20


@pytest.mark.parametrize(
    ("state", "records", "text"),
    [
        ("running", [], "Loading the models."),
        ("running", [RECORD], "Training: step 3 of 9, reward 0.50, acceptance 0.61, mean w 0.93, 120 tokens/s."),
        ("stopped", [], "Stopped before the first step."),
        ("finished", [RECORD], "Its head can be chosen in the Decode tab under the dynamic ensemble."),
        ("failed", [RECORD], "Failed after 3 of 9 steps. Disk full."),
    ],
)
def test_the_state_line(state, records, text):
    assert text in state_line(Job("1", "x", state, records, 9, "Disk full." if state == "failed" else ""))


@pytest.fixture(scope="module")
def served_jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "stand_in.py").write_text(STAND_IN)
    config = DecodeConfig(rule="dynamic", temperature=1.0)
    (folder / "trace.ndjson").write_text("".join(fake_trace("The probe of this training", config)))
    jobs = Jobs(folder / "jobs", (sys.executable, str(folder / "stand_in.py")))
    from explorer.ui.app import build_app, launch_options

    backend = FakeBackend()
    backend.jobs = jobs
    app = build_app(backend)
    _, address, _ = app.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    yield address, jobs
    for job in jobs.all():
        jobs.stop(job.id)
    app.close()


@pytest.mark.browser
def test_a_training_is_started_followed_stopped_resumed_and_survives_a_reload(context, served_jobs, artifacts):
    address, jobs = served_jobs
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(address)
    page.get_by_role("tab", name="Train").click()
    state = page.get_by_label("State")
    expect(state).to_have_value("No training yet.")
    page.get_by_label("Steps", exact=False).first.fill("60")
    page.get_by_role("button", name="Start").click()
    expect(state).to_have_value("Loading the models.", timeout=10_000)
    expect(state).to_have_value(re.compile("^Training: step"))
    page.reload()
    page.get_by_role("tab", name="Train").click()
    expect(state).to_have_value(re.compile("^Training: step"))
    page.get_by_role("button", name="Stop").last.click()
    expect(state).to_have_value(re.compile("^Stopped: step"))
    assert jobs.all()[0].state == "stopped"
    page.get_by_role("button", name="Resume").click()
    expect(state).to_have_value(re.compile("^Finished: step 60"), timeout=40_000)
    page.screenshot(path=str(artifacts / "train.png"), full_page=True)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the head").click()
    assert download.value.suggested_filename.startswith("ensemble-")
    page.get_by_role("button", name="Show after").click()
    expect(page.get_by_text("The probe of this training")).to_be_visible()
    expect(page.get_by_text("dynamic ensemble, learned w")).to_be_visible()
    page.get_by_role("tab", name="Train").click()
    page.get_by_role("button", name="Start").click()
    page.wait_for_timeout(500)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("is still training. Stop it first")).to_be_visible()
    page.close()
