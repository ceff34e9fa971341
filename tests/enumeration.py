"""Laws of decode(): by enumeration, every coin and every draw replaced by a branch, and by counting."""

import math
from collections import Counter

import pytest
import torch
from toys import answers

from explorer.engine import judge as judge_module
from explorer.engine import sampling
from explorer.engine.pair import ModelPair


class Branches:
    """Runs a function once per way its draws can fall; `pick` takes the next branch and keeps its probability."""

    def __init__(self) -> None:
        self.path: list[tuple[list[float], int]] = []
        self.at = 0

    def pick(self, probs: list[float]) -> int:
        if self.at == len(self.path):
            self.path.append((probs, next(i for i, prob in enumerate(probs) if prob > 0)))
        choice = self.path[self.at][1]
        self.at += 1
        return choice

    def mass(self) -> float:
        return math.prod(probs[choice] for probs, choice in self.path)

    def advance(self) -> bool:
        """Go to the next path; False after the last."""
        self.at = 0
        while self.path:
            probs, choice = self.path.pop()
            later = next((i for i in range(choice + 1, len(probs)) if probs[i] > 0), None)
            if later is not None:
                self.path.append((probs, later))
                return True
        return False

    def sample(self, probs, generator):
        return torch.tensor([self.pick(row.double().tolist()) for row in probs])

    def accepted_lengths(self, accept, coins, lengths):
        """Same contract as the rule's: leading drafts that pass."""
        chances = accept[0, : int(lengths[0])].double().tolist()
        masses = [math.prod(chances[:n]) * (1 - chances[n]) for n in range(len(chances))] + [math.prod(chances)]
        return torch.tensor([self.pick(masses)])


def enumerated_law(monkeypatch, pair: ModelPair, prompt: tuple[int, ...], **settings) -> dict[tuple[int, ...], float]:
    branches = Branches()
    monkeypatch.setattr(sampling, "sample", branches.sample)
    monkeypatch.setattr(judge_module, "sample", branches.sample)
    monkeypatch.setattr(judge_module, "accepted_lengths", branches.accepted_lengths)
    law: dict[tuple[int, ...], float] = {}
    while True:
        answer = tuple(answers(pair, [list(prompt)], **settings)[0])
        law[answer] = law.get(answer, 0.0) + branches.mass()
        if not branches.advance():
            return law


def assert_same_law(found, expected):
    assert sum(found.values()) == pytest.approx(1, abs=1e-5)
    for answer in found.keys() | expected.keys():
        assert found.get(answer, 0) == pytest.approx(expected.get(answer, 0), abs=1e-5), answer


def chi_square_p(counts: Counter, law: dict, total: int) -> float:
    """Chance of a fit at least this bad; cells with less than five expected are counted as one."""
    cells = [(counts[answer], total * prob) for answer, prob in law.items()]
    small = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if sum(expected for _, expected in small) > 0:
        cells.append((sum(n for n, _ in small), sum(expected for _, expected in small)))
    statistic = sum((n - expected) ** 2 / expected for n, expected in cells)
    degrees = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))
