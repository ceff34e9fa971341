"""Runs without a page: turns are fair, a stopped run frees everything, nothing is loaded twice."""

import itertools
import threading
import time

import pytest
from ui.fake_pair import FakeBackend

from explorer.engine.config import DecodeConfig
from explorer.engine.trace import read_trace
from explorer.errors import WeightsError
from explorer.ui.loading import Loader
from explorer.ui.runs import Registry, Run, stream
from explorer.ui.turns import Turns


def make_run(prompt="Why is the sky blue?", **settings):
    return Run(prompt, DecodeConfig(**settings), "auto")


def drain(run, backend, turns=None):
    return list(stream(run, Loader(backend), Registry(), turns or Turns()))


def test_the_first_update_comes_before_any_work():
    backend = FakeBackend()
    updates = stream(make_run(), Loader(backend), Registry(), Turns())

    trace, status = next(updates)

    assert (trace, status["state"], backend.log) == (None, "running", [])
    updates.close()


def test_a_run_ends_with_the_whole_trace_and_an_idle_page():
    backend = FakeBackend()
    trace, status = drain(make_run(), backend)[-1]

    assert read_trace(trace)[-1]["kind"] == "end"
    assert status["state"] == "idle"
    assert backend.count("close") == 1


def test_every_update_continues_the_one_before():
    """Gradio then sends only what is new."""
    traces = [trace for trace, _ in drain(make_run(), FakeBackend(round_s=0.03)) if trace is not None]

    assert len(traces) > 3
    assert all(later.startswith(earlier) for earlier, later in zip(traces, traces[1:], strict=False))


def test_at_most_ten_updates_a_second():
    began = time.monotonic()
    updates = drain(make_run(), FakeBackend(round_s=0.005))

    assert len(updates) <= 10 * (time.monotonic() - began) + 4


def test_stop_during_a_run_ends_it_with_counts_that_match_the_trace():
    backend, run, turns = FakeBackend(round_s=0.01), make_run("long"), Turns()
    for trace, _ in stream(run, Loader(backend), Registry(), turns):
        if trace and trace.count("\n") > 4:
            run.stop.set()
    records = read_trace(trace)
    drafts = [draft for record in records if record["kind"] == "round" for draft in record["drafts"]]

    assert records[-1]["finish"] == "stopped"
    assert records[-1]["num_drafted"] == len(drafts)
    assert records[-1]["num_accepted"] == sum(draft["fate"] == "accepted" for draft in drafts)
    assert records[-1]["num_rounds"] == len(records) - 2
    assert backend.count("close") == 1
    assert turns.is_free


def test_stop_while_loading_ends_the_run_without_opening_one():
    backend, run = FakeBackend(load_s=1.0), make_run()
    began = time.monotonic()
    updates = stream(run, Loader(backend), Registry(), Turns())
    next(updates)
    next(updates)
    run.stop.set()

    assert list(updates)[-1][1]["text"] == "Stopped before the first token."
    assert time.monotonic() - began < 0.8
    assert backend.count("open") == 0


def test_closing_a_run_between_rounds_frees_the_engine():
    """What gradio does when the window closes."""
    backend, turns = FakeBackend(), Turns()
    updates = stream(make_run("long"), Loader(backend), Registry(), turns)
    while next(updates)[0] is None:
        pass
    updates.close()

    assert backend.count("close") == 1
    assert turns.is_free


def test_a_failed_load_is_said_and_tried_again():
    backend, registry = FakeBackend(fail="The weights are missing."), Registry()
    loader = Loader(backend)
    with pytest.raises(WeightsError, match="missing"):
        list(stream(make_run(), loader, registry, Turns()))

    backend.fail = ""
    assert list(stream(make_run(), loader, registry, Turns()))[-1][0] is not None


def test_two_runs_share_one_load():
    backend = FakeBackend(load_s=0.2)
    loader = Loader(backend)
    loads = [loader.start("auto") for _ in range(2)]

    assert loads[0] is loads[1]
    assert loads[0].done.wait(5)
    assert backend.count("prepare") == 1


def run_in_threads(backend, prompts):
    turns, loader = Turns(), Loader(backend)
    threads = [
        threading.Thread(target=lambda p=prompt: list(stream(make_run(p), loader, Registry(), turns)))
        for prompt in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return turns


@pytest.mark.parametrize("prompts", [("sky one", "sky two"), ("sky one", "sky two", "sky three")])
def test_rounds_of_several_runs_take_turns_and_never_overlap(prompts):
    backend = FakeBackend(round_s=0.01)
    turns = run_in_threads(backend, prompts)
    work = [(what, prompt) for what, prompt, _ in backend.log if what in ("enter", "leave")]

    assert turns.is_free
    for enter, leave in zip(work[::2], work[1::2], strict=True):
        assert (enter[0], leave) == ("enter", ("leave", enter[1]))
    order = [prompt for what, prompt in work if what == "enter"]
    assert set(order) == set(prompts)
    streaks = [len(list(streak)) for _, streak in itertools.groupby(order)]
    assert max(streaks[1:-1], default=1) <= 4, "one run kept the engine to itself"


def test_a_turn_is_not_granted_after_stop_and_leaves_nothing_behind():
    turns, stop = Turns(), threading.Event()
    with turns.turn(threading.Event()) as first:
        waiting = []
        thread = threading.Thread(target=lambda: waiting.append(enter_once(turns, stop)))
        thread.start()
        time.sleep(0.1)
        stop.set()
        thread.join(2)
        assert first
        assert waiting == [False]
    assert turns.is_free


def enter_once(turns, stop):
    with turns.turn(stop) as granted:
        return granted


def test_a_turn_is_given_back_when_the_round_fails():
    turns = Turns()
    with pytest.raises(RuntimeError), turns.turn(threading.Event()):
        raise RuntimeError
    assert turns.is_free


def test_a_second_run_of_a_visitor_stops_the_first_and_waits_for_it():
    registry, first, second = Registry(), make_run(), make_run()
    registry.register("visitor", first)
    assert registry.claim("visitor") is first
    assert registry.claim("visitor") is None
    threading.Timer(0.2, registry.release, ("visitor", first)).start()

    registry.register("visitor", second)

    assert first.stop.is_set()
    assert first.finished.is_set()
    assert not second.stop.is_set()
    assert registry.claim("visitor") is second


def test_stop_reaches_a_run_that_waits_in_the_queue():
    registry, run = Registry(), make_run()
    registry.register("visitor", run)
    assert registry.stop("visitor")
    assert not registry.stop("somebody else")
    assert registry.claim("visitor").stop.is_set()
