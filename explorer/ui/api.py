"""The one public endpoint, `decode`, for programs and (with gradio's mcp extra) for assistants.

A call is a run like any other: same settings and sentences, same load, and its rounds taken in turn with the page's.
"""
# No `from __future__ import annotations`: gradio reads the types of the endpoint from the function.

import json
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from threading import Lock, Semaphore
from typing import Any

import gradio as gr

from explorer.engine.config import DecodeConfig
from explorer.errors import ExplorerError, SettingError
from explorer.rules import RULES
from explorer.ui.backend import Backend
from explorer.ui.controls import check_prompt, read_settings
from explorer.ui.loading import Loader
from explorer.ui.runs import Registry, Run, stream

MAX_AT_ONCE = 4  # calls that take turns with each other and with the page
MAX_WAITING = 12  # calls beyond these; still more are refused
SIGN_OF_LIFE_S = 1.0
DEFAULT = DecodeConfig()

Trace = list[dict[str, Any]]


def add_decode(backend: Backend, loader: Loader, registry: Registry) -> None:
    """Add the endpoint to the app that is being built."""
    # No limit of gradio's: what waits for one fills the queue that the page's own events stand in.
    gr.api(endpoint(backend, loader, registry), api_name="decode", concurrency_limit=None)


def has_mcp() -> bool:
    """Whether gradio's mcp extra is installed."""
    return find_spec("mcp") is not None


class Calls:
    """Lets in as many calls as may be decoded at once, has some wait, and refuses the rest."""

    def __init__(self) -> None:
        self._slots = Semaphore(MAX_AT_ONCE)
        self._num = 0
        self._guard = Lock()

    def admitted(self, traces: Iterator[Trace]) -> Iterator[Trace]:
        """What the call yields, once it is its turn; until then, now and then, an empty list.

        Raises:
            SettingError: Too many calls wait.
        """
        with self._guard:
            if self._num >= MAX_AT_ONCE + MAX_WAITING:
                raise SettingError(f"{self._num} calls are under way or waiting, which is the most. Try again later.")
            self._num += 1
        is_in = False
        try:
            yield []  # before any waiting: gradio closes a generator properly only after it has yielded once
            while not (is_in := self._slots.acquire(timeout=SIGN_OF_LIFE_S)):
                yield []
            yield from traces
        finally:
            if is_in:
                self._slots.release()
            with self._guard:
                self._num -= 1


def endpoint(backend: Backend, loader: Loader, registry: Registry) -> Callable[..., Iterator[Any]]:
    """The function behind the endpoint; its docstring is what callers read."""
    drafters, calls = [name for _, name in backend.drafters], Calls()

    def decode(
        request: gr.Request,
        prompt: str,
        rule: str = DEFAULT.rule,
        weight: float = DEFAULT.target_weight,
        lenience: float = DEFAULT.lenience,
        drafter: str = drafters[0],
        rank: int = DEFAULT.rank,
        draft_length: int = DEFAULT.draft_length,
        temperature: float = DEFAULT.temperature,
        seed: int = DEFAULT.seed,
        max_new_tokens: int = DEFAULT.max_new_tokens,
    ) -> Iterator[Trace]:
        values = {
            "rule": rule,
            "target_weight": weight,
            "lenience": lenience,
            "drafter": drafter,
            "head": "own",
            "ensemble": next((name for _, name in backend.ensembles()), ""),
            "rank": rank,
            "draft_length": draft_length,
            "temperature": temperature,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
        }
        try:
            for trace in calls.admitted(_run(checked_run(prompt, values, backend), loader, registry)):
                # Gradio gives an assistant str() of the result: of a list that would be Python, not JSON.
                yield dumped(trace) if request.headers.get("x-gradio-user") == "mcp" else trace
        except ExplorerError as error:
            raise gr.Error(str(error), print_exception=False) from error

    decode.__doc__ = f"""Answer a prompt by speculative decoding and tell the fate of every drafted token.

    Args:
        prompt: The user's message.
        rule: How drafts are judged: {", ".join(RULES)}.
        weight: w of the static rule, 0 to 1; 1 is exact.
        lenience: l of the lossy rule, 0.01 to 1; 1 is exact.
        drafter: What drafts: {", ".join(drafters)}.
        rank: Rank of the drafter's low-rank head; 0 is the highest it has.
        draft_length: Tokens drafted per round, 1 to 16.
        temperature: 0 to 2; 0 is greedy.
        seed: Same seed, settings and machine give the same text.
        max_new_tokens: Tokens emitted at most, 1 to 4096.

    Returns:
        The trace, a list of records: one of kind "meta", one "round" each with its drafts, and "end" with the text.
    """
    return decode


def dumped(trace: Trace) -> str:
    """The trace as the text of its file."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in trace)


def checked_run(prompt: Any, values: dict[str, Any], backend: Backend) -> Run:
    """The run that a call asks for.

    Raises:
        SettingError: As on the page; also for a drafter that the page does not offer.
    """
    if not isinstance(prompt, str):
        raise SettingError(f"prompt is {prompt!r}; it must be text.")
    drafters = [name for _, name in backend.drafters]
    if values["drafter"] not in drafters:
        # Any other name would be looked for on the Hub or on this machine's disk.
        raise SettingError(f"drafter is {values['drafter']!r}; it must be one of {', '.join(drafters)}.")
    settings = read_settings(values, backend)
    return Run(check_prompt(prompt), settings.config, settings.drafter, settings.head, settings.ensemble)


def _run(run: Run, loader: Loader, registry: Registry) -> Iterator[Trace]:
    """Empty lists while the run goes on, so that it ends when the caller goes away, and then the whole trace."""
    key = uuid.uuid4().hex  # not the caller's session: all of an assistant's calls share one, and none may end another
    registry.register(key, run)
    registry.claim(key)
    updates = stream(run, loader, registry)
    trace, said = None, 0.0
    try:
        for so_far, _ in updates:
            trace = so_far if so_far is not None else trace
            if time.monotonic() - said >= SIGN_OF_LIFE_S:
                said = time.monotonic()
                yield []
    finally:
        updates.close()
        registry.release(key, run)
    yield [json.loads(line) for line in (trace or "").split("\n") if line]
