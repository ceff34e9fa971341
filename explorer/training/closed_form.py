"""A drafter in closed form: ridge least squares into the shape of an EAGLE-3 layer, and a head cut by importance.

The layer gets two linear maps to the target's next final state: one of the fused features (`fc`), one of the next
token's embedding, through the values of an attention that looks at its own entry. The head keeps those directions of
the drafter's states that move the target's probabilities most. Nothing is trained; training can start from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from explorer.engine.eagle import shape_of
from explorer.engine.models import LanguageModel
from explorer.errors import SettingError
from explorer.heads.draft import LowRankHead
from explorer.heads.eagle import EagleModel, EagleShape
from explorer.training.calibration import Row
from explorer.training.replay import rollout

# Ridge, as a share of the mean squared input. On 12 K positions 0.001 to 0.03 give the same acceptance.
RIDGE = 0.01
# Length of queries and keys by which an entry finds itself: shorter ones mix others in, longer ones change nothing.
SHARPNESS = 1.2
# States whose whole-vocabulary laws weigh the head's directions.
FISHER_STATES = 3000
# Fewer positions than this per weight of the final norm do not determine it.
_POSITIONS_PER_UNKNOWN = 4
_CHUNK = 256
FEWEST_POSITIONS = 16
# Every tenth answer is kept from the least squares, and up to so many of their tokens decide the scale of the logits.
TUNING_SHARE = 10
TUNING_POSITIONS = 1500
TUNING_STEPS = 2
SCALES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)


@dataclass(frozen=True, slots=True)
class TargetHead:
    """The target's head in float32: logits = scale * weight h.

    Attributes:
        weight: (V, D).
        scale: 1 for most models; some multiply their logits.
    """

    weight: Tensor
    scale: float = 1.0

    @classmethod
    def of(cls, target: LanguageModel) -> TargetHead:
        """Read it from the model, measuring the scale on a few tokens."""
        weight = target.model.get_output_embeddings().weight.detach()[: target.vocab_size].float()
        ids = torch.arange(16, device=weight.device).unsqueeze(0) % target.vocab_size
        with torch.inference_mode():
            start = torch.zeros(1, dtype=torch.int64, device=ids.device)
            result = target.forward(ids, target.new_cache(16), start, keep=16, last_hidden=True)
        plain = result.last_hidden.float() @ weight.t()
        scale = float((plain * result.logits.float()).sum() / plain.square().sum())
        return cls(weight, 1.0 if abs(scale - 1) < 0.02 else scale)

    def __call__(self, states: Tensor) -> Tensor:
        """Logits (N, V) of states (N, D)."""
        return states.float() @ self.weight.t() * self.scale


def fit_model(
    target: LanguageModel, head: TargetHead, rows: Sequence[Row], max_rank: int, generator: Generator
) -> EagleModel:
    """A float32 drafter for the target, without a feed-forward part.

    Args:
        target: The model that wrote the rows.
        head: Its head.
        rows: Answers with their states: the drafter's features, then the last hidden state.
        max_rank: Of the head; at most the hidden size is used.
        generator: Picks the positions that weigh the head, and the random queries.

    Raises:
        SettingError: There are too few positions to fit anything.
    """
    shape = shape_of(target, max_rank, intermediate_size=0)
    embedding = target.embedding.detach().float()
    kept_apart = rows[::TUNING_SHARE] if len(rows) >= TUNING_SHARE else rows
    solved = [row for i, row in enumerate(rows) if i % TUNING_SHARE] or rows
    batches = [_pairs(row, embedding, shape) for row in solved]
    count = sum(len(batch.states) for batch in batches)
    if count < FEWEST_POSITIONS:
        raise SettingError(f"The target wrote only {count} tokens to fit on. Raise tokens, or give other prompts.")
    model = _solve(shape, embedding, head, batches, generator)
    # Least squares knows nothing of probabilities: how sure the drafter should be is measured.
    model.head.up_t.mul_(best_scale(model, head, kept_apart))
    return model


def _solve(
    shape: EagleShape, embedding: Tensor, head: TargetHead, batches: Sequence[_Pairs], generator: Generator
) -> EagleModel:
    """The model of the least-squares maps and of the head for their predictions."""
    states = torch.cat([batch.states for batch in batches])
    norm = norm_weights(states, shape)
    moments = _moments(batches, norm)
    solution = ridge(moments.inputs, moments.cross)
    from_features, from_embedding = solution.split([len(solution) - shape.hidden_size, shape.hidden_size])
    chosen = torch.randperm(len(states), generator=generator)[:FISHER_STATES]
    fisher = fisher_matrix(states[chosen.to(states.device)], head)
    predicted = _predicted_moment(batches, moments.feature_size, solution, norm, shape.norm_eps)
    down, up = low_rank(head.weight * head.scale, fisher, predicted, shape.max_rank)
    model = EagleModel(shape, embedding, LowRankHead(down, up))
    weights = model.named_weights()
    weights["norm.weight"].copy_(norm)
    weights["fc.weight"].copy_((from_features / moments.feature_size.unsqueeze(1)).t())
    embedded = moments.inputs[-shape.hidden_size :, -shape.hidden_size :]
    place_embedding_map(model, from_embedding.t(), embedded, fisher * torch.outer(norm, norm), generator)
    return model


def best_scale(model: EagleModel, head: TargetHead, rows: Sequence[Row]) -> float:
    """The factor on the drafter's logits that overlaps most with the target's laws, over the first steps of a chain."""
    overlap = torch.zeros(len(SCALES), dtype=torch.float64)
    left = TUNING_POSITIONS
    for row in rows:
        features, states = split_states(row, model.shape)
        for step, (_, outputs) in enumerate(rollout(model, row.ids, features, TUNING_STEPS)):
            first = max(row.prompt_length - 2 - step, 0)
            laws = head(states[first + step + 1 :]).softmax(-1)
            logits = model.head(model.normed(outputs[first : first + len(laws)])).float()
            overlap += torch.stack([torch.minimum((logits * scale).softmax(-1), laws).sum().cpu() for scale in SCALES])
        left -= len(row.ids) - row.prompt_length
        if left <= 0:
            break
    return SCALES[int(overlap.argmax())]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of one row: features (n, F), embeddings of the next token (n, D), and states (n, D) one position on."""

    features: Tensor
    embedded: Tensor
    states: Tensor


def _pairs(row: Row, embedding: Tensor, shape: EagleShape) -> _Pairs:
    """Pairs whose prediction is a token of the answer."""
    features, states = split_states(row, shape)
    first = max(row.prompt_length - 2, 0)
    embedded = embedding[row.ids[first + 1 : len(states)]]
    normed = functional.rms_norm(embedded, embedded.shape[1:], eps=shape.norm_eps)
    return _Pairs(features[first:-1], normed, states[first + 1 :])


def split_states(row: Row, shape: EagleShape) -> tuple[Tensor, Tensor]:
    """Features (S, F) and last hidden states (S, D) of a row, float32."""
    D = shape.hidden_size
    return row.states[:, :-D].float(), row.states[:, -D:].float()


def norm_weights(states: Tensor, shape: EagleShape) -> Tensor:
    """(D,) weights w > 0 of the target's final norm, recovered from its outputs (N, D): sum_i (h_i / w_i)^2 = D.

    An RMS norm satisfies this for every state, so the squares solve a linear system, whatever the model's layers are
    called. Signs are lost, and do not matter. Where there is no solution (another norm, few states), the root mean
    square of each dimension serves.
    """
    size = states.square().mean(0).sqrt().clamp(min=1e-6)
    if len(states) < _POSITIONS_PER_UNKNOWN * shape.hidden_size:
        return size
    squares = (states / size).square().double()
    gram = squares.t() @ squares
    gram.diagonal().add_(1e-9 * gram.diagonal().mean())
    inverse = torch.linalg.solve(gram, squares.sum(0) * shape.hidden_size)
    return size if (inverse <= 1e-3).any() else (size / inverse.sqrt()).float()


@dataclass(frozen=True, slots=True)
class _Moments:
    """Second moments of inputs [features / feature_size, embedded] and their products with normalised states."""

    inputs: Tensor
    cross: Tensor
    feature_size: Tensor


def _moments(batches: Sequence[_Pairs], norm: Tensor) -> _Moments:
    count = sum(len(batch.states) for batch in batches)
    size = (sum(batch.features.square().sum(0) for batch in batches) / count).sqrt().clamp(min=1e-6)
    width = len(size) + len(norm)
    inputs = norm.new_zeros(width, width)
    cross = norm.new_zeros(width, len(norm))
    for batch in _grouped(batches):
        x = torch.cat([batch.features / size, batch.embedded], dim=1)
        inputs.addmm_(x.t(), x, alpha=1 / count)
        cross.addmm_(x.t(), batch.states / norm, alpha=1 / count)
    return _Moments(inputs, cross, size)


def _grouped(batches: Sequence[_Pairs], at_least: int = 2048) -> Iterator[_Pairs]:
    """The same pairs in fewer, larger pieces."""
    held: list[_Pairs] = []
    for i, batch in enumerate(batches):
        held.append(batch)
        if sum(len(b.states) for b in held) >= at_least or i == len(batches) - 1:
            yield _Pairs(*(torch.cat([getattr(b, name) for b in held]) for name in ("features", "embedded", "states")))
            held = []


def ridge(inputs: Tensor, cross: Tensor, strength: float = RIDGE) -> Tensor:
    """(width, D) least-squares map from second moments (width, width) and (width, D)."""
    damped = inputs.double()
    damped.diagonal().add_(strength * damped.diagonal().mean())
    return torch.cholesky_solve(cross.double(), torch.linalg.cholesky(damped)).float()


def _predicted_moment(
    batches: Sequence[_Pairs], feature_size: Tensor, solution: Tensor, norm: Tensor, eps: float
) -> Tensor:
    """(D, D) second moment of the states the head will read: the drafter's, not the target's."""
    total, count = norm.new_zeros(len(norm), len(norm)), 0
    for batch in _grouped(batches):
        predicted = torch.cat([batch.features / feature_size, batch.embedded], dim=1) @ solution
        states = functional.rms_norm(predicted, norm.shape, norm, eps)
        total.addmm_(states.t(), states)
        count += len(states)
    return total / count


def fisher_matrix(states: Tensor, head: TargetHead) -> Tensor:
    """(D, D) mean Fisher information of the target's next-token law about its final state (N, D)."""
    mass = head.weight.new_zeros(len(head.weight))
    outer = head.weight.new_zeros(states.shape[1], states.shape[1])
    for part in states.split(_CHUNK):
        probs = head(part).softmax(-1)
        mass += probs.sum(0)
        mean = probs @ head.weight
        outer.addmm_(mean.t(), mean)
    return ((head.weight.t() * mass) @ head.weight - outer) * head.scale**2 / len(states)


def low_rank(weight: Tensor, fisher: Tensor, moment: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors (rank, D) and (V, rank) of a head (V, D), most important direction first.

    Args:
        weight: The whole head.
        fisher: (D, D), how much a change of the state changes the law.
        moment: (D, D) second moment of the states.
        rank: Directions to keep; any prefix of them is the best choice for its own rank.
    """
    root, inverse = roots(fisher)
    _, directions = torch.linalg.eigh(root @ moment.double() @ root)
    directions = directions.flip(1)[:, :rank]
    return (directions.t() @ root).float(), weight @ (inverse @ directions).float()


def roots(matrix: Tensor, floor: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Symmetric square root and its inverse, float64, of a positive matrix; small eigenvalues are raised to `floor`."""
    values, vectors = torch.linalg.eigh(matrix.double())
    values = values.clamp(min=floor * float(values.max()))
    return (vectors * values.sqrt()) @ vectors.t(), (vectors * values.rsqrt()) @ vectors.t()


def place_embedding_map(
    model: EagleModel, wanted: Tensor, embedded: Tensor, metric: Tensor, generator: Generator
) -> None:
    """Make attention add `wanted` times the normed embedding to every entry, as well as its value rank allows.

    Args:
        model: Its attention is written.
        wanted: (D, D).
        embedded: (D, D) second moment of the normed embeddings.
        metric: (D, D), how much an error in the sum matters.
        generator: Of the random directions that entries recognise themselves by.
    """
    shape, weights = model.shape, model.named_weights()
    D, size = shape.hidden_size, shape.head_dim
    root, inverse = roots(metric, 1e-4)
    spread, unspread = roots(embedded)
    left, values, right = torch.linalg.svd(root @ wanted.double() @ spread)
    rank = min(shape.num_kv_heads * size, D)
    scale = values[:rank].sqrt()
    outward = (inverse @ left[:, :rank] * scale).float()
    inward = ((scale.unsqueeze(1) * right[:rank]) @ unspread).float()
    weights["midlayer.self_attn.v_proj.weight"][:rank, :D] = inward
    group = shape.num_heads // shape.num_kv_heads
    for k in range(shape.num_kv_heads):
        ours = slice(k * size, min((k + 1) * size, rank))
        first = k * group * size  # the group's first query head; the others add nothing
        noise = torch.randn(D, min(size, D), generator=generator)
        looks = SHARPNESS * torch.linalg.qr(noise).Q.t()
        weights["midlayer.self_attn.o_proj.weight"][:, first : first + ours.stop - ours.start] = outward[:, ours]
        weights["midlayer.self_attn.q_proj.weight"][first : first + len(looks), :D] = looks
        weights["midlayer.self_attn.k_proj.weight"][k * size : k * size + len(looks), :D] = looks
