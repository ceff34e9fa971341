"""What answers: HF's `generate`, this engine, llama.cpp; the same text where it must be, the right settings."""

import copy
import json
import sys

import pytest
import torch
from eagles import load_eagle
from speed_toys import (
    TEXTS,
    FakeLlama,
    FakeServer,
    fake_llama_cpp,
    fake_xllamacpp,
    prompt_of,
    threads,
    toy_assistant,
    toy_target,
    without_llama_cpp,
)
from toys import VOCAB, generated

from explorer.benchmarks import gguf, hf, ours
from explorer.benchmarks.config import SpeedConfig
from explorer.benchmarks.contestants import GREEDY, NUCLEUS, PLAIN
from explorer.engine import download, weights
from explorer.engine.drafters import ModelDrafter, NgramDrafter
from explorer.engine.pair import ModelPair
from explorer.errors import ModelPairError, SettingError

CONFIG = SpeedConfig(draft_length=3, batch=(2, 4)).shortened()


# HF.


@pytest.fixture
def prompts():
    return [prompt_of(toy_target(), text) for text in TEXTS]


def greedy_text(end_ids=()):
    target = toy_target(end_ids=end_ids)
    return [tuple(generated(target, prompt_of(target, text).ids, 12)) for text in TEXTS]


def test_ours_writes_hfs_greedy_text_with_every_drafter(tmp_path, prompts):
    """In float32 at temperature 0, token for token: plain, looked up, assisted, and ours."""
    target = toy_target()
    expected = greedy_text()
    assert len(set(expected)) == len(expected)
    drafters = [None, NgramDrafter(), ModelDrafter(toy_assistant()), load_eagle(tmp_path / "drafter", target)]
    writers = [hf.writer(target, GREEDY), hf.writer(target, GREEDY, prompt_lookup_num_tokens=3)]
    writers += [hf.writer(target, GREEDY, toy_assistant())]
    for drafter in drafters:
        settings = ours.decoding("exact" if drafter else "ar", GREEDY, CONFIG)
        writers.append(ours.writer(ModelPair(target, drafter), settings))
    for write in writers:
        found = [write([prompt], 0, 12) for prompt in prompts]
        assert [w.ids[0] for w in found] == expected
        assert all(w.num_tokens == 12 and w.seconds > 0 for w in found)


def test_rows_of_a_batch_are_written_as_if_alone(prompts):
    """Prompts of unequal length: padding on the left, and masked."""
    target = toy_target()
    expected = tuple(greedy_text())
    assert hf.writer(target, GREEDY)(prompts, 0, 12).ids == expected
    settings = ours.decoding("ar", GREEDY, CONFIG)
    assert ours.writer(ModelPair(target, None), settings)(prompts, 0, 12).ids == expected


def test_an_end_token_ends_an_answer_and_what_pads_it_is_not_counted(prompts):
    expected = greedy_text()
    end = expected[0][4]
    cut = [ids[: ids.index(end) + 1] if end in ids else ids for ids in expected]
    assert len(cut[0]) <= 5
    target = toy_target(end_ids=(end,))
    for written in (
        hf.writer(target, GREEDY)(prompts, 0, 12),
        ours.writer(ModelPair(target, None), ours.decoding("ar", GREEDY, CONFIG))(prompts, 0, 12),
    ):
        assert list(written.ids) == cut
        assert written.num_tokens == sum(map(len, cut)) < 48


def law_of(write, prompt, count=4000):
    """How often each token comes first."""
    firsts = torch.tensor([ids[0] for ids in write([prompt] * count, 0, 1).ids])
    return torch.bincount(firsts, minlength=VOCAB) / count


@pytest.mark.parametrize("sampler", [PLAIN, NUCLEUS], ids=["plain", "nucleus"])
def test_hf_draws_from_the_law_that_ours_draws_from(prompts, sampler):
    """Not from its 50 best tokens, as it would by itself: this law is flat, and they leave much of it out."""
    target = toy_target()
    target.model = copy.deepcopy(target.model)
    target.model.lm_head.weight.data *= 0.1
    with torch.inference_mode():
        law = sampler.probs(target.model(torch.tensor([prompts[0].ids])).logits[0, -1])
    for write in (
        hf.writer(target, sampler),
        ours.writer(ModelPair(target, None), ours.decoding("ar", sampler, CONFIG)),
    ):
        found = law_of(write, prompts[0])
        assert 0.5 * (found - law).abs().sum() < 0.08
        assert not found[law == 0].any()


def test_what_a_models_folder_asks_of_generate_is_left_out(prompts):
    """A repetition penalty would change the text; neither the model nor the generator's state is touched."""
    target = toy_target()
    target.model = copy.copy(target.model)
    target.model.generation_config = copy.deepcopy(target.model.generation_config)
    target.model.generation_config.repetition_penalty = 5.0
    target.model.generation_config.top_k = 1
    state = torch.get_rng_state()
    assert hf.writer(target, GREEDY)([prompts[0]], 0, 12).ids[0] == greedy_text()[0]
    sampled = {hf.writer(target, PLAIN)([prompts[0]], seed, 6).ids for seed in range(8)}
    assert len(sampled) > 4
    assert target.model.generation_config.repetition_penalty == 5.0
    assert torch.equal(torch.get_rng_state(), state)


def test_hf_samples_the_same_text_for_the_same_seed(prompts):
    write = hf.writer(toy_target(), PLAIN)
    assert write(prompts, 3, 8).ids == write(prompts, 3, 8).ids != write(prompts, 4, 8).ids


def test_hf_rows():
    models = {precision: toy_target(precision) for precision in ("float32", "bfloat16")}
    assistants = {precision: toy_assistant(precision) for precision in models}
    rows = [(row.name, row.precision, row.setting) for row in hf.hf_contestants(models, assistants, CONFIG)]
    assert len(rows) == len(set(rows)) == 2 * (3 + 2 * 2 + 2 + 2)
    for precision in models:
        plain = [setting for name, p, setting in rows if (name, p) == (hf.NAME, precision)]
        assert plain == [(1, 0, 1), (1, 1, 1), (1, 1, 0.95), *((b, 1, p) for b in (2, 4) for p in (1, 0.95))]
        for name in (hf.LOOKUP, hf.ASSISTANT):
            assert [s for n, p, s in rows if (n, p) == (name, precision)] == [(1, 0, 1), (1, 1, 1)]
    assert not [row for row in hf.hf_contestants(models, {}, CONFIG) if row.name == hf.ASSISTANT]


# Ours.


def test_our_rows():
    target, drafter = toy_target(), ModelDrafter(toy_assistant())
    entrants = ours.Ours(
        target,
        {"auto": drafter, "ngram": NgramDrafter()},
        ("auto", ModelPair(target, drafter)),
        {"float32": target, "bfloat16": toy_target("bfloat16")},
    )
    rows = list(ours.our_contestants(entrants, CONFIG))
    keys = [(row.name, row.precision, row.setting) for row in rows]
    assert len(keys) == len(set(keys))
    found = {}
    for row in rows:
        found.setdefault(row.name, []).append((row.precision[0], *row.setting))
    batches = [("f", b, 1, p) for b in (2, 4) for p in (1, 0.95)]
    three = [("f", 1, 0, 1), ("f", 1, 1, 1), ("f", 1, 1, 0.95)]
    assert found == {
        "ours autoregressive": [*three, *batches, ("b", 1, 0, 1)],
        "ours exact auto": three,
        "ours exact ngram": three,
        "ours static auto": three[:2],
        "ours exact auto, page attached": three[:2],
        "ours dynamic auto": three[:2],
    }
    assert {row.draft_length for row in rows if "exact" in row.name} == {3}
    assert {row.draft_length for row in rows if "autoregressive" in row.name} == {None}


def test_a_rule_gets_its_settings():
    settings = ours.decoding("static", NUCLEUS, SpeedConfig(target_weight=0.4, draft_length=5, lookup_length=9))
    assert settings == {
        "rule": "static", "temperature": 1.0, "top_p": 0.95, "draft_length": 5, "lookup_length": 9,
        "target_weight": 0.4,
    }  # fmt: skip


def test_rounds_are_counted_and_static_keeps_more(prompts):
    pair = ModelPair(toy_target(), ModelDrafter(toy_assistant()))
    exact, static = (
        ours.writer(pair, ours.decoding(rule, PLAIN, SpeedConfig(target_weight=0.0)))(prompts, 0, 13)
        for rule in ("exact", "static")
    )
    alone = ours.writer(pair, ours.decoding("ar", PLAIN, CONFIG))(prompts, 0, 13)
    assert alone.num_rounds == alone.num_tokens == 52
    assert static.num_rounds < exact.num_rounds < 52


def test_a_page_attached_gets_the_same_text_and_every_line_of_the_trace(monkeypatch, prompts):
    pair = ModelPair(toy_target(), ModelDrafter(toy_assistant()))
    settings = ours.decoding("exact", PLAIN, CONFIG)
    lines, real = [], ours.run_trace

    def spied(*arguments):
        for line in real(*arguments):
            lines.append(json.loads(line))
            yield line

    monkeypatch.setattr(ours, "run_trace", spied)
    plain = ours.writer(pair, settings)([prompts[0]], 4, 12)
    attached = ours.attached_writer(pair, settings)([prompts[0]], 4, 12)
    assert (attached.ids, attached.num_tokens, attached.num_rounds) == (plain.ids, 12, plain.num_rounds)
    assert len(lines) == plain.num_rounds + 2


# llama.cpp.


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_xllamacpp_is_asked_for_the_same_law(monkeypatch, file, prompts):
    fake_xllamacpp(monkeypatch)
    rows = gguf.gguf_contestants(str(file), "", 77)
    assert [(row.name, row.precision, row.setting) for row in rows] == [
        ("llama.cpp (xllamacpp)", "gguf", setting) for setting in [(1, 0, 1), (1, 1, 1), (1, 1, 0.95)]
    ]
    settings = FakeServer.settings
    assert (settings.model.path, settings.n_ctx, settings.n_parallel) == (str(file), 77, 1)
    assert settings.cpuparams.n_threads == threads()
    found = rows[2].write([prompts[0]], 2**31 + 5, 9)
    assert (found.num_tokens, found.ids) == (9, ())
    assert FakeServer.asked == [
        {
            "prompt": prompts[0].ids, "cache_prompt": False, "max_tokens": 9, "temperature": 1.0, "top_k": 0,
            "top_p": 0.95, "min_p": 0.0, "repeat_penalty": 1.0, "seed": 5,
        }
    ]  # fmt: skip


def test_llama_cpp_python_where_there_is_no_xllamacpp(monkeypatch, file, prompts):
    fake_llama_cpp(monkeypatch)
    rows = gguf.gguf_contestants("default", str(file), 77)
    assert {row.name for row in rows} == {"llama.cpp (llama_cpp)"}
    assert rows[0].write([prompts[0]], 1, 9).num_tokens == 3
    made = FakeLlama.made
    assert (made.path, made.settings["n_ctx"], made.settings["n_threads"]) == (str(file), 77, threads())
    assert made.calls[0] == "reset"
    assert made.calls[1][0] == prompts[0].ids
    assert (made.calls[1][1]["temperature"], made.calls[1][1]["seed"]) == (0.0, 1)


def test_without_a_package_the_reason_says_what_to_install(monkeypatch, file):
    without_llama_cpp(monkeypatch)
    with pytest.raises(gguf.AbsentError, match="neither xllamacpp nor llama_cpp can be imported. Install one: pip"):
        gguf.gguf_contestants(str(file), "", 77)


def test_a_package_that_cannot_be_loaded_is_no_package(monkeypatch, file, tmp_path):
    without_llama_cpp(monkeypatch)
    monkeypatch.delitem(sys.modules, "llama_cpp")
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('libgomp is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(gguf.AbsentError):
        gguf.gguf_contestants(str(file), "", 77)


def test_the_default_pairs_file_is_found_in_the_caches(monkeypatch, tmp_path):
    monkeypatch.setattr(weights, "default_cache", lambda: tmp_path)
    monkeypatch.setattr(download, "in_hub_cache", lambda: None)
    with pytest.raises(gguf.AbsentError, match=r"is in no cache. Fetch it: python -m explorer pull"):
        gguf.find_file("default", "")
    other = tmp_path / "hub.gguf"
    other.touch()
    monkeypatch.setattr(download, "in_hub_cache", lambda: other)
    assert gguf.find_file("default", "") == other
    (tmp_path / download.GGUF_NAME).touch()
    assert gguf.find_file("default", "") == tmp_path / download.GGUF_NAME


def test_files_that_are_not_there(file):
    with pytest.raises(gguf.AbsentError, match="org/model is no GGUF file. Give one of the same weights with --gguf"):
        gguf.find_file("org/model", "")
    with pytest.raises(SettingError, match=r"gguf is 'x.gguf', and no such file is there. Give a GGUF file"):
        gguf.find_file("default", "x.gguf")


def test_a_file_llama_cpp_cannot_read(monkeypatch, tmp_path):
    fake_xllamacpp(monkeypatch)
    (tmp_path / "broken.gguf").touch()
    with pytest.raises(ModelPairError, match="xllamacpp cannot read .*broken.gguf: failed to load model Give another"):
        gguf.gguf_contestants("default", str(tmp_path / "broken.gguf"), 77)


def test_an_answer_that_is_none(monkeypatch, file, prompts):
    fake_xllamacpp(monkeypatch)
    (row, *_) = gguf.gguf_contestants(str(file), "", 77)
    with pytest.raises(ModelPairError, match="llama.cpp gave no answer: .*no room.* Give another --gguf."):
        row.write([type(prompts[0])("", [63])], 0, 4)
