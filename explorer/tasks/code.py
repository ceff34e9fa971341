"""Programs: MBPP (arXiv 2108.07732) and HumanEval (arXiv 2107.03374), scored by running their tests.

The answer may be a fenced block among prose, bare code, or for HumanEval the body that continues the prompt. It runs in
`sandbox.py`; its docstring says what that prevents and what not. `load_task` refuses both unless code is allowed.
"""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

from explorer.tasks.base import Example, Message, Task, assistant, by_hash, user
from explorer.tasks.records import need_data, read_jsonl
from explorer.tasks.sandbox import TIMEOUT_S, check_supported, run_tests

# No program of a few hundred tokens is longer; these bound the parsing below.
_MOST_CHARACTERS = 20_000
_MOST_LINES = 400
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)
_START = re.compile(r"^(?:def |class |import |from \w[\w.]* import |@\w|async def |[A-Za-z_]\w* = )", re.MULTILINE)


class Mbpp(Task):
    """Short functions; reward: the share of the three tests that pass. The tests are in the prompt, as published.

    Splits by task_id, as published: 1-10 for solved examples, 11-510 test, 511-600 validation, 601-974 train.
    """

    name = "mbpp"
    splits = ("train", "validation", "test")
    max_new_tokens = 256
    correct_at = 1.0
    runs_code = True
    most_shots = 10

    def __init__(self, data: Path | None = None, *, num_shots: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(data, num_shots=num_shots)
        self.timeout_s = timeout_s

    def _load(self, data: Path | None, num_shots: int) -> dict[str, list[Example]]:
        check_supported()
        fields = {"task_id": int, "text": str, "code": str, "test_list": list}
        parts: dict[str, list[Example]] = {split: [] for split in ("prompt", *self.splits)}
        records = {record["task_id"]: record for record in read_jsonl(need_data(data, self.name, fields), fields)}
        for task_id in sorted(records):
            record = records[task_id]
            meta = {"tests": record["test_list"], "setup": record.get("test_setup_code") or "", "task_id": task_id}
            prompt = [user(_mbpp_prompt(record["text"], record["test_list"]))]
            parts[_mbpp_split(task_id)].append(Example(prompt, record["code"].replace("\r\n", "\n").strip(), meta))
        turns: list[Message] = []
        for shot in parts.pop("prompt")[:num_shots]:
            turns += [*shot.prompt, assistant(f"```python\n{shot.reference}\n```")]
        return {
            split: [Example([*turns, *one.prompt], one.reference, one.meta) for one in part]
            for split, part in parts.items()
        }

    def reward(self, completion: str, example: Example) -> float:
        """Share of the tests passed, in [0, 1]; 0 if the program fails, leaves early or runs out of time."""
        code = extract_code(completion)
        if not code:
            return 0.0
        passed = run_tests(code, example.meta["tests"], setup=example.meta["setup"], timeout_s=self.timeout_s)
        return sum(passed) / len(passed) if passed else 0.0


class HumanEval(Task):
    """A function from its signature and docstring; reward 1 if its one `check` passes, else 0.

    The data has no splits of its own: half is held out by a hash of the prompt.
    """

    name = "humaneval"
    max_new_tokens = 384
    is_graded = False
    correct_at = 1.0
    runs_code = True

    def __init__(self, data: Path | None = None, *, num_shots: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(data, num_shots=num_shots)
        self.timeout_s = timeout_s

    def _load(self, data: Path | None, num_shots: int) -> dict[str, list[Example]]:  # noqa: ARG002
        check_supported()
        fields = dict.fromkeys(("task_id", "prompt", "entry_point", "canonical_solution", "test"), str)
        keyed = []
        for record in read_jsonl(need_data(data, self.name, fields), fields):
            prompt = [user(f"Complete this Python function.\n\n```python\n{record['prompt'].rstrip()}\n```")]
            meta = {name: record[name] for name in ("task_id", "prompt", "entry_point", "test")}
            keyed.append((record["prompt"], Example(prompt, record["canonical_solution"], meta)))
        return by_hash(keyed, share=0.5)

    def reward(self, completion: str, example: Example) -> float:
        """1 if the completed function passes its check, else 0."""
        meta = example.meta
        code = complete(completion, meta["prompt"], meta["entry_point"])
        test = f"{meta['test']}\ncheck({meta['entry_point']})"
        return float(all(run_tests(code, [test], timeout_s=self.timeout_s)))


def extract_code(completion: str, entry_point: str = "") -> str:
    """The program in an answer, or "" if there is none that parses.

    The first fenced Python block (the first that defines `entry_point`, if given and there is one; a fence may be left
    open), otherwise the text from its first line of code on; lines after it that do not parse are cut off.
    """
    text = completion[:_MOST_CHARACTERS].replace("\r\n", "\n")
    fenced = [match for match in _FENCE.finditer(text) if match[1].lower() in ("", "python", "py", "python3")]
    if fenced:
        defining = [match for match in fenced if entry_point and f"def {entry_point}(" in match[2]]
        return _parsing_part((defining or fenced)[0][2])
    start = _START.search(text)
    return _parsing_part(text[start.start() :]) if start else ""


def complete(completion: str, prompt: str, entry_point: str) -> str:
    """Program made of HumanEval's prompt and an answer that is either the whole function or its body."""
    code = extract_code(completion, entry_point)
    if f"def {entry_point}(" in code:
        # Imports and helper functions that stand before the one asked for.
        return prompt[: prompt.index(f"def {entry_point}")] + code
    body = completion[:_MOST_CHARACTERS]
    fence = _FENCE.search(body)
    return _parsing_part(prompt + (fence[2] if fence else body))


def _parsing_part(text: str) -> str:
    """The longest beginning of whole lines that is Python."""
    lines = text.rstrip().split("\n")[:_MOST_LINES]
    for end in range(len(lines), 0, -1):
        part = "\n".join(lines[:end])
        # Cutting within an indented block would only change what it does.
        is_outside = end == len(lines) or not lines[end].startswith((" ", "\t"))
        if is_outside and _parses(part):
            return part
    return ""


def _parses(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _mbpp_prompt(text: str, tests: list[str]) -> str:
    return f"Write a Python function. {text.strip()} Your code should pass these tests:\n\n" + "\n".join(tests)


def _mbpp_split(task_id: int) -> str:
    if task_id <= 10:
        return "prompt"
    return "test" if task_id <= 510 else "validation" if task_id <= 600 else "train"
