"""Loading a backend's weights in the background, followed from any number of pages."""

from __future__ import annotations

from threading import Event, Lock, Thread
from typing import Any

from explorer.ui.backend import Backend


class Loading:
    """One load and how far it is. `result` is there once `done` is set, unless `error` is."""

    def __init__(self) -> None:
        self.text, self.position, self.total = "Loading the models", 0, 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = Event()

    def progress(self, text: str, position: int, total: int) -> None:
        """Called by the loader: what it is doing, and how far it is of how much."""
        self.text, self.position, self.total = text, position, total


class Loader:
    """Loads the pair of each drafter and head once; a load that failed is tried again when it is next asked for."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._loads: dict[tuple[str, str], Loading] = {}
        self._guard = Lock()
        self._one_at_a_time = Lock()

    def start(self, drafter: str, head: str = "own") -> Loading:
        """The load of this drafter with this head, begun now if there is none."""
        with self._guard:
            loading = self._loads.get((drafter, head))
            if loading is None or loading.error is not None:
                loading = self._loads[drafter, head] = Loading()
                Thread(target=self._load, args=(drafter, head, loading), daemon=True, name=f"load-{drafter}").start()
            return loading

    def _load(self, drafter: str, head: str, loading: Loading) -> None:
        try:
            with self._one_at_a_time:
                loading.result = self.backend.prepare(drafter, head, loading.progress)
        except BaseException as error:  # noqa: BLE001  handed to whoever waits for the load
            loading.error = error
        finally:
            loading.done.set()
