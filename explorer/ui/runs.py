"""Runs behind the page: one stop event each, at most one per visitor, their rounds taken in turn.

A run ends by itself at the next round once its stop event is set, and says so in the trace; that is why no event of the
page uses `cancels`, which frees gradio's slot while the round is still going on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from explorer.engine.config import DecodeConfig
from explorer.engine.trace import end_line
from explorer.ui.loading import Loader
from explorer.ui.turns import Turns

UPDATE_S = 0.1  # at most ten updates a second reach the browser
WAIT_S = 15.0

TURNS = Turns()  # one engine per process, whatever the number of pages

Update = tuple[str | None, dict[str, Any]]  # the trace so far (None: leave the shown one), and the status


@dataclass(slots=True, eq=False)
class Run:
    """One press of Run. `stop` asks it to end; `finished` is set when it holds nothing any more."""

    prompt: str
    config: DecodeConfig
    drafter: str
    head: str = "own"
    ensemble: str = ""
    stop: Event = field(default_factory=Event)
    finished: Event = field(default_factory=Event)


class Registry:
    """The run of each visitor, by gradio's session hash. Registered by Run, claimed by the event that streams it."""

    def __init__(self) -> None:
        self._waiting: dict[str, Run] = {}
        self._running: dict[str, Run] = {}
        self._guard = Lock()

    def register(self, session: str, run: Run) -> None:
        """Make `run` the visitor's next one; an earlier one is stopped and waited for."""
        self.stop(session)
        with self._guard:
            earlier = self._running.get(session)
        if earlier is not None:
            earlier.finished.wait(WAIT_S)
        with self._guard:
            self._waiting[session] = run

    def claim(self, session: str) -> Run | None:
        """The registered run, once."""
        with self._guard:
            run = self._waiting.pop(session, None)
            if run is not None:
                self._running[session] = run
            return run

    def release(self, session: str, run: Run) -> None:
        """Forget a run that ended."""
        with self._guard:
            if self._running.get(session) is run:
                del self._running[session]
        run.finished.set()

    def stop(self, session: str) -> bool:
        """Ask the visitor's runs to end; whether there was one."""
        with self._guard:
            runs = [found for found in (self._waiting.get(session), self._running.get(session)) if found]
        for run in runs:
            run.stop.set()
        return bool(runs)

    @property
    def num_running(self) -> int:
        """Runs of all visitors that have begun."""
        return len(self._running)


def stream(run: Run, loader: Loader, registry: Registry, turns: Turns = TURNS) -> Iterator[Update]:
    """Load if need be, decode, and yield the growing trace at most ten times a second.

    The first yield comes before any work: gradio closes a generator properly only after it has yielded once.
    """
    yield None, running("Starting")
    loading = loader.start(run.drafter, run.head)
    while not run.stop.is_set() and not loading.done.wait(UPDATE_S):
        yield None, running(loading.text, loading.position, loading.total)
    if run.stop.is_set():
        yield None, idle("Stopped before the first token.")
        return
    if loading.error is not None:
        raise loading.error
    lines = loader.backend.run(loading.result, run.prompt, run.config, run.ensemble)
    try:
        yield from _rounds(lines, run, registry, turns)
    finally:
        lines.close()


def _rounds(lines: Iterator[str], run: Run, registry: Registry, turns: Turns) -> Iterator[Update]:
    trace, sent = "", 0.0
    while True:
        with turns.turn(run.stop) as granted:
            line = next(lines, None) if granted else None
        if line is None:
            break
        trace += line
        now = time.monotonic()
        if now - sent >= UPDATE_S:
            sent = now
            yield trace, running(_sharing(registry.num_running - 1))
    if run.stop.is_set():
        yield (trace + stopped_line(trace) if trace else None), idle("Stopped.")
    else:
        yield trace, idle("")


def _sharing(num_others: int) -> str:
    if num_others <= 0:
        return "Decoding"
    return f"Decoding, in turn with {num_others} other {'visitor' if num_others == 1 else 'visitors'}"


def running(text: str, position: int = 0, total: int = 0) -> dict[str, Any]:
    """Status of a run that goes on; `total` 0 means that nobody knows how much there is to do."""
    return {"state": "running", "text": text, "position": position, "total": total}


def idle(text: str) -> dict[str, Any]:
    """Status of a page that does nothing."""
    return {"state": "idle", "text": text}


def stopped_line(trace: str) -> str:
    """The end line of a run that was stopped, with the counts so far."""
    rounds = [record for record in map(json.loads, trace.rstrip("\n").split("\n")) if record["kind"] == "round"]
    drafts = [draft for record in rounds for draft in record["drafts"]]
    fates = [draft["fate"] for draft in drafts]
    nexts = [record["next"] for record in rounds if record["next"] is not None]
    accepted, tested = fates.count("accepted"), len(fates) - fates.count("discarded")
    text = "".join(
        token["text"]
        for record in rounds
        for token in (*record["drafts"], record["next"])
        if token is not None and token["fate"] in ("accepted", "residual", "bonus")
    )
    return end_line(
        finish="stopped",
        text=text,
        num_rounds=len(rounds),
        num_drafted=len(fates),
        num_tested=tested,
        num_accepted=accepted,
        num_emitted=accepted + len(nexts),
    )
