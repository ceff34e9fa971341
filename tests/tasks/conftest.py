"""Where the data of the tasks is on this machine; tests that need it skip where it is not."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def data_file():
    """Function from a file name to its path; skips where the file is absent."""
    folder = Path(os.environ.get("EXPLORER_DATA", ROOT.parent / "shared" / "data"))

    def find(name):
        path = folder / name
        if not path.exists():
            pytest.skip(f"{path} is absent; set EXPLORER_DATA to the folder that holds it")
        return path

    return find


@pytest.fixture
def write_jsonl(tmp_path):
    """Function that writes records to a JSONL file and returns its path."""

    def write(records, name="data.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    return write
