"""Fronts and differences by hand; answers counted as decode() counts them; a report on a toy."""

import json

import pytest
import torch
from toys import prompts_of, toy_pair
from toys import run as decode_run

from explorer.benchmarks.answers import Answer, answer_all
from explorer.benchmarks.config import ParetoConfig
from explorer.benchmarks.front import Sample, compare, difference, point_of, time_sharing
from explorer.benchmarks.pareto import measure, rules_of, sure_head
from explorer.benchmarks.report import pareto_text
from explorer.engine.config import DecodeConfig
from explorer.engine.metrics import count
from explorer.engine.pair import ModelPair
from explorer.heads.ensemble import EnsembleHead, law_figures
from explorer.tasks.base import Example, Task, user


def sample(points, answers=1):
    """A sample with `answers` answers per prompt, given (reward, accepted, drafted) of each prompt."""
    made = Sample([], [], [], [], 2.0, 3.0)
    for number, (reward, accepted, drafted) in enumerate(points):
        for _ in range(answers):
            made.prompts.append(number)
            made.answers.append(Answer([1] * 10, 5, drafted, drafted, accepted, float(accepted), 1.0, 0.5, 1.5))
            made.rewards.append(reward)
            made.correct.append(reward >= 0.5)
    return made


def test_a_point_by_hand():
    point = point_of(sample([(1.0, 6, 10), (0.0, 2, 10)]), sample([(1.0, 0, 0)]))
    assert point["reward"] == [0.5, 0.0, 1.0]
    assert point["acceptance"] == [0.4, 0.2, 0.6]
    assert point["acceptance_in_correct"] == 0.6
    assert point["tau"] == [2.0, 2.0, 2.0]
    assert point["accepted_per_round"] == point["expected_per_round"] == 0.8
    assert (point["rejection"], point["bias"], point["distance"]) == (0.1, 0.05, 0.15)
    assert point["ratio_to_ar"] == 2.0


def test_a_sample_above_a_front_by_hand():
    """The front runs from (.4, 1) to (.8, .2); at .6 it is at .6."""
    front = [sample([(1.0, 4, 10)] * 4), sample([(0.2, 8, 10)] * 4)]
    assert compare(sample([(0.9, 6, 10)] * 4), front) == pytest.approx([0.3, 0.3, 0.3])
    assert compare(sample([(0.1, 9, 10)] * 4), front) == pytest.approx([-0.1, -0.1, -0.1])
    assert compare(sample([(0.9, 6, 10)] * 4), front[:1]) is None


def test_time_sharing_by_hand():
    """Half of the answers exact (.4 of 10) and half of the drafter's (10 of 10): 7 of 10 accepted, reward .5."""
    exact, drafter = sample([(1.0, 4, 10)] * 3), sample([(0.0, 10, 10)] * 3)
    assert time_sharing(sample([(0.6, 7, 10)] * 3), exact, drafter) == pytest.approx([0.1, 0.1, 0.1])
    # The drafter's answers hold twice as many drafts here: two thirds must be exact for 7 of 10 to be accepted.
    longer = sample([(0.0, 20, 20)] * 3)
    assert time_sharing(sample([(0.6, 7, 10)] * 3), exact, longer)[0] == pytest.approx(0.6 - 2 / 3, abs=1e-4)


def test_differences_are_paired_by_prompt():
    one, two = sample([(1.0, 5, 10), (0.2, 7, 10)]), sample([(0.9, 4, 10), (0.1, 6, 10)])
    assert difference(one, two, "reward") == pytest.approx([0.1, 0.1, 0.1])
    assert difference(one, two, "acceptance") == pytest.approx([0.1, 0.1, 0.1])


@pytest.mark.parametrize("settings", [{"rule": "exact"}, {"rule": "static", "target_weight": 0.5}, {"rule": "lossy"}])
def test_answers_are_counted_as_decode_counts_them(settings):
    pair, prompts = toy_pair("llama"), prompts_of((3, 8, 1))
    settings = {"temperature": 0.9, "max_new_tokens": 20, "draft_length": 3, "seed": 4} | settings
    answers, seconds = answer_all(pair, prompts, DecodeConfig(**settings), torch.Generator().manual_seed(4))
    events = decode_run(pair, prompts, details=True, **settings)
    for row, answer in enumerate(answers):
        own = [event for event in events if event.row == row]
        counts = count(own)
        assert answer.ids == [token for event in own for token in event.emitted_ids]
        assert (answer.num_rounds, answer.num_drafted) == (counts.num_rounds, counts.num_drafted)
        assert (answer.num_tested, answer.num_accepted) == (counts.num_tested, counts.num_accepted)
        tested = [t for event in own for t in event.details[: event.num_tested]]
        assert answer.distance == pytest.approx(sum(1 - t.overlap for t in tested), abs=1e-3)
        expected = 0.0
        for event in own:
            alive = 1.0
            for token in event.details[: len(event.draft_ids)]:
                alive *= token.accept_prob
                expected += alive
        assert answer.expected == pytest.approx(expected, abs=1e-3)
        if settings["rule"] != "lossy":
            weight = settings.get("target_weight", 1.0)
            assert answer.rejection == pytest.approx(weight * answer.distance, abs=1e-4)
            assert answer.rejection + answer.bias == pytest.approx(answer.distance, abs=1e-4)
        else:
            assert answer.rejection != answer.rejection
    assert seconds > 0


def test_expected_and_measured_accepted_drafts_agree():
    pair = toy_pair("llama")
    config = DecodeConfig(rule="static", target_weight=0.6, temperature=1.0, max_new_tokens=40, draft_length=4)
    answers, _ = answer_all(pair, prompts_of((3,)) * 150, config, torch.Generator().manual_seed(1))
    rounds = sum(answer.num_rounds for answer in answers)
    expected = sum(answer.expected for answer in answers) / rounds
    assert sum(answer.num_accepted for answer in answers) / rounds == pytest.approx(expected, rel=0.05)


def test_the_sure_rule_trusts_the_target_where_its_law_is_sharp():
    pair = toy_pair("llama")
    head = sure_head(pair, 1.0)
    sharp, flat = torch.tensor([0.97, 0.01, 0.01, 0.01]), torch.full((4,), 0.25)
    figures = law_figures(torch.stack([sharp, flat]), torch.stack([flat, flat]))
    weights = head(head.gather(torch.zeros(2, 1), torch.zeros(2, 1), figures))
    assert weights[0] > 0.99
    assert weights[1] < 0.01


class Letters(Task):
    name = "letters"
    max_new_tokens = 8
    correct_at = 0.5
    takes_data = False

    def _load(self, data, num_shots):
        return {"train": [Example([user("abc")])], "test": [Example([user(word)]) for word in ("zebra", "fox", "hi")]}

    def reward(self, completion, example):
        letters = completion.replace(" ", "")
        return sum(letter < "n" for letter in letters) / max(len(letters), 1)


def test_a_report_compares_every_rule_and_its_rivals():
    pair = toy_pair("llama")
    head = EnsembleHead(pair.drafter.hidden_size, pair.target.hidden_size, "both", 0.7)
    config = ParetoConfig(answers=2, limit=3, draft_length=(2,), weight=(1.0, 0.5, 0.0), lenience=(0.5,)).filled()
    report = measure(ModelPair(pair.target, pair.drafter), Letters(), {"mine": head}, config)
    labels = [row["label"] for row in report["rows"]]
    assert labels == [
        "autoregressive", "exact", "static 1", "static 0.5", "static 0", "lossy 0.5", "sure where H(p) < 1", "mine",
    ]  # fmt: skip
    by_label = {row["label"]: row for row in report["rows"]}
    assert by_label["autoregressive"]["acceptance"] is None
    assert by_label["static 0"]["acceptance"] == [1.0, 1.0, 1.0]
    assert by_label["exact"]["reward"] == by_label["static 1"]["reward"]
    for name in ("mine", "sure where H(p) < 1"):
        for key in ("above_static", "above_time_sharing", "reward_to_exact", "acceptance_to_exact"):
            value, low, high = by_label[name][key]
            assert low <= value <= high
    text = pareto_text(report)
    assert "mine: above the static front by" in text
    assert "K = 2, temperature 1" in text
    json.dumps(report, allow_nan=False)


def test_greedy_answers_are_written_once():
    pair = toy_pair("llama")
    config = ParetoConfig(answers=5, temperature=(0.0,), draft_length=(2,), weight=(1.0,), lenience=(0.5,)).filled()
    report = measure(ModelPair(pair.target, pair.drafter), Letters(), {}, config)
    assert {row["num_answers"] for row in report["rows"]} == {3}
    assert len(list(rules_of(pair, {}, config))) == 5
