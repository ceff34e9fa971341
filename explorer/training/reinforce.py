"""One update of the ensemble head after another: sample answers, score them, follow the gradient.

Several answers to each of some prompts are sampled from the verifier itself, and the head moves along the gradient of
reward minus lambda times the expected rejections (`objective`). Only the head learns.

Source:
    DIVERSED, arXiv:2604.07622; REINFORCE++, arXiv:2501.03262.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.pair import ModelPair, encode_chat
from explorer.engine.rollout import Rollout, sample_rollouts
from explorer.errors import ExplorerError, SettingError
from explorer.heads.ensemble import INPUTS, EnsembleHead
from explorer.settings import check_ranges, setting
from explorer.tasks.base import Example, Task
from explorer.training import state
from explorer.training.objective import Tokens, advantages, loss, returns_to_go
from explorer.training.workers import Workers

# The bias and the few figures move the weight everywhere; the states are a thousand numbers whose moves add up.
_FIGURE_RATE = 0.03
_LARGEST_NORM = 5.0
_EQUAL = 1e-6
_CODE_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """Settings of the updates; where prompts and rewards come from is `TrainConfig`'s."""

    price: float = setting(0.05, "lambda: reward given up for one expected rejection less", low=0.0, high=10.0)
    price_steps: int = setting(10, "updates over which lambda grows to its value", low=0, high=1_000_000)
    prompts_per_step: int = setting(12, "prompts per update", low=1, high=4096)
    rollouts: int = setting(8, "sampled answers per prompt", low=1, high=1024)
    draft_length: int = setting(2, "tokens drafted per round while sampling (K)", low=1, high=16)
    temperature: float = setting(1.0, "of the sampling", low=0.05, high=2.0)
    inputs: str = setting("both", "what the head sees: states, figures of the laws, or both", choices=INPUTS)
    start: float = setting(0.95, "weight of the target at the start", low=0.05, high=0.995)
    learning_rate: float = setting(6e-4, "of the weights of the states", low=1e-7, high=1.0)
    epochs: int = setting(8, "gradient steps per update", low=1, high=1000)
    clip: float = setting(0.2, "how far a ratio of probabilities may move per update", low=0.01, high=1.0)
    seed: int = setting(0, "of prompts and answers", low=0, high=2**53)

    def __post_init__(self) -> None:
        check_ranges(self)


class Reinforcer:
    """A head in training. The pair's own head goes on learning if it has one."""

    def __init__(self, pair: ModelPair, task: Task, config: UpdateConfig, workers: Workers | None = None) -> None:
        """Make a head for the pair.

        Args:
            pair: Target and drafter.
            task: Gives prompts and rewards.
            config: Settings.
            workers: The processes that train together; by default this one alone.

        Raises:
            SettingError: The drafter comes without states.
        """
        size = getattr(pair.drafter, "hidden_size", 0)
        if not size:
            raise SettingError(
                "The ensemble head looks at the drafter's states, and this drafter has none. Choose a trained drafter "
                "or a smaller model."
            )
        self.task, self.config, self.workers = task, config, workers or Workers()
        self.head = pair.ensemble or EnsembleHead(size, pair.target.hidden_size, config.inputs, config.start)
        self.pair = ModelPair(pair.target, pair.drafter, self.head)
        self.examples = task.examples("train", seed=config.seed)
        self.step = 0
        parts = {"lr": config.learning_rate, "params": [self.head.state_weight]}
        few = {"lr": _FIGURE_RATE, "params": [self.head.figure_weight, self.head.bias]}
        self.optimizer = torch.optim.Adam([parts, few], betas=(0.9, 0.99))

    @property
    def price(self) -> float:
        """Lambda at this step: it grows, so that the head first learns what matters to the reward."""
        return self.config.price * min(1.0, (self.step + 1) / max(self.config.price_steps, 1))

    def train_step(self) -> dict[str, float]:
        """Sample, score, update; returns what was seen.

        Raises:
            ExplorerError: The gradient is not finite; the head is that of the last step.
        """
        began = time.perf_counter()
        examples = self._next_examples()
        chosen = [example for example in examples for _ in range(self.config.rollouts)]
        generator = Generator(device=self.pair.target.device)
        generator.manual_seed((self.config.seed * 1_000_003 + self.step) * 997 + self.workers.index)
        prompts = [encode_chat(self.pair.target, example.prompt) for example in chosen]
        rollouts = sample_rollouts(self.pair, prompts, self._decoding(), generator)
        rewards = self.rewards(rollouts, chosen)
        sampled = time.perf_counter()
        groups = torch.arange(len(examples)).repeat_interleave(self.config.rollouts)
        tokens = tokens_of(rollouts)
        record = self.update(tokens, rewards, groups)
        done = time.perf_counter()
        num_tokens = sum(len(rollout.ids) for rollout in rollouts)
        num_drafted = sum(rollout.num_drafted for rollout in rollouts)
        return record | {
            "accepted": sum(rollout.num_accepted for rollout in rollouts) / max(num_drafted, 1),
            "length": num_tokens / len(rollouts),
            "num_answers": float(len(rollouts)),
            "tokens_per_s": num_tokens / (done - began),
            "sampling_s": sampled - began,
            "update_s": done - sampled,
        }

    def _next_examples(self) -> list[Example]:
        """This process's share of the step's prompts; they come round again when all were asked."""
        count = self.config.prompts_per_step
        first = (self.step * self.workers.count + self.workers.index) * count
        return [self.examples[(first + i) % len(self.examples)] for i in range(count)]

    def _decoding(self) -> DecodeConfig:
        return DecodeConfig(
            rule="dynamic",
            draft_length=self.config.draft_length,
            temperature=self.config.temperature,
            max_new_tokens=self.task.max_new_tokens,
        )

    def rewards(self, rollouts: Sequence[Rollout], examples: Sequence[Example]) -> Tensor:
        """(A,) in [0, 1]."""
        tokenizer = self.pair.target.tokenizer
        texts = [tokenizer.decode(rollout.ids, skip_special_tokens=True) for rollout in rollouts]

        def reward(rollout: Rollout, text: str, example: Example) -> float:
            if self.task.needs_logprobs:
                return self.task.reward(text, example, rollout.logprob / max(len(rollout.ids), 1))
            return self.task.reward(text, example)

        if self.task.runs_code:  # each answer runs in a process of its own, which is waited for
            with ThreadPoolExecutor(_CODE_THREADS) as pool:
                return torch.tensor(list(pool.map(reward, rollouts, texts, examples)))
        return torch.tensor([reward(*item) for item in zip(rollouts, texts, examples, strict=True)])

    def update(self, tokens: Tokens, rewards: Tensor, groups: Tensor) -> dict[str, float]:
        """Move the head by a batch of answers; `groups` (A,) says which prompt each is of."""
        if self.step == 0 and not bool(self.head.weight.any()):
            self._standardise(tokens)
        with torch.no_grad():
            weight = self.head(tokens.inputs)
        scale = self._spread(rewards)
        returns = returns_to_go(tokens, weight, rewards, self.price)
        advantage = advantages(tokens, returns, groups) / scale
        norms, clipped = [], []
        for _ in range(self.config.epochs):
            norm, share = self._descend(tokens, advantage, len(rewards), scale)
            norms.append(norm)
            clipped.append(share)
        self.step += 1
        return self._seen(tokens, rewards, weight) | {"norm": norms[0], "clipped": sum(clipped) / len(clipped)}

    def _descend(self, tokens: Tokens, advantage: Tensor, num_answers: int, scale: float) -> tuple[float, float]:
        """One gradient step; returns the gradient's norm and the share of clipped ratios."""
        self.optimizer.zero_grad(set_to_none=False)
        value, clipped = loss(self.head, tokens, advantage, num_answers, self.price / scale, self.config.clip)
        value.backward()
        parameters = list(self.head.parameters())
        for parameter in parameters:
            parameter.grad = self.workers.mean(
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, _LARGEST_NORM))
        if not math.isfinite(norm):
            raise ExplorerError(
                f"The gradient of step {self.step} is not finite. Resume from the last state, with a learning rate "
                f"below {self.config.learning_rate}."
            )
        self.optimizer.step()
        return norm, float(clipped)

    def _standardise(self, tokens: Tokens) -> None:
        """Take the inputs' means and spreads from the first batch of all processes."""
        inputs = tokens.inputs.double()
        count = self.workers.total(torch.tensor(float(len(inputs)), dtype=torch.float64))
        mean = self.workers.total(inputs.sum(0)) / count
        square = self.workers.total(inputs.square().sum(0)) / count
        self.head.standardise(mean.float(), (square - mean.square()).clamp(min=0).sqrt().float())

    def _spread(self, rewards: Tensor) -> float:
        """Standard deviation of the rewards of all processes; 1 where they are all alike."""
        rewards = rewards.double()
        count = self.workers.total(torch.tensor(float(len(rewards)), dtype=torch.float64))
        mean = self.workers.total(rewards.sum()) / count
        deviation = float((self.workers.total((rewards - mean).square().sum()) / count).sqrt())
        return deviation if deviation > _EQUAL else 1.0

    def _seen(self, tokens: Tokens, rewards: Tensor, weight: Tensor) -> dict[str, float]:
        """Means over the batch that was sampled, with the weights that sampled it."""
        costs = weight * tokens.distance
        entropy = torch.special.entr(weight) + torch.special.entr(1 - weight)
        at_start = self.config.start * tokens.target_prob + (1 - self.config.start) * tokens.draft_prob
        shift = (tokens.old_prob.clamp(min=1e-30) / at_start.clamp(min=1e-30)).log()
        correct = [self.task.is_correct(float(reward)) for reward in rewards]
        figures = {
            "reward": rewards.float().mean(),
            "correct": torch.tensor([bool(x) for x in correct]).float().mean(),
            "acceptance": 1 - costs.mean(),
            "rejections": costs.sum() / len(rewards),
            "weight": weight.mean(),
            "weight_entropy": entropy.mean(),
            "distance": tokens.distance.mean(),
            "kl_to_start": shift.sum() / len(rewards),
        }
        return {name: float(self.workers.mean(value.float())) for name, value in figures.items()} | {
            "price": self.price,
        }

    def save_state(self, path: Path) -> None:
        """Head and optimizer, see `state.save`."""
        tensors = {f"head.{name}": value for name, value in self.head.state_dict().items()}
        state.save(path, tensors | {"step": torch.tensor(self.step)}, self.optimizer)

    def load_state(self, path: Path) -> None:
        """Go on from what `save_state` wrote, see `state.load`."""

        def take(tensors: dict[str, Tensor]) -> None:
            head = {name[5:]: value for name, value in tensors.items() if name.startswith("head.")}
            self.head.load_state_dict(head)
            self.step = int(tensors["step"])

        state.load(path, self.optimizer, take)


def tokens_of(rollouts: Sequence[Rollout]) -> Tokens:
    """The judged tokens of some answers, end to end."""
    counts = [len(rollout.places) for rollout in rollouts]
    width = max((rollout.inputs.shape[1] for rollout in rollouts if rollout.places), default=0)
    inputs = [rollout.inputs for rollout in rollouts if rollout.places]
    numbers = torch.cat([rollout.numbers for rollout in rollouts])
    return Tokens(
        inputs=torch.cat(inputs) if inputs else torch.zeros(0, width),
        target_prob=numbers[:, 0],
        draft_prob=numbers[:, 1],
        old_prob=numbers[:, 2],
        distance=numbers[:, 3],
        answer=torch.arange(len(rollouts)).repeat_interleave(torch.tensor(counts)),
        place=torch.tensor([place for rollout in rollouts for place in rollout.places], dtype=torch.int64),
    )
