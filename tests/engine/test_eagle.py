"""The drafter against a plain forward that keeps no cache: every draft recomputed over the whole row."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import Generator, Tensor
from toys import DRAFTERS, answers, language_model, prompts_of, random_network, run, toy_pair

from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.drafters import Draft, Sequences
from explorer.engine.eagle import EagleDrafter, facts_of, shape_of
from explorer.engine.models import LanguageModel
from explorer.engine.pair import ModelPair
from explorer.engine.sampling import Sampler
from explorer.errors import ModelPairError, SettingError, WeightsError
from explorer.heads import checkpoint
from explorer.heads.draft import LowRankHead
from explorer.heads.eagle import EagleModel

RANK = 12


def random_drafter(target: LanguageModel, seed: int = 0, spread: float = 0.5) -> EagleDrafter:
    """A drafter with random weights for this target, sharp enough that any slip changes its laws."""
    generator = Generator().manual_seed(seed)
    shape = shape_of(target, RANK)
    down = torch.randn(RANK, shape.hidden_size, generator=generator)
    head = LowRankHead(down, torch.randn(shape.vocab_size, RANK, generator=generator))
    model = EagleModel(shape, target.embedding, head)
    for name, weight in model.named_weights().items():
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_(1 + 0.3 * noise if "norm" in name else spread * noise * weight.shape[-1] ** -0.5 * 2)
    return EagleDrafter(model, "random eagle")


def target_of(kind: str = "llama") -> LanguageModel:
    return language_model(random_network(kind, 3), name=f"toy {kind}")


# The reference: published names, one head at a time, no cache.


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate(x: Tensor, theta: float) -> Tensor:
    """(T, size) rotated, row t by its own position t: pair (i, i + size / 2) turns by t / theta^(2 i / size)."""
    T, size = x.shape
    angles = torch.arange(T).unsqueeze(1) / theta ** (torch.arange(0, size, 2) / size)
    first, second = x.chunk(2, dim=1)
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=1
    )


def reference_layer(drafter: EagleDrafter, states: Tensor, embedded: Tensor) -> Tensor:
    """(T, D) outputs of T entries, each looking back at all before it."""
    w, shape = drafter.model.named_weights(), drafter.model.shape
    eps, size = shape.norm_eps, shape.head_dim
    inputs = torch.cat(
        [
            norm(embedded, w["midlayer.input_layernorm.weight"], eps),
            norm(states, w["midlayer.hidden_norm.weight"], eps),
        ],
        dim=1,
    )
    q, k, v = (inputs @ w[f"midlayer.self_attn.{name}_proj.weight"].t() for name in "qkv")
    hidden = torch.full((len(states), len(states)), -torch.inf).triu(1)
    attended = []
    for head in range(shape.num_heads):
        group = head // (shape.num_heads // shape.num_kv_heads)
        query, key = (rotate(x[:, i * size : (i + 1) * size], 10000.0) for x, i in ((q, head), (k, group)))
        weights = (query @ key.t() / size**0.5 + hidden).softmax(1)
        attended.append(weights @ v[:, group * size : (group + 1) * size])
    states = states + torch.cat(attended, dim=1) @ w["midlayer.self_attn.o_proj.weight"].t()
    x = norm(states, w["midlayer.post_attention_layernorm.weight"], eps)
    gate, up = x @ w["midlayer.mlp.gate_proj.weight"].t(), x @ w["midlayer.mlp.up_proj.weight"].t()
    return states + (gate * gate.sigmoid() * up) @ w["midlayer.mlp.down_proj.weight"].t()


def reference_laws(
    drafter: EagleDrafter, ids: list[int], features: Tensor, drafted: list[int], rank: int
) -> tuple[Tensor, Tensor]:
    """(K, V) laws of drafts after `ids`, given what was drafted, and (K, D) the states the head read."""
    w, table = drafter.model.named_weights(), drafter.model.embedding
    states = features[: len(ids) - 1] @ w["fc.weight"].t()
    tokens = ids[1:]
    laws, read = [], []
    for token in drafted:
        out = reference_layer(drafter, states, table[torch.tensor(tokens)])[-1]
        read.append(norm(out, w["norm.weight"], drafter.model.shape.norm_eps))
        logits = w["lm_head.up.weight"][:, :rank] @ (w["lm_head.down.weight"][:rank] @ read[-1])
        laws.append(logits.softmax(0))
        states, tokens = torch.cat([states, out.unsqueeze(0)]), [*tokens, token]
    return torch.stack(laws), torch.stack(read)


@torch.inference_mode()
def features_of(target: LanguageModel, ids: list[int], features: tuple[int, ...]) -> Tensor:
    """(len(ids), F) from one pass over the whole text."""
    cache = target.new_cache(len(ids))
    zero = torch.zeros(1, dtype=torch.int64)
    return target.forward(torch.tensor([ids]), cache, zero, keep=1, features=features).features[0]


class Spy:
    """A drafter whose every draft is compared with the reference."""

    def __init__(self, target: LanguageModel, drafter: EagleDrafter, rank: int = 0) -> None:
        self.target, self.drafter, self.rank = target, drafter, rank or drafter.max_rank
        self.features, self.kind, self.name = drafter.features, "spy", "spy"
        self.num_compared = 0

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> "Spy":
        self.session = self.drafter.start(batch_size, capacity, config)
        return self

    def select(self, rows: Tensor) -> None:
        self.session.select(rows)

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:
        draft = self.session.draft(sequences, draft_length, sampler, generator)
        for row, length in enumerate(sequences.lengths.tolist()):
            ids = sequences.ids[row, :length].tolist()
            assert draft.lengths[row] == (draft_length if length > 1 else 0)
            if length > 1:
                features = features_of(self.target, ids, self.features)
                laws, read = reference_laws(self.drafter, ids, features, draft.ids[row].tolist(), self.rank)
                torch.testing.assert_close(draft.laws[row], laws, atol=2e-5, rtol=2e-4)
                torch.testing.assert_close(draft.hidden[row], read, atol=2e-4, rtol=2e-4)
                self.num_compared += 1
        return draft


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("rank", [0, 5])
def test_every_draft_of_a_ragged_batch_equals_the_reference(kind, rank):
    """Rows of 1 to 20 tokens; the static rule keeps some drafts and rejects others, so caches are rolled back."""
    target = target_of(kind)
    spy = Spy(target, random_drafter(target), rank)
    config = DecodeConfig(
        rule="static", target_weight=0.4, temperature=1.0, draft_length=4, max_new_tokens=15, rank=rank, seed=1
    )

    events = list(decode(ModelPair(target, spy), prompts_of((7, 1, 20, 2, 3)), config))

    assert spy.num_compared > 20
    accepted = {event.num_accepted for event in events}
    assert len(accepted) > 2, "the run must hold full, partial and no acceptance"


@pytest.mark.parametrize("rule", ["exact", "static"])
def test_batch_of_rows_writes_what_single_rows_write(rule):
    target = target_of()
    pair = ModelPair(target, random_drafter(target))
    prompts = prompts_of((5, 1, 12, 2))
    settings = {"rule": rule, "draft_length": 3, "max_new_tokens": 12}

    together = answers(pair, prompts, **settings)

    assert together == [answers(pair, [prompt], **settings)[0] for prompt in prompts]


@pytest.mark.parametrize("kind", ["llama", "gemma3", "opt", "gpt2"])
def test_exact_rule_keeps_the_target_text(kind):
    target = target_of(kind)
    prompts = prompts_of((6, 1, 9))
    alone = answers(toy_pair(kind, DRAFTERS[0], seed=3), prompts, rule="ar", max_new_tokens=20)

    drafted = answers(ModelPair(target, random_drafter(target)), prompts, draft_length=4, max_new_tokens=20)

    assert drafted == alone


def sequences_of(target: LanguageModel, ids: list[int], seen_from: int, capacity: int = 40) -> Sequences:
    """One row, with the features a pass from position `seen_from` left."""
    drafter_features = shape_of(target, RANK).features
    padded = torch.zeros(1, capacity, dtype=torch.int64)
    padded[0, : len(ids)] = torch.tensor(ids)
    features = features_of(target, ids[:-1], drafter_features)[seen_from:].unsqueeze(0)
    return Sequences(padded, torch.tensor([len(ids)]), features, torch.tensor([seen_from]))


@torch.inference_mode()
def drafts_of(session, sequences: Sequences, K: int = 3) -> Draft:
    return session.draft(sequences, K, Sampler(temperature=0.0), Generator())


def test_reading_without_drafting_keeps_the_session_in_step():
    """Another drafter may propose for some rounds: with draft_length 0 only the new pairs are read."""
    target = target_of()
    drafter = random_drafter(target)
    ids = prompts_of((12,))[0]
    session, fresh = drafter.start(1, 40, DecodeConfig()), drafter.start(1, 40, DecodeConfig())

    nothing = drafts_of(session, sequences_of(target, ids[:8], 0), 0)
    after = drafts_of(session, sequences_of(target, ids, 7))

    assert nothing.ids.shape == (1, 0)
    torch.testing.assert_close(after.laws, drafts_of(fresh, sequences_of(target, ids, 0)).laws)


def test_drafting_twice_at_one_place_gives_one_answer():
    target = target_of()
    session = random_drafter(target).start(1, 40, DecodeConfig())
    sequences = sequences_of(target, prompts_of((9,))[0], 0)

    torch.testing.assert_close(drafts_of(session, sequences).laws, drafts_of(session, sequences).laws)


def test_nothing_is_drafted_before_the_target_has_seen_a_token():
    target = target_of()
    sequences = Sequences(torch.zeros(2, 9, dtype=torch.int64), torch.tensor([1, 1]))

    draft = drafts_of(random_drafter(target).start(2, 9, DecodeConfig()), sequences)

    assert draft.lengths.tolist() == [0, 0]


def test_ranks():
    drafter = random_drafter(target_of())

    assert drafter.rank_choices == (1, 3, 6, 12)
    assert drafter.describe(0)["rank"] == 12
    assert drafter.describe(3)["head_parameters"] == 3 * (32 + 64)
    assert drafter.describe(0)["num_parameters"] - drafter.describe(3)["num_parameters"] == 9 * (32 + 64)
    with pytest.raises(SettingError, match="rank is 13; the head of random eagle has rank 12. Choose 1 to 12"):
        drafter.start(1, 10, DecodeConfig(rank=13))


def save_drafter(folder, target: LanguageModel, drafter: EagleDrafter) -> None:
    meta = {"kind": "drafter", "target": facts_of(target), "shape": dataclasses.asdict(drafter.model.shape)}
    checkpoint.save(folder, drafter.model.named_weights(), meta)


def test_a_saved_drafter_drafts_the_same(tmp_path):
    target = target_of()
    drafter = random_drafter(target)
    save_drafter(tmp_path / "drafter", target, drafter)

    loaded = EagleDrafter.load(tmp_path / "drafter", target)

    sequences = sequences_of(target, prompts_of((9,))[0], 0)
    ours, theirs = (drafts_of(each.start(1, 40, DecodeConfig()), sequences) for each in (drafter, loaded))
    torch.testing.assert_close(ours.probs, theirs.probs)
    assert loaded.name == "drafter"
    assert loaded.features == drafter.features
    assert set(drafter.model.named_weights()) >= {"fc.weight", "midlayer.hidden_norm.weight", "lm_head.down.weight"}


def test_a_drafter_of_another_target_is_refused(tmp_path):
    save_drafter(tmp_path, target_of(), random_drafter(target_of()))
    other = language_model(random_network("llama", 4), name="other")

    with pytest.raises(ModelPairError, match="was made for toy llama, whose weights .* other has .* Load that target"):
        EagleDrafter.load(tmp_path, other)


def test_weights_of_a_wrong_shape_are_refused():
    drafter = random_drafter(target_of())
    weights = dict(drafter.model.named_weights())
    weights["fc.weight"] = torch.zeros(3, 3)

    with pytest.raises(WeightsError, match=r"fc.weight is \(3, 3\); its sizes say \(32, 96\)"):
        drafter.model.load_weights(weights)
    del weights["fc.weight"]
    with pytest.raises(WeightsError, match="fc.weight is missing"):
        drafter.model.load_weights(weights)


def test_a_target_without_room_for_a_layer_is_refused():
    target = target_of()
    narrow = SimpleNamespace(
        config=target.config, hidden_size=32, embedding=torch.zeros(64, 16), name="narrow", num_layers=2
    )

    with pytest.raises(ModelPairError, match="narrow has hidden size 32, embeddings of 16"):
        shape_of(narrow, 8)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_stops_where_the_layer_is_unsure(temperature):
    target = target_of()
    drafter = random_drafter(target)
    prompts = prompts_of((4, 9, 2))
    made = {}
    for min_prob in (0.0, 0.1, 1.0):
        settings = {"draft_length": 3, "max_new_tokens": 20, "temperature": temperature, "min_draft_prob": min_prob}
        events = run(ModelPair(target, drafter), prompts, details=True, **settings)
        drafts = [token for event in events for token in event.details[: len(event.draft_ids)]]
        made[min_prob] = len(drafts)
        assert all(max(entry.draft_prob for entry in token.top) >= min_prob for token in drafts)
    assert made[0.0] > made[0.1] > made[1.0] == 0
