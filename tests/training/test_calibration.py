"""The target's own text, and the states that belong to it."""

import json

import pytest
import torch
from toys import language_model, random_network

from explorer.errors import SettingError
from explorer.training.calibration import PROMPTS, load_prompts, sample_rows

FEATURES = (1, 2)


def target_of(end_ids: tuple[int, ...] = ()):
    return language_model(random_network("llama", 5), end_ids=end_ids)


def sampled(target, prompts, tokens, **options):
    return sample_rows(target, prompts, FEATURES, tokens, torch.Generator().manual_seed(0), **options)


@pytest.mark.parametrize("end_ids", [(), (3, 5, 9)])
def test_states_are_those_of_a_plain_pass(end_ids):
    """Prompts of 1 to 9 tokens in one batch; rows end at different times and leave the batch."""
    target = target_of(end_ids)

    rows = sampled(target, ["abcdefghi", "d", "xy"], 100, answer_tokens=20)

    assert sum(len(row.ids) - row.prompt_length for row in rows) >= 90
    assert {row.prompt for row in rows} == {0, 1, 2}
    for row in rows:
        with torch.inference_mode():
            start = torch.zeros(1, dtype=torch.int64)
            cache = target.new_cache(len(row.ids))
            plain = target.forward(row.ids[None], cache, start, keep=1, features=FEATURES).features[0]
        assert len(row.states) == len(row.ids) - 1
        torch.testing.assert_close(row.states, plain[:-1], atol=1e-4, rtol=1e-4)


def test_one_seed_one_text():
    first, second = (sampled(target_of(), ["ab", "cde"], 60) for _ in range(2))

    assert [row.ids.tolist() for row in first] == [row.ids.tolist() for row in second]


def test_greedy_answers_are_written_once():
    rows = sampled(target_of(), ["ab", "cde", "f"], 5, temperature=0.0, once=True)

    assert [row.prompt for row in rows] == [0, 1, 2]


def test_more_tokens_than_one_pass_over_the_prompts():
    rows = sampled(target_of(), ["ab", "cd"], 150, answer_tokens=20)

    assert [row.prompt for row in rows] == [0, 1] * 4
    assert len({tuple(row.ids.tolist()) for row in rows}) == 8


def test_built_in_prompts_are_varied():
    prompts = load_prompts(PROMPTS)

    assert len(set(prompts)) == len(prompts) >= 100
    assert max(map(len, prompts)) < 200


@pytest.mark.parametrize(
    "text", ["", "\n", "not json\n", '{"text": "a"}\n', '{"prompt": ""}\n', '{"prompt": 3}\n', "[1]\n"]
)
def test_files_without_prompts(tmp_path, text):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(SettingError, match=r"cannot be used as prompts|has no prompts, or an empty one"):
        load_prompts(path)


def test_a_missing_file_of_prompts(tmp_path):
    with pytest.raises(SettingError, match=r"nothing.jsonl cannot be used as prompts .* Give a JSONL file"):
        load_prompts(tmp_path / "nothing.jsonl")


def test_prompts_of_a_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in ("one", "zwölf")) + "\n\n", encoding="utf-8")

    assert load_prompts(path) == ["one", "zwölf"]
