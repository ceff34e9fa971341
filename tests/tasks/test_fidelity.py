"""From a mean log-probability to a reward, and the prompts."""

import math

import pytest

from explorer.errors import SettingError
from explorer.tasks import load_task
from explorer.tasks.fidelity import TEST_PROMPTS, TRAIN_PROMPTS


@pytest.fixture(scope="module")
def task():
    return load_task("fidelity")


@pytest.mark.parametrize(
    ("mean_logprob", "reward"),
    [(0.0, 1.0), (math.log(0.5), 0.5), (-1.0, math.exp(-1)), (-1e9, 0.0), (-math.inf, 0.0), (1e-6, 1.0)],
)
def test_reward_is_the_geometric_mean_probability(task, mean_logprob, reward):
    example = task.examples("test", 1)[0]
    assert task.needs_logprobs
    assert task.reward("An answer.", example, mean_logprob=mean_logprob) == pytest.approx(reward)
    assert task.reward(" \n", example, mean_logprob=mean_logprob) == 0.0


def test_it_is_a_mean_over_tokens(task):
    probs = [0.5, 0.25, 1.0]
    mean_logprob = sum(map(math.log, probs)) / 3
    assert task.reward("a b c", task.examples("test", 1)[0], mean_logprob) == pytest.approx(0.5)


@pytest.mark.parametrize("mean_logprob", [math.nan, 0.5, math.inf])
def test_what_is_no_logprob_is_refused(task, mean_logprob):
    with pytest.raises(SettingError, match=f"mean_logprob is {mean_logprob}; a mean log-probability is .* at most 0"):
        task.reward("a", task.examples("test", 1)[0], mean_logprob)
    with pytest.raises(SettingError, match="fidelity scores nothing without mean_logprob"):
        task.reward("a", task.examples("test", 1)[0])


def test_prompts_built_in_and_from_a_file(task, write_jsonl):
    assert not set(TRAIN_PROMPTS) & set(TEST_PROMPTS)
    assert {one.prompt[0]["content"] for one in task.examples("train")} == set(TRAIN_PROMPTS)
    own = load_task("fidelity", write_jsonl([{"prompt": f"Say {i}."} for i in range(50)] + [{"prompt": " "}]))
    assert len(own.examples("train")) + len(own.examples("test")) == 50
    with pytest.raises(SettingError, match="line 1, has no prompt"):
        load_task("fidelity", write_jsonl([{"question": "a"}]))


def test_the_real_prompts(data_file):
    task = load_task("fidelity", data_file("instruct_prompts.jsonl"))
    train, test = ({one.prompt[0]["content"] for one in task.examples(split)} for split in task.splits)
    assert len(train) > 3 * len(test) > 3000
    assert not train & test
