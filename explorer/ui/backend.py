"""What the page needs from the engine: the `Backend` protocol, and the real one over a target and its drafters."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from explorer.engine.config import DecodeConfig
from explorer.engine.weights import NAME
from explorer.ui.jobs import Jobs

Progress = Callable[[str, int, int], None]
HEADS = ("own", "truncated", "dynamic", "full")
CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted speed over autoregressive decoding at a rank, and the rank for which it is highest."""

    speed_up: float
    best_rank: int
    best_speed_up: float


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What is known of a rank: its time over the full head's, expected tokens per round, and predicted speed-up.

    Attributes:
        nu: Measured on this machine; None if the full head was not timed.
        kappa: Time of the full head in a round over that of everything else in it; None likewise.
    """

    rank: int
    nu: float | None
    kappa: float | None
    tokens_per_round: float
    speed_up: float


class Backend(Protocol):
    """A target and its drafters. The page can be built and tested on any object of this shape, without weights.

    Attributes:
        target: Name of the target, as the commands take it.
        jobs: The trainings, for the Train tab; there is none without them.
        drafters: Label and name of each drafter offered; the first is the default.
        full_head: (hidden size, vocabulary size) of the drafter's full head; None if unknown.
    """

    target: str
    jobs: Jobs | None
    drafters: tuple[tuple[str, str], ...]
    full_head: tuple[int, int] | None

    def ensembles(self) -> tuple[tuple[str, str], ...]:
        """Label and name of each ensemble head for the dynamic rule, those trained on this page first."""

    def ranks(self, drafter: str) -> tuple[int, ...]:
        """Ranks this drafter's low-rank head offers, ascending; empty if it has none, or is not known yet."""

    def heads(self, drafter: str) -> tuple[str, ...]:
        """Heads this drafter may draft with, its own first; empty if it has none, or is not known yet."""

    def predicted(self, drafter: str, rank: int, draft_length: int, temperature: float) -> Prediction | None:
        """What a rank is worth on this machine; None while that is not known."""

    def rank_figures(self, drafter: str, draft_length: int, temperature: float) -> tuple[RankFigures, ...]:
        """What each scored rank costs and is predicted to be worth on this machine; empty while that is not known."""

    def prepare(self, drafter: str, head: str, progress: Progress) -> Any:
        """Load what a run with this drafter and head needs; slow the first time. Never called twice at once."""

    def run(self, prepared: Any, prompt: str, config: DecodeConfig, ensemble: str = "") -> Iterator[str]:
        """Lines of a trace: meta before any model work, then one round per `next()`. Closing it frees the engine.

        `ensemble` names the head of the dynamic rule; the other rules need none.
        """


class PairBackend:
    """Models by name, as `explorer.engine.loading` reads them. Nothing is loaded before `prepare`."""

    def __init__(
        self, target: str = "default", drafter: str = "auto", precision: str = "auto", jobs: Jobs | None = None
    ) -> None:
        self.target, self.precision, self.jobs = target, precision, jobs
        labels = {
            "auto": "Bundled drafter",
            "hybrid": "Lookup in the text first, then the bundled drafter",
            "ngram": "Lookup in the text",
        }
        names = dict.fromkeys((drafter, "auto", "hybrid", "ngram"))
        self.drafters = tuple((labels.get(name, Path(name).name), name) for name in names)
        self._ranks: dict[str, tuple[int, ...]] = {}
        self.full_head: tuple[int, int] | None = None
        self._model: Any = None
        self._costs: dict[str, Any] = {}
        self._scores: dict[str, Any] = {}
        self._guess_ranks()

    def _guess_ranks(self) -> None:
        """The bundled drafter's ranks, from its description alone: the slider is right before anything is loaded."""
        names = {self.target, NAME} if self.target == "default" else {self.target}
        for path in sorted(CHECKPOINTS.glob("*/meta.json")):
            try:
                record = json.loads(path.read_text("utf-8"))
                shape, is_ours = record["shape"], record["kind"] == "drafter" and record["target"]["name"] in names
                ranks, full_head = rank_choices(shape["max_rank"]), (shape["hidden_size"], shape["vocab_size"])
            except (OSError, ValueError, LookupError, TypeError):
                continue  # loading it will say what is wrong; the page comes up all the same
            if is_ours:
                self._ranks["auto"] = self._ranks["hybrid"] = ranks
                self.full_head = full_head
                return

    def ranks(self, drafter: str) -> tuple[int, ...]:
        """See `Backend`."""
        return self._ranks.get(drafter, ())

    def heads(self, drafter: str) -> tuple[str, ...]:
        """See `Backend`."""
        return HEADS if self._ranks.get(drafter) else ()

    def predicted(self, drafter: str, rank: int, draft_length: int, temperature: float) -> Prediction | None:
        """See `Backend`."""
        from explorer.benchmarks.rank_costs import best_rank, expected_tokens, pass_rates

        costs = self._costs.get(drafter)
        if costs is None:
            return None
        rates = pass_rates(self._scores[drafter], max(costs.head_ms), temperature)
        best = best_rank(costs, rates, draft_length)
        if best is None:
            return None
        # Between two scored ranks, the lower one's rates: not more than is known is promised.
        scored = max((r for r in rates if r <= rank), default=min(rates))
        speed_up = costs.speed_up(draft_length, rank, expected_tokens(rates[scored], draft_length))
        return Prediction(speed_up, *best)

    def rank_figures(self, drafter: str, draft_length: int, temperature: float) -> tuple[RankFigures, ...]:
        """See `Backend`."""
        from explorer.benchmarks.rank_costs import expected_tokens, pass_rates

        costs = self._costs.get(drafter)
        if costs is None:
            return ()
        figures = []
        for rank, rates in sorted(pass_rates(self._scores[drafter], max(costs.head_ms), temperature).items()):
            found = self.predicted(drafter, rank, draft_length, temperature) if rank in costs.head_ms else None
            if found is not None:
                tokens = expected_tokens(rates, draft_length)
                figures.append(RankFigures(rank, costs.nu(rank), costs.kappa(draft_length), tokens, found.speed_up))
        return tuple(figures)

    def prepare(self, drafter: str, head: str, progress: Progress) -> Any:
        """The target, loaded once, with this drafter."""
        from explorer.engine.loading import load_drafter, load_model
        from explorer.engine.pair import ModelPair
        from explorer.heads.choice import HeadChoice

        if self._model is None:
            self._model = load_model(self.target, self.precision, progress)
        loaded = load_drafter(self._model, drafter, self.precision, progress, HeadChoice(head))
        if head == "own":
            self._ranks[drafter] = tuple(getattr(loaded, "rank_choices", ()))
            self._measure(drafter, loaded, progress)
        self.full_head = self._model.hidden_size, self._model.vocab_size
        return drafter, head, ModelPair(self._model, loaded)

    def _measure(self, drafter: str, loaded: Any, progress: Progress) -> None:
        """Time the ranks of a head that has some, once."""
        from explorer.benchmarks.rank_costs import measure_ranks

        eagle = getattr(loaded, "drafter", loaded)  # a hybrid's own drafter
        if not self._ranks[drafter] or drafter in self._costs:
            return
        progress("Timing the drafter's head", 0, 1)
        same = next((name for name in self._costs if self._ranks[name] == self._ranks[drafter]), None)
        self._scores[drafter] = eagle.metrics
        self._costs[drafter] = self._costs[same] if same else measure_ranks(self._model, eagle)

    def ensembles(self) -> tuple[tuple[str, str], ...]:
        """See `Backend`."""
        trained = self.jobs.heads() if self.jobs is not None else {}
        found = [(label, str(folder)) for label, folder in trained.items()]
        for path in sorted(CHECKPOINTS.glob("*/meta.json")):
            try:
                record = json.loads(path.read_text("utf-8"))
                if record["kind"] == "ensemble":
                    found.append((str(record["name"]), str(path.parent)))
            except (OSError, ValueError, LookupError, TypeError):
                continue  # loading it will say what is wrong
        return tuple(found)

    def run(self, prepared: Any, prompt: str, config: DecodeConfig, ensemble: str = "") -> Iterator[str]:
        """See `Backend`."""
        from explorer.engine.ensembles import with_ensemble
        from explorer.engine.run import run_trace

        drafter, head, pair = prepared
        if config.rule == "dynamic":
            pair = with_ensemble(pair, ensemble or "auto")
        return run_trace(pair, prompt, config, command=self._command(prompt, config, drafter, head, ensemble))

    def _command(self, prompt: str, config: DecodeConfig, drafter: str, head: str = "own", ensemble: str = "") -> str:
        """The command line that repeats the run."""
        options = {
            "target": (self.target, "default"),
            "drafter": (drafter, "auto"),
            "head": (head, "own"),
            "ensemble": (ensemble if config.rule == "dynamic" else "", ""),
            "precision": (self.precision, "auto"),
        }
        options |= {
            spec.name: (getattr(config, spec.name), spec.default)
            for spec in dataclasses.fields(config)
            if spec.name != "stop"
        }
        words = ["python", "-m", "explorer", "decode", "--prompt", prompt]
        for name, (value, default) in options.items():
            if value != default:
                words += ["--" + name.replace("_", "-"), str(value)]
        return shlex.join(words)


def rank_choices(max_rank: int) -> tuple[int, ...]:
    """An eighth, a quarter, half and all of the highest rank."""
    return tuple(sorted({max(max_rank // share, 1) for share in (8, 4, 2, 1)})) if max_rank else ()
