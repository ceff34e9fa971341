"""Generated problems: disjoint operands, one form, and a reward that is graded as documented."""

import pytest

from explorer.errors import SettingError
from explorer.tasks import load_task
from explorer.tasks.arithmetic import NOUNS, SHOTS, reward_last_integer, split_pairs


@pytest.fixture(scope="module")
def task():
    return load_task("arithmetic")


@pytest.fixture
def eggs(task):
    return next(one for one in task.examples("test") if one.reference == "9 + 6 = 15, so you have 15 eggs.")


def test_operands_are_split_54_to_27_and_mirrored_pairs_stay_together():
    train, test = split_pairs()
    assert (len(set(train)), len(set(test))) == (54, 27)
    assert not {frozenset(pair) for pair in train} & {frozenset(pair) for pair in test}
    assert {shot[:2] for shot in SHOTS} <= set(train)
    assert split_pairs() == (train, test)


def test_every_pair_meets_every_noun(task):
    train, test = task.examples("train"), task.examples("test")
    assert (len(train), len(test)) == (54 * 20, 27 * 20)
    asked = {split: {one.prompt[-1]["content"] for one in part} for split, part in (("a", train), ("b", test))}
    assert len(asked["a"]) == 1080
    assert len(asked["b"]) == 540
    assert not asked["a"] & asked["b"]
    assert len(set(NOUNS)) == 20


def test_prompt_is_a_chat_with_three_solved_examples(task):
    prompt = task.examples("test", limit=1)[0].prompt
    assert [turn["role"] for turn in prompt] == ["user", "assistant"] * 3 + ["user"]
    assert prompt[0]["content"] == "I have 2 tickets and I get 3 more. How many tickets do I have?"
    assert prompt[1]["content"] == "2 + 3 = 5, so you have 5 tickets."
    assert not {shot[2] for shot in SHOTS} & set(NOUNS)


def test_a_seed_orders_and_never_moves_between_splits(task):
    first, again, other = (task.examples("train", 50, seed) for seed in (1, 1, 2))
    assert first == again != other
    seen = {one.reference for seed in range(5) for one in task.examples("train", 200, seed)}
    assert not seen & {one.reference for one in task.examples("test")}


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("9 + 6 = 15, so you have 15 eggs.", 1.0),
        (" 9 + 6 = 15, so you have 15 eggs.\n", 1.0),
        ("9 + 6 = 15, so you have 15 egg", 0.7),
        ("9 + 6 = 15", 0.7),
        ("You have 15 eggs.", 0.5),
        ("9 + 6 = 14, so you have 15 eggs.", 0.5),
        ("9 + 6 = 15, so you have 9 eggs.", 0.2),
        ("9 + 6 = 14, so you have 14 eggs.", 0.0),
        ("9 + 6 = -15, so you have -15 eggs.", 0.0),
        ("9 + 6 = 1,515 eggs", 0.0),
        ("the of is the", 0.0),
        ("", 0.0),
    ],
)
def test_reward_is_graded(task, eggs, completion, reward):
    assert task.reward(completion, eggs) == pytest.approx(reward)
    assert reward_last_integer(completion, eggs) == float(reward >= 0.5)
    assert task.is_correct(reward) == (reward >= 0.5)


def test_every_reference_gets_everything(task):
    for one in task.examples("train") + task.examples("test"):
        assert task.reward(one.reference, one) == 1.0


def test_data_and_shots_are_refused(tmp_path):
    with pytest.raises(SettingError, match="makes its own examples and takes no data"):
        load_task("arithmetic", tmp_path / "x.jsonl")
    with pytest.raises(SettingError, match="num_shots is 3; arithmetic takes 0 to 0"):
        load_task("arithmetic", num_shots=3)
