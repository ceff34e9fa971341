"""Trainings behind the page: each the same command as in a terminal, in a process of its own at low priority.

Everything about a job is on disk, so that it goes on when a page is reloaded, is found again when the app was started
anew, and is stopped and resumed like any run of the command. Decoding shares nothing with it but the processor.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from explorer.engine.weights import default_cache
from explorer.errors import SettingError, WeightsError

NICE = "10"
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """One training and how far it is.

    Attributes:
        id: Name of its folder.
        title: For people.
        state: "running", "finished", "stopped" or "failed".
        records: What each update saw, as the command logs it.
        num_steps: Updates asked for.
        message: Why it failed, in a sentence.
    """

    id: str
    title: str
    state: str
    records: list[dict[str, Any]]
    num_steps: int
    message: str = ""


class Jobs:
    """The trainings of one folder; at most one runs at a time.

    Attributes:
        noun, doing: What a job is called in messages, and what one does.
        has_out: Whether the command takes --out.
    """

    noun, doing, has_out = "training", "training", True

    def __init__(self, folder: Path, command: Sequence[str] = (sys.executable, "-m", "explorer", "train")) -> None:
        self.folder, self.command = Path(folder), tuple(command)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._guard = Lock()

    @classmethod
    def in_cache(cls) -> Jobs:
        """Those of this machine, beside the weights."""
        return cls(default_cache() / "trainings")

    def start(self, title: str, flags: Sequence[str], num_steps: int) -> str:
        """Begin a training; returns its id.

        Args:
            title: For people.
            flags: Of the command, without --out.
            num_steps: Updates it will make.

        Raises:
            SettingError: Another one is running.
            WeightsError: The folder cannot be written.
        """
        with self._guard:
            self._refuse_second()
            id_ = time.strftime("%Y%m%d-%H%M%S")
            while (self.folder / id_).exists():
                id_ += "b"
            try:
                (self.folder / id_).mkdir(parents=True)
                self._launch(id_, {"title": title, "flags": list(flags), "num_steps": num_steps})
            except OSError as error:
                raise WeightsError(f"{self.folder} cannot be written ({error.strerror}). Free some space.") from error
            return id_

    def resume(self, id_: str) -> None:
        """Let a stopped or failed training go on from its last state.

        Raises:
            SettingError: There is no such job, or one is running.
        """
        with self._guard:
            self._refuse_second()
            record = self._record(id_)
            has_state = (self.head_of(id_).with_name("head-run") / "training.safetensors").is_file()
            self._launch(id_, record, ["--resume"] if has_state else [])

    def stop(self, id_: str) -> None:
        """End a training as Ctrl-C does; its last state stays."""
        with self._guard:
            record = self._record(id_)
            if not self._is_alive(id_, record):
                return
            self._write(id_, record | {"is_stopped": True})
            with contextlib.suppress(OSError):
                os.kill(record["pid"], signal.SIGINT)
            process = self._processes.get(id_)
            if process is not None:
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    def all(self) -> list[Job]:
        """Every job there is, the newest first."""
        ids = sorted((path.parent.name for path in self.folder.glob("*/job.json")), reverse=True)
        return [self.find(id_) for id_ in ids]

    def find(self, id_: str) -> Job:
        """One job as it is now.

        Raises:
            SettingError: There is none of this id.
        """
        record = self._record(id_)
        records = self._metrics(id_)
        done = records[-1]["step"] if records else 0
        if self._is_alive(id_, record):
            state = "running"
        elif done >= record["num_steps"] and (self.head_of(id_) / "meta.json").is_file():
            state = "finished"
        else:
            state = "stopped" if record.get("is_stopped") else "failed"
        message = self._last_words(id_) if state == "failed" else ""
        return Job(id_, record["title"], state, records, record["num_steps"], message)

    def head_of(self, id_: str) -> Path:
        """Where a job's head is written."""
        return self.folder / id_ / "head"

    def probes(self, id_: str) -> list[Path]:
        """Traces of the held-out prompt that a job wrote on its way, the first from before its first step."""
        return sorted(self.head_of(id_).with_name("head-run").glob("probe-*.ndjson"))

    def heads(self) -> dict[str, Path]:
        """Title and folder of every head that was written, the newest first."""
        found = {}
        for job in self.all():
            if (self.head_of(job.id) / "meta.json").is_file():
                found[f"{job.title} ({job.id})"] = self.head_of(job.id)
        return found

    def _refuse_second(self) -> None:
        running = [job for job in self.all() if job.state == "running"]
        if running:
            raise SettingError(f"{running[0].title} is still {self.doing}. Stop it first, or wait for its end.")

    def _launch(self, id_: str, record: dict[str, Any], more: Sequence[str] = ()) -> None:
        folder = self.folder / id_
        words = [*self._words(id_, record), *more]
        if shutil.which("nice"):
            words = ["nice", "-n", NICE, *words]
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
        self._processes[id_] = process
        self._write(id_, record | {"pid": process.pid, "is_stopped": False})

    def _words(self, id_: str, record: dict[str, Any]) -> list[str]:
        """The job's command."""
        out = ["--out", str(self.head_of(id_))] if self.has_out else []
        return [*self.command, *out, *record["flags"]]

    def _is_alive(self, id_: str, record: dict[str, Any]) -> bool:
        """Whether the job's process runs: our own child, or one of an earlier app that still has its words."""
        process = self._processes.get(id_)
        if process is not None:
            return process.poll() is None
        try:
            os.kill(record["pid"], 0)
            command = Path(f"/proc/{record['pid']}/cmdline")
            words = "\0".join(self._words(id_, record)[1:])
            return words in command.read_text("utf-8", "replace") if command.exists() else True
        except (OSError, KeyError):
            return False

    def _record(self, id_: str) -> dict[str, Any]:
        path = self.folder / id_ / "job.json"
        try:
            if Path(id_).name != id_:
                raise ValueError(id_)
            return json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SettingError(f"There is no {self.noun} {id_!r}. Choose one from the list, or start one.") from error

    def _write(self, id_: str, record: dict[str, Any]) -> None:
        part = self.folder / id_ / "job.part"
        part.write_text(json.dumps(record), "utf-8")
        part.replace(self.folder / id_ / "job.json")

    def _metrics(self, id_: str) -> list[dict[str, Any]]:
        """What was logged so far; a line that is still being written is left for later."""
        path = self.head_of(id_).with_name("head-run") / "metrics.jsonl"
        try:
            lines = path.read_text("utf-8").splitlines()
        except OSError:
            return []
        records = []
        for line in lines:
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        return records

    def _last_words(self, id_: str) -> str:
        """The last line the command wrote."""
        try:
            lines = (self.folder / id_ / "log.txt").read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else f"The {self.noun} ended without a word."
