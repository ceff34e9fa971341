"""Where time goes: parts that add up, clocks that change no text, a machine's facts by hand."""

import time
from types import SimpleNamespace

import pytest
import torch
from eagles import load_eagle
from speed_toys import TEXTS, prompt_of, toy_assistant, toy_target
from toys import answers, run

from explorer.benchmarks import phases as bench
from explorer.benchmarks.hardware import bandwidth_gb_s, bytes_per_pass, peak_memory_mb
from explorer.benchmarks.phases import TimedTarget, drift, end_over_start, phases, with_timer
from explorer.engine import decode as loop
from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import ModelDrafter, NgramDrafter
from explorer.engine.hybrid import HybridDrafter
from explorer.engine.pair import ModelPair


@pytest.fixture
def target():
    return toy_target()


@pytest.fixture
def prompts(target):
    return [prompt_of(target, text).ids for text in TEXTS]


@pytest.fixture
def eagle(tmp_path, target):
    return load_eagle(tmp_path / "drafter", target)


def phases_of(pair, prompts, **settings):
    return phases(pair, prompts, DecodeConfig(max_new_tokens=12, draft_length=3, **settings))


def test_parts_add_up_to_the_round(target, eagle, prompts):
    for drafter in (eagle, HybridDrafter(eagle), NgramDrafter(), ModelDrafter(toy_assistant())):
        found = phases_of(ModelPair(target, drafter), prompts)
        parts = [found[name] for name in ("draft_ms", "verify_ms", "rule_ms", "rest_ms")]
        assert all(part >= 0 for part in parts)
        assert found["round_ms"] == pytest.approx(sum(parts), abs=0.001)
        has_head = drafter is eagle or isinstance(drafter, HybridDrafter)
        assert (found["draft_head_ms"] is not None) == (found["draft_body_ms"] is not None) == has_head
        if has_head:
            assert found["draft_ms"] == pytest.approx(found["draft_body_ms"] + found["draft_head_ms"], abs=0.001)
        events = [event for prompt in prompts for event in run(
            ModelPair(target, drafter), [prompt], max_new_tokens=12, draft_length=3
        )]  # fmt: skip
        assert found["num_rounds"] == len(events)
        assert found["tokens_per_round"] == pytest.approx(4 * 12 / len(events), abs=1e-4)


class Clock:
    """A clock that stands still but for what a test slows down by a second a call."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def slowed(self, function):
        def call(*arguments, **options):
            self.now += 1
            return function(*arguments, **options)

        return call


class SlowHead(torch.nn.Module):
    def __init__(self, head, clock):
        super().__init__()
        self.head, self.max_rank = head, head.max_rank
        self.slow = clock.slowed(head)

    def forward(self, hidden, rank=0):
        return self.slow(hidden, rank)


PARTS = ("draft_body_ms", "draft_head_ms", "verify_ms", "rule_ms", "rest_ms")


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_measured_where_it_is(monkeypatch, target, eagle, prompts, part):
    """One second a call, at one place of the loop: that part is seconds long, and every other is nothing."""
    clock = Clock(monkeypatch)
    match part:
        case "draft_body_ms":
            monkeypatch.setattr(type(eagle.model), "fuse", clock.slowed(type(eagle.model).fuse))
        case "draft_head_ms":
            eagle = eagle.with_module(SlowHead(eagle.model.head, clock))
        case "verify_ms":
            monkeypatch.setattr(target, "forward", clock.slowed(target.forward), raising=False)
        case "rule_ms":
            monkeypatch.setattr(loop, "judge", clock.slowed(loop.judge))
        case "rest_ms":
            monkeypatch.setattr(loop.Batch, "_advance", clock.slowed(loop.Batch._advance))
    found = phases_of(ModelPair(target, eagle), prompts)
    rounds = found["num_rounds"]
    heads = sum(
        len(event.draft_ids)
        for prompt in prompts
        for event in run(ModelPair(target, eagle), [prompt], max_new_tokens=12, draft_length=3)
    )
    expected = {
        "draft_head_ms": 1000 * heads / rounds,
        "draft_body_ms": 1000 * (rounds - sum(_drafts_nothing(target, eagle, prompts))) / rounds,
        # What follows a prompt's first round is between its first event and the next.
        "rest_ms": 1000 * (rounds - len(prompts)) / rounds,
    }
    assert found[part] == pytest.approx(expected.get(part, 1000), abs=0.001)
    assert [found[other] for other in PARTS if other != part] == [0] * 4


def _drafts_nothing(target, eagle, prompts):
    """For every round, whether it had no room for a draft."""
    return [
        not event.draft_ids
        for prompt in prompts
        for event in run(ModelPair(target, eagle), [prompt], max_new_tokens=12, draft_length=3)
    ]


def test_without_drafts_nothing_is_drafted(target, prompts):
    found = phases_of(ModelPair(target, None), prompts, rule="ar")
    assert found["draft_ms"] < 0.5 * found["verify_ms"]
    assert found["draft_head_ms"] is None
    assert (found["num_rounds"], found["tokens_per_round"]) == (48, 1.0)


def test_clocks_change_no_text(target, eagle, prompts):
    clocked = TimedTarget(target)
    for drafter in (eagle, HybridDrafter(eagle)):
        settings = {"max_new_tokens": 12, "draft_length": 3, "temperature": 1.0, "seed": 5}
        expected = answers(ModelPair(target, drafter), prompts, **settings)
        timed, timer = with_timer(drafter)
        assert answers(ModelPair(clocked.model, timed), prompts, **settings) == expected
        assert timer.num_calls > 0
    assert clocked.seconds > 0
    assert "forward" not in vars(target)


def test_reading_the_prompt_is_no_verification(target):
    clocked = TimedTarget(target)
    cache = target.new_cache(20)
    clocked.model.forward(torch.zeros(1, 8, dtype=torch.int64), cache, torch.zeros(1, dtype=torch.int64), keep=0)
    assert clocked.seconds == 0


def test_end_over_start_by_hand():
    times = [1.0] * 10 + [7.0] * 80 + [2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 90.0]
    assert end_over_start(times) == 3.0
    assert end_over_start([2.0, 9.0, 3.0]) == 1.5


def test_drift_goes_past_end_tokens_and_up_to_the_context(target, prompts):
    ids = answers(ModelPair(target, None), [prompts[0]], rule="ar", max_new_tokens=4)[0]
    target.end_ids = frozenset(ids)
    found = drift(target, prompts[0], 40)
    assert found["drift_tokens"] == 40
    assert found["drift"] > 0
    assert drift(target, prompts[0])["drift_tokens"] == 64 - len(prompts[0])
    assert target.end_ids == frozenset(ids)
    assert drift(target, [1] * 62) == {"drift": None, "drift_tokens": 2}


def test_drift_sees_a_decode_that_slows_down(monkeypatch, target, prompts):
    calls = []

    def slower_and_slower(*arguments):
        for event in real(*arguments):
            calls.append(event)
            time.sleep(0.001 * len(calls))
            yield event

    real = bench.decode
    monkeypatch.setattr(bench, "decode", slower_and_slower)
    assert drift(target, prompts[0], 30)["drift"] > 3


# The machine.


def test_bandwidth_is_bytes_over_seconds_by_hand(monkeypatch):
    """Reads of 0.5 s, but for the first, which is left out, and one that was disturbed."""
    times = iter([0.0, 50.0] + [t for i in range(7) for t in (100.0 * i, 100.0 * i + (9.0 if i == 3 else 0.5))])
    monkeypatch.setattr("explorer.benchmarks.hardware.time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert bandwidth_gb_s(8_000_000) == 0.016


def test_bandwidth_of_this_machine():
    assert 0.1 < bandwidth_gb_s(2**24) < 10_000


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2), ("nf4", 0.5)])
def test_bytes_of_a_pass_by_hand(precision, size):
    """All weights but the embedding table, which is not the toy's head; a tied one is read as the head."""
    target = toy_target()
    count = sum(weight.numel() for weight in target.model.parameters())
    target.precision = precision
    assert bytes_per_pass(target) == int((count - 64 * 32) * size)
    target.config = SimpleNamespace(tie_word_embeddings=True)
    assert bytes_per_pass(target) == int(count * size)


def test_peak_memory_grows_with_what_was_held():
    before = peak_memory_mb()
    held = torch.ones(2**20 * 8)
    assert peak_memory_mb() >= before > 50
    assert len(held)


def test_peak_memory_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "resource", None)
    assert peak_memory_mb() is None
