"""Distillation steps on a tiny target: they learn, the gradient is the plain one, a resumed run equals a whole one."""

import copy
import dataclasses

import pytest
import torch
from toys import language_model, random_network

from explorer.errors import ExplorerError, SettingError, WeightsError
from explorer.heads.draft import FullHead, TruncatedHead
from explorer.heads.eagle import EagleModel
from explorer.training import corpus, fit
from explorer.training.closed_form import TargetHead
from explorer.training.fit import FitConfig
from explorer.training.replay import rollout
from explorer.training.trainer import TrainConfig, Trainer, with_head

PROMPTS = ["abc", "hello", "what", "x", "spec", "draft", "token", "rank", "head", "eagle", "zebra"]


@pytest.fixture(scope="module")
def target():
    network = copy.deepcopy(random_network("llama", 3))
    network.get_input_embeddings().weight.data *= 20
    return language_model(network, name="toy llama")


@pytest.fixture(scope="module")
def head(target):
    return TargetHead.of(target)


@pytest.fixture(scope="module")
def start(target):
    model, _ = fit.fit(target, PROMPTS, FitConfig(out="x", tokens=400, max_rank=16))
    gate, up = target.last_feed_forward().chunk(2)
    return model.with_feed_forward(gate, up)


@pytest.fixture(scope="module")
def rows(target, start):
    generator = torch.Generator().manual_seed(3)
    states = (*start.shape.features, target.num_layers)
    found = fit.sample_rows(target, PROMPTS, states, 3000, generator, answer_tokens=40)
    D = target.hidden_size
    return [dataclasses.replace(row, log_norms=corpus.log_norms(target, row.states[:, -D:])) for row in found]


def trainer(head, start, rows, steps=40, **settings):
    config = TrainConfig(**{"warmup_steps": 3, "learning_rate": 3e-3, "rows_per_step": 4, "num_frequent": 0} | settings)
    return Trainer(start, head, rows, config, steps)


def scored(learner, head, rows):
    with torch.no_grad():
        return fit.score_rows(learner.trained(), head, rows, greedy=False)["tokens_per_round"]


@pytest.mark.parametrize("settings", [{}, {"loss": "lk"}, {"num_frequent": 20, "num_sampled": 8}], ids=str)
def test_training_brings_the_drafter_closer_to_the_target(head, start, rows, settings):
    held_out, trained = rows[:12], rows[12:]
    learner = trainer(head, start, trained, **settings)
    before = scored(learner, head, held_out)
    for step in range(40):
        learner.train_step([trained[(4 * step + i) % len(trained)] for i in range(4)])
    assert scored(learner, head, held_out) > before + 0.02


def test_a_full_head_is_kept_and_the_body_learns_through_it(head, start, rows):
    twin = with_head(start, FullHead(head.weight * head.scale))
    held_out, trained = rows[:12], rows[12:]
    learner = trainer(head, twin, trained)
    before, weight = scored(learner, head, held_out), learner.model.head.weight.clone()
    for step in range(40):
        learner.train_step([trained[(4 * step + i) % len(trained)] for i in range(4)])
    assert scored(learner, head, held_out) > before + 0.02
    torch.testing.assert_close(learner.model.head.weight.detach(), weight, rtol=0, atol=0)


def test_the_start_is_left_as_it_was_and_nothing_is_lost_on_the_way_in_and_out(head, start, rows):
    before = {name: weight.clone() for name, weight in start.named_weights().items()}
    learner = trainer(head, start, rows)
    for name, weight in learner.trained().named_weights().items():
        torch.testing.assert_close(weight, before[name], rtol=1e-6, atol=1e-9)
    learner.train_step(rows[:4])
    for name, weight in start.named_weights().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)


def test_a_resumed_run_equals_one_that_was_never_stopped(head, start, rows, tmp_path):
    settings = {"num_frequent": 20, "num_sampled": 8}
    whole, first = trainer(head, start, rows, **settings), trainer(head, start, rows, **settings)
    for step in range(6):
        whole.train_step(rows[step * 4 : step * 4 + 4])
        if step < 3:
            first.train_step(rows[step * 4 : step * 4 + 4])
    first.save_state(tmp_path / "run" / "state.safetensors")
    second = trainer(head, start, rows, **settings)
    second.load_state(tmp_path / "run" / "state.safetensors")
    for step in range(3, 6):
        second.train_step(rows[step * 4 : step * 4 + 4])

    assert second.step == whole.step == 6
    for name, weight in whole.weights.items():
        torch.testing.assert_close(second.weights[name], weight, rtol=0, atol=0)


def test_a_state_that_is_missing_or_damaged_is_refused(head, start, rows, tmp_path):
    learner = trainer(head, start, rows)
    with pytest.raises(WeightsError, match="cannot be resumed from"):
        learner.load_state(tmp_path / "absent.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="Start anew, without --resume"):
        learner.load_state(tmp_path / "bad.safetensors")


@pytest.mark.parametrize("prompt_weight", [0.0, 0.4])
def test_the_gradient_of_a_row_is_that_of_the_plain_loss(head, start, rows, prompt_weight):
    """The hand-made gradient against autograd through the whole thing, all positions of three drafts."""
    learner = trainer(head, start, rows, later_share=1.0, num_steps=3, prompt_weight=prompt_weight)
    row, learner.step = rows[0], 1  # an odd step trains the whole head
    total = len(row.states) - row.prompt_length + 1
    learner.optimizer.zero_grad(set_to_none=True)
    pass_ = learner._pass(row.ids)
    learner._row(row, pass_, total)
    ours = {name: weight.grad.clone() for name, weight in learner.weights.items() if weight.grad is not None}
    ours["head.up_t"] = torch.zeros_like(learner.model.head.up_t).index_add_(1, pass_.columns.ids, pass_.factor_grad)

    for weight in learner.weights.values():
        weight.grad = None
    plain_loss(learner, head, row, total).backward()

    assert ours.keys() == {name for name, weight in learner.weights.items() if weight.grad is not None}
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, learner.weights[name].grad, rtol=1e-3, atol=1e-6)


def plain_loss(learner, head, row, total):
    """Sum over every draft of every position of weight * cross entropy, position by position."""
    D, first = learner.model.shape.hidden_size, row.prompt_length - 1
    laws = head(row.states[:, -D:]).softmax(-1).detach()
    features = row.states[:, :-D].float() / learner.sizes
    loss = 0.0
    for step, (_, states) in enumerate(rollout(learner.model, row.ids, features, 3)):
        for entry, state in enumerate(states):
            judge = entry + step + 1
            if judge < len(laws):
                weight = 1.0 if judge >= first else learner.config.prompt_weight
                logits = learner.model.normed(state) @ learner.model.head.down.t() @ learner.model.head.up_t
                loss = loss - weight * 0.8**step / total * (laws[judge] * logits.log_softmax(-1)).sum()
    return loss


def test_what_is_reported_is_of_the_answers_alone(head, start, rows):
    reports = [
        trainer(head, start, rows, prompt_weight=weight).train_step(rows[:4])["overlap"] for weight in (0.0, 1.0)
    ]
    assert reports[0] == pytest.approx(reports[1], rel=1e-5)


def test_numbers_that_are_not_finite_stop_the_run(head, start, rows):
    learner = trainer(head, start, rows)
    before = {name: weight.detach().clone() for name, weight in learner.weights.items()}
    broken = dataclasses.replace(rows[0], states=torch.full_like(rows[0].states, torch.nan))
    with pytest.raises(ExplorerError, match="gradient of step 0 is not finite"):
        learner.train_step([broken])
    for name, weight in learner.weights.items():
        torch.testing.assert_close(weight.detach(), before[name], rtol=0, atol=0)


def test_a_truncated_head_is_refused(head, start, rows):
    kept = torch.arange(20)
    model = EagleModel(start.shape, start.embedding, TruncatedHead(head.weight[kept], kept, len(head.weight)))
    with pytest.raises(SettingError, match="Only low-rank and full heads"):
        trainer(head, model, rows)


def test_the_rate_warms_up_and_ends_at_nothing(head, start, rows):
    learner = trainer(head, start, rows, steps=100, learning_rate=1e-3, warmup_steps=10)
    rates = []
    for learner.step in range(101):
        rates.append(learner._rate())
    assert rates[0] == pytest.approx(1e-4)
    assert max(rates) <= 1e-3
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.0, abs=1e-12)
