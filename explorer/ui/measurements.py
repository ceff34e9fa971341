"""Measurements of `bench pareto` behind the page, each in a process of its own like a training (see `jobs.py`).

The command writes its progress and, as the last line, its report into one log. A report that is whole is copied to
where the Frontier tab looks for those of this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from explorer.engine.weights import default_cache
from explorer.errors import SettingError, WeightsError
from explorer.ui.front_reports import measured_folder, parse
from explorer.ui.jobs import Job, Jobs

STEP = "Measuring "  # how the command's lines of progress begin


class Measurements(Jobs):
    """The measurements of one folder; at most one runs at a time."""

    noun, doing, has_out = "measurement", "being measured", False

    def __init__(
        self, folder: Path, command: Sequence[str] = (sys.executable, "-m", "explorer", "bench", "pareto")
    ) -> None:
        super().__init__(folder, command)

    @classmethod
    def in_cache(cls) -> Measurements:
        """Those of this machine, beside the weights."""
        return cls(default_cache() / "measurements")

    def find(self, id_: str) -> Job:
        """One measurement as it is now; `records` holds the rules begun, in order, as {"step", "text"}.

        Raises:
            SettingError: There is none of this id.
            WeightsError: Its report cannot be copied.
        """
        record = self._record(id_)
        lines = self._lines(id_)
        begun = [line.removeprefix(STEP) for line in lines if line.startswith(STEP)]
        records = [{"step": step, "text": text} for step, text in enumerate(begun, 1)]
        message = ""
        if self._is_alive(id_, record):
            state = "running"
        elif self._collect(id_, lines):
            state = "finished"
        else:
            state = "stopped" if record.get("is_stopped") else "failed"
            message = self._last_words(id_) if state == "failed" else ""
        return Job(id_, record["title"], state, records, record["num_steps"], message)

    def report_of(self, id_: str) -> Path:
        """Where a finished measurement's report is copied to."""
        return measured_folder() / f"{id_}.json"

    def linked(self, name: str, folder: Path) -> Path:
        """A link to a head's folder under a name of its own, by which the report will call it.

        Raises:
            WeightsError: The disk refuses.
        """
        link = self.folder / "heads" / name
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(folder.resolve(), target_is_directory=True)
        except OSError as error:
            raise WeightsError(f"{link} cannot be made ({error.strerror}). Free some space.") from error
        return link

    def _collect(self, id_: str, lines: Sequence[str]) -> bool:
        """Whether the log ends with a report; it is copied once, so that one that was deleted stays deleted."""
        copied = self.folder / id_ / "copied"
        if copied.exists():
            return True
        try:
            parse(lines[-1] if lines else "")
        except ValueError:
            return False
        path = self.report_of(id_)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(lines[-1] + "\n", "utf-8")
            part.replace(path)
            copied.touch()
        except OSError as error:
            raise WeightsError(f"{path} cannot be written ({error.strerror}). Free some space.") from error
        return True

    def _lines(self, id_: str) -> list[str]:
        try:
            return (self.folder / id_ / "log.txt").read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            return []


def state_line(job: Job) -> str:
    """One sentence on how far a measurement is."""
    done = len(job.records)
    now = job.records[-1]["text"][:80] if job.records else ""
    if job.state == "running":
        return f"Rule {done} of {job.num_steps}: {now}." if done else "Loading the models."
    if job.state == "failed":
        return f"Failed at rule {done} of {job.num_steps}. {job.message[:400]}"
    if job.state == "stopped":
        return f"Stopped at rule {done} of {job.num_steps}; a measurement starts anew each time."
    return f"Finished: {job.title}. Its report is in the list."


def check_known(task: str, offered: Sequence[str], prompts: float, most: int) -> None:
    """Raise unless this host allows it; gradio's own checks can be gone around.

    Raises:
        SettingError: The task or the number of prompts is not offered.
    """
    if task not in offered or not 1 <= prompts <= most or prompts != int(prompts):
        raise SettingError(
            f"{task!r} with {prompts:g} prompts is not offered here; choose one of {', '.join(offered)} and 1 to "
            f"{most} prompts."
        )
