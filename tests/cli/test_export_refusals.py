"""`export` refuses in one sentence, and then nothing is written and nothing is lost."""

import pytest
import torch
from exporting import run, save_drafter
from plain_eagle import LAYERS, VOCAB, deep_target
from toys import language_model, random_network

from explorer.engine import export, loading
from explorer.errors import WeightsError


@pytest.fixture
def target(monkeypatch):
    """What `export` loads instead of a model."""
    toy = deep_target()
    monkeypatch.setattr(export, "load_model", lambda *_: toy)
    return toy


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out="], "out is empty; give the folder"),
        (["--layout=gguf"], "Argument --layout: invalid choice: 'gguf'"),
        (["--trim=-1"], "trim is -1; it must be in [0, "),
        (["--trim=5", "--no-merge"], "trim is 5 and merge is off; a head in two factors speaks of all tokens."),
        (["--trim=5"], "trim is 5, but the drafter "),
        ([], "No drafter for deep toy is bundled. Give the folder of one as --drafter, or fit one"),
        (["--drafter=nowhere"], "nowhere is not a checkpoint: meta.json cannot be read."),
    ],
)
def test_bad_flags(tmp_path, target, capsys, monkeypatch, words, message):
    monkeypatch.setattr(loading, "CHECKPOINTS", tmp_path)
    source = save_drafter(tmp_path / "source.d", target)
    given = [] if not words or words[0].startswith("--drafter") else ["--drafter", source]
    if not words:
        monkeypatch.setattr(loading, "CHECKPOINTS", tmp_path / "none")
    assert run("--out", tmp_path / "out", *given, *words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[: len(message)]) == ("", 1, message)
    assert [path.name for path in tmp_path.iterdir()] == ["source.d"]


@pytest.mark.parametrize(
    ("counts", "trim", "message"),
    [
        (torch.ones(VOCAB, dtype=torch.int32), 65, "trim is 65; it must be in [2, 64], or 0 to keep all."),
        (torch.ones(VOCAB, dtype=torch.int32), 1, "trim is 1; it must be in [2, 64], or 0 to keep all."),
        (torch.ones(9, dtype=torch.int32), 5, "token_counts of the drafter "),
        (torch.ones(VOCAB), 5, "token_counts of the drafter "),
        (-torch.ones(VOCAB, dtype=torch.int32), 5, "token_counts of the drafter "),
    ],
)
def test_bad_counts(tmp_path, target, capsys, counts, trim, message):
    target.end_ids = frozenset({0, 1})
    source = save_drafter(tmp_path / "source", target, token_counts=counts)
    assert run("--drafter", source, f"--trim={trim}", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (tmp_path / "out").exists()


def test_folders_of_other_things_are_not_replaced(tmp_path, target, capsys):
    source = save_drafter(tmp_path / "source", target)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert run("--drafter", source, "--out", source) == 2
    assert "which holds index.json and would be replaced. Choose a new folder." in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    (tmp_path / "file").write_text("mine")
    assert run("--drafter", source, "--out", tmp_path / "file") == 2
    assert "which is no folder (Not a directory)" in capsys.readouterr().err
    for layout in ("eagle3", "speculators"):
        assert run("--drafter", source, "--layout", layout, "--out", tmp_path / "out") == 0, "an export may be replaced"


def test_a_full_disk_leaves_the_earlier_export(tmp_path, target, capsys, monkeypatch):
    source, out = save_drafter(tmp_path / "source", target), tmp_path / "out"
    assert run("--drafter", source, "--out", out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def save_file(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_file", save_file)
    assert run("--drafter", source, "--layout=speculators", "--out", out) == 2
    assert "could not be written (No space left on device); nothing was changed." in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_drafters_that_engines_cannot_take(tmp_path, target, capsys, monkeypatch):
    source = save_drafter(tmp_path / "last", target, features=(2, 3, LAYERS))
    assert run("--drafter", source, "--out", tmp_path / "out") == 2
    assert "reads the last state of deep toy, which engines do not hand out." in capsys.readouterr().err
    padded = language_model(random_network("qwen3", 3, VOCAB + 6), name="padded")
    monkeypatch.setattr(export, "load_model", lambda *_: padded)
    source = save_drafter(tmp_path / "padded", padded)
    assert run("--drafter", source, "--no-merge", "--out", tmp_path / "out") == 2
    assert "padded has 70 rows for 64 tokens; a head in two factors must have one row" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_numbers_too_large_for_the_file(tmp_path):
    with pytest.raises(WeightsError, match=r"x does not fit torch.bfloat16; the drafter cannot be exported"):
        export.write(tmp_path / "out", {"x": torch.tensor([torch.inf])}, {})
    assert not list(tmp_path.iterdir())
