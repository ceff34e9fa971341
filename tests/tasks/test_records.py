"""Reading data: what is wrong, in which file, on which line, and what to do."""

import sys
import types

import pytest

from explorer.errors import SettingError
from explorer.tasks.records import from_hub, need_data, read_jsonl

FIELDS = {"question": str, "answer": str}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"question": "a", "answer": "b"}\n\n{"question": "a"}\n',
            r"bad.jsonl, line 3, has no answer; .*question, answer",
        ),
        ('{"question": "a", "answer": "b"}\nnope\n', "bad.jsonl, line 2, is not JSON .* Mend or delete"),
        ('["a"]\n', "bad.jsonl, line 1, is a list; it must be an object with question, answer"),
        ('{"question": "a", "answer": 3}\n', "bad.jsonl, line 1, has 3 as answer; it must be of type str"),
        ("\n\n", "bad.jsonl holds no records"),
        ("[" * 100_000, "bad.jsonl, line 1, is not JSON"),
    ],
)
def test_malformed_lines_are_named(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingError, match=message):
        read_jsonl(path, FIELDS)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SettingError, match="none.jsonl cannot be read .*No such file.* Give a JSONL file"):
        read_jsonl(tmp_path / "none.jsonl", FIELDS)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(SettingError, match="latin.jsonl is not UTF-8"):
        read_jsonl(tmp_path / "latin.jsonl", FIELDS)
    with pytest.raises(SettingError, match="gsm8k needs data: give a JSONL file with the fields question, answer"):
        need_data(None, "gsm8k", FIELDS)


def test_line_separators_inside_strings_end_no_record(tmp_path):
    path = tmp_path / "ok.jsonl"
    path.write_text('\ufeff{"question": "a\u2028b", "answer": "c", "more": 1}\r\n', encoding="utf-8")
    assert read_jsonl(path, FIELDS) == [{"question": "a\u2028b", "answer": "c", "more": 1}]


def test_a_bool_is_no_number(tmp_path):
    path = tmp_path / "bool.jsonl"
    path.write_text('{"task_id": true}\n', encoding="utf-8")
    with pytest.raises(SettingError, match="has True as task_id; it must be of type int"):
        read_jsonl(path, {"task_id": int})


def test_hub_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SettingError, match="not installed. Give a JSONL file .* pip install datasets"):
        from_hub("openai/gsm8k", "main", "train", FIELDS)


def test_hub_offline_and_online(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=refuse))
    with pytest.raises(SettingError, match="openai/gsm8k could not be fetched .no route.. .* or go online"):
        from_hub("openai/gsm8k", "main", "train", FIELDS)
    rows = [{"question": "a", "answer": "b"}, {"question": "a"}]
    fake = types.SimpleNamespace(load_dataset=lambda name, config, split: rows[: 1 if split == "train" else 2])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert from_hub("openai/gsm8k", "main", "train", FIELDS) == rows[:1]
    with pytest.raises(SettingError, match="openai/gsm8k, test, row 2, has no answer"):
        from_hub("openai/gsm8k", "main", "test", FIELDS)
