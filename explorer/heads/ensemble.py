"""The head that sets the weight of the target, token by token: one linear layer on both models' hidden states.

It sees what the prefix says, never the drafted token, or the mixture it weighs would be no distribution.

Source:
    DIVERSED, arXiv:2604.07622. Standardised inputs, and the figures of the two laws beside the states, are ours.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

# Figures of the two laws at a position, see `law_figures`.
NUM_FIGURES = 5
# Beyond this the weight is 0 or 1 for all purposes, and its gradient gone.
_LARGEST = 6.0
INPUTS = ("states", "figures", "both")


class EnsembleHead(nn.Module):
    """w = sigmoid(weight . inputs + bias) of standardised inputs.

    Attributes:
        inputs: "states" (drafter's and target's last hidden states), "figures" (of the two laws), or "both".
        draft_size, target_size: Sizes of the two states.
    """

    def __init__(self, draft_size: int, target_size: int, inputs: str = "both", start: float = 0.5) -> None:
        """A head that says `start` everywhere, with inputs as they are."""
        super().__init__()
        self.inputs, self.draft_size, self.target_size = inputs, draft_size, target_size
        num_states = 0 if inputs == "figures" else draft_size + target_size
        num_figures = 0 if inputs == "states" else NUM_FIGURES
        self.state_weight = nn.Parameter(torch.zeros(num_states))
        self.figure_weight = nn.Parameter(torch.zeros(num_figures))
        self.bias = nn.Parameter(torch.tensor(math.log(start / (1 - start))))
        self.register_buffer("mean", torch.zeros(num_states + num_figures))
        self.register_buffer("scale", torch.ones(num_states + num_figures))

    @property
    def weight(self) -> Tensor:
        """(N,) weights of all inputs: of the states, then of the figures."""
        return torch.cat([self.state_weight, self.figure_weight])

    @property
    def needs_laws(self) -> bool:
        """Whether the figures of the two laws are among the inputs."""
        return self.inputs != "states"

    def gather(self, draft_hidden: Tensor, target_hidden: Tensor, figures: Tensor | None) -> Tensor:
        """Inputs (..., N) float32, not yet standardised.

        Args:
            draft_hidden: (..., D_q), the drafter's state that produced the law of the judged position.
            target_hidden: (..., D_p), the target's, after its final norm.
            figures: (..., NUM_FIGURES), or None if the head needs none.
        """
        states = [] if self.inputs == "figures" else [draft_hidden.float(), target_hidden.float()]
        return torch.cat(states + ([figures.float()] if self.needs_laws and figures is not None else []), dim=-1)

    def standardise(self, mean: Tensor, deviation: Tensor) -> None:
        """Take means and standard deviations (N,) of inputs, so that every one of them starts with the same say."""
        self.mean.copy_(mean)
        self.scale.copy_(1 / deviation.clamp(min=1e-4))

    def forward(self, inputs: Tensor) -> Tensor:
        """Weights (...,) in (0, 1) of gathered inputs (..., N)."""
        score = ((inputs - self.mean) * self.scale) @ self.weight + self.bias
        return score.clamp(-_LARGEST, _LARGEST).sigmoid()

    def describe(self) -> dict[str, Any]:
        """JSON facts."""
        return {"inputs": self.inputs, "draft_size": self.draft_size, "target_size": self.target_size}


def law_figures(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """(..., NUM_FIGURES) of two laws (..., V): entropies of target and drafter, their distance TV, largest entries."""
    return torch.stack(
        [
            torch.special.entr(target_probs).sum(-1),
            torch.special.entr(draft_probs).sum(-1),
            1 - torch.minimum(target_probs, draft_probs).sum(-1),
            target_probs.amax(-1),
            draft_probs.amax(-1),
        ],
        dim=-1,
    )
