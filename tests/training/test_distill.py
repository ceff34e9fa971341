"""A whole distillation on a tiny target, from prompts to a folder that drafts."""

import copy
import json

import pytest
from toys import answers, language_model, prompts_of, random_network

from explorer.cli import distill as command
from explorer.engine.eagle import EagleDrafter
from explorer.engine.pair import ModelPair
from explorer.errors import SettingError
from explorer.training import corpus, distill
from explorer.training.distill import DistillConfig

WORDS = ["abc", "hello", "what", "x", "spec", "draft", "token", "rank", "head", "eagle", "zebra", "fox", "quiz", "jump"]


@pytest.fixture(scope="module")
def target():
    network = copy.deepcopy(random_network("llama", 3))
    network.get_input_embeddings().weight.data *= 20
    return language_model(network, name="toy llama")


@pytest.fixture
def toy(target, tmp_path, monkeypatch):
    monkeypatch.setattr(distill, "load_model", lambda *_: target)
    monkeypatch.setattr(corpus, "BATCH_SIZE", 12)
    (tmp_path / "prompts.jsonl").write_text(
        "\n".join(json.dumps({"prompt": 4 * word + c}) for word in WORDS for c in "abcdefgh")
    )
    return tmp_path


def config(folder, **settings):
    defaults = {
        "out": str(folder / "made"),
        "prompts": (str(folder / "prompts.jsonl"),),
        "pair": "toy",
        "tokens": 1500,
        "answer_tokens": 20,
        "max_rank": 16,
        "num_frequent": 0,
        "rows_per_step": 4,
        "epochs": 4.0,
        "warmup_steps": 4,
        "learning_rate": 3e-3,
        "evaluate_steps": 20,
    }
    return DistillConfig(**defaults | settings)


def quiet(what, done, total):
    """Progress nobody watches."""


def test_a_run_gains_and_writes_a_folder_that_loads_and_drafts_exactly(toy, target):
    seen = []
    meta = distill.run(config(toy), lambda *step: seen.append(step))

    metrics = meta["metrics"]
    gained = [
        metrics["temperature"][key]["tokens_per_round"] - metrics["before"][key]["tokens_per_round"]
        for key in metrics["temperature"]
    ]
    assert sum(gained) > 0.02
    assert json.loads((toy / "made" / "meta.json").read_text()) == json.loads(json.dumps(meta))
    assert meta["command"].startswith("python -m explorer distill --num-frequent 0 ")
    assert "--prompts prompts.jsonl" in meta["command"]
    assert list(metrics["by_rank"]) == ["2", "4", "8", "16"]
    assert meta["data"]["num_tokens"] >= 1500
    assert {what.split(",")[0] for what, _, _ in seen} >= {"Sampling answers", "Training", "Scoring"}
    drafter = EagleDrafter.load(toy / "made", target)
    prompts = prompts_of((4, 9, 1))
    for rank in (0, 1, 5, 16):
        ours = answers(ModelPair(target, drafter), prompts, max_new_tokens=20, draft_length=3, rank=rank)
        assert ours == answers(ModelPair(target, None), prompts, max_new_tokens=20, rule="ar")


def test_the_best_drafter_is_the_one_written(toy, monkeypatch):
    """Steps that ruin the drafter: what is written is the start, and training stops early."""
    plain = distill.Trainer.train_step

    def ruinous(trainer, rows):
        seen = plain(trainer, rows)
        trainer.model.fc.data.zero_()
        trainer.model.out.data.zero_()
        return seen

    monkeypatch.setattr(distill.Trainer, "train_step", ruinous)
    meta = distill.run(config(toy, evaluate_steps=4, patience=2), quiet)
    metrics = meta["metrics"]
    assert metrics["temperature"] == metrics["before"]
    log = [json.loads(line) for line in (toy / "made-run" / "metrics.jsonl").read_text().splitlines()]
    assert max(record["step"] for record in log) == 8


def test_a_stopped_run_goes_on_and_ends_like_a_whole_one(toy, target, monkeypatch):
    short = {"corpus": str(toy / "corpus"), "epochs": 2.0}
    whole = distill.run(config(toy, out=str(toy / "whole"), **short), quiet)

    def stop_at(step):
        def progress(what, done, total):
            if what.startswith("Training") and done == step:
                raise KeyboardInterrupt

        return progress

    monkeypatch.setattr(distill, "SAVE_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        distill.run(config(toy, **short), stop_at(21))
    resumed = distill.run(config(toy, resume=True, **short), quiet)

    assert resumed["metrics"] == whole["metrics"]
    first, second = (EagleDrafter.load(toy / name, target).model.named_weights() for name in ("whole", "made"))
    assert all((first[name] == second[name]).all() for name in first)


def test_a_drafter_with_the_target_s_own_head(toy, target):
    meta = distill.run(config(toy, head="full"), quiet)
    assert meta["head"] == "full"
    drafter = EagleDrafter.load(toy / "made", target)
    prompts = prompts_of((4, 9, 1))
    ours = answers(ModelPair(target, drafter), prompts, max_new_tokens=20, draft_length=3)
    assert ours == answers(ModelPair(target, None), prompts, max_new_tokens=20, rule="ar")


def test_training_may_start_from_a_drafter_that_is_there(toy, target):
    distill.run(config(toy, epochs=1.0, corpus=str(toy / "corpus")), quiet)
    first = json.loads((toy / "made" / "meta.json").read_text())["metrics"]["temperature"]
    again = distill.run(
        config(toy, out=str(toy / "again"), start=str(toy / "made"), epochs=0.2, corpus=str(toy / "corpus")), quiet
    )
    for key, before in again["metrics"]["before"].items():
        assert before["tokens_per_round"] == pytest.approx(first[key]["tokens_per_round"], abs=1e-3)


def test_settings_that_cannot_be_used(tmp_path):
    with pytest.raises(SettingError, match="--out DIR --prompts FILE"):
        DistillConfig(out=str(tmp_path))
    with pytest.raises(SettingError, match="head is 'truncated'"):
        DistillConfig(out="x", prompts=("y",), head="truncated")


def test_the_command_says_what_was_gained(toy, capsys):
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["--out", str(toy / "made"), "--prompts", str(toy / "prompts.jsonl"), "--pair", "toy", "--tokens", "600"]
    more = [
        "--answer-tokens",
        "20",
        "--max-rank",
        "16",
        "--num-frequent",
        "0",
        "--epochs",
        "0.5",
        "--warmup-steps",
        "2",
    ]
    assert command.run(parser.parse_args(words + more)) == 0
    shown = capsys.readouterr().out
    assert "tokens per round with 4 drafts, on answers kept apart" in shown
    assert "temperature 1: 1." in shown
