"""The target's own sampled text with its hidden states: what the closed-form fit looks at.

The text is written by the one decode loop. A drafter that proposes nothing sees every state the target computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.drafters import Draft, Sequences
from explorer.engine.models import LanguageModel
from explorer.engine.pair import ModelPair, encode_chat
from explorer.engine.sampling import Sampler
from explorer.errors import SettingError

PROMPTS = Path(__file__).parents[2] / "assets" / "calibration_prompts.jsonl"
BATCH_SIZE = 128
# The rows of a batch stop early or late; past this many tokens an answer of a small model mostly repeats itself.
ANSWER_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt with an answer the target wrote.

    Attributes:
        ids: (S + 1,) int64, prompt and answer.
        prompt_length: Tokens of the prompt.
        states: (S, F) hidden states at every position but the last, side by side in the order asked for.
        prompt: Which prompt it answers.
        log_norms: (S + 1,) float32 logarithms of the target's softmax denominators, where training needs them.
    """

    ids: Tensor
    prompt_length: int
    states: Tensor
    prompt: int = 0
    log_norms: Tensor | None = None


class Recorder:
    """A drafter that drafts nothing and keeps the states it is shown, row by row."""

    kind = "recorder"
    name = "recorder"
    rank_choices: tuple[int, ...] = ()
    hidden_size = 0

    def __init__(self, features: tuple[int, ...]) -> None:
        self.features = features
        self._batch_size = self._capacity = 0
        self._states: Tensor | None = None

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> Recorder:  # noqa: ARG002 (the protocol's signature)
        """Begin a recording; an earlier one is forgotten."""
        self._batch_size, self._capacity, self._states = batch_size, capacity, None
        self._rows = torch.arange(batch_size)
        self._lengths = torch.zeros(batch_size, dtype=torch.int64)
        return self

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self._rows = self._rows[rows.cpu()]

    def states_of(self, row: int) -> Tensor:
        """(S, F) states of one row of the batch, from its first position on."""
        states = torch.zeros(0) if self._states is None else self._states[row, : self._lengths[row]]
        return states.clone()

    def describe(self, rank: int) -> dict[str, object]:  # noqa: ARG002 (the protocol's signature)
        """JSON facts."""
        return {"kind": self.kind, "name": self.name, "rank": None, "num_parameters": 0}

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:  # noqa: ARG002
        """Keep what the target's last pass left; propose nothing."""
        lengths, features = sequences.lengths, sequences.features
        if features is not None and sequences.feature_starts is not None:
            if self._states is None:  # one block for the batch: a small piece per row and token would scatter the heap
                self._states = features.new_zeros(self._batch_size, self._capacity, features.shape[2])
            rows = self._rows.to(features.device).unsqueeze(1)
            places = sequences.feature_starts.unsqueeze(1) + torch.arange(features.shape[1], device=features.device)
            # Columns that pad a shorter row hold nothing; the row's own next states are written over them.
            self._states[rows, places.clamp(max=self._capacity - 1)] = features
            self._lengths[self._rows] = (lengths - 1).cpu()
        return Draft(ids=lengths.new_zeros(len(lengths), 0), lengths=torch.zeros_like(lengths))


def load_prompts(path: Path) -> list[str]:
    """The prompts of a JSONL file with a `prompt` in every line.

    Raises:
        SettingError: The file cannot be read, or a line is not such an object.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(
            f'{path} cannot be used as prompts ({error}). Give a JSONL file, one {{"prompt": "..."}} a line.'
        ) from error
    if not prompts or not all(isinstance(prompt, str) and prompt.strip() for prompt in prompts):
        raise SettingError(f"{path} has no prompts, or an empty one. Give at least one text per line.")
    return prompts


def sample_rows(
    target: LanguageModel,
    prompts: Sequence[str],
    features: tuple[int, ...],
    num_tokens: int,
    generator: Generator,
    *,
    temperature: float = 1.0,
    answer_tokens: int = ANSWER_TOKENS,
    once: bool = False,
    report: Callable[[int], None] | None = None,
) -> list[Row]:
    """Let the target answer the prompts, again and again, until `num_tokens` answer tokens are written.

    Args:
        target: The model.
        prompts: User messages; the chat template is applied.
        features: Indices of the hidden states to keep.
        num_tokens: Answer tokens wanted; the last batch may write a few more.
        generator: The only source of randomness.
        temperature: Of the target.
        answer_tokens: Longest answer.
        once: Whether each prompt is answered once, as greedy answers should be, however many tokens that makes.
        report: Called with the answer tokens written so far.
    """
    encoded = [encode_chat(target, prompt) for prompt in prompts]
    rows: list[Row] = []
    written = at = 0
    while once or written < num_tokens:
        wanted = len(encoded) - at if once else -(-(num_tokens - written) // answer_tokens)
        chosen = [(at + i) % len(encoded) for i in range(min(BATCH_SIZE, wanted))]
        at += len(chosen)
        config = DecodeConfig(rule="exact", draft_length=1, temperature=temperature, max_new_tokens=answer_tokens)
        answers: list[list[int]] = [[] for _ in chosen]
        recorder = Recorder(features)
        for event in decode(ModelPair(target, recorder), [encoded[i] for i in chosen], config, generator=generator):
            answers[event.row] += event.emitted_ids
            written += len(event.emitted_ids)
            if report is not None and event.row == 0:
                report(written)
        for row, (i, answer) in enumerate(zip(chosen, answers, strict=True)):
            kept = recorder.states_of(row)
            if not len(kept):  # a prompt of one token, and an answer of one
                continue
            ids = torch.tensor([*encoded[i], *answer])
            rows.append(Row(ids[: len(kept) + 1].clone(), len(encoded[i]), kept, i))
        if once and at == len(encoded):
            break
    return rows
