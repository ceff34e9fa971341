"""The comparison of drafters: its arithmetic by hand, its report on a toy, its choice of prompts."""

import json

import pytest
import torch
from toys import toy_pair

from explorer.benchmarks import drafters
from explorer.benchmarks.config import DraftersConfig
from explorer.benchmarks.drafters import Setting, chosen_prompts, interval, measure, row_of
from explorer.benchmarks.report import drafters_text
from explorer.benchmarks.timing import Timing
from explorer.engine.drafters import NgramDrafter
from explorer.errors import SettingError

PROMPTS = [("abcabc", "a"), ("hello", "b"), ("zzz", "a"), ("quiz", "b")]


def timing(tokens, rounds, seconds, number=0):
    return Timing(decode_s=seconds, emitted={number: tokens}, row_rounds={number: rounds})


def test_a_row_by_hand():
    runs = [timing(20, 10, 1.0), timing(30, 10, 1.0)]
    plain = [timing(20, 20, 2.0), timing(20, 20, 2.0)]
    row = row_of(Setting("x", 2, 0.0), runs, plain, ["a", "b"])
    assert row["tau"] == 2.5
    assert row["tau_by_kind"] == {"a": 2.0, "b": 3.0}
    assert (row["tau_low"], row["tau_high"]) == (2.0, 3.0)
    assert row["tokens_per_s"] == 25.0
    assert row["ratio_to_ar"] == 2.5
    assert (row["ratio_low"], row["ratio_high"]) == (2.0, 3.0)
    assert row["round_ms"] == 100.0


def test_an_interval_covers_the_figure_and_shrinks_with_more_prompts():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(400, 2, generator=generator, dtype=torch.float64) + 0.5
    few, many = (interval(values[:count], lambda s: s[..., 0] / s[..., 1]) for count in (20, 400))
    assert few[0] < few[1]
    assert many[1] - many[0] < few[1] - few[0]
    assert many[0] < float(values[:, 0].sum() / values[:, 1].sum()) < many[1]


def test_kinds_have_equal_shares():
    prompts = [("1", "a"), ("2", "a"), ("3", "a"), ("4", "b"), ("5", "c"), ("6", "c")]
    assert [text for text, _ in chosen_prompts(prompts, 4)] == ["1", "4", "5", "2"]
    assert len(chosen_prompts(prompts, 10)) == 6
    assert chosen_prompts([], 3) == []


@pytest.fixture(scope="module")
def report():
    pair = toy_pair("llama")
    config = DraftersConfig(tokens=12, draft_length=(1, 3), num_prompts=3).shortened()
    return measure(pair.target, {"model": pair.drafter, "ngram": NgramDrafter()}, PROMPTS, config)


def test_a_report_has_a_row_for_every_setting(report):
    settings = [(row["drafter"], row["draft_length"], row["temperature"]) for row in report["rows"]]
    drafted = [(name, K) for name in ("model", "ngram") for K in (1, 3)]
    assert settings == [(*pair, t) for t in (0.0, 1.0) for pair in [("none", 0), *drafted]]
    for row in report["rows"]:
        assert row["tau_low"] <= row["tau"] <= row["tau_high"]
        assert row["tokens_per_s"] > 0
        assert set(row["tau_by_kind"]) == {"a", "b"}
        if row["drafter"] == "none":
            assert row["tau"] == row["ratio_to_ar"] == row["ratio_low"] == row["ratio_high"] == 1
    greedy = [row["num_tokens"] for row in report["rows"] if row["temperature"] == 0]
    assert len(set(greedy)) == 1
    assert next(r for r in report["rows"] if r["drafter"] == "model" and r["draft_length"] == 3)["tau"] > 1.1
    json.dumps(report, allow_nan=False)


def test_the_table_names_every_row(report):
    text = drafters_text(report)
    assert text.count("ngram") >= 4
    assert "Tokens per round by kind of prompt:" in text
    assert "model K=3 T=1: a " in text


def test_prompts_that_are_all_too_long():
    pair = toy_pair("llama")
    config = DraftersConfig(max_characters=2).shortened()
    with pytest.raises(SettingError, match="No prompt has 2 characters or fewer"):
        measure(pair.target, {}, PROMPTS, config)


def test_the_run_reads_kinds_from_a_file(monkeypatch, tmp_path):
    pair = toy_pair("llama")
    monkeypatch.setattr(drafters, "load_model", lambda *_: pair.target)
    monkeypatch.setattr(drafters, "load_drafter", lambda *_: pair.drafter)
    lines = [{"turns": ["abc"], "category": "qa"}, {"prompt": "hello"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = DraftersConfig(prompts=str(tmp_path / "p.jsonl"), drafters=("x",), temperature=(0.0,), quick=True)
    report = drafters.run(config)
    assert report["rows"][1]["tau_by_kind"].keys() == {"qa", ""}
    assert report["num_prompts"] == 2
