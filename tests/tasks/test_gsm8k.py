"""GSM8K: numbers compared as numbers, and train and test that never meet."""

import sys
import types

import pytest

from explorer.errors import SettingError
from explorer.tasks import load_task
from explorer.tasks.base import Example
from explorer.tasks.gsm8k import Gsm8k


def records(count, start=0):
    return [
        {"question": f"What is {i} + 1?", "answer": f"It is <<{i}+1={i + 1}>>{i + 1}.\n#### {i + 1:,}"}
        for i in range(start, start + count)
    ]


def questions(examples):
    return {one.prompt[-1]["content"] for one in examples}


def test_one_file_is_split_by_a_hash(write_jsonl):
    task = load_task("gsm8k", write_jsonl(records(300) + records(20)))
    train, test = task.examples("train"), task.examples("test")
    assert len(train) + len(test) == 300
    assert 15 <= len(test) <= 50
    assert not questions(train) & questions(test)
    assert questions(test) == questions(task.examples("test", seed=7))
    other = load_task("gsm8k", write_jsonl(list(reversed(records(300)))))
    assert questions(other.examples("test")) == questions(test)


def test_a_folder_gives_both_and_what_is_in_both_is_only_tested(write_jsonl, tmp_path):
    write_jsonl(records(20), "gsm8k_train_part.jsonl")
    write_jsonl(records(10, start=15), "gsm8k_test_part.jsonl")
    task = load_task("gsm8k", tmp_path)
    assert (len(task.examples("train")), len(task.examples("test"))) == (15, 10)
    assert not questions(task.examples("train")) & questions(task.examples("test"))
    write_jsonl(records(3), "train.jsonl")
    with pytest.raises(SettingError, match="found: gsm8k_train_part.jsonl, train.jsonl"):
        load_task("gsm8k", tmp_path)


def test_without_data_it_asks_the_hub(monkeypatch):
    parts = {"train": records(5), "test": records(5, start=3)}
    fake = types.SimpleNamespace(load_dataset=lambda name, config, split: parts[split])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    task = load_task("gsm8k")
    assert (len(task.examples("train")), len(task.examples("test"))) == (3, 5)


def test_shots_come_from_training_and_are_asked_no_more(write_jsonl):
    path = write_jsonl(records(300))
    plain, shot = load_task("gsm8k", path), load_task("gsm8k", path, num_shots=3)
    prompt = shot.examples("test", 1)[0].prompt
    assert [turn["role"] for turn in prompt] == ["user", "assistant"] * 3 + ["user"]
    assert "<<" not in prompt[1]["content"]
    assert prompt[1]["content"].startswith("It is ")
    shown = {turn["content"] for turn in prompt[:-1:2]}
    assert len(shown) == 3
    assert not shown & questions(shot.examples("train"))
    assert questions(shot.examples("train")) | shown == questions(plain.examples("train"))
    assert questions(shot.examples("test")) == questions(plain.examples("test"))
    with pytest.raises(SettingError, match="num_shots is 9; gsm8k takes 0 to 8"):
        load_task("gsm8k", path, num_shots=9)


@pytest.mark.parametrize(
    ("completion", "reference", "reward"),
    [
        ("#### 1,234", "1234", 1),
        ("The answer is $1,234.00", "1234", 1),
        ("1,234 apples", "234", 0),
        ("so -10 degrees", "-10", 1),
        ("so 10 degrees", "-10", 0),
        ("The answer is -3.50", "-7/2", 1),
        ("half, that is 1/2", "0.5", 1),
        ("12 %", "12", 1),
        ("I don't know", "0", 0),
        ("", "0", 0),
    ],
)
def test_reward_compares_numbers(write_jsonl, completion, reference, reward):
    task = Gsm8k(write_jsonl(records(40) + [{"question": "x", "answer": f"#### {reference}"}]))
    all_examples = task.examples("train") + task.examples("test")
    example = next(
        one for one in all_examples if one.reference == reference and one.prompt[0]["content"].endswith("\nx")
    )
    assert task.reward(completion, example) == reward
    assert task.is_correct(task.reward(completion, example)) == bool(reward)


def test_references_without_a_number_are_refused(write_jsonl):
    with pytest.raises(SettingError, match='data.jsonl, record 2, has an answer without a number after "####"'):
        load_task("gsm8k", write_jsonl([*records(1), {"question": "x", "answer": "12"}]))


def test_the_real_files(data_file):
    task = load_task("gsm8k", data_file("gsm8k_test_part.jsonl").parent)
    train, test = task.examples("train"), task.examples("test")
    assert len(test) == 660
    assert 4900 < len(train) <= 5000
    assert not questions(train) & questions(test)
    for one in train[:500] + test:
        assert isinstance(one, Example)
        assert task.reward(one.meta["solution"], one) == 1.0
        assert task.reward(f"So the answer is ${one.reference}.00.", one) == 1.0
