"""Without labels: an answer is as good as the target finds it likely.

The reward is the geometric mean of the target's probabilities of the answer's tokens, exp(mean log-probability). A task
knows no engine, so whoever sampled the answer hands that mean over.
"""

from __future__ import annotations

import math
from pathlib import Path

from explorer.errors import SettingError
from explorer.tasks.base import Example, Task, by_hash, user
from explorer.tasks.records import read_jsonl

TEST_SHARE = 0.2
FIELDS = {"prompt": str}
# A sum of float32 or bfloat16 logarithms may end a little above zero.
_ROUNDING = 0.01

TRAIN_PROMPTS = (
    "Explain how a rainbow forms.",
    "Write a short note to thank a neighbour for watering my plants.",
    "What is the difference between a lake and a pond?",
    "Give me three tips for sleeping better.",
    "Describe the water cycle in four sentences.",
    "Why do leaves change colour in autumn?",
    "Write a haiku about the sea.",
    "How do I boil an egg?",
    "What does a librarian do?",
    "Name five animals that live in the desert.",
    "Explain what a variable is in programming.",
    "Write the first lines of a story about a lost key.",
    "How does a bicycle stay upright?",
    "Give two reasons to learn a second language.",
    "What is photosynthesis?",
    "Suggest a simple dinner with rice and beans.",
)
TEST_PROMPTS = (
    "Why is the sky blue?",
    "How do I make a paper plane?",
    "Write a polite email to ask for a day off.",
    "What causes the tides?",
    "List four uses of salt.",
    "Describe a quiet morning in a village.",
    "What is a prime number?",
    "Give me advice for a first job interview.",
)


class Fidelity(Task):
    """Reward: the target's geometric mean probability of the answer's tokens."""

    name = "fidelity"
    max_new_tokens = 96
    needs_logprobs = True

    def _load(self, data: Path | None, num_shots: int) -> dict[str, list[Example]]:  # noqa: ARG002
        if data is None:
            parts = {"train": TRAIN_PROMPTS, "test": TEST_PROMPTS}
            return {split: [Example([user(prompt)]) for prompt in prompts] for split, prompts in parts.items()}
        records = read_jsonl(data, FIELDS)
        keyed = [(record["prompt"], Example([user(record["prompt"])])) for record in records]
        return by_hash([(key, example) for key, example in keyed if key.strip()], TEST_SHARE)

    def reward(self, completion: str, example: Example, mean_logprob: float | None = None) -> float:  # noqa: ARG002
        """exp(mean_logprob), in [0, 1]; 0 for an empty answer, which is likely without saying anything.

        Args:
            completion: The answer.
            example: Its prompt; not used.
            mean_logprob: Mean over the answer's tokens of the target's log-probability, in nats, at most 0.

        Raises:
            SettingError: The mean is missing, not a number, or above 0 by more than rounding.
        """
        if mean_logprob is None:
            raise SettingError("fidelity scores nothing without mean_logprob, the target's mean log-probability.")
        if math.isnan(mean_logprob) or mean_logprob > _ROUNDING:
            raise SettingError(f"mean_logprob is {mean_logprob}; a mean log-probability is a number of at most 0.")
        return math.exp(min(mean_logprob, 0.0)) if completion.strip() else 0.0
