"""Tasks: prompts, and how good an answer is, as a number in [0, 1]. No model, no engine, no torch.

A task owns its data and its reward. Training draws examples and scores what was sampled; benchmarks report the same
reward on held-out examples. `code.py` is the only one that runs what a model wrote, and only when told that it may.
"""

from __future__ import annotations

from pathlib import Path

from explorer.errors import SettingError
from explorer.tasks.arithmetic import Arithmetic
from explorer.tasks.base import Example, Task
from explorer.tasks.code import HumanEval, Mbpp
from explorer.tasks.fidelity import Fidelity
from explorer.tasks.gsm8k import Gsm8k
from explorer.tasks.summaries import CnnDm, Xsum

__all__ = ["TASKS", "Example", "Task", "load_task"]

TASKS: dict[str, type[Task]] = {
    "arithmetic": Arithmetic,
    "gsm8k": Gsm8k,
    "mbpp": Mbpp,
    "humaneval": HumanEval,
    "cnndm": CnnDm,
    "xsum": Xsum,
    "fidelity": Fidelity,
}


def load_task(name: str, data: Path | None = None, *, allow_code: bool = False, num_shots: int = 0) -> Task:
    """The task of that name, its data read.

    Args:
        name: One of `TASKS`.
        data: JSONL file of the task (gsm8k: also a folder with a train and a test file); arithmetic takes none,
            fidelity and gsm8k can do without.
        allow_code: Whether code written by the model may run on this machine; mbpp and humaneval need it.
        num_shots: Solved examples put before every question, for the tasks that take any.

    Raises:
        SettingError: No such task, code that is not allowed to run, or data that is missing or malformed.
    """
    if name not in TASKS:
        raise SettingError(f"There is no task {name!r}; choose one of {', '.join(TASKS)}.")
    if TASKS[name].runs_code and not allow_code:
        raise SettingError(
            f"{name} runs code that the model wrote on this machine, which is off by default; allow it with "
            "--allow-code if you accept that, or choose another task."
        )
    return TASKS[name](data, num_shots=num_shots)
