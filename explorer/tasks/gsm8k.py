"""Grade-school word problems (GSM8K, arXiv 2110.14168): right if the number arrived at is the reference's.

The data is a JSONL file (split by a hash of the question), a folder with one file for each split, or, without a path,
`openai/gsm8k` through the `datasets` package.
"""

from __future__ import annotations

import re
from pathlib import Path

from explorer.errors import SettingError
from explorer.tasks.answers import final_answer
from explorer.tasks.base import Example, Message, Task, assistant, by_hash, normalise, user
from explorer.tasks.records import Record, from_hub, read_jsonl

FIELDS = {"question": str, "answer": str}
TEST_SHARE = 0.1
_INSTRUCTION = 'Solve the problem step by step. End with a line "#### " followed by the answer as a number.'
# GSM8K writes 48/2 = <<48/2=24>>24 for a calculator; a model that has none should not imitate it.
_CALCULATOR = re.compile(r"<<[^<>]*>>")


class Gsm8k(Task):
    """Reward 1 if the answer states the reference's number, else 0."""

    name = "gsm8k"
    max_new_tokens = 256
    is_graded = False
    correct_at = 1.0
    most_shots = 8

    def _load(self, data: Path | None, num_shots: int) -> dict[str, list[Example]]:
        if data is not None and not data.is_dir():
            splits = by_hash(_keyed(read_jsonl(data, FIELDS), str(data)), TEST_SHARE)
        else:
            splits = _two_sources(data)
        if num_shots == 0:
            return splits
        # What is shown solved is asked no more.
        shown, train = splits["train"][:num_shots], splits["train"][num_shots:]
        turns: list[Message] = [
            turn for shot in shown for turn in (*shot.prompt, assistant(str(shot.meta["solution"])))
        ]
        return {
            split: [Example([*turns, *one.prompt], one.reference, one.meta) for one in part]
            for split, part in {"train": train, "test": splits["test"]}.items()
        }

    def reward(self, completion: str, example: Example) -> float:
        """1 if the number arrived at (see `final_answer`) equals the reference's, else 0."""
        number = final_answer(completion)
        return float(number is not None and number == example.meta["number"])


def _two_sources(folder: Path | None) -> dict[str, list[Example]]:
    """Train and test from two files or two splits of the Hub; what is in both is kept for the test only."""
    parts: dict[str, dict[str, Example]] = {}
    for split in ("train", "test"):
        if folder is None:
            records, where = from_hub("openai/gsm8k", "main", split, FIELDS), f"openai/gsm8k, {split}"
        else:
            path = _only_file(folder, split)
            records, where = read_jsonl(path, FIELDS), str(path)
        parts[split] = {normalise(key): example for key, example in _keyed(records, where)}
    train = [example for key, example in parts["train"].items() if key not in parts["test"]]
    return {"train": train, "test": list(parts["test"].values())}


def _only_file(folder: Path, split: str) -> Path:
    found = sorted({*folder.glob(f"gsm8k_{split}*.jsonl"), *folder.glob(f"{split}*.jsonl")})
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise SettingError(
            f"{folder} must hold one file gsm8k_{split}*.jsonl or {split}*.jsonl for gsm8k; found: {names}. "
            "Give one JSONL file instead to split it here."
        )
    return found[0]


def _keyed(records: list[Record], where: str) -> list[tuple[str, Example]]:
    return [(record["question"], _example(record, f"{where}, record {i},")) for i, record in enumerate(records, 1)]


def _example(record: Record, where: str) -> Example:
    reference = record["answer"].rpartition("####")[2].strip()
    number = final_answer(reference) if "####" in record["answer"] else None
    if number is None:
        raise SettingError(f'{where} has an answer without a number after "####". Mend or delete it.')
    solution = _CALCULATOR.sub("", record["answer"]).strip()
    prompt = [user(f"{_INSTRUCTION}\n\n{record['question'].strip()}")]
    return Example(prompt, reference, {"number": number, "solution": solution})
