"""One prompt, one run, one trace: what the page streams and the command line prints or saves."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import torch

from explorer.engine.config import DecodeConfig
from explorer.engine.decode import decode
from explorer.engine.events import RoundEvent
from explorer.engine.metrics import Counts
from explorer.engine.pair import ModelPair, encode_chat
from explorer.engine.text import TextReader
from explorer.engine.trace import end_line, meta_line, round_line


def run_trace(
    pair: ModelPair, prompt: str | list[dict[str, str]], config: DecodeConfig, *, command: str = ""
) -> Iterator[str]:
    """Answer a user's message; yields the lines of the trace (see `trace`), the first before any model work.

    Args:
        pair: Target and drafter.
        prompt: The message, or turns of a conversation; the target's chat template is applied.
        config: Rule and settings.
        command: The command line that repeats this run, for the trace's first line.

    Raises:
        SettingError: The prompt is empty or too long, or a setting does not fit the drafter.
        ModelPairError: The rule needs a drafter and there is none.
    """
    prompt_ids = encode_chat(pair.target, prompt)
    yield meta_line(
        prompt=prompt if isinstance(prompt, str) else prompt[-1]["content"],
        prompt_ids=prompt_ids,
        config=config,
        **pair.describe(config.rank),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )
    counts, answer = Counts(), Answer(pair, prompt_ids)
    # Reading and describing tokens is not decoding: it is reported, and left out of the speed.
    described_s = first_round_s = 0.0
    began = resumed = time.perf_counter()
    decoding_s = 0.0
    finish = None
    for event in decode(pair, [prompt_ids], config, details=True):
        round_s = time.perf_counter() - resumed
        decoding_s += round_s - event.overhead_s
        described_s += event.overhead_s
        if not counts.num_rounds:
            first_round_s = round_s - event.overhead_s - event.draft_s - event.verify_s
        counts.add(event)
        answer.add(event)
        finish = event.finish
        yield round_line(event)
        resumed = time.perf_counter()  # what the reader of this generator did meanwhile is not counted
    totals = dataclasses.asdict(counts)
    yield end_line(
        finish=finish,
        text=answer.text(config.stop),
        token_ids=answer.ids,
        **totals,
        acceptance_rate=counts.acceptance_rate,
        tested_rate=counts.tested_rate,
        tokens_per_round=counts.tokens_per_round,
        elapsed_s=decoding_s,
        overhead_s=described_s,
        wall_s=time.perf_counter() - began,
        prefill_ms=1000 * first_round_s,
        tokens_per_s=counts.num_emitted / decoding_s if decoding_s > 0 else None,
        num_threads=torch.get_num_threads(),
    )


class Answer:
    """The text and ids of one row, gathered from its events."""

    def __init__(self, pair: ModelPair, prompt_ids: list[int]) -> None:
        self.reader = TextReader(pair.target.tokenizer)
        self.state = self.reader.start(prompt_ids)
        self.ids: list[int] = []
        self._text = ""

    def add(self, event: RoundEvent) -> None:
        """Read the tokens of a round."""
        for token_id in event.emitted_ids:
            self.ids.append(token_id)
            self.state, piece = self.reader.read(self.state, token_id)
            if token_id not in self.reader.special_ids:
                self._text += piece

    def text(self, stop: tuple[str, ...] = ()) -> str:
        """The answer: special tokens left out, cut before the first of the stop texts."""
        text = self._text + self.reader.rest(self.state)
        return text[: min((text.index(s) for s in stop if s in text), default=len(text))]
