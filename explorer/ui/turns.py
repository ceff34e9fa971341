"""A fair lock: whoever asks first goes first, so that two runs on one engine take their rounds in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Event

POLL_S = 0.05


class Turns:
    """One holder at a time, in order of asking. `threading.Lock` would let a fast loop starve the others."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._line: deque[object] = deque()

    @contextmanager
    def turn(self, stop: Event) -> Iterator[bool]:
        """Wait for a turn and hold it inside the `with`; False, holding nothing, if `stop` was set first."""
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            while self._line[0] is not ticket and not stop.is_set():
                self._changed.wait(POLL_S)
            granted = self._line[0] is ticket and not stop.is_set()
            if not granted:
                self._leave(ticket)
        try:
            yield granted
        finally:
            if granted:
                with self._changed:
                    self._leave(ticket)

    def _leave(self, ticket: object) -> None:
        self._line.remove(ticket)
        self._changed.notify_all()

    @property
    def is_free(self) -> bool:
        """Whether nobody holds a turn or waits for one."""
        return not self._line
