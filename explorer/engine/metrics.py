"""Figures of a run, computed from its events alone. Each property's docstring is the formula shown on screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from explorer.engine.events import RoundEvent


@dataclass(slots=True)
class Counts:
    """Running totals of a decode.

    Attributes:
        num_rounds: Target passes after the prompt's own.
        num_drafted, num_tested, num_accepted: Drafts proposed, judged and kept.
        num_emitted: Tokens added to the text, residual and bonus tokens included.
        tested_at, accepted_at: The same by draft position.
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    num_emitted: int = 0
    tested_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, event: RoundEvent) -> None:
        """Count one round."""
        self.num_rounds += 1
        self.num_drafted += len(event.draft_ids)
        self.num_tested += event.num_tested
        self.num_accepted += event.num_accepted
        self.num_emitted += len(event.emitted_ids)
        while len(self.tested_at) < event.num_tested:
            self.tested_at.append(0)
            self.accepted_at.append(0)
        for position in range(event.num_tested):
            self.tested_at[position] += 1
            self.accepted_at[position] += position < event.num_accepted

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted, tokens after a rejection included; compare at equal K only."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def tested_rate(self) -> float | None:
        """Accepted / tested, tokens after a rejection left out."""
        return self.num_accepted / self.num_tested if self.num_tested else None

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted / target passes (tau)."""
        return self.num_emitted / self.num_rounds if self.num_rounds else None


def count(events: Iterable[RoundEvent]) -> Counts:
    """Totals of all rows of a decode."""
    counts = Counts()
    for event in events:
        counts.add(event)
    return counts
