"""The corpus on disk and the order in which its rows train."""

import copy

import pytest
import torch
from toys import language_model, random_network

from explorer.errors import SettingError, WeightsError
from explorer.training import corpus, text
from explorer.training.text import Text

PROMPTS = ["abc", "hello", "what", "x", "spec", "draft", "token", "rank", "head", "eagle", "zebra", "fox"]


@pytest.fixture(scope="module")
def target():
    network = copy.deepcopy(random_network("llama", 3))
    network.get_input_embeddings().weight.data *= 20
    return language_model(network, name="toy llama")


def quiet(what, done, total):
    """Progress nobody watches."""


def extended(target, folder, tokens):
    return corpus.extend(
        target, PROMPTS, folder, features=(1, 2), num_tokens=tokens, answer_tokens=12, seed=1, progress=quiet
    )


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(corpus, "BATCH_SIZE", 4)


def test_a_corpus_goes_on_where_it_stopped(target, tmp_path, small_batches):
    once = extended(target, tmp_path / "once", 80)
    extended(target, tmp_path / "twice", 20)
    stamp = (tmp_path / "twice" / "part-00000.safetensors").stat().st_mtime_ns
    twice = extended(target, tmp_path / "twice", 80)

    assert [path.name for path in once] == [path.name for path in twice]
    assert (tmp_path / "twice" / "part-00000.safetensors").stat().st_mtime_ns == stamp
    for left, right in zip(once, twice, strict=True):
        for one, two in zip(corpus.rows_of(left), corpus.rows_of(right), strict=True):
            assert one.ids.tolist() == two.ids.tolist()
            assert one.prompt_length == two.prompt_length
            assert len(one.states) == len(one.ids) - 1
            torch.testing.assert_close(one.states, two.states, rtol=0, atol=0)


def test_norms_make_the_target_s_laws_of_the_stored_states(target, tmp_path, small_batches):
    row = corpus.rows_of(extended(target, tmp_path, 20)[0])[0]
    head = target.model.get_output_embeddings().weight.float()[: target.vocab_size]
    logits = row.states[:, -target.hidden_size :].float() @ head.t()
    laws = (logits - row.log_norms[: len(logits), None]).exp()
    torch.testing.assert_close(laws.sum(-1), torch.ones(len(laws)), rtol=1e-3, atol=1e-3)


def test_a_damaged_part_and_unreadable_prompts_are_named(target, tmp_path):
    (tmp_path / "part-00000.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="part-00000.safetensors is damaged"):
        extended(target, tmp_path, 20)
    with pytest.raises(SettingError, match="cannot be read"):
        corpus.read_prompts([tmp_path / "absent.jsonl"])
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(SettingError, match="line 1, has no prompt"):
        corpus.read_prompts([tmp_path / "bad.jsonl"])


def test_held_out_prompts_are_left_out(tmp_path):
    lines = ['{"prompt": "One"}', '{"question": "Two"}', '{"turns": ["Three", "x"]}', '{"prompt": "One"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.jsonl").write_text('{"turns": ["two "]}\n')
    assert corpus.read_prompts([tmp_path / "a.jsonl"], [tmp_path / "b.jsonl"]) == ["One", "Three"]


def test_every_row_trains_once_an_epoch_or_is_kept_apart(target, tmp_path, small_batches, monkeypatch):
    monkeypatch.setattr(text, "HELD_OUT", 3)
    monkeypatch.setattr(text, "_MIXED", 2)
    found = Text.of(extended(target, tmp_path, 10_000))
    assert len(found.paths) == 3
    assert sorted(found.trained + found.held_out) == [(file, row) for file in range(3) for row in range(4)]
    assert {file for file, _ in found.held_out} == {0, 1, 2}
    plan = found.plan(3, 2.0, 7)
    assert [len(step) for step in plan] == [3] * 6
    assert sorted(sum(plan[:3], [])) == sorted(sum(plan[3:], [])) == sorted(found.trained)
    assert plan[:3] != plan[3:]
    assert found.plan(3, 2.0, 7) == plan
    assert found.plan(3, 2.0, 8) != plan


def test_few_files_are_held_and_counts_are_of_the_answers(target, tmp_path, small_batches, monkeypatch):
    monkeypatch.setattr(text, "_MIXED", 1)
    found = Text.of(extended(target, tmp_path, 10_000))
    rows = found.rows(found.trained)
    assert len(found._files) == 1
    every = found.rows(found.trained + found.held_out)
    answers = torch.cat([row.ids[row.prompt_length :] for row in every])
    assert found.counts(target.vocab_size).tolist() == torch.bincount(answers, minlength=target.vocab_size).tolist()
    assert len(found.sample(1)) == 1
    assert len(found.sample(10**9)) == len(rows)
