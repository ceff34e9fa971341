"""Training the ensemble head on toys: it learns, resumes, survives equal rewards, and two processes equal one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toys import run as decode_run
from toys import toy_pair

from explorer.engine.ensembles import bundled_ensembles, load_ensemble, with_ensemble
from explorer.engine.pair import ModelPair
from explorer.engine.rollout import Rollout
from explorer.engine.trace import read_trace
from explorer.errors import ExplorerError, ModelPairError, SettingError, WeightsError
from explorer.tasks.base import Example, Task, user
from explorer.training import train
from explorer.training.objective import Tokens
from explorer.training.reinforce import Reinforcer, UpdateConfig, tokens_of
from explorer.training.train import TrainConfig

WORDS = ["abc", "hello", "what", "spec", "draft", "token", "rank", "head"]


class Letters(Task):
    """Likes answers with certain letters in them."""

    name = "letters"
    max_new_tokens = 8
    correct_at = 0.5
    takes_data = False

    def __init__(self, liked="abcdefghijklm", **options):
        super().__init__(None, **options)
        self.liked = liked

    def _load(self, data, num_shots):
        return {"train": [Example([user(word)]) for word in WORDS], "test": [Example([user("zebra")])]}

    def reward(self, completion, example):
        letters = completion.replace(" ", "")
        return sum(letter in self.liked for letter in letters) / max(len(letters), 1)


class Equal(Letters):
    def reward(self, completion, example):
        return 0.5


@pytest.fixture(scope="module")
def pair():
    return toy_pair("llama", seed=2)


SETTINGS = {"prompts_per_step": 4, "rollouts": 8, "price_steps": 0, "start": 0.5, "learning_rate": 0.01, "price": 0.0}


def reinforcer(pair, task=None, **settings):
    return Reinforcer(ModelPair(pair.target, pair.drafter), task or Letters(), UpdateConfig(**SETTINGS | settings))


def weights(head):
    return torch.cat([head.state_weight, head.figure_weight, head.bias.view(1)]).detach()


def test_the_reward_rises(pair):
    """Of two heads with opposite tastes each comes to write more of what it likes."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    means = []
    for liked in (alphabet[:13], alphabet[13:]):
        learner = reinforcer(pair, Letters(liked), rollouts=16)
        rewards = [learner.train_step()["reward"] for _ in range(16)]
        means.append(sum(rewards[-4:]) / 4 - sum(rewards[:2]) / 2)
    assert min(means) > 0
    assert sum(means) > 0.04


def test_a_price_alone_lowers_the_weight_and_raises_acceptance(pair):
    learner = reinforcer(pair, Equal(), price=0.5)
    seen = [learner.train_step() for _ in range(10)]
    assert seen[-1]["weight"] < seen[0]["weight"] - 0.1
    assert seen[-1]["acceptance"] > seen[0]["acceptance"] + 0.02
    assert seen[-1]["accepted"] > seen[0]["accepted"]


def test_equal_rewards_without_a_price_move_nothing(pair):
    learner = reinforcer(pair, Equal())
    before = weights(learner.head)
    record = learner.train_step()
    assert torch.equal(weights(learner.head), before)
    assert all(value == value for value in record.values())
    assert record["norm"] == 0


def test_one_seed_one_run(pair):
    first, second, other = (reinforcer(pair, seed=seed) for seed in (1, 1, 2))
    for learner in (first, second, other):
        learner.train_step()
        learner.train_step()
    assert torch.equal(weights(first.head), weights(second.head))
    assert not torch.equal(weights(first.head), weights(other.head))


def test_a_resumed_run_equals_one_that_was_never_stopped(pair, tmp_path):
    whole, first = reinforcer(pair), reinforcer(pair)
    for _ in range(4):
        whole.train_step()
    for _ in range(2):
        first.train_step()
    first.save_state(tmp_path / "run" / "state.safetensors")
    second = reinforcer(pair)
    second.load_state(tmp_path / "run" / "state.safetensors")
    for _ in range(2):
        second.train_step()
    assert second.step == 4
    assert torch.equal(weights(second.head), weights(whole.head))


def test_figures_of_a_step(pair):
    record = reinforcer(pair).train_step()
    assert record["num_answers"] == 32
    assert 0 < record["reward"] < 1
    assert record["weight"] == pytest.approx(0.5)
    assert record["weight_entropy"] == pytest.approx(0.6931, abs=1e-3)
    assert record["kl_to_start"] == pytest.approx(0, abs=1e-3)
    assert record["acceptance"] == pytest.approx(1 - 0.5 * record["distance"], abs=1e-4)
    assert record["length"] <= 8


def test_numbers_that_are_not_finite_stop_the_run(pair):
    learner = reinforcer(pair, price=0.5)
    tokens = tokens_of([Rollout([1], places=[0], inputs=torch.ones(1, 5), numbers=torch.full((1, 5), torch.nan))])
    before = weights(learner.head)
    tokens.inputs = torch.full((1, len(learner.head.mean)), torch.nan)
    learner.step = 1
    with pytest.raises(ExplorerError, match="gradient of step 1 is not finite"):
        learner.update(tokens, torch.tensor([1.0]), torch.tensor([0]))
    assert torch.equal(weights(learner.head), before)


def test_a_drafter_without_states_is_refused():
    with pytest.raises(SettingError, match="looks at the drafter's states"):
        reinforcer(toy_pair("llama", "ngram"))


# The command's run.


@pytest.fixture
def toy_task(monkeypatch):
    monkeypatch.setattr(train, "load_task", lambda *_, **__: Letters())


def config(folder, **settings):
    return TrainConfig(out=str(folder / "made"), steps=4, save_steps=2, **SETTINGS | settings)


def quiet(what, done, total):
    """Progress nobody watches."""


def test_a_run_writes_a_head_that_decodes(pair, toy_task, tmp_path):
    meta = train.run(config(tmp_path, probe_steps=2), quiet, pair=pair)

    probes = sorted(path.name for path in (tmp_path / "made-run").glob("probe-*"))
    assert probes == ["probe-000000.ndjson", "probe-000002.ndjson", "probe-000004.ndjson"]
    assert read_trace((tmp_path / "made-run" / probes[0]).read_text())[0]["prompt"] == "zebra"
    assert json.loads((tmp_path / "made" / "meta.json").read_text()) == json.loads(json.dumps(meta))
    assert meta["command"].startswith("python -m explorer train --lambda 0.0 --price-steps 0 --prompts-per-step 4")
    log = [json.loads(line) for line in (tmp_path / "made-run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == [1, 2, 3, 4]
    assert {"reward", "acceptance", "weight", "distance", "weight_entropy", "kl_to_start", "norm"} <= log[0].keys()
    made = with_ensemble(pair, str(tmp_path / "made"))
    assert bundled_ensembles(pair.target, pair.drafter, tmp_path) == {"made": tmp_path / "made"}
    events = decode_run(made, [[1, 2, 3]], rule="dynamic", details=True, max_new_tokens=8, temperature=1.0)
    assert all(0 < t.target_weight < 1 for e in events for t in e.details[: len(e.draft_ids)])


def test_a_stopped_run_goes_on(pair, toy_task, tmp_path):
    train.run(config(tmp_path), quiet, pair=pair)
    whole = load_ensemble(tmp_path / "made", pair.target, pair.drafter)

    def stop(what, done, total):
        if done == 3:
            raise KeyboardInterrupt

    (tmp_path / "again").mkdir()
    with pytest.raises(KeyboardInterrupt):
        train.run(config(tmp_path / "again"), stop, pair=pair)
    load_ensemble(tmp_path / "again" / "made", pair.target, pair.drafter)  # the last good one
    train.run(config(tmp_path / "again", resume=True), quiet, pair=pair)
    resumed = load_ensemble(tmp_path / "again" / "made", pair.target, pair.drafter)
    assert torch.equal(weights(resumed), weights(whole))


def test_a_head_of_another_pair_is_refused(pair, toy_task, tmp_path):
    train.run(config(tmp_path), quiet, pair=pair)
    other = toy_pair("llama", seed=3)
    with pytest.raises(ModelPairError, match="was made for"):
        with_ensemble(other, str(tmp_path / "made"))
    with pytest.raises(ModelPairError, match="was trained with the drafter"):
        with_ensemble(ModelPair(pair.target, other.drafter), str(tmp_path / "made"))
    with pytest.raises(ModelPairError, match=r"No ensemble head for toy llama with .* is bundled. Train one"):
        with_ensemble(pair, "auto")
    with pytest.raises(WeightsError, match="is not a checkpoint"):
        with_ensemble(pair, str(tmp_path / "nothing"))
    with pytest.raises(ModelPairError, match="this drafter has none"):
        with_ensemble(toy_pair("llama", "ngram"), "auto")


# Two processes.


def batch(part, of):
    """Half (or all) of a made-up batch of four prompts with three answers of five tokens."""
    generator = torch.Generator().manual_seed(4)
    A, T = 12, 5
    p, q, w = (torch.rand(A * T, generator=generator) * 0.8 + 0.1 for _ in range(3))
    tokens = Tokens(
        inputs=torch.randn(A * T, 64, generator=generator),
        target_prob=p,
        draft_prob=q,
        distance=torch.rand(A * T, generator=generator),
        old_prob=0.5 * p + 0.5 * q,
        answer=torch.arange(A).repeat_interleave(T),
        place=torch.arange(T).repeat(A),
    )
    rewards, groups = torch.rand(A, generator=generator), torch.arange(4).repeat_interleave(3)
    size = A // of
    kept = (tokens.answer >= part * size) & (tokens.answer < (part + 1) * size)
    tokens = tokens.of(kept)
    tokens.answer = tokens.answer - part * size
    return tokens, rewards[part * size : (part + 1) * size], groups[part * size : (part + 1) * size]


def updated(part, of):
    learner = reinforcer(toy_pair("llama", seed=2), inputs="states", price=0.3, epochs=4)
    for _ in range(3):
        record = learner.update(*batch(part, of))
    return weights(learner.head), record, learner.workers


def test_two_processes_equal_one_with_the_doubled_batch(tmp_path):
    """Two processes run this very file, joined by accelerate; each sees half of the answers."""
    expected, record, _ = updated(0, 1)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__]
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OUT": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for index in range(2):
        found = torch.load(tmp_path / f"{index}.pt", weights_only=True)
        torch.testing.assert_close(found["weights"], expected, rtol=1e-4, atol=1e-6)
        assert found["reward"] == pytest.approx(record["reward"], abs=1e-6)


if __name__ == "__main__":
    from explorer.training.workers import Workers

    here = Workers()
    found, seen, workers = updated(here.index, here.count)
    torch.save({"weights": found, "reward": seen["reward"]}, Path(os.environ["OUT"]) / f"{workers.index}.pt")
