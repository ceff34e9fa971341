"""The rule applied to a batch: which drafts live and which token follows. Every tensor stays on the model's device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Draft
from explorer.engine.sampling import Sampler, best_ids, sample
from explorer.rules import ensemble, lossy
from explorer.rules.verify import accepted_lengths, residual


@dataclass(slots=True)
class Judgement:
    """Outcome of one round for a batch.

    Attributes:
        num_accepted: (B,) int64.
        next_ids: (B,) int64, residual or bonus token.
        target_probs: (B, K + 1, V) float32 law of the target, or None where only its argmax was needed.
        accept_probs: (B, K) chance to pass, before the coin.
        coins: (B, K) uniform in [0, 1), or None in greedy decoding.
        weight: (B, K) w of the ensemble rules, None under the lossy rule.
    """

    num_accepted: Tensor
    next_ids: Tensor
    target_probs: Tensor | None
    accept_probs: Tensor
    coins: Tensor | None
    weight: Tensor | None


def rule_weight(config: DecodeConfig, draft: Draft) -> Tensor | None:
    """(B, K) w of each judged position where it is fixed: 1 under the exact rule, None under the lossy one."""
    if config.rule == "lossy":
        return None
    weight = config.target_weight if config.rule == "static" else 1.0
    return torch.full(draft.ids.shape, weight, dtype=torch.float32, device=draft.ids.device)


def judge(
    logits: Tensor,
    draft: Draft,
    weight: Tensor | None,
    config: DecodeConfig,
    generator: Generator,
    *,
    with_probs: bool = False,
    probs: Tensor | None = None,
) -> Judgement:
    """Judge one round.

    Args:
        logits: (B, K + 1, V) of the target; row j judges draft j, row `draft.lengths` gives the bonus token. (B, K, V)
            where a full draft gets none.
        draft: What was proposed.
        weight: (B, K) in [0, 1] for the exact and ensemble rules, None for the lossy rule.
        config: Rule, lenience, temperature, top-k and top-p.
        generator: The only source of randomness.
        with_probs: Whether the target's law is wanted even where the rule does not need it.
        probs: (B, K + 1, V), the target's law if it is known already.
    """
    sampler = Sampler.of(config)
    if sampler.is_greedy:
        return _judge_greedy(logits, draft, weight, config, with_probs)
    probs = sampler.probs(logits) if probs is None else probs
    B, K = draft.ids.shape
    target_at = probs[:, :K].gather(2, draft.ids.unsqueeze(2)).squeeze(2)
    draft_at = draft.prob_of_ids()
    if weight is None:
        accept = lossy.acceptance(target_at, draft_at, config.lenience)
    else:
        accept = ensemble.acceptance(target_at, draft_at, weight)
    coins = torch.rand(B, K, generator=generator, device=probs.device)
    num_accepted = accepted_lengths(accept, coins, draft.lengths)
    next_probs = _next_probs(probs, draft, num_accepted)
    return Judgement(num_accepted, sample(next_probs, generator), probs, accept, coins, weight)


def _next_probs(probs: Tensor, draft: Draft, num_accepted: Tensor) -> Tensor:
    """(B, V): the residual where a draft was rejected, else the target's own law (bonus)."""
    rows = torch.arange(len(probs), device=probs.device)
    next_probs = probs[rows, num_accepted.clamp(max=probs.shape[1] - 1)]  # past the last there is no bonus to draw
    rejected = (num_accepted < draft.lengths).nonzero().squeeze(1)
    if len(rejected):
        at = num_accepted[rejected]
        laws = [draft.law(int(b), int(j), probs.shape[2]) for b, j in zip(rejected, at, strict=True)]
        next_probs[rejected] = residual(next_probs[rejected], torch.stack(laws))
    return next_probs


def _judge_greedy(
    logits: Tensor, draft: Draft, weight: Tensor | None, config: DecodeConfig, with_probs: bool
) -> Judgement:
    """Temperature 0: a draft passes if it is the verifier's own choice."""
    B, K = draft.ids.shape
    choice = best_ids(logits)  # (B, K + 1); of the logits, because softmax can round two of them to a tie
    inside = torch.arange(K, device=logits.device) < draft.lengths.unsqueeze(1)
    mixes = config.lenience < 1 if weight is None else bool((weight < 1).any())
    probs = Sampler(temperature=0.0).probs(logits) if with_probs or (mixes and K) else None
    if K and mixes and probs is not None:
        verifier = _mixed_choice(probs[:, :K], draft, weight, config)
        if weight is not None:
            inside = inside & (weight < 1)
        choice = torch.cat([torch.where(inside, verifier, choice[:, :K]), choice[:, K:]], dim=1)
    accept = (draft.ids == choice[:, :K]).float()
    num_accepted = accepted_lengths(accept, torch.zeros_like(accept), draft.lengths)
    next_ids = choice.gather(1, num_accepted.unsqueeze(1)).squeeze(1)
    return Judgement(num_accepted, next_ids, probs, accept, None, weight)


def _mixed_choice(probs: Tensor, draft: Draft, weight: Tensor | None, config: DecodeConfig) -> Tensor:
    """(B, K) the verifier's token at each drafted position, from untempered laws."""
    if weight is None:
        return lossy.greedy(probs, draft.ids, config.lenience)
    laws = draft.laws
    if laws is None:
        laws = torch.zeros_like(probs).scatter_(2, draft.ids.unsqueeze(2), 1.0)
    return ensemble.greedy(probs, laws, weight.unsqueeze(2))
