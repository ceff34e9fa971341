"""What holds for every task: names, splits, limits, seeds, and rewards that never leave [0, 1]."""

import random
import string

import pytest

from explorer.errors import SettingError
from explorer.tasks import TASKS, load_task
from explorer.tasks.base import is_held_out, normalise
from tests.tasks.test_code import EVAL, mbpp_record

WORDS = [
    "####", "\\boxed{", "}", "answer is", "=", "15", "-3", "1,234", "9" * 400, "1/0", "def add(a, b):", "\n", "```",
    "return", "    ", "nan", "\ud800", "\0", "猫", "$", "%", ".", "so you have", "raise SystemExit",
]  # fmt: skip


def load(name, write_jsonl):
    """Every task on a little data of its own."""
    records = {
        "gsm8k": [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(60)],
        "mbpp": [mbpp_record(i) for i in (11, 601)],
        "humaneval": [{**EVAL, "task_id": str(i), "prompt": f"# {i}\n{EVAL['prompt']}"} for i in range(40)],
        "cnndm": [{"article": f"story {i}", "highlights": "so you have 15"} for i in range(60)],
        "xsum": [{"document": f"story {i}", "summary": "so you have 15"} for i in range(60)],
    }
    if name in ("cnndm", "xsum"):
        pytest.importorskip("rouge_score", reason="rouge-score is not installed: pip install rouge-score==0.1.2")
    path = write_jsonl(records[name]) if name in records else None
    return load_task(name, path, allow_code=True)


def random_texts(count):
    chance = random.Random(3)
    for number in range(count):
        if number % 2:
            yield " ".join(chance.choices(WORDS, k=chance.randrange(30)))
        else:
            yield "".join(chance.choices(string.printable + "é€\u2212²٣", k=chance.randrange(200)))


@pytest.mark.parametrize("name", TASKS)
def test_rewards_stay_between_0_and_1(name, write_jsonl, monkeypatch):
    task = load(name, write_jsonl)
    assert task.name == name
    example = task.examples("test", 1)[0]
    options = {"mean_logprob": -1.0} if task.needs_logprobs else {}
    if task.runs_code:
        # Random text hardly ever is a program; starting a process for each would only take time.
        monkeypatch.setattr("explorer.tasks.code.run_tests", lambda code, tests, **_: [bool(code)] * len(tests))
    for text in random_texts(400):
        reward = task.reward(text, example, **options)
        assert isinstance(reward, float)
        assert 0.0 <= reward <= 1.0
        assert task.is_graded or reward in (0.0, 1.0)
        assert task.is_correct(reward) in ((None,) if task.correct_at is None else (True, False))


@pytest.mark.parametrize("name", ["mbpp", "humaneval"])
def test_rewards_of_random_programs(name, write_jsonl):
    task = load(name, write_jsonl)
    example = task.examples("test", 1)[0]
    assert {task.reward(text, example) for text in random_texts(8)} <= {0.0}


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_disjoint_limited_and_seeded(name, write_jsonl):
    task = load(name, write_jsonl)
    prompts = {
        split: {one.prompt[-1]["content"] for one in task.examples(split)}
        for split in task.splits
        if split != "validation"
    }
    assert not prompts["train"] & prompts["test"]
    assert len(task.examples("test", limit=1)) == 1
    assert len(task.examples("test", limit=10**6)) == len(task.examples("test"))
    assert task.examples("train", 5, seed=3) == task.examples("train", 5, seed=3)
    assert {turn["role"] for one in task.examples("test") for turn in one.prompt} <= {"user", "assistant"}
    assert task.max_new_tokens > 0
    with pytest.raises(SettingError, match="has no split 'dev'; choose one of train"):
        task.examples("dev")
    with pytest.raises(SettingError, match="limit is 0; it must be at least 1"):
        task.examples("test", limit=0)


def test_unknown_names_and_empty_splits(write_jsonl):
    with pytest.raises(SettingError, match="no task 'gsm9k'; choose one of arithmetic, gsm8k, mbpp"):
        load_task("gsm9k")
    task = load_task("mbpp", write_jsonl([mbpp_record(11)]), allow_code=True)
    with pytest.raises(SettingError, match="The data of mbpp has nothing for its train split"):
        task.examples("train")


def test_held_out_is_a_share_and_ignores_case_and_spaces():
    share = sum(is_held_out(f"prompt {i}", 0.2) for i in range(5000)) / 5000
    assert share == pytest.approx(0.2, abs=0.02)
    assert not any(is_held_out(f"prompt {i}", 0.0) for i in range(100))
    assert all(is_held_out("A  b\n", 0.5) == is_held_out("a B", 0.5) for _ in range(3))
    assert normalise(" A  b\n") == "a b"
