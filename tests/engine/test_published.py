"""Published drafters against a plain forward in loops, and what is refused."""

import pytest
import torch
from plain_eagle import (
    CONTEXT,
    HEAD_KINDS,
    KEPT,
    LAYERS,
    RANK,
    VOCAB,
    D,
    PlainEagle,
    config_of,
    deep_network,
    deep_target,
    folder_of,
    random_tensors,
    write_folder,
)  # fmt: skip
from torch import Generator
from toys import answers, language_model, prompts_of, random_network

from explorer.engine import loading
from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Sequences
from explorer.engine.eagle import EagleDrafter
from explorer.engine.pair import ModelPair
from explorer.engine.published import read
from explorer.engine.sampling import Sampler
from explorer.errors import SettingError
from explorer.heads.draft import FullHead, LowRankHead, TruncatedHead
from explorer.training.replay import rollout

IDS = prompts_of((10,), seed=2)[0]
FEATURES = (1, 3, 4)


def close(ours, plain):
    torch.testing.assert_close(ours.double().flatten(), plain.flatten(), atol=2e-4, rtol=2e-4)


@torch.inference_mode()
def states_of(ids, features):
    """(T, D) of each fused state, from transformers itself."""
    hidden = deep_network()(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return [hidden[i][0].clone() for i in features]


def recorded(monkeypatch, model, name, results):
    """What a piece of the model is given and gives, call by call."""
    inner = getattr(model, name)

    def call(*arguments):
        results.append((arguments, inner(*arguments)))
        return results[-1][1]

    monkeypatch.setattr(model, name, call)


@pytest.mark.parametrize("norms_first", [False, True])
@pytest.mark.parametrize("head", HEAD_KINDS)
@pytest.mark.parametrize(("layout", "prefix"), [("eagle3", ""), ("eagle3", "model."), ("speculators", "")])
@torch.inference_mode()
def test_every_tensor_of_a_chain_is_the_plain_one(monkeypatch, tmp_path, layout, prefix, head, norms_first):
    """Fused states, queries, keys and values, attention, outputs and logits, for the text and three drafts after it."""
    tensors = random_tensors(head)
    size = KEPT if head == "d2t" else VOCAB
    config = config_of(
        layout, norm_before_residual=norms_first, draft_vocab_size=size,
        eagle_aux_hidden_state_layer_ids=list(FEATURES),
    )  # fmt: skip
    target = deep_target()
    model = read(write_folder(tmp_path, tensors, config, layout, prefix), target)
    projects, finishes, normed = [], [], []
    for name, results in (("project", projects), ("finish", finishes), ("normed", normed)):
        recorded(monkeypatch, model, name, results)
    states = states_of(IDS[:-1], FEATURES)
    padded = torch.zeros(1, 40, dtype=torch.int64)
    padded[0, : len(IDS)] = torch.tensor(IDS)
    sequences = Sequences(padded, torch.tensor([len(IDS)]), torch.cat(states, dim=1)[None], torch.tensor([0]))

    session = EagleDrafter(model, "published").start(1, 40, DecodeConfig())
    draft = session.draft(sequences, 3, Sampler(temperature=1.0), Generator().manual_seed(0))

    plain = PlainEagle(tensors, deep_network().get_input_embeddings().weight, norms_first=norms_first)
    chain, tokens = plain.fused(states), IDS[1:]
    close(projects[0][0][1], torch.stack(chain))
    for step in range(3):
        entries = plain.entries(chain, tokens)
        count = len(tokens) if step == 0 else 1  # later steps add one entry each
        for name, ours in zip("qkv", projects[step][1], strict=True):
            close(ours, torch.stack([entry[name] for entry in entries[-count:]]))
        close(finishes[step][0][1], entries[-1]["attended"])
        close(finishes[step][1], entries[-1]["output"])
        logits = plain.logits(entries[-1]["output"])
        close(model.head(normed[step][1]), logits)
        close(draft.probs[0, step], logits.softmax(0))
        chain, tokens = [*chain, entries[-1]["output"]], [*tokens, int(draft.ids[0, step])]


@pytest.mark.parametrize("norms_first", [False, True])
@torch.inference_mode()
def test_replay_agrees(tmp_path, norms_first):
    """Training and scores use other attention than drafting; its chain from every pair is the plain one."""
    folder = folder_of(tmp_path, norm_before_residual=norms_first)
    model, states = read(folder, deep_target()), states_of(IDS[:-1], (2, 3, 3))

    steps = rollout(model, torch.tensor(IDS), torch.cat(states, dim=1), 2)

    plain = PlainEagle(random_tensors(), deep_network().get_input_embeddings().weight, norms_first=norms_first)
    fused = plain.fused(states)
    first = plain.entries(fused, IDS[1:])
    close(steps[0][1], torch.stack([entry["output"] for entry in first]))
    for t in range(len(fused) - 1):
        chain = [*fused[: t + 1], first[t]["output"]]
        close(steps[1][1][t], plain.entries(chain, IDS[1 : t + 3])[-1]["output"])


@pytest.mark.parametrize("head", HEAD_KINDS)
@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_decoding_with_it_keeps_the_target_text(tmp_path, layout, head):
    target, prompts = deep_target(), prompts_of((6, 1, 9))
    drafter = loading.load_drafter(target, str(folder_of(tmp_path / "drafter", head, layout)))

    assert isinstance(drafter, EagleDrafter)
    alone = answers(ModelPair(target, None), prompts, rule="ar", max_new_tokens=15)
    assert answers(ModelPair(target, drafter), prompts, draft_length=3, max_new_tokens=15) == alone


def test_the_heads(tmp_path):
    target = deep_target()
    heads = [read(folder_of(tmp_path / kind, kind), target).head for kind in HEAD_KINDS]
    assert [type(head) for head in heads] == [FullHead, TruncatedHead, LowRankHead]
    tensors = random_tensors() | {"d2t": torch.zeros(VOCAB, dtype=torch.int64)}
    same = write_folder(tmp_path / "identity", tensors, config_of())
    assert type(read(same, target).head) is FullHead, "every token at its own place is the whole vocabulary"
    whole, ranked = EagleDrafter(read(same, target), "x"), EagleDrafter(read(tmp_path / "factors", target), "x")
    assert whole.describe(0)["rank"] is None
    assert ranked.rank_choices[-1] == RANK
    with pytest.raises(SettingError, match="rank is 3, but x has no low-rank head. Set rank to 0"):
        whole.start(1, 10, DecodeConfig(rank=3))


def test_defaults(tmp_path):
    """Plain files add attention to the state as it is, wrapped ones to the normed one, and the layers are the usual."""
    target = deep_target()
    for layout, norms_first in (("eagle3", False), ("speculators", True)):
        shape = read(folder_of(tmp_path / layout, layout=layout, rms_norm_eps=None), target).shape
        assert (shape.norm_before_residual, shape.features) == (norms_first, (2, LAYERS // 2, LAYERS - 3))
        assert (shape.norm_eps, shape.head_dim, shape.max_positions) == (1e-6, 12, CONTEXT)
    nested = folder_of(tmp_path / "nested", eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 5]})
    assert read(nested, target).shape.features == (0, 2, 5)


def test_rope_settings_of_old_and_new_files(tmp_path):
    scaled = {"type": "linear", "factor": 2.0}
    old = read(folder_of(tmp_path / "old", rope_scaling=scaled), deep_target())
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    renewed = read(folder_of(tmp_path / "new", rope_theta=None, rope_parameters=new), deep_target())
    plain = read(folder_of(tmp_path / "plain"), deep_target())
    torch.testing.assert_close(old.rope(21)[0][20], plain.rope(21)[0][10])
    assert torch.equal(old.rope(21)[1], renewed.rope(21)[1])


def test_an_embedding_table_like_the_targets_is_let_go(tmp_path):
    table = deep_network().get_input_embeddings().weight.detach()
    names = {"embed_tokens.weight": table.bfloat16(), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    model = read(write_folder(tmp_path, random_tensors() | names, config_of()), deep_target())
    assert model.embedding.data_ptr() == table.data_ptr()


def test_padding_rows_of_a_target_are_never_drafted(tmp_path):
    """The target's table is longer than its tokenizer: rows beyond go, and d2t may name some of them."""
    target = language_model(random_network("llama", 3, VOCAB + 6))
    features = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1], "vocab_size": VOCAB + 6}
    tensors = random_tensors() | {"lm_head.weight": torch.randn(VOCAB + 6, D)}
    whole = read(write_folder(tmp_path / "whole", tensors, config_of(draft_vocab_size=None, **features)), target)
    tensors |= {"lm_head.weight": torch.randn(8, D), "d2t": torch.full((8,), VOCAB - 4)}
    some = read(write_folder(tmp_path / "some", tensors, config_of(draft_vocab_size=8, **features)), target)
    assert whole.head.weight.shape == (VOCAB, D)
    assert some.head.ids.tolist() == [VOCAB - 4, VOCAB - 3, VOCAB - 2, VOCAB - 1]
    assert whole.head(torch.randn(2, D)).shape == some.head(torch.randn(2, D)).shape == (2, VOCAB)
