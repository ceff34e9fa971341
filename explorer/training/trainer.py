"""One optimizer step of a drafter after another: the target's laws as targets, and training-time test.

Chains come from `replay.rollout`, gradients of the vocabulary from `head_loss`. Every other step trains a prefix rank
of the head, drawn anew, so that one checkpoint serves all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.nn import functional

from explorer.errors import ExplorerError, SettingError
from explorer.heads.draft import FullHead, LowRankHead
from explorer.heads.eagle import EagleModel
from explorer.settings import check_ranges, setting
from explorer.training import state
from explorer.training.calibration import Row
from explorer.training.closed_form import TargetHead
from explorer.training.head_loss import LOSSES, Columns, choose_columns, head_loss
from explorer.training.replay import rollout

# Adam moves every weight by about the learning rate. These are of another size than the rest, and get a rate to match.
_BY_SIZE = ("fc", "head.down", "head.up_t")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of the training loop; where the text comes from is `DistillConfig`'s."""

    num_steps: int = setting(3, "drafts unrolled per position (training-time test)", low=1, high=8)
    step_decay: float = setting(0.8, "weight of a draft relative to the one before it", low=0.1, high=1.0)
    later_share: float = setting(0.5, "share of positions trained at the second draft and later", low=0.05, high=1.0)
    prompt_weight: float = setting(0.3, "weight of the prompt's own positions", low=0.0, high=1.0)
    loss: str = setting("kl", "what the draft law is pulled by", choices=LOSSES)
    num_frequent: int = setting(12288, "frequent tokens in every loss; 0 takes all tokens", low=0, high=10_000_000)
    num_sampled: int = setting(2048, "tokens that stand for the rest, drawn every step", low=1, high=10_000_000)
    learning_rate: float = setting(6e-4, "peak", low=1e-6, high=1e-1)
    rows_per_step: int = setting(6, "answers per optimizer step", low=1, high=512)
    epochs: float = setting(2.0, "passes over the text", low=0.01, high=100.0)
    warmup_steps: int = setting(60, "optimizer steps until the peak", low=1, high=100_000)
    seed: int = setting(0, "of the order, the ranks and the positions", low=0, high=2**53)

    def __post_init__(self) -> None:
        check_ranges(self)


class Trainer:
    """A drafter in float32 with its optimizer. The model it is given is left as it is.

    Features differ a thousandfold in size from one dimension to the next, so they are brought to the same size here,
    and `fc` along with them; `trained` undoes that.
    """

    def __init__(
        self, start: EagleModel, head: TargetHead, rows: Sequence[Row], config: TrainConfig, total_steps: int
    ) -> None:
        """Copy the start.

        Args:
            start: A fitted or trained drafter, with a low-rank head that is trained or a full one that is kept.
            head: The target's.
            rows: The text that will be trained on, or a part of it: its sizes and frequent tokens are looked at.
            config: Settings.
            total_steps: After which the learning rate is 0.

        Raises:
            SettingError: The drafter's head cannot be trained.
        """
        if not isinstance(start.head, (LowRankHead, FullHead)):
            raise SettingError("Only low-rank and full heads can be distilled. Start from a drafter with one.")
        self.head, self.config, self.total_steps = head, config, total_steps
        self.model = copy_of(start)
        self.vocab_size = len(head.weight)
        D = start.shape.hidden_size
        self.sizes = torch.stack([row.states[:, :-D].float().square().mean(0) for row in rows[:64]]).mean(0).sqrt()
        self.sizes.clamp_(min=1e-6)
        self.model.fc.data.mul_(self.sizes)
        self.frequent = frequent_tokens(rows, self.vocab_size, config.num_frequent or self.vocab_size)
        self.generator = Generator().manual_seed(config.seed)
        self.step = 0
        # A full head is the target's own and stays what it is.
        self.weights = {n: w for n, w in self.model.named_parameters() if n != "head.weight"}
        groups = []
        for name, weight in self.weights.items():
            weight.requires_grad_(True)
            size = float(weight.detach().square().mean().sqrt())
            groups.append({"params": [weight], "share": size if name in _BY_SIZE else 1.0})
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-15, weight_decay=0.0)

    def train_step(self, rows: Sequence[Row]) -> dict[str, float]:
        """One optimizer step on some rows; returns what was seen, means over the answers' first drafts.

        Raises:
            ExplorerError: The gradient is not finite; the weights are those of the last step.
        """
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.zero_grad(set_to_none=True)
        pass_ = self._pass(torch.cat([row.ids for row in rows]))
        total = sum(len(row.states) - row.prompt_length + 1 for row in rows)
        seen = torch.stack([self._row(row, pass_, total) for row in rows]).sum(0)
        if pass_.factor_grad is not None:
            up = self.model.head.up_t
            up.grad = torch.zeros_like(up)
            up.grad[: len(pass_.factor)].index_add_(1, pass_.columns.ids, pass_.factor_grad)
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.weights.values()), 1.0))
        if not math.isfinite(norm):
            raise ExplorerError(
                f"The gradient of step {self.step} is not finite. Resume from the checkpoint, with a learning rate "
                f"below {self.config.learning_rate}."
            )
        self.optimizer.step()
        self.step += 1
        loss, overlap, matches = (seen / total).tolist()
        return {"loss": loss, "overlap": overlap, "match": matches, "norm": norm, "rate": rate}

    def _rate(self) -> float:
        """Linear warm-up, then a cosine to nothing: a run that is not annealed looks worse than none."""
        warm = min(1.0, (self.step + 1) / self.config.warmup_steps)
        done = min(1.0, self.step / max(self.total_steps, 1))
        return self.config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * done))

    def _pass(self, text: Tensor) -> _Pass:
        """The rank and the tokens of one step."""
        head = self.model.head
        columns = choose_columns(self.frequent, text, self.vocab_size, self.config.num_sampled, self.generator)
        teacher = self.head.weight[columns.ids].t() * self.head.scale
        if isinstance(head, FullHead):
            return _Pass(None, columns, teacher, head.weight.detach()[columns.ids].t(), None)
        R = head.max_rank
        rank = int(torch.randint(max(R // 8, 1), R + 1, (), generator=self.generator))
        # The whole head is what most people run: every other step trains it.
        rank = R if self.step % 2 else rank
        factor = head.up_t.detach()[:rank, columns.ids]
        return _Pass(rank, columns, teacher, factor, torch.zeros_like(factor))

    def _row(self, row: Row, pass_: _Pass, total: int) -> Tensor:
        """Gradients of one answer; returns sums of loss, overlap and matches over the first drafts of its tokens."""
        config, D = self.config, self.model.shape.hidden_size
        features = row.states[:, :-D].float() / self.sizes
        first = row.prompt_length - 1  # the state whose law the answer's first token was drawn from
        begin = 0 if config.prompt_weight else first
        with torch.no_grad():
            laws = row.states[begin:, -D:].float() @ pass_.teacher
            laws.sub_(row.log_norms[begin : len(row.states)].unsqueeze(1)).add_(pass_.columns.log_counts).exp_()
        codes, gradients, report = [], [], torch.zeros(3)
        for step, (_, states) in enumerate(rollout(self.model, row.ids, features, config.num_steps)):
            judges = self._judges(len(states), begin, step)
            if not len(judges):
                continue
            weights = torch.where(judges < first, config.prompt_weight, 1.0) * config.step_decay**step / total
            code = self.model.normed(states[judges - step - 1])
            if pass_.rank is not None:
                code = functional.linear(code, self.model.head.down[: pass_.rank])
            weights /= config.later_share if step else 1.0
            figures, by_logit = head_loss(
                code.detach(), pass_.factor, pass_.columns, laws[judges - begin], weights, config.loss
            )
            if pass_.factor_grad is not None:
                pass_.factor_grad.addmm_(code.detach().t(), by_logit)
            codes.append(code)
            gradients.append(by_logit @ pass_.factor.t())
            if not step:
                answers = torch.stack([figures.loss, figures.overlap, figures.matches.float()])
                report = answers[:, judges >= first].sum(1)
        torch.autograd.backward(codes, gradients)
        return report

    def _judges(self, num_entries: int, begin: int, step: int) -> Tensor:
        """Positions of the laws that judge a step: entry t is judged by the law at t + step + 1."""
        judges = torch.arange(max(begin, step + 1), num_entries + step)
        if step and self.config.later_share < 1:
            judges = judges[torch.rand(len(judges), generator=self.generator) < self.config.later_share]
        return judges

    def trained(self) -> EagleModel:
        """A copy of the drafter as it is now, that takes features as they are."""
        model = copy_of(self.model)
        model.fc.data.div_(self.sizes)
        return model

    def save_state(self, path: Path) -> None:
        """Weights and optimizer in float32, see `state.save`."""
        tensors = {f"weight.{name}": weight for name, weight in self.weights.items()}
        more = {"step": torch.tensor(self.step), "generator": self.generator.get_state(), "sizes": self.sizes}
        state.save(path, tensors | more, self.optimizer)

    def load_state(self, path: Path) -> None:
        """Go on from what `save_state` wrote, see `state.load`."""

        def take(tensors: dict[str, Tensor]) -> None:
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(tensors[f"weight.{name}"])
            self.step, self.sizes = int(tensors["step"]), tensors["sizes"]
            self.generator.set_state(tensors["generator"])

        state.load(path, self.optimizer, take)


@dataclass(slots=True)
class _Pass:
    """What the rows of one step share: rank (None: full head), tokens, the target's weights (D, C), and the head's."""

    rank: int | None
    columns: Columns
    teacher: Tensor
    factor: Tensor
    factor_grad: Tensor | None


def copy_of(model: EagleModel) -> EagleModel:
    """A float32 copy; a full head, which is never trained, is shared."""
    weights = {name: weight.float().clone() for name, weight in model.named_weights().items()}
    head = model.head
    if isinstance(head, LowRankHead):
        head = LowRankHead(weights["lm_head.down.weight"], weights["lm_head.up.weight"])
    copy = EagleModel(model.shape, model.embedding.float(), head)
    copy.load_weights(weights)
    return copy


def with_head(model: EagleModel, head: FullHead) -> EagleModel:
    """The same body with a full head: the twin that a low-rank head is compared with."""
    twin = EagleModel(replace(model.shape, max_rank=0), model.embedding, head)
    weights = model.named_weights()
    twin.load_weights({name: weight for name, weight in weights.items() if not name.startswith("lm_head")})
    return twin


def frequent_tokens(rows: Sequence[Row], vocab_size: int, size: int) -> Tensor:
    """The ids that rows hold most often, at most `size` of them."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for row in rows:
        counts += torch.bincount(row.ids, minlength=vocab_size)[:vocab_size]
    return counts.sort(descending=True, stable=True).indices[:size]


def batches(num_rows: int, rows_per_step: int, epochs: float, seed: int) -> list[list[int]]:
    """Row numbers of every step of a run: each epoch goes through all rows in an order of its own."""
    wanted = max(1, round(epochs * num_rows / rows_per_step))
    generator = Generator().manual_seed(seed)
    order: list[int] = []
    while len(order) < wanted * rows_per_step:
        order += torch.randperm(num_rows, generator=generator).tolist()
    return [order[i * rows_per_step : (i + 1) * rows_per_step] for i in range(wanted)]
