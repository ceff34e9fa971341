"""The Train tab: start, follow, stop and resume a training of the ensemble head, and take the head away."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
import pandas as pd

from explorer.errors import ExplorerError, SettingError
from explorer.ui.jobs import Job, Jobs

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
POLL_S = 2.0
# What each curve shows: column of the metrics, title, help.
CURVES = (
    ("reward", "Reward", "mean score of the sampled answers"),
    ("acceptance", "Acceptance", "1 - w TV, expected at each judged token"),
    ("weight", "Weight w", "mean weight of the target"),
)
# Tasks that need no file from the visitor; the others are for the command line.
OFFERED = {"arithmetic": "Arithmetic: small sums", "fidelity": "Fidelity to the target"}


@dataclass(frozen=True, slots=True)
class Caps:
    """How much a visitor may ask for; less on a public host."""

    steps: int
    rollouts: int

    @classmethod
    def here(cls) -> Caps:
        """Those of this host: a Hugging Face Space says so in its environment."""
        return cls(20, 8) if os.environ.get("SPACE_ID") else cls(200, 32)


def build(jobs: Jobs, target: str, drafter: str, view: gr.HTML, tabs: gr.Tabs) -> None:
    """Lay the tab out and wire it.

    Args:
        jobs: The trainings.
        target: Name of the target they are for, as the command takes it.
        drafter: Name of the drafter.
        view: Of the Decode tab, which shows the probes.
        tabs: All tabs, to turn to that one.
    """
    caps = Caps.here()
    with gr.Row(elem_classes="decode", equal_height=False):
        with gr.Column(elem_classes="side", scale=0, min_width=0):
            inputs = _inputs(caps)
            with gr.Row(elem_classes="go"):
                start = gr.Button("Start", variant="primary", elem_id="train-start", min_width=60)
                stop = gr.Button("Stop", elem_id="train-stop", min_width=60)
                resume = gr.Button("Resume", elem_id="train-resume", min_width=60)
        with gr.Column(elem_classes=["stage", "train"], scale=1, min_width=0):
            chosen = gr.Dropdown([], label="Training", elem_id="train-job", filterable=False)
            status = gr.Textbox(label="State", interactive=False, elem_id="train-state", lines=1, max_lines=3)
            plots = [
                gr.LinePlot(x="step", y=name, title=f"{title}: {about}", height=190, elem_id=f"train-{name}")
                for name, title, about in CURVES
            ]
            with gr.Row(elem_classes="go"):
                before = gr.Button("Show before", elem_id="train-before", min_width=60)
                after = gr.Button("Show after", elem_id="train-after", min_width=60)
                head = gr.DownloadButton("Download the head", interactive=False, elem_id="train-head")
    outputs = [chosen, status, *plots, head]

    def begin(task: str, price: float, steps: float, rollouts: float) -> list[Any]:
        """Start a training and show it."""
        flags = train_flags(task, price, steps, rollouts, target, drafter, caps)
        id_ = _said(lambda: jobs.start(f"{task}, lambda {price:g}", flags, int(steps)))
        return shown(jobs, id_)

    def end(id_: str | None) -> list[Any]:
        """Stop the chosen training."""
        if id_:
            _said(lambda: jobs.stop(id_))
        return shown(jobs, id_)

    def go_on(id_: str | None) -> list[Any]:
        """Let the chosen training go on."""
        if not id_:
            raise gr.Error("No training is chosen. Start one.", print_exception=False)
        _said(lambda: jobs.resume(id_))
        return shown(jobs, id_)

    start.click(begin, inputs, outputs, **QUIET)
    stop.click(end, chosen, outputs, **QUIET)
    resume.click(go_on, chosen, outputs, **QUIET)
    chosen.input(lambda id_: shown(jobs, id_), chosen, outputs, **QUIET)
    before.click(lambda id_: probe(jobs, id_, 0), chosen, [view, tabs], **QUIET)
    after.click(lambda id_: probe(jobs, id_, -1), chosen, [view, tabs], **QUIET)
    timer = gr.Timer(POLL_S)
    timer.tick(lambda id_: shown(jobs, id_), chosen, outputs, queue=False, **QUIET)
    gr.context.Context.root_block.load(lambda: shown(jobs, None), None, outputs, queue=False, **QUIET)


def _inputs(caps: Caps) -> list[gr.components.Component]:
    return [
        gr.Dropdown(
            [(label, name) for name, label in OFFERED.items()],
            value=next(iter(OFFERED)),
            label="Task",
            info="What is rewarded.",
            filterable=False,
            elem_id="train-task",
        ),
        gr.Slider(
            0,
            0.3,
            0.05,
            step=0.01,
            label="Lambda",
            info="Reward given up for one expected rejection less.",
            elem_id="train-lambda",
        ),
        gr.Slider(1, caps.steps, min(20, caps.steps), step=1, label="Steps", elem_id="train-steps"),
        gr.Slider(
            2,
            caps.rollouts,
            8,
            step=1,
            label="Answers per prompt",
            info="Sampled from the verifier and compared with each other.",
            elem_id="train-rollouts",
        ),
    ]


def train_flags(
    task: str, price: float, steps: float, rollouts: float, target: str, drafter: str, caps: Caps
) -> list[str]:
    """Flags of the command for these controls.

    Raises:
        gr.Error: A value is beyond what this host allows; gradio's own checks can be gone around.
    """
    if task not in OFFERED or not 1 <= steps <= caps.steps or not 2 <= rollouts <= caps.rollouts:
        raise gr.Error(
            f"Choose one of {', '.join(OFFERED)}, 1 to {caps.steps} steps and 2 to {caps.rollouts} answers per prompt.",
            print_exception=False,
        )
    words = {
        "pair": target,
        "drafter": "auto" if drafter == "hybrid" else drafter,
        "task": task,
        "lambda": f"{price:g}",
    }
    words |= {"steps": str(int(steps)), "rollouts": str(int(rollouts)), "save-steps": "1", "probe-steps": "5"}
    return [part for name, value in words.items() for part in (f"--{name}", value)]


def probe(jobs: Jobs, id_: str | None, place: int) -> tuple[str, Any]:
    """The trace of the held-out prompt from before the training, or from as late as there is one; and the Decode tab.

    Raises:
        gr.Error: None was written yet.
    """
    paths = jobs.probes(id_) if id_ else []
    if not paths:
        raise gr.Error("No probe yet: the training writes one before its first step.", print_exception=False)
    return paths[place].read_text("utf-8"), gr.update(selected="decode")


def shown(jobs: Jobs, id_: str | None) -> list[Any]:
    """Values of the list, the state line, the curves and the download for a job, the newest if none is chosen."""
    found = jobs.all()
    job = next((job for job in found if job.id == id_), found[0] if found else None)
    choices = [(f"{job.title} ({job.id})", job.id) for job in found]
    list_ = gr.update(choices=choices, value=job.id if job else None)
    if job is None:
        return [list_, "No training yet.", *[gr.update(value=None) for _ in CURVES], gr.update(interactive=False)]
    table = pd.DataFrame(job.records) if job.records else None
    curves = [gr.update(value=None if table is None else table[["step", name]]) for name, _, _ in CURVES]
    archive = packed(jobs, job)
    return [list_, state_line(job), *curves, gr.update(value=archive, interactive=archive is not None)]


def state_line(job: Job) -> str:
    """One sentence on how far a training is."""
    done = job.records[-1]["step"] if job.records else 0
    if job.state == "failed":
        return f"Failed after {done} of {job.num_steps} steps. {job.message}"
    if not job.records:
        return "Loading the models." if job.state == "running" else "Stopped before the first step."
    last = job.records[-1]
    figures = f"reward {last['reward']:.2f}, acceptance {last['acceptance']:.2f}, mean w {last['weight']:.2f}"
    words = {"running": "Training", "finished": "Finished", "stopped": "Stopped"}[job.state]
    ready = " Its head can be chosen in the Decode tab under the dynamic ensemble." if job.state == "finished" else ""
    return f"{words}: step {done} of {job.num_steps}, {figures}, {last['tokens_per_s']:.0f} tokens/s.{ready}"


def packed(jobs: Jobs, job: Job) -> str | None:
    """A zip file of the job's head, made once for a finished one; None while there is none."""
    folder = jobs.head_of(job.id)
    if job.state == "running" or not (folder / "meta.json").is_file():
        return None
    archive = folder.with_name(f"ensemble-{job.id}.zip")
    if not archive.is_file() or archive.stat().st_mtime < (folder / "meta.json").stat().st_mtime:
        shutil.make_archive(str(archive.with_suffix("")), "zip", Path(folder))
    return str(archive)


def _said(action: Any) -> Any:
    """What the action gives; its error in the page's own words."""
    try:
        return action()
    except (ExplorerError, SettingError) as error:
        raise gr.Error(str(error), print_exception=False) from error
