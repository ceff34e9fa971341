"""Prompt lookup first, a drafter otherwise: repeats are free, and the drafter keeps the rest going."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import Draft, Drafter, DraftSession, NgramDrafter, Sequences
from explorer.engine.eagle import EagleDrafter
from explorer.engine.sampling import Sampler
from explorer.errors import SettingError

# One matching token is too little evidence where a drafter stands by.
_SHORTEST_MATCH = 2


class HybridDrafter:
    """Looks the text's ending up in the text before it; where it never occurred, asks another drafter."""

    kind = "hybrid"
    hidden_size = 0  # a looked-up token comes with no state

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.lookup = NgramDrafter(shortest=_SHORTEST_MATCH)
        self.name = f"{self.lookup.name}, then {drafter.name}"
        self.features = drafter.features
        self.rank_choices = drafter.rank_choices

    def with_head(self, kind: str, size: int = 0) -> HybridDrafter:
        """The same lookup before a drafter with another head; see `EagleDrafter.with_head`.

        Raises:
            SettingError: The drafter has no such head.
        """
        if not isinstance(self.drafter, EagleDrafter):
            raise SettingError(f"{self.drafter.name} has no head to replace. Choose --head own, or a fitted drafter.")
        return HybridDrafter(self.drafter.with_head(kind, size))

    def start(self, batch_size: int, capacity: int, config: DecodeConfig) -> HybridSession:
        """A session around one of the drafter's."""
        return HybridSession(self.lookup, self.drafter.start(batch_size, capacity, config), config.lookup_length)

    def describe(self, rank: int) -> dict[str, object]:
        """JSON facts for the trace."""
        return self.drafter.describe(rank) | {"kind": self.kind, "name": self.name}


class HybridSession:
    """The drafter's session, and lookups that come before it."""

    def __init__(self, lookup: NgramDrafter, session: DraftSession, lookup_length: int) -> None:
        self.lookup, self.session, self.lookup_length = lookup, session, lookup_length

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.session.select(rows)

    def draft(self, sequences: Sequences, draft_length: int, sampler: Sampler, generator: Generator) -> Draft:
        """Lookups where there are any; the drafter reads along in every round, so that it is ready when they end.

        A lookup costs nothing, so it may be longer than what the drafter is asked for.
        """
        found = self.lookup.draft(sequences, self.lookup_length, sampler, generator)
        matched = found.lengths > 0
        if matched.all():
            self.session.draft(sequences, 0, sampler, generator)
            return found
        drafted = self.session.draft(sequences, draft_length, sampler, generator)
        if drafted.ids.shape[1] == 0 or not matched.any():
            return found if drafted.ids.shape[1] == 0 else drafted
        width = max(drafted.ids.shape[1], int(found.lengths.max()))
        ids, looked_up = (_widened(x, width) for x in (drafted.ids, found.ids[:, :width]))
        one_hot = torch.zeros(*ids.shape, drafted.laws.shape[2], device=ids.device).scatter_(
            2, looked_up.unsqueeze(2), 1.0
        )
        return Draft(
            ids=torch.where(matched.unsqueeze(1), looked_up, ids),
            lengths=torch.where(matched, found.lengths, drafted.lengths),
            probs=torch.where(matched[:, None, None], one_hot, _widened(drafted.laws, width)),
        )


def _widened(drafts: Tensor, width: int) -> Tensor:
    """(B, width, ...) drafts with zeros behind them."""
    return torch.cat([drafts, drafts.new_zeros(len(drafts), width - drafts.shape[1], *drafts.shape[2:])], dim=1)
