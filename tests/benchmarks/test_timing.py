"""Clocks: what they add up to, and that they change nothing."""

import time

import pytest
import torch
from eagles import counts_of, load_eagle
from torch import nn
from toys import VOCAB, answers, language_model, prompts_of, random_network, run

from explorer.benchmarks.timing import TimedHead, judged_mass_outside, timed_decode
from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.pair import ModelPair

SLEEP_S = 0.003


class SlowHead(nn.Module):
    """A head that takes its time."""

    max_rank = 12

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden, rank=0):
        time.sleep(SLEEP_S)
        return self.head(hidden, rank)


@pytest.fixture
def target():
    return language_model(random_network("llama", 3), name="toy llama")


@pytest.fixture
def drafter(tmp_path, target):
    return load_eagle(tmp_path / "drafter", target, token_counts=counts_of(VOCAB))


PROMPTS = prompts_of((6, 2, 9))
CONFIG = DecodeConfig(draft_length=3, max_new_tokens=11)


def test_what_the_clocks_add_up_to(target, drafter):
    timer = TimedHead(SlowHead(drafter.model.head))
    pair = ModelPair(target, drafter.with_module(timer))

    began = time.perf_counter()
    timing = timed_decode(pair, PROMPTS, [0, 1, 2], CONFIG, timer)
    wall = time.perf_counter() - began

    events = run(ModelPair(target, drafter), PROMPTS, draft_length=3, max_new_tokens=11)
    rounds = 1 + max(event.index for event in events)
    assert timing.num_rounds == rounds
    widest = [max(len(event.draft_ids) for event in events if event.index == i) for i in range(rounds)]
    assert timing.num_head_calls == sum(widest)
    assert timing.head_s >= SLEEP_S * timing.num_head_calls
    assert timing.head_s <= timing.draft_s
    assert timing.draft_s + timing.verify_s <= timing.decode_s <= wall
    assert timing.emitted == {row: sum(len(e.emitted_ids) for e in events if e.row == row) for row in range(3)}
    assert timing.row_rounds == {row: sum(e.row == row for e in events) for row in range(3)}


def test_reading_the_prompts_is_left_out(target, drafter, monkeypatch):
    timer = TimedHead(drafter.model.head)
    pair = ModelPair(target, drafter.with_module(timer))
    forward = target.forward

    def slow_to_read(*arguments, keep, **options):
        if not keep:
            time.sleep(0.3)
        return forward(*arguments, keep=keep, **options)

    monkeypatch.setattr(target, "forward", slow_to_read)
    began = time.perf_counter()
    timing = timed_decode(pair, PROMPTS[:1], [0], CONFIG, timer)

    assert timing.decode_s <= time.perf_counter() - began - 0.3


def test_the_clock_starts_anew_for_every_decode(target, drafter):
    timer = TimedHead(drafter.model.head)
    pair = ModelPair(target, drafter.with_module(timer))

    first, second = (timed_decode(pair, PROMPTS[:1], [0], CONFIG, timer) for _ in range(2))

    assert first.num_head_calls == second.num_head_calls == timer.num_calls


def test_rows_of_one_prompt_are_counted_together(target):
    timing = timed_decode(
        ModelPair(target, None), [PROMPTS[0]] * 3, [0, 0, 4], DecodeConfig(rule="ar", max_new_tokens=5), None
    )

    assert (timing.emitted, timing.row_rounds, timing.num_rounds) == ({0: 10, 4: 5}, {0: 10, 4: 5}, 5)
    assert (timing.head_s, timing.num_head_calls) == (0, 0)


def test_a_clock_changes_no_text(target, drafter):
    timed = drafter.with_module(TimedHead(drafter.model.head))
    settings = {"rank": 3, "temperature": 1.0, "draft_length": 3, "max_new_tokens": 11, "seed": 4}

    expected = answers(ModelPair(target, drafter), PROMPTS, **settings)

    assert answers(ModelPair(target, timed), PROMPTS, **settings) == expected
    assert timed.describe(3)["num_parameters"] == drafter.describe(3)["num_parameters"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_mass_outside_over_judged_positions_by_hand(target, drafter, temperature):
    """Every judged position's prefix is read anew, whole."""
    truncated = drafter.with_head("truncated", 9)
    pair, kept = ModelPair(target, truncated), truncated.model.head.ids
    config = DecodeConfig(draft_length=3, max_new_tokens=11, temperature=temperature, seed=2)

    found = judged_mass_outside(pair, PROMPTS, config, kept)

    masses = []
    for prompt in PROMPTS:
        text = list(prompt)
        for event in decode(pair, [prompt], config):
            for place in range(event.num_tested):
                with torch.inference_mode():
                    logits = target.model(torch.tensor([[*text, *event.draft_ids[:place]]])).logits[0, -1]
                law = logits.softmax(0) if temperature else torch.eye(VOCAB)[logits.argmax()]
                masses.append(1 - float(law[kept].sum()))
            text += event.emitted_ids
    assert len(masses) > 20
    assert found == pytest.approx(sum(masses) / len(masses), abs=1e-4)
    assert 0 < found < 1


def test_mass_outside_of_a_run_that_judges_nothing(target, drafter):
    pair = ModelPair(target, drafter.with_head("truncated", 9))

    assert judged_mass_outside(pair, PROMPTS[:1], DecodeConfig(max_new_tokens=1), torch.arange(9)) is None
