"""Checkpoints come back as they were saved, are refused by a clear sentence, and survive a full disk."""

import errno
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import Generator

from explorer.errors import ModelPairError, WeightsError
from explorer.heads import checkpoint

TARGET = {"name": "toy", "fingerprint": "0123456789abcdef", "hidden_size": 8, "vocab_size": 50, "num_layers": 2}


def weights_of(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = Generator().manual_seed(seed)
    return {
        "wide": torch.randn(101, 30, generator=generator),
        "half": torch.randn(3, 7, generator=generator).bfloat16(),
        "scalar": torch.tensor(2.5),
        "transposed": torch.randn(9, 40, generator=generator).t(),
    }


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 2000)


@pytest.fixture
def folder(tmp_path):
    checkpoint.save(tmp_path / "made" / "here", weights_of(), {"kind": "drafter", "target": TARGET})
    return tmp_path / "made" / "here"


def assert_same(loaded: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> None:
    assert list(loaded) == list(saved)
    for name, weight in saved.items():
        assert loaded[name].dtype == weight.dtype
        assert torch.equal(loaded[name], weight)


def test_round_trip_in_small_shards(folder):
    weights, meta = checkpoint.load(folder, target=TARGET)

    assert_same(weights, weights_of())
    assert meta == {"kind": "drafter", "target": TARGET}
    shards = list(folder.glob("*.safetensors"))
    assert len(shards) > 5
    assert max(shard.stat().st_size for shard in shards) < 2000 + 1000  # and a header
    assert [path.name for path in folder.parent.iterdir()] == ["here"]


def test_saving_again_replaces_all(folder):
    checkpoint.save(folder, {"one": torch.ones(2)}, {"target": TARGET})

    weights, _ = checkpoint.load(folder, target=TARGET)
    assert_same(weights, {"one": torch.ones(2)})
    assert sorted(path.name for path in folder.iterdir()) == ["index.json", "meta.json", "shard-1.safetensors"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("fingerprint", "f" * 16, r"whose weights \(fingerprint\) is 0123456789abcdef; other has ffffffffffffffff"),
        ("hidden_size", 16, "whose hidden size is 8; other has 16"),
        ("vocab_size", 51, "whose vocabulary size is 50; other has 51"),
        ("num_layers", 3, "whose number of layers is 2; other has 3"),
    ],
)
def test_another_target_is_refused(folder, key, value, words):
    with pytest.raises(ModelPairError, match=f"was made for toy, {words}. Load that target, or fit a drafter"):
        checkpoint.load(folder, target=TARGET | {"name": "other", key: value})


def test_the_target_may_have_moved(folder):
    checkpoint.load(folder, target=TARGET | {"name": "/elsewhere/toy"})


def test_missing_folder(tmp_path):
    with pytest.raises(WeightsError, match=r"is not a checkpoint: meta.json cannot be read. Fetch it again"):
        checkpoint.load(tmp_path / "nothing", target=TARGET)


def test_missing_shard(folder):
    (folder / "shard-2.safetensors").unlink()
    with pytest.raises(WeightsError, match="lacks shard-2.safetensors. Fetch it again"):
        checkpoint.load(folder, target=TARGET)


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_truncated_shard(folder, kept):
    path = folder / "shard-1.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"shard-1.safetensors is damaged or cut short .* Fetch it again"):
        checkpoint.load(folder, target=TARGET)


def test_shard_of_another_checkpoint(folder):
    save_file({"stranger": torch.ones(1)}, folder / "shard-1.safetensors")
    with pytest.raises(WeightsError, match="does not fit its shards"):
        checkpoint.load(folder, target=TARGET)


@pytest.mark.parametrize("name", ["index.json", "meta.json"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_damaged_json(folder, name, text):
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(WeightsError, match=rf"{name} is damaged"):
        checkpoint.load(folder, target=TARGET)


@pytest.mark.parametrize(
    "index", [{}, {"shards": 1}, {"shards": "x", "pieces": {}}, {"shards": 1, "pieces": {"a": ["x"]}}]
)
def test_index_without_sense(folder, index):
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="does not fit its shards"):
        checkpoint.load(folder, target=TARGET)


def test_meta_without_target(folder):
    (folder / "meta.json").write_text("{}")
    with pytest.raises(WeightsError, match="does not say which target"):
        checkpoint.load(folder, target=TARGET)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_numbers(folder, value):
    save_file({"a": torch.tensor([1.0, value])}, folder / "shard-1.safetensors")
    (folder / "index.json").write_text(json.dumps({"shards": 1, "pieces": {"a": ["1:a"]}}))
    with pytest.raises(WeightsError, match="a of the checkpoint .* holds numbers that are not finite"):
        checkpoint.load(folder, target=TARGET)
    with pytest.raises(WeightsError, match="not finite"):
        checkpoint.save(folder, {"a": torch.tensor(value)}, {"target": TARGET})


@pytest.mark.parametrize("step", ["save_file", "_swap"])
def test_a_full_disk_leaves_the_old_checkpoint(folder, step, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, step, full)
        with pytest.raises(
            WeightsError, match=r"could not be written \(No space left on device\); nothing was changed"
        ):
            checkpoint.save(folder, {"one": torch.ones(2)}, {"target": TARGET})

    assert_same(checkpoint.load(folder, target=TARGET)[0], weights_of())
    assert [path.name for path in folder.parent.iterdir()] == ["here"]


def test_a_failed_swap_puts_the_old_checkpoint_back(folder, monkeypatch):
    real = checkpoint.Path.replace

    def refuse(path, target):
        if path.name.startswith(".here-") and not path.name.endswith("-old"):
            raise OSError(errno.EACCES, "Permission denied")
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Path, "replace", refuse)
        with pytest.raises(WeightsError, match=r"could not be written \(Permission denied\); nothing was changed"):
            checkpoint.save(folder, {"one": torch.ones(2)}, {"target": TARGET})

    assert_same(checkpoint.load(folder, target=TARGET)[0], weights_of())
    assert [path.name for path in folder.parent.iterdir()] == ["here"]
