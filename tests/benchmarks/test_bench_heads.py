"""`bench heads` on toys: which heads are measured, what the report holds, and what is refused."""

import json
import math

import pytest
from eagles import counts_of, load_eagle, random_eagle, save_eagle, scorer_of
from toys import VOCAB, language_model, random_network

from explorer import __main__ as command_line
from explorer.benchmarks import heads as bench
from explorer.benchmarks.config import HeadsConfig
from explorer.benchmarks.prompts import BUILT_IN, held_out, read_prompts
from explorer.benchmarks.report import heads_text
from explorer.benchmarks.variants import make_variants
from explorer.engine import loading
from explorer.errors import SettingError

PROMPTS = ["abcabc", "hello"]
ROW = {
    "head": str, "rank": int, "size": int, "batch": int, "temperature": float, "nu": float, "kappa": float,
    "tau": float, "tau_low": float, "tau_high": float, "rho_tau": float, "rho_tps_predicted": float,
    "rho_tps_measured": float, "rho_tps_low": float, "rho_tps_high": float, "break_even": float, "head_ms": float,
    "draft_rest_ms": float, "verify_ms": float, "round_ms": float, "tokens_per_s": float, "ratio_to_ar": float,
    "num_tokens": int, "ceiling": float, "mass_outside": float,
}  # fmt: skip
OPTIONAL = {"rank", "size", "ratio_to_ar", "ceiling", "mass_outside"}


@pytest.fixture
def target():
    return language_model(random_network("llama", 3), name="toy llama")


@pytest.fixture
def drafter(tmp_path, target):
    return load_eagle(tmp_path / "ours", target, token_counts=counts_of(VOCAB))


def config_of(**values):
    return HeadsConfig(**({"draft_length": 2, "tokens": 6, "repetitions": 1} | values))


def heads_of(report):
    return [(row["head"], row["rank"], row["size"], row["batch"]) for row in report["rows"]]


def test_every_head_is_measured_at_every_batch_size(target, drafter):
    report = bench.measure(target, drafter, None, PROMPTS, config_of(batch=(1, 2)))

    expected = [("full", None, None), *(("low-rank", rank, None) for rank in (1, 3, 6, 12))]
    expected += [("truncated", None, size) for size in (2, 10, 21)] + [("dynamic", 4, 2)]
    assert heads_of(report) == [(*head, batch) for batch in (1, 2) for head in expected]
    assert report["left_out"] == []
    assert report["full_twin"] is False
    assert report["autoregressive"].keys() == report["suggested_rank"].keys() == {"1", "2"}
    assert all(rank in (1, 3, 6, 12) for rank in report["suggested_rank"].values())


def test_rows_have_what_their_schema_says(target, drafter):
    report = bench.measure(target, drafter, None, PROMPTS, config_of(temperature=1.0, repetitions=2))
    copied = json.loads(json.dumps(report, allow_nan=False))

    assert copied["rows"] == report["rows"]
    for row in report["rows"]:
        assert row.keys() == ROW.keys()
        for name, value in row.items():
            assert type(value) is ROW[name] or (value is None and name in OPTIONAL), name
            assert not isinstance(value, float) or math.isfinite(value)
        assert row["tau_low"] <= row["tau"] <= row["tau_high"]
        assert row["rho_tps_low"] <= row["rho_tps_measured"] <= row["rho_tps_high"]
        assert (row["ceiling"] is not None) == (row["head"] == "truncated")
        if row["head"] == "truncated":
            assert row["ceiling"] == pytest.approx(1 - row["mass_outside"], abs=2e-6)
            assert 0 < row["ceiling"] < 1
    assert {"threads", "precision", "cpu", "torch", "device", "draft_length", "num_prompts"} <= report.keys()
    first = report["rows"][0]
    assert (first["nu"], first["rho_tau"], first["rho_tps_measured"]) == (1, 1, 1)


def test_a_corpus_gives_truncated_heads_of_its_own(tmp_path, target, drafter):
    (tmp_path / "corpus.jsonl").write_text('{"text": "zzzzyyyxx", "source": "w"}\n{"text": "zy", "number": 3}\n')
    config = config_of(kept=(3,), corpus=str(tmp_path / "corpus.jsonl"))
    variants, left_out = make_variants(target, drafter, None, config)
    by_head = {variant.head: variant for variant in variants}
    ends = sorted(target.end_ids)
    letters = [i for i in by_head["truncated by corpus"].kept.tolist() if i not in ends]
    assert [target.tokenizer.decode([i]) for i in letters] == list("xyz")[-len(letters) :]
    assert by_head["truncated by corpus"].kept.tolist() != by_head["truncated"].kept.tolist()
    assert left_out == []
    report = bench.measure(target, drafter, None, PROMPTS, config)
    assert ("truncated by corpus", None, 3, 1) in heads_of(report)
    (tmp_path / "corpus.jsonl").write_text("[1]")
    with pytest.raises(SettingError, match="holds no text"):
        make_variants(target, drafter, None, config)


def test_a_wider_truncated_head_has_a_higher_ceiling(target, drafter):
    report = bench.measure(target, drafter, None, PROMPTS, config_of(kept=(4, 40, VOCAB), ranks=(3,)))

    ceilings = [row["ceiling"] for row in report["rows"] if row["head"] == "truncated"]
    assert ceilings == sorted(ceilings)
    assert ceilings[-1] == 1


def test_greedy_heads_write_the_same_text_in_their_own_number_of_rounds(target, drafter):
    report = bench.measure(target, drafter, None, PROMPTS, config_of())

    assert {row["num_tokens"] for row in report["rows"]} == {6 * len(PROMPTS)}
    dynamic = bench.measure(target, drafter, None, PROMPTS, config_of(candidates=(VOCAB,), ranks=(3,)))["rows"][-1]
    assert (dynamic["head"], dynamic["rho_tau"]) == ("dynamic", 1), "all candidates: the full head's own drafts"


def test_a_twin_is_the_full_head_and_gives_the_others(tmp_path, target, drafter):
    twin = load_eagle(tmp_path / "twin", target, full=True, token_counts=counts_of(VOCAB), **scorer_of(target))
    bare = load_eagle(tmp_path / "bare", target)

    report = bench.measure(target, bare, twin, PROMPTS, config_of())

    assert report["full_twin"] is True
    assert report["full_drafter"] == "twin"
    assert [head for head, *_ in heads_of(report)] == ["full", *["low-rank"] * 4, *["truncated"] * 3, "dynamic"]
    mixed = bench.measure(target, drafter, load_eagle(tmp_path / "t", target, full=True), PROMPTS, config_of())
    assert [head for head, *_ in heads_of(mixed)][-2:] == ["truncated", "dynamic"], "what the twin lacks, ours gives"


def test_what_cannot_be_made_is_left_out_with_its_reason(tmp_path, target):
    bare = load_eagle(tmp_path / "bare", target)
    report = bench.measure(target, bare, None, PROMPTS, config_of(ranks=(3,)))

    assert [head for head, *_ in heads_of(report)] == ["full", "low-rank", "dynamic"]
    assert len(report["left_out"]) == 1
    assert "token_counts" in report["left_out"][0]
    with pytest.raises(SettingError, match="bare does not say how often"):
        bench.measure(target, bare, None, PROMPTS, config_of(kept=(9,)))


def test_auto_rank_measures_ranks_and_the_full_head_alone(tmp_path, target, drafter):
    report = bench.measure(target, drafter, None, PROMPTS, config_of(auto_rank=True, ranks=(2, 7)))

    assert [(head, rank) for head, rank, *_ in heads_of(report)] == [("full", None), ("low-rank", 2), ("low-rank", 7)]
    assert report["suggested_rank"]["1"] in (2, 7)
    assert report["autoregressive"] == {}
    assert "rank" in heads_text(report)
    twin = load_eagle(tmp_path / "twin", target, full=True)
    with pytest.raises(SettingError, match="twin has no low-rank head to choose a rank for"):
        bench.measure(target, twin, None, PROMPTS, config_of(auto_rank=True))


def test_quick_measures_less(target, drafter):
    report = bench.measure(target, drafter, None, PROMPTS, config_of(quick=True, tokens=5, repetitions=9))

    assert (report["num_prompts"], report["tokens"], report["repetitions"]) == (2, 5, 2)
    assert [head for head, *_ in heads_of(report)] == ["full", "low-rank", "low-rank", "truncated", "dynamic"]
    asked = bench.measure(target, drafter, None, PROMPTS, config_of(quick=True, ranks=(1, 2, 3)))
    assert [rank for head, rank, *_ in heads_of(asked) if head == "low-rank"] == [1, 2, 3]


def test_groups_are_full_and_cover_every_prompt():
    assert bench.groups_of(5, 2) == [[0, 1], [2, 3], [4, 0]]
    assert bench.groups_of(2, 5) == [[0, 1, 0, 1, 0]]
    assert bench.groups_of(3, 1) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": (3, 13)}, "ranks holds 13; the head of ours has rank 12. Choose 1 to 12."),
        ({"kept": (65,)}, "head size is 65; the truncated head takes 1 to 64"),
        ({"candidates": (65,)}, "head size is 65; the dynamic head takes 1 to 64"),
    ],
)
def test_ranks_and_sizes_that_cannot_be(target, drafter, values, message):
    with pytest.raises(SettingError, match=message):
        bench.measure(target, drafter, None, PROMPTS, config_of(**values))


def test_ranks_of_a_drafter_without_a_low_rank_head(tmp_path, target):
    twin = load_eagle(tmp_path / "twin", target, full=True)

    assert heads_of(bench.measure(target, twin, None, PROMPTS, config_of())) == [("full", None, None, 1)]
    with pytest.raises(SettingError, match="ranks is given, but twin has no low-rank head"):
        bench.measure(target, twin, None, PROMPTS, config_of(ranks=(3,)))


def test_prompts_that_fill_the_context_are_refused(target, drafter):
    with pytest.raises(SettingError, match="Nothing was drafted: the prompts leave no room"):
        bench.measure(target, drafter, None, ["a" * 63], config_of())


# Prompts.


def test_prompts_by_any_of_three_names(tmp_path):
    file = tmp_path / "p.jsonl"
    lines = [
        {"prompt": "a", "question": "no"},
        {"question": "b"},
        {"turns": ["c", "no"]},
        {"prompt": "", "turns": ["d"]},
    ]
    file.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")

    assert read_prompts(file) == ["a", "b", "c", "d"]


def test_the_default_prompts_are_those_fit_keeps_apart():
    from explorer.training import calibration, fit

    assert calibration.PROMPTS == BUILT_IN
    assert held_out() == calibration.load_prompts(BUILT_IN)[:: fit.HELD_OUT_SHARE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts. Give a JSONL file with at least one line"),
        ('{"prompt": "a"}\n{"text": "b"}', "Line 2 of .* has no text under prompt, question or turns"),
        ('{"turns": []}', "Line 1 of .* has no text"),
        ('["a"]', "Line 1 of .* has no text"),
        ("a", "cannot be used as prompts .* Give a JSONL file with --prompts"),
    ],
)
def test_files_without_prompts(tmp_path, text, message):
    file = tmp_path / "p.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingError, match=message):
        read_prompts(file)
    with pytest.raises(SettingError, match="cannot be used as prompts"):
        read_prompts(tmp_path / "absent.jsonl")


# The command.


@pytest.fixture
def command(tmp_path, monkeypatch, target):
    """Runs `bench heads` on a toy; returns the exit code."""
    save_eagle(tmp_path / "ours", target, random_eagle(target, 12), token_counts=counts_of(VOCAB))
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in PROMPTS), encoding="utf-8")
    monkeypatch.setattr(bench, "load_model", lambda *_: target)
    monkeypatch.setattr(loading, "load_model", lambda *_: target)
    usual = ["bench", "heads", "--tokens=6", "--repetitions=1", "--ranks=3", "--ranks=12", f"--prompts={file}"]

    def run(*words, drafter=str(tmp_path / "ours")):
        return command_line.main([*usual, f"--drafter={drafter}", *words])

    return run


def test_json_is_the_last_line_and_progress_goes_to_stderr(command, capsys):
    assert command("--json", "--batch=1", "--batch=2") == 0
    out, err = capsys.readouterr()

    report = json.loads(out.rstrip("\n").rpartition("\n")[2])
    assert {row["batch"] for row in report["rows"]} == {1, 2}
    assert report["full_twin"] is False
    assert set(report["suggested_rank"]) == {"1", "2"}
    assert "Measuring at batch 2" in err


def test_the_table_names_every_head_and_says_what_full_means(command, capsys):
    assert command() == 0
    out = capsys.readouterr().out

    for words in ("low-rank", "truncated", "dynamic", "not a twin trained with a full head", "kappa", "break-even"):
        assert words in out
    widths = {len(line) for line in out.splitlines() if line.endswith(("ceiling", "-"))}
    assert len(widths) == 1, "columns line up"


def test_the_twin_is_read_from_its_folder(command, tmp_path, target, capsys):
    twin = save_eagle(tmp_path / "twin", target, random_eagle(target, 12, seed=1), full=True)

    assert command("--json", f"--full-drafter={twin}", "--auto-rank") == 0
    assert json.loads(capsys.readouterr().out)["full_drafter"] == "twin"


@pytest.mark.parametrize(
    ("words", "drafter", "message"),
    [
        ([], "ngram", "The drafter 'ngram' has no head to replace. Give a folder that `fit` wrote"),
        (["--batch=0"], "auto", "batch is 0; it must be in [1, 512]"),
        (["--ranks=x"], "auto", "Argument --ranks: invalid int value: 'x'"),
        (["--prompts=/no/such.jsonl"], "auto", "/no/such.jsonl cannot be used as prompts"),
        (["--full-drafter=/no/such"], None, "/no/such is not a checkpoint"),
    ],
)
def test_bad_input_exits_with_2_and_one_sentence(command, capsys, words, drafter, message):
    assert command(*words, **({"drafter": drafter} if drafter else {})) == 2
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith(message)
    assert out == ""


@pytest.mark.parametrize("words", [["bench"], ["bench", "bake"]])
def test_bench_says_what_it_can_measure(words, capsys):
    assert command_line.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
