"""The closed form on tiny random targets: it beats chance by far, is what it says it is, and loads back."""

import copy
import dataclasses
import json

import pytest
import torch
from toys import answers, language_model, prompts_of, random_network

from explorer.engine.eagle import EagleDrafter, shape_of
from explorer.engine.pair import ModelPair
from explorer.errors import ModelPairError, SettingError
from explorer.heads.draft import LowRankHead
from explorer.heads.eagle import EagleModel
from explorer.training import closed_form, fit
from explorer.training.closed_form import TargetHead, low_rank, norm_weights
from explorer.training.fit import FitConfig
from explorer.training.replay import rollout

PROMPTS = ["abc", "hello", "what", "x", "spec", "draft", "token", "rank", "head", "eagle", "zebra"]


@pytest.fixture(scope="module")
def target():
    """A target whose states keep much of the last token, so that there is something to predict."""
    network = copy.deepcopy(random_network("llama", 3))
    network.get_input_embeddings().weight.data *= 20
    network.model.norm.weight.data = torch.linspace(0.3, 3.0, 32)
    return language_model(network, name="toy llama")


@pytest.fixture(scope="module")
def fitted(target):
    return fit.fit(target, PROMPTS, FitConfig(out="x", tokens=4000, max_rank=24))


def test_it_overlaps_far_more_than_a_random_drafter(target, fitted):
    model, meta = fitted
    shape = shape_of(target, 24)
    generator = torch.Generator().manual_seed(0)
    head = LowRankHead(torch.randn(24, 32, generator=generator) / 5, torch.randn(64, 24, generator=generator) / 5)
    chance = EagleModel(shape, target.embedding, head)
    for name, weight in chance.named_weights().items():
        if name.startswith("fc"):
            weight.copy_(torch.randn(weight.shape, generator=generator) / 10)
    rows = fit.sample_rows(
        target, PROMPTS[:3], (*shape.features, 2), 200, torch.Generator().manual_seed(9), answer_tokens=40
    )
    random_score = fit._score(chance, TargetHead.of(target), rows, False, fit._silent)

    ours = meta["metrics"]["temperature"]["1"]
    assert ours["overlap"][0] > 1.5 * random_score["overlap"][0]
    assert ours["agreement"][0] > 5 * random_score["agreement"][0]
    assert ours["tokens_per_round"] > 1.25
    assert len(ours["overlap"]) == len(ours["agreement"]) == meta["metrics"]["draft_length"] == 4
    assert meta["metrics"]["temperature"]["0"]["num_answers"] == 2


def test_expected_tokens_per_round_are_measured_ones(target, fitted):
    """The replayed figure against live decodes of the same prompts."""
    model, meta = fitted
    pair = ModelPair(target, EagleDrafter(model, "fitted"))
    prompts = [fit_ids(target, text) for text in (PROMPTS[0], PROMPTS[10])] * 20
    from explorer.engine.config import DecodeConfig
    from explorer.engine.decode import decode
    from explorer.engine.metrics import count

    config = DecodeConfig(draft_length=4, temperature=1.0, max_new_tokens=50, seed=5)
    live = count(decode(pair, prompts, config)).tokens_per_round

    assert live == pytest.approx(meta["metrics"]["temperature"]["1"]["tokens_per_round"], rel=0.12)


def fit_ids(target, text):
    return [ord(letter) - 97 for letter in text]


def test_a_run_writes_a_folder_that_loads_and_drafts_exactly(target, fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "load_model", lambda *_: target)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in PROMPTS))
    seen = []
    config = FitConfig(out=str(tmp_path / "made"), target="toy", tokens=600, max_rank=16, prompts=str(prompts))

    meta = fit.run(config, lambda *step: seen.append(step))

    written = json.loads((tmp_path / "made" / "meta.json").read_text())
    assert written == json.loads(json.dumps(meta))
    assert written["kind"] == "drafter"
    assert written["target"]["fingerprint"] == target.fingerprint
    assert written["config"] == dataclasses.asdict(config)
    assert written["command"].startswith("python -m explorer fit --out=")
    assert " --target=toy --tokens=600 --max-rank=16 --prompts=" in written["command"]
    assert {what for what, _, _ in seen} >= {"Sampling the target", "Fitting", "Scoring"}
    assert all(0 <= done <= total for _, done, total in seen)
    drafter = EagleDrafter.load(tmp_path / "made", target)
    assert drafter.max_rank == 16
    prompts = prompts_of((4, 9, 1))
    for rank in (0, 1, 5, 16):
        ours = answers(ModelPair(target, drafter), prompts, max_new_tokens=20, draft_length=3, rank=rank)
        assert ours == answers(ModelPair(target, None), prompts, max_new_tokens=20, rule="ar")


def test_one_seed_one_drafter(target):
    config = FitConfig(out="x", tokens=300, max_rank=8)
    first, second = (fit.fit(target, PROMPTS, config)[0].named_weights() for _ in range(2))

    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_no_scored_prompt_is_fitted_on(target, monkeypatch):
    asked, real = [], fit.sample_rows

    def spy(target, prompts, *args, **options):
        asked.append((options["temperature"], set(prompts)))
        return real(target, prompts, *args, **options)

    monkeypatch.setattr(fit, "sample_rows", spy)
    fit.fit(target, PROMPTS, FitConfig(out="x", tokens=300, max_rank=8))

    (_, fitted_on), *scored_on = asked
    assert [temperature for temperature, _ in scored_on] == [1.0, 0.0]
    assert all(prompts == {PROMPTS[0], PROMPTS[10]} for _, prompts in scored_on)
    assert fitted_on == set(PROMPTS) - {PROMPTS[0], PROMPTS[10]}


@pytest.mark.parametrize("kind", ["qwen3", "gemma3", "gpt2", "mixtral"])
def test_other_kinds_of_targets(kind):
    target = language_model(random_network(kind, 3), name=kind)

    model, meta = fit.fit(target, PROMPTS, FitConfig(out="x", tokens=1500, max_rank=24))

    assert meta["metrics"]["temperature"]["1"]["overlap"][0] > 0.1
    ours = answers(ModelPair(target, EagleDrafter(model, kind)), prompts_of((3, 7)), max_new_tokens=15)
    assert ours == answers(ModelPair(target, None), prompts_of((3, 7)), max_new_tokens=15, rule="ar")


def test_settings_that_cannot_be_used():
    with pytest.raises(SettingError, match="out is empty; give the folder"):
        FitConfig()
    with pytest.raises(SettingError, match=r"tokens is 1; it must be in \[50, 5000000\]"):
        FitConfig(out="x", tokens=1)
    with pytest.raises(SettingError, match="precision is 'half'; it must be one of auto"):
        FitConfig(out="x", precision="half")


def test_a_target_that_says_nothing(target):
    silent = language_model(random_network("llama", 3), name="silent", end_ids=tuple(range(64)))
    with pytest.raises(SettingError, match=r"The target wrote only \d+ tokens to fit on. Raise tokens"):
        closed_form.fit_model(silent, TargetHead.of(silent), [], 8, torch.Generator())


def test_a_target_of_another_shape_is_refused(target):
    odd = language_model(random_network("llama", 3), name="odd")
    odd.hidden_size = 16
    with pytest.raises(ModelPairError, match="Choose a Llama-like target"):
        fit.fit(odd, PROMPTS, FitConfig(out="x", tokens=50))


# The pieces.


def test_outputs_predict_the_normalised_next_state(target, fitted):
    """The final norm has the target's weights, and what goes into it is unbiased: a slope of 1 on held-out states."""
    model, _ = fitted
    features = (*model.shape.features, 2)
    rows = fit.sample_rows(target, PROMPTS[:2], features, 400, torch.Generator().manual_seed(3), answer_tokens=40)
    torch.testing.assert_close(model.final_norm, target.model.model.norm.weight, atol=0.01, rtol=0.02)
    ours, theirs = [], []
    for row in rows:
        fused, states = closed_form.split_states(row, model.shape)
        first = row.prompt_length - 1
        ours.append(rollout(model, row.ids, fused, 1)[0][1][first:-1])
        theirs.append(states[first + 1 :] / model.final_norm)
    x, y = torch.cat(ours), torch.cat(theirs)

    slopes = (x * y).sum(0) / x.square().sum(0)

    for part in slopes.split(8):  # dimensions of a small weight, ..., dimensions of a large one
        assert part.mean() == pytest.approx(1.0, abs=0.4)


def test_prefixes_of_the_head_grow_better(target, fitted):
    model, _ = fitted
    head = TargetHead.of(target)
    states = torch.randn(400, 32, generator=torch.Generator().manual_seed(1)) * model.final_norm
    moment, fisher = states.t() @ states / 400, closed_form.fisher_matrix(states, head)
    down, up = low_rank(head.weight, fisher, moment, 32)
    low = LowRankHead(down, up)
    law = head(states).softmax(-1)

    overlaps = [float(torch.minimum(low(states, r).softmax(-1), law).sum(1).mean()) for r in (1, 4, 8, 16, 24, 32)]

    assert overlaps == sorted(overlaps)
    assert overlaps[-1] == pytest.approx(1.0, abs=1e-2)


def test_fisher_matrix_is_the_mean_covariance_of_head_rows():
    generator = torch.Generator().manual_seed(0)
    weight, states = torch.randn(9, 4, generator=generator), torch.randn(5, 4, generator=generator)
    expected = torch.zeros(4, 4)
    for state in states:
        p = (2 * weight @ state).softmax(0)
        centred = 2 * (weight - p @ weight)
        expected += (centred.t() * p) @ centred / 5

    torch.testing.assert_close(
        closed_form.fisher_matrix(states, TargetHead(weight, 2.0)), expected, atol=1e-5, rtol=1e-4
    )


def test_norm_weights_are_recovered_up_to_sign(target):
    generator = torch.Generator().manual_seed(0)
    weight = 1 + torch.rand(32, generator=generator)
    weight[3] *= -1
    states = torch.randn(500, 32, generator=generator)
    states = states / states.square().mean(1, keepdim=True).sqrt() * weight

    torch.testing.assert_close(norm_weights(states, shape_of(target, 8)), weight.abs(), atol=1e-3, rtol=1e-3)


def test_a_scaled_head_is_noticed(target):
    assert TargetHead.of(target).scale == 1.0
    scaled = language_model(random_network("llama", 3), name="scaled")
    plain = scaled.forward

    def louder(*args, **options):
        result = plain(*args, **options)
        result.logits = result.logits * 0.25
        return result

    scaled.forward = louder
    assert TargetHead.of(scaled).scale == pytest.approx(0.25, rel=1e-3)


def test_attention_adds_the_embedding_map(target, fitted):
    """An entry's output is its fused features plus a map of its token, nearly untouched by the entries before it."""
    model, _ = fitted
    ids, positions = torch.arange(6).unsqueeze(0), torch.arange(6).unsqueeze(0)
    _, _, values = model.project(ids, torch.zeros(1, 6, 32), positions)

    queries, keys, _ = model.project(ids, torch.ones(1, 6, 32), positions)

    group = model.shape.num_heads // model.shape.num_kv_heads
    for head in range(0, model.shape.num_heads, group):
        scores = queries[0, :, head] @ keys[0, :, head // group].t()
        assert (scores.argmax(1) == torch.arange(6)).all()
    assert values.abs().max() > 0
    assert model.named_weights()["midlayer.self_attn.v_proj.weight"][:, 32:].abs().max() == 0


def test_a_feed_forward_part_starts_silent(fitted):
    model, _ = fitted
    wider = model.with_feed_forward(torch.randn(10, 32), torch.randn(10, 32))
    states = torch.randn(3, 32)

    assert wider.shape.intermediate_size == 10
    torch.testing.assert_close(wider.feed_forward(states), model.feed_forward(states))
    assert torch.equal(wider.named_weights()["fc.weight"], model.named_weights()["fc.weight"])
    assert wider.named_weights()["midlayer.mlp.gate_proj.weight"].abs().max() > 0
