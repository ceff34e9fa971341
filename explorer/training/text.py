"""The answers of a corpus for training: which rows train, in what order, and which are kept apart; read as needed.

A corpus outgrows memory, so rows are named by file and number, and only a few files are held at a time: an epoch goes
through the files in an order of its own, some of them mixed together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Generator, Tensor

from explorer.errors import SettingError
from explorer.training import corpus
from explorer.training.calibration import Row

Name = tuple[int, int]  # file, row

# Files whose rows are mixed, about 80 MB each; as many as are sorted by length together when they are sampled.
_MIXED = 8
HELD_OUT = 64


@dataclass(slots=True)
class Text:
    """Rows of a corpus.

    Attributes:
        paths: Its files.
        trained: Names of the rows to train on, in order.
        held_out: Names of those kept apart, evenly spread over files and lengths.
    """

    paths: list[Path]
    trained: list[Name]
    held_out: list[Name]
    _files: OrderedDict[int, list[Row]] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Text:
        """All rows of the files: about HELD_OUT are kept apart, at least one and at most a quarter of each file.

        Raises:
            SettingError: There is nothing left to train on.
        """
        text = cls(list(paths), [], [])
        for file, path in enumerate(text.paths):
            count = len(corpus.answer_lengths(path))
            share = max(1, min(round(HELD_OUT / len(text.paths)), count // 4))
            apart = {(2 * i + 1) * count // (2 * share) for i in range(share)}
            text.held_out += [(file, row) for row in range(count) if row in apart]
            text.trained += [(file, row) for row in range(count) if row not in apart]
        if not text.trained:
            raise SettingError(f"The target answered {len(text.held_out)} prompts. Give more tokens, or more prompts.")
        return text

    def rows(self, names: Sequence[Name]) -> list[Row]:
        """The rows of these names."""
        return [self._file(file)[row] for file, row in names]

    def _file(self, number: int) -> list[Row]:
        if number not in self._files:
            while len(self._files) >= _MIXED:
                self._files.popitem(last=False)
            self._files[number] = corpus.rows_of(self.paths[number])
        self._files.move_to_end(number)
        return self._files[number]

    def sample(self, num_tokens: int) -> list[Row]:
        """Rows to train on with about so many answer tokens, or all there are, spread over the whole corpus."""
        order = torch.randperm(len(self.trained), generator=Generator().manual_seed(0)).tolist()
        counts = {file: iter(corpus.answer_lengths(path)) for file, path in enumerate(self.paths)}
        lengths = {(file, row): length for file, found in counts.items() for row, length in enumerate(found)}
        wanted: list[Name] = []
        for place in order:
            if num_tokens <= 0:
                break
            wanted.append(self.trained[place])
            num_tokens -= lengths[self.trained[place]]
        return self.rows(sorted(wanted))

    def counts(self, vocab_size: int) -> Tensor:
        """(V,) int64, how often the target wrote each token."""
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        for path in self.paths:
            for ids in corpus.answers_of(path):
                counts += torch.bincount(ids, minlength=vocab_size)[:vocab_size]
        return counts

    def plan(self, rows_per_step: int, epochs: float, seed: int) -> list[list[Name]]:
        """Names of the rows of every step: each epoch goes through all of them once, in an order of its own."""
        generator = Generator().manual_seed(seed)
        wanted = max(1, round(epochs * len(self.trained) / rows_per_step))
        by_file: dict[int, list[Name]] = {}
        for name in self.trained:
            by_file.setdefault(name[0], []).append(name)
        files, order = list(by_file), []
        while len(order) < wanted * rows_per_step:
            shuffled = [files[i] for i in torch.randperm(len(files), generator=generator).tolist()]
            for first in range(0, len(shuffled), _MIXED):
                mixed = [name for file in shuffled[first : first + _MIXED] for name in by_file[file]]
                order += [mixed[i] for i in torch.randperm(len(mixed), generator=generator).tolist()]
        return [order[i * rows_per_step : (i + 1) * rows_per_step] for i in range(wanted)]
