"""`bench speed` on toys: every kind of row, the JSON, the turns that rows take, what is left out, and errors."""

import json

import pytest
from eagles import load_eagle
from speed_toys import TEXTS, fake_xllamacpp, toy_assistant, toy_target, without_llama_cpp, written

from explorer import __main__ as command_line
from explorer.benchmarks import entrants, speed
from explorer.benchmarks.config import SpeedConfig
from explorer.benchmarks.contestants import GREEDY, Contestant, Prompt
from explorer.benchmarks.report import speed_text
from explorer.benchmarks.speed import round_robin
from explorer.engine import ensembles
from explorer.engine.drafters import NgramDrafter
from explorer.engine.ensembles import save_ensemble
from explorer.engine.hybrid import HybridDrafter
from explorer.engine.pair import ModelPair
from explorer.errors import ModelPairError, SettingError
from explorer.heads.ensemble import EnsembleHead

ROW = {
    "name", "batch", "precision", "temperature", "top_p", "draft_length", "tokens_per_s", "tokens_per_s_low",
    "tokens_per_s_high", "ratio_to_hf", "ratio_low", "ratio_high", "hf_precision", "num_tokens", "tokens_per_round",
    "agreed", "agreed_with",
}  # fmt: skip
REPORT = {
    "kind", "rows", "attached_cost", "machine", "bandwidth_gb_s", "bytes_per_pass", "hf_bytes_per_pass", "phases",
    "drift", "drift_tokens", "peak_memory_mb", "left_out", "target", "drafters", "draft_length", "tokens",
    "num_prompts", "num_prompt_tokens", "repetitions", "seed", "interval",
}  # fmt: skip


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Loading gives toys; the list holds what was loaded, in order."""
    loaded = []

    def load_model(name, precision="auto", progress=None):
        loaded.append((name, precision))
        if name == "alien":
            raise ModelPairError("alien could not be loaded.")
        return (toy_assistant if name == "small" else toy_target)("float32" if precision == "auto" else precision)

    def load_drafter(target, name, precision="auto", progress=None):
        drafters = {
            "auto": lambda: load_eagle(tmp_path / "drafter", target),
            "ngram": NgramDrafter,
            "hybrid": lambda: HybridDrafter(load_eagle(tmp_path / "drafter", target)),
            "none": lambda: None,
        }
        return drafters[name]()

    monkeypatch.setattr(entrants, "load_model", load_model)
    monkeypatch.setattr(entrants, "load_drafter", load_drafter)
    monkeypatch.setattr(ensembles, "bundled_ensembles", lambda *_: {})
    monkeypatch.setattr(speed, "READ_BYTES", 2**20)
    monkeypatch.setattr(speed, "QUICK_READ_BYTES", 2**20)
    without_llama_cpp(monkeypatch)
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return loaded


def settings(tmp_path, **options):
    return SpeedConfig(prompts=str(tmp_path / "p.jsonl"), **options)


@pytest.fixture
def head(tmp_path):
    """Folder of a head for the toy pair."""
    target = toy_target()
    pair = ModelPair(target, load_eagle(tmp_path / "drafter", target))
    sizes = pair.drafter.hidden_size, target.hidden_size
    save_ensemble(tmp_path / "head", EnsembleHead(*sizes, "both", 0.9), pair, {})
    return str(tmp_path / "head")


def test_a_whole_run(monkeypatch, toys, tmp_path, head):
    fake_xllamacpp(monkeypatch)
    (tmp_path / "toy.gguf").touch()
    told = []
    config = settings(
        tmp_path, assistant="small", ensemble=head, gguf=str(tmp_path / "toy.gguf"), batch=(2, 3), tokens=5,
        num_prompts=3, repetitions=1, seed=7,
    )  # fmt: skip
    report = speed.run(config, lambda *progress: told.append(progress))

    assert set(report) == REPORT
    names = {row["name"] for row in report["rows"]}
    assert names == {
        "HF generate", "HF prompt lookup", "HF assistant", "llama.cpp (xllamacpp)", "ours autoregressive",
        "ours exact auto", "ours exact ngram", "ours exact hybrid", "ours exact assistant", "ours static auto",
        "ours dynamic auto", "ours exact auto, page attached",
    }  # fmt: skip
    for row in report["rows"]:
        assert set(row) == ROW
        assert row["tokens_per_s_low"] <= row["tokens_per_s"] <= row["tokens_per_s_high"]
        assert row["ratio_low"] <= row["ratio_to_hf"] <= row["ratio_high"]
        greedy_and_alone = row["temperature"] == 0 and row["name"] != "llama.cpp (xllamacpp)"
        assert (row["agreed"] is not None) == greedy_and_alone
        answers = 3 if row["batch"] != 2 else 4
        assert row["num_tokens"] == 5 * answers
    exact = [row for row in report["rows"] if row["agreed"] is not None and row["precision"] == "float32"]
    for row in exact:
        if "static" not in row["name"] and "dynamic" not in row["name"]:
            assert (row["agreed"], row["agreed_with"]) == (3, "float32"), row["name"]
    assert {row["batch"] for row in report["rows"]} == {1, 2, 3}
    parts = [(part["name"], part["temperature"]) for part in report["phases"]]
    drafted = [f"ours exact {name}" for name in ("auto", "ngram", "hybrid", "assistant")]
    assert parts == [(n, t) for n in ("ours autoregressive", *drafted, "ours dynamic auto") for t in (0, 1)]
    assert [(cost["name"], cost["temperature"]) for cost in report["attached_cost"]] == [
        ("ours exact auto", 0.0), ("ours exact auto", 1.0),
    ]  # fmt: skip
    assert report["drift"] > 0
    assert report["left_out"] == []
    assert (report["tokens"], report["num_prompts"], report["repetitions"], report["seed"]) == (5, 3, 1, 7)
    assert report["num_prompt_tokens"] == 6 + 5 + 2
    assert "bootstrap" in report["interval"]
    assert report["hf_bytes_per_pass"]["float32"] == 2 * report["hf_bytes_per_pass"]["bfloat16"]
    assert report["bytes_per_pass"] == report["hf_bytes_per_pass"]["float32"]
    assert report["machine"]["transformers"][0].isdigit()
    json.dumps(report, allow_nan=False)
    assert told[-1][0] == "Writing one long answer"
    # The target once a precision, ours being HF's float32; so the assistant.
    assert toys == [("default", "auto"), ("default", "bfloat16"), ("small", "float32"), ("small", "bfloat16")]

    text = speed_text(report)
    for row in report["rows"]:
        assert row["name"] in text
    for what in ("3 prompts (13 tokens)", "5 tokens at most", "repetitions 1", "seed 7", "3 of 3 (float32)",
                 "GB/s", "Peak memory", "Without a page", "at the end of", report["interval"]):  # fmt: skip
        assert what in text


def test_quick_is_short_and_says_what_is_absent(toys, tmp_path):
    report = speed.run(settings(tmp_path, quick=True, hf_precision=("float32",)))
    assert (report["num_prompts"], report["tokens"], report["repetitions"]) == (2, 16, 1)
    assert {row["batch"] for row in report["rows"]} == {1, 4}
    assert (report["drift"], report["drift_tokens"]) == (None, 0)
    assert not [row for row in report["rows"] if row["name"] in ("HF assistant", "ours dynamic auto")]
    reasons = report["left_out"]
    assert [reason.partition(":")[0] for reason in reasons] == ["HF assistant", "ours dynamic", "llama.cpp"]
    assert reasons[0].endswith("Give one: --assistant ID")
    assert "Train one: python -m explorer train" in reasons[1]
    assert "pip install xllamacpp" in reasons[2] or "explorer pull" in reasons[2]
    text = speed_text(report)
    for reason in reasons:
        assert f"Left out: {reason}" in text
    assert "at the end of" not in text


def test_quick_lets_nothing_grow_and_keeps_what_is_asked_for():
    small = SpeedConfig(quick=True, num_prompts=1, tokens=4, batch=(2, 2, 5), hf_precision=("float32",)).shortened()
    assert (small.num_prompts, small.tokens, small.batch, small.hf_precision) == (1, 4, (2, 5), ("float32",))
    whole = SpeedConfig().shortened()
    assert (whole.batch, whole.hf_precision) == ((4, 16, 32), ("float32", "bfloat16"))
    assert (whole.drafters, whole.num_prompts, whole.tokens) == (("auto", "ngram", "hybrid"), 8, 64)


def test_a_pair_without_a_bundled_drafter(monkeypatch, toys, tmp_path):
    def load_drafter(target, name, *_):
        if name == "hybrid":
            raise ModelPairError("No drafter for toy is bundled.")
        return NgramDrafter()

    monkeypatch.setattr(entrants, "load_drafter", load_drafter)
    config = settings(tmp_path, pair="org/toy", quick=True, hf_precision=("float32",), tokens=4)
    report = speed.run(config)
    ours = {row["name"] for row in report["rows"] if row["name"].startswith("ours")}
    assert ours == {
        "ours autoregressive", "ours exact ngram", "ours exact ngram, page attached", "ours static ngram",
    }  # fmt: skip
    reasons = "\n".join(report["left_out"])
    assert "ours exact auto: no drafter for toy llama is bundled; it would be prompt lookup" in reasons
    assert "ours exact hybrid: No drafter for toy is bundled." in reasons
    assert "ours dynamic: The dynamic rule looks at the drafter's states" in reasons
    assert "llama.cpp: org/toy is no GGUF file" in reasons
    assert toys == [("org/toy", "auto")]


def test_a_packed_target_is_loaded_once_more_for_hf(monkeypatch, toys):
    ours = toy_target()
    ours.is_packed = True
    loaded = iter([ours, toy_target()])
    monkeypatch.setattr(entrants, "load_model", lambda *_: next(loaded))
    found = entrants.load(SpeedConfig(hf_precision=("float32",)).shortened())
    assert found.hf["float32"] is not found.ours.target
    assert not found.hf["float32"].is_packed


def test_an_answer_fits_into_the_context(toys, tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "a" * 60}))
    report = speed.run(settings(tmp_path, quick=True, hf_precision=("float32",), drafters=("ngram",)))
    assert report["tokens"] == 4
    assert {row["num_tokens"] for row in report["rows"]} == {4, 16}


def test_rows_take_turns_at_every_group_with_the_same_seeds():
    calls = []

    def row(name, batch):
        def write(prompts, seed, tokens):
            calls.append((name, "".join(prompt.text for prompt in prompts), seed, tokens))
            return written(tokens, 1.0)

        return Contestant(name, "float32", GREEDY, write, batch)

    rows = [row("a", 1), row("b", 1), row("c", 2)]
    prompts = [Prompt(text, [1]) for text in "xyz"]
    found = round_robin(rows, prompts, 20, SpeedConfig(repetitions=2, seed=100))
    assert calls[:3] == [("a", "x", 100, 8), ("b", "x", 100, 8), ("c", "xy", 100, 8)]
    measured = calls[3:]
    assert len(measured) == 2 * (3 + 3 + 2)
    assert [(name, text) for name, text, *_ in measured[:8]] == [
        ("a", "x"), ("b", "x"), ("c", "xy"), ("b", "y"), ("c", "zx"), ("a", "y"), ("a", "z"), ("b", "z"),
    ]  # fmt: skip
    seeds = {name: [seed for other, _, seed, _ in measured if other == name] for name in "ab"}
    assert seeds["a"] == seeds["b"] == [100, 101, 102, 103, 104, 105]
    assert {tokens for *_, tokens in measured} == {20}
    assert [len(run) for run in found[rows[0]]] == [3, 3]
    assert [len(run) for run in found[rows[2]]] == [2, 2]


# Errors.


def test_what_is_asked_for_by_name_must_be_there(toys, tmp_path):
    with pytest.raises(ModelPairError, match="alien could not be loaded"):
        speed.run(settings(tmp_path, quick=True, assistant="alien"))
    with pytest.raises(SettingError, match="drafters holds 'none', which drafts nothing. Give auto, ngram, hybrid or"):
        speed.run(settings(tmp_path, quick=True, drafters=("none",)))
    with pytest.raises(SettingError, match="gguf is 'x.gguf', and no such file is there"):
        speed.run(settings(tmp_path, quick=True, gguf="x.gguf"))
    with pytest.raises(ModelPairError, match="Choose a trained drafter or a smaller model"):
        speed.run(settings(tmp_path, quick=True, drafters=("ngram",), ensemble=str(tmp_path)))
    with pytest.raises(SettingError, match="nowhere.jsonl cannot be used as prompts"):
        speed.run(SpeedConfig(prompts="nowhere.jsonl"))


def test_settings_out_of_range():
    with pytest.raises(SettingError, match="hf_precision is 'float8'; it must be one of float32, bfloat16."):
        SpeedConfig(hf_precision=("float32", "float8"))
    with pytest.raises(SettingError, match=r"batch is 1; it must be in \[2, 512\]"):
        SpeedConfig(batch=(1,))


def test_an_assistant_with_another_tokenizer_is_refused(monkeypatch, toys, tmp_path):
    def check_vocab(target, drafter):
        raise ModelPairError(f"{drafter.name} cannot draft for {target.name}")

    monkeypatch.setattr(entrants, "check_vocab", check_vocab)
    with pytest.raises(ModelPairError, match="toy assistant cannot draft for toy llama"):
        speed.run(settings(tmp_path, assistant="small"))


def test_the_command_prints_one_object_or_a_table(toys, tmp_path, capsys):
    words = ["bench", "speed", "--quick", "--prompts", str(tmp_path / "p.jsonl"), "--tokens=4", "--drafters=ngram",
             "--hf-precision=float32"]  # fmt: skip
    assert command_line.main([*words, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert set(json.loads(out)) == REPORT
    assert command_line.main(words) == 0
    table = capsys.readouterr().out
    assert "ours exact ngram" in table
    assert "vs HF [95 %]" in table


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--hf-precision=float8", "hf_precision is 'float8'; it must be one of float32, bfloat16."),
        ("--tokens=0", "tokens is 0; it must be in [2, 4096] (tokens emitted at most per answer)."),
        ("--prompts=nowhere", "nowhere cannot be used as prompts"),
    ],
)
def test_bad_flags_are_one_sentence(toys, capsys, word, message):
    assert command_line.main(["bench", "speed", word]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
