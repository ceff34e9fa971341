"""Programs found in answers, and their share of passed tests."""

import time

import pytest

from explorer.errors import SettingError
from explorer.tasks import load_task
from explorer.tasks.code import complete, extract_code
from explorer.tasks.sandbox import run_tests

TIMEOUT_S = 20.0
ADD = "def add(a, b):\n    return a + b"
EVAL = {
    "prompt": 'import math\n\n\ndef one():\n    return 1\n\n\ndef inc(x: int) -> int:\n    """Add one.\n    """\n',
    "entry_point": "inc",
    "canonical_solution": "    return x + one()\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(-1) == 0\n",
}


def mbpp_record(task_id):
    return {
        "task_id": task_id,
        "text": f"Add two numbers, variant {task_id}.",
        "code": ADD.replace("\n", "\r\n"),
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 2) == 1"],
        "test_setup_code": "",
    }


@pytest.fixture
def mbpp(write_jsonl):
    path = write_jsonl([mbpp_record(i) for i in (1, 2, 10, 11, 510, 511, 600, 601, 974)])
    task = load_task("mbpp", path, allow_code=True)
    task.timeout_s = TIMEOUT_S
    return task


@pytest.fixture
def humaneval(write_jsonl):
    path = write_jsonl([{**EVAL, "task_id": f"HumanEval/{i}", "prompt": f"# {i}\n{EVAL['prompt']}"} for i in range(40)])
    task = load_task("humaneval", path, allow_code=True)
    task.timeout_s = TIMEOUT_S
    return task


@pytest.mark.parametrize("name", ["mbpp", "humaneval"])
def test_code_runs_only_when_allowed(name, tmp_path):
    with pytest.raises(SettingError, match=f"{name} runs code that the model wrote .* allow it with --allow-code"):
        load_task(name, tmp_path / "none.jsonl")
    with pytest.raises(SettingError, match=f"{name} needs data"):
        load_task(name, allow_code=True)


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (f"Here it is:\n```python\n{ADD}\n```\nEnjoy.", ADD),
        (f"```\n{ADD}\n```", ADD),
        (f"```py\n{ADD}", ADD),
        (f"```python\r\n{ADD}\r\n```".replace("\n", "\r\n"), ADD),
        (f"```bash\npip install x\n```\n```python\n{ADD}\n```", ADD),
        (f"```python\nx = 1\n```\nand\n```python\n{ADD}\n```", ADD),
        (f"Sure! This adds.\n\n{ADD}\n\nIt adds a and b, you see.", ADD),
        (ADD, ADD),
        (f"{ADD}\nprint(add(1, 2)", ADD),
        ("I cannot do that.", ""),
        ("def add(a, b:\n    return", ""),
        ("", ""),
    ],
)
def test_code_is_found(completion, code):
    assert extract_code(completion, "add").strip() == code


@pytest.mark.parametrize(
    ("completion", "is_right"),
    [
        ("    return x + one()\n", True),
        ("    return x + one()\n\n\nThis adds one.", True),
        ("```python\n    return x + 1\n```", True),
        ("```python\ndef inc(x):\n    return x + one()\n```", True),
        ("def inc(x: int) -> int:\n    return math.floor(x) + 1", True),
        ("    return x", False),
        ("It adds one.", False),
        ("", False),
        ("import sys; sys.exit(0)", False),
    ],
)
def test_humaneval_answers(humaneval, completion, is_right):
    example = humaneval.examples("test", 1)[0]
    assert humaneval.reward(completion, example) == float(is_right)


def test_humaneval_keeps_helpers_and_splits(humaneval):
    assert complete("def inc(x):\n    return 5", EVAL["prompt"], "inc").startswith("import math\n\n\ndef one()")
    train, test = humaneval.examples("train"), humaneval.examples("test")
    assert len(train) + len(test) == 40
    assert not {one.meta["task_id"] for one in train} & {one.meta["task_id"] for one in test}


def test_mbpp_splits_by_task_id(mbpp):
    ids = {split: sorted(one.meta["task_id"] for one in mbpp.examples(split)) for split in mbpp.splits}
    assert ids == {"train": [601, 974], "validation": [511, 600], "test": [11, 510]}
    with pytest.raises(SettingError, match="mbpp has no split 'prompt'; choose one of train, validation, test"):
        mbpp.examples("prompt")


def test_mbpp_shots(write_jsonl):
    path = write_jsonl([mbpp_record(i) for i in (601, 2, 1)])
    prompt = load_task("mbpp", path, allow_code=True, num_shots=2).examples("train")[0].prompt
    assert [turn["role"] for turn in prompt] == ["user", "assistant"] * 2 + ["user"]
    assert "variant 1." in prompt[0]["content"]
    assert prompt[1]["content"] == f"```python\n{ADD}\n```"
    assert "assert add(-1, 2) == 1" in prompt[-1]["content"]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (f"```python\n{ADD}\n```", 1.0),
        ("def add(a, b):\n    return abs(a) + b", 2 / 3),
        ("def add(a, b):\n    return 3", 1 / 3),
        ("def sub(a, b):\n    return a - b", 0.0),
        ("import os\nos._exit(0)", 0.0),
        (f"{ADD}\nraise SystemExit(0)", 0.0),
        ("def add(a, b:", 0.0),
        ("no code", 0.0),
    ],
)
def test_mbpp_reward_is_the_share_of_tests(mbpp, completion, reward):
    example = mbpp.examples("train", 1)[0]
    assert mbpp.reward(completion, example) == pytest.approx(reward)
    assert mbpp.is_correct(mbpp.reward(completion, example)) == (reward == 1.0)


def test_an_endless_answer_costs_its_time_and_no_more(mbpp):
    mbpp.timeout_s = 1.0
    start_s = time.monotonic()
    assert mbpp.reward("def add(a, b):\n    while True: pass", mbpp.examples("train", 1)[0]) == 0.0
    assert time.monotonic() - start_s < 10


@pytest.mark.parametrize("text", ["x\n" * 9000 + "(", "(\n" * 9000, "```\n" * 5000, "def f():\n" * 2000, "(" * 19_999])
def test_hostile_text_is_parsed_in_little_time(text):
    start_s = time.perf_counter()
    extract_code(text)
    assert time.perf_counter() - start_s < 5


def test_the_published_solutions_pass(data_file):
    mbpp = load_task("mbpp", data_file("mbpp.jsonl"), allow_code=True)
    humaneval = load_task("humaneval", data_file("humaneval.jsonl"), allow_code=True)
    assert [len(mbpp.examples(split)) for split in mbpp.splits] == [374, 90, 500]
    assert len(humaneval.examples("train")) + len(humaneval.examples("test")) == 164
    for task in (mbpp, humaneval):
        task.timeout_s = TIMEOUT_S
        for one in task.examples("test", 4, seed=1):
            assert task.reward(one.reference, one) == 1.0, one.meta["task_id"]
            assert task.reward("def nothing():\n    pass", one) < 1.0


def test_the_timeout_covers_code_and_tests_together():
    tests = ["import time; time.sleep(0.6)"] * 5
    assert run_tests("x = 1", tests, timeout_s=1.5) == [False] * 5
