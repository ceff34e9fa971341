"""Text sampled by the target with the states it had while writing, kept on disk: what a drafter learns from.

Prompts are answered batch by batch; each batch is one safetensors file, so that an interrupted run goes on where it
stopped. A file holds rows laid end to end: `ids` (N,), `states` (N, F), `log_norms` (N,), `lengths` (R,) and
`prompt_lengths` (R,). The last token of a row was never read by the target; its state is zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from explorer.engine.models import LanguageModel
from explorer.errors import SettingError, WeightsError
from explorer.training.calibration import BATCH_SIZE, Row, sample_rows

Progress = Callable[[str, int, int], None]

# A quarter greedy, the rest sampled: the drafter must serve every temperature.
TEMPERATURES = (1.0, 0.7, 1.0, 0.0, 0.7, 1.0, 0.0, 0.7)
_CHUNK = 256


def read_prompts(paths: Sequence[Path], holdout: Sequence[Path] = ()) -> list[str]:
    """User messages of JSONL files (`prompt`, `question` or `turns`), each once, without those of held-out files.

    Raises:
        SettingError: A file cannot be read, or a line has none of the fields.
    """
    held_out = {message.strip().lower() for path in holdout for message in _messages(path)}
    messages = dict.fromkeys(message for path in paths for message in _messages(path))
    return [message for message in messages if message.strip().lower() not in held_out]


def _messages(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingError(f"{path} cannot be read ({error.strerror}). Give a JSONL file of prompts.") from error
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            message = record.get("prompt") or record.get("question") or record["turns"][0]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise SettingError(f"{path}, line {number}, has no prompt, question or turns.") from error
        if isinstance(message, str) and message.strip():
            yield message


def extend(
    target: LanguageModel,
    prompts: Sequence[str],
    folder: Path,
    *,
    features: tuple[int, ...],
    num_tokens: int,
    answer_tokens: int,
    seed: int,
    progress: Progress,
) -> list[Path]:
    """Files of a corpus with at least `num_tokens` answer tokens; those already there are kept.

    Args:
        target: The model to imitate.
        prompts: User messages, each answered once, in a seeded order.
        folder: Where the files go.
        features: Indices of the hidden states to keep, side by side.
        num_tokens: Answer tokens wanted; fewer come if the prompts run out.
        answer_tokens: Longest answer.
        seed: Of the order and of the sampling.
        progress: Called with (what, tokens so far, tokens wanted).
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    written = 0
    for number, batch in enumerate(_batches(prompts, seed)):
        path = folder / f"part-{number:05d}.safetensors"
        if not path.exists():
            generator = Generator(device=target.device).manual_seed(seed * 1_000_003 + number)
            temperature = temperature_of(number)
            rows = sample_rows(
                target, batch, features, 0, generator, temperature=temperature, answer_tokens=answer_tokens, once=True
            )
            _save(path, rows, target)
        paths.append(path)
        written += sum(answer_lengths(path))
        progress("Sampling answers", min(written, num_tokens), num_tokens)
        if written >= num_tokens:
            break
    return paths


def temperature_of(number: int) -> float:
    """Temperature at which the answers of a file were sampled."""
    return TEMPERATURES[number % len(TEMPERATURES)]


def _batches(prompts: Sequence[str], seed: int) -> Iterator[list[str]]:
    """Prompts in a seeded order, in batches of like length: eight batches are sorted together."""
    order = torch.randperm(len(prompts), generator=Generator().manual_seed(seed)).tolist()
    pool_size = 8 * BATCH_SIZE
    for first in range(0, len(order), pool_size):
        pool = sorted((prompts[i] for i in order[first : first + pool_size]), key=len)
        batches = [pool[start : start + BATCH_SIZE] for start in range(0, len(pool), BATCH_SIZE)]
        # Long prompts must not always meet the same temperature.
        turn = first // pool_size % len(batches)
        yield from batches[turn:] + batches[:turn]


def log_norms(target: LanguageModel, states: Tensor) -> Tensor:
    """(N,) logarithms of the sum of the exponentials of the target's logits, of last hidden states (N, D)."""
    head = target.model.get_output_embeddings()
    with torch.inference_mode():
        parts = [
            head(part.to(target.device, target.dtype))[:, : target.vocab_size].float().logsumexp(-1).cpu()
            for part in states.split(_CHUNK)
        ]
    return torch.cat(parts).clone()


def _save(path: Path, rows: list[Row], target: LanguageModel) -> None:
    """Write whole or not at all."""
    # The laws are made anew in training from the rounded states, so that is what the norms belong to.
    states = torch.cat([torch.cat([row.states, torch.zeros_like(row.states[:1])]) for row in rows]).bfloat16()
    tensors = {
        "ids": torch.cat([row.ids for row in rows]).int(),
        "states": states,
        "log_norms": log_norms(target, states[:, -target.hidden_size :]),
        "lengths": torch.tensor([len(row.ids) for row in rows]),
        "prompt_lengths": torch.tensor([row.prompt_length for row in rows]),
    }
    part = path.with_suffix(".part")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise WeightsError(
            f"{path} could not be written ({error}). Free some disk space; what is there stays."
        ) from error


def answers_of(path: Path) -> list[Tensor]:
    """Token ids of every answer of one file."""
    with safe_open(path, framework="pt") as file:
        lengths = file.get_tensor("lengths").tolist()
        starts = file.get_tensor("prompt_lengths").tolist()
        rows = file.get_tensor("ids").long().split(lengths)
    return [ids[start:] for ids, start in zip(rows, starts, strict=True)]


def answer_lengths(path: Path) -> list[int]:
    """Answer tokens of every row of one file.

    Raises:
        WeightsError: It is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return (file.get_tensor("lengths") - file.get_tensor("prompt_lengths")).tolist()
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises:
        WeightsError: It is damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> WeightsError:
    return WeightsError(f"{path} is damaged ({error}). Delete it; it is sampled again.")


def rows_of(path: Path) -> list[Row]:
    """The rows of one file, states in bfloat16."""
    tensors = read(path)
    lengths = tensors["lengths"].tolist()
    parts = zip(
        tensors["ids"].long().split(lengths),
        tensors["states"].split(lengths),
        tensors["log_norms"].split(lengths),
        tensors["prompt_lengths"].tolist(),
        strict=True,
    )
    return [Row(ids, start, states[:-1], log_norms=norms) for ids, states, norms, start in parts]
