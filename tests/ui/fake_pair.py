"""A backend without weights: the same seam and the same trace lines as the engine, from a fixed script.

python tests/ui/fake_pair.py            writes a placeholder trace
python tests/ui/fake_pair.py --port N   serves the page over it
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from explorer.engine.config import DecodeConfig
from explorer.engine.events import Finish, LawEntry, RoundEvent, TokenDetail
from explorer.engine.trace import end_line, meta_line, round_line
from explorer.errors import WeightsError
from explorer.ui.backend import Prediction, RankFigures

SKY_TEXT = (
    "The sky appears blue because of a phenomenon called Ray-leigh scattering. Sun-light looks white, but it is made of"
    " all the colors of the rainbow. When it enters the atmosphere, it meets gas molecules, which scatter short blue"
    " wavelengths far more than long red ones.\n\nSo the light that reaches us from every direction is mostly blue."
)
SKY = [*re.findall(r"\n+| ?\w+|[.,]", SKY_TEXT), "<|im_end|>"]  # a hyphen only parts the tokens of one word
HARD = (
    [
        "Literal",
        ":",
        " ",
        "${7*6}",
        " `",
        "tick",
        "`",
        ' <img src=x onerror="window.hacked=1">',
        " {{this}}",
        " ${",
        "\n",
    ]
    + [
        "\n\n",
        "    ",
        "\t",
        "tab",
        " ",
        "",
        "🙂",
        " end",
        " of",
        "  two",
        " 日本",
        "語",
        "です",
        "。",
        " عربي",
        " \\n",
        " <b>",
    ]
    + ["bold", "</b>", "</script>", " done", ".", "<|im_end|>"]
)
WRONG = [" the", " a", " different", " visible", " actually", " much", "s", " and", " through", " reaches", " short"]


class FakeBackend:
    """Deterministic: text, fates and numbers follow from the prompt and the settings.

    Attributes:
        log: (what, prompt, time) in order: "prepare", "open", "enter", "leave" (one round's work) and "close".
    """

    drafters = (
        ("Bundled drafter", "auto"),
        ("N-gram lookup in the text", "ngram"),
        ("Slow to load", "slow"),
        ("Cannot be loaded", "broken"),
    )
    full_head = (576, 49152)
    target = "default"
    jobs = None

    def __init__(self, round_s: float = 0.0, load_s: float = 0.0, fail: str = "") -> None:
        self.round_s, self.load_s, self.fail = round_s, load_s, fail
        self.log: list[tuple[str, str, float]] = []
        self.loaded: set[str] = set()
        self._guard = Lock()

    def ensembles(self) -> tuple[tuple[str, str], ...]:
        return (("Arithmetic, lambda 0.05", "bundled"),)

    def ranks(self, drafter: str) -> tuple[int, ...]:
        return (36, 72, 144, 288) if drafter == "auto" else ()

    def heads(self, drafter: str) -> tuple[str, ...]:
        return ("own", "truncated", "dynamic", "full") if drafter == "auto" else ()

    def predicted(self, drafter: str, rank: int, draft_length: int, temperature: float) -> Prediction | None:
        return Prediction(1 + rank / 1000 - draft_length / 100, 144, 1.3) if drafter == "auto" else None

    def rank_figures(self, drafter: str, draft_length: int, temperature: float) -> tuple[RankFigures, ...]:
        if drafter != "auto" or drafter not in self.loaded:
            return ()
        return tuple(
            RankFigures(
                rank,
                rank / 500,
                draft_length / 10,
                1.5 + rank / 1000 - temperature / 10,
                self._speed(rank, draft_length),
            )
            for rank in self.ranks(drafter)
        )

    def _speed(self, rank: int, draft_length: int) -> float:
        return self.predicted("auto", rank, draft_length, 0).speed_up

    def note(self, what: str, prompt: str) -> None:
        with self._guard:
            self.log.append((what, prompt, time.monotonic()))

    def count(self, what: str, prompt: str | None = None) -> int:
        return sum(entry[0] == what and prompt in (None, entry[1]) for entry in list(self.log))

    def prepare(self, drafter, head, progress):
        self.note("prepare", drafter)
        for step in range(10):
            progress("Loading fake weights", step, 10)
            time.sleep((4.0 if drafter == "slow" else self.load_s) / 10)
        if self.fail or drafter == "broken":
            raise WeightsError(self.fail or "The weights of this drafter are missing. Choose another.")
        self.loaded.add(drafter)
        return drafter

    def run(self, prepared: str, prompt: str, config: DecodeConfig, ensemble: str = "") -> Iterator[str]:
        try:
            self.note("open", prompt)
            for line in fake_trace(prompt, config, prepared):
                yield line
                self.note("enter", prompt)
                time.sleep(self.round_s)
                self.note("leave", prompt)
        finally:
            self.note("close", prompt)


def fake_trace(prompt: str, config: DecodeConfig, drafter: str = "auto") -> Iterator[str]:
    """Trace lines of a run; a prompt with the word "hard" gets the tokens that break naive pages."""
    rng = random.Random(f"{prompt} {config.seed}")
    script = list(HARD if "hard" in prompt else SKY)
    if "long" in prompt:
        script = (script[:-1] * 100)[: config.max_new_tokens]
    script = script[: config.max_new_tokens]
    yield meta_line(
        config=config,
        prompt=prompt,
        prompt_ids=list(range(10, 10 + len(prompt.split()))),
        target={"name": "SmolLM2-135M-Instruct", "revision": "fake"},
        drafter=None if config.rule == "ar" else {"kind": "eagle", "name": drafter, "rank": config.rank},
        precision="bfloat16",
        device="cpu",
        created="2026-01-01T00:00:00Z",
        command="",
    )
    events = []
    text = ""
    while script:
        event = _round(len(events), script, config, rng)
        events.append(event)
        text += "".join(d.text for d, fate in zip(event.details, event.fates, strict=True) if fate in KEPT)
        yield round_line(event)
    yield _end(events, text, config)


KEPT = ("accepted", "residual", "bonus")


def _end(events: list[RoundEvent], text: str, config: DecodeConfig) -> str:
    drafted = sum(len(e.draft_ids) for e in events)
    tested, accepted = sum(e.num_tested for e in events), sum(e.num_accepted for e in events)
    emitted = sum(len(e.emitted_ids) for e in events)
    elapsed = sum(e.draft_s + e.verify_s + e.overhead_s for e in events)
    return end_line(
        finish="length" if emitted >= config.max_new_tokens else "end_token",
        text=text,
        num_rounds=len(events),
        num_drafted=drafted,
        num_tested=tested,
        num_accepted=accepted,
        num_emitted=emitted,
        acceptance_rate=accepted / drafted if drafted else None,
        tested_rate=accepted / tested if tested else None,
        tokens_per_round=emitted / len(events),
        elapsed_s=elapsed,
        tokens_per_s=emitted / elapsed,
        prefill_ms=21.4,
    )


def _round(index: int, script: list[str], config: DecodeConfig, rng: random.Random) -> RoundEvent:
    """One round; takes what it emits off `script`."""
    K = 0 if config.rule == "ar" else min(config.draft_length, len(script))
    details, accepted, rejected = [], 0, False
    for position in range(K):
        right = script[position] if position < len(script) else "."
        text = right if rng.random() < 0.72 else rng.choice(WRONG)
        detail, passed = _draft(text, text == right, config, rng, judged=not rejected)
        details.append(detail)
        if not rejected and passed:
            accepted += 1
            script[position : position + 1] = [text]
        elif not rejected:
            rejected = True
    del script[:accepted]
    next_id = None
    if script:
        text = script.pop(0)
        details.append(_next(text, rejected, details[accepted] if rejected else None, rng))
        next_id = _id(text)
    return RoundEvent(
        row=0,
        index=index,
        draft_ids=tuple(_id(d.text) for d in details[:K]),
        num_accepted=accepted,
        num_tested=accepted + rejected,
        next_id=next_id,
        draft_s=0.0013 * K,
        verify_s=0.031 + 0.004 * rng.random(),
        overhead_s=0.002,
        finish=None if script else Finish.END_TOKEN,
        details=tuple(details),
    )


def _id(text: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(text)) % 49000


def _draft(text: str, right: bool, config: DecodeConfig, rng: random.Random, *, judged: bool):
    q = rng.uniform(0.3, 0.9) if right else rng.uniform(0.15, 0.5)
    p = min(0.97, q * rng.uniform(0.7, 1.5)) if right else q * rng.uniform(0.02, 0.5)
    w = {"static": config.target_weight, "lossy": None}.get(config.rule, 1.0)
    if w is None:
        a = min(1.0, p / (config.lenience * q))
        v = a * q
    else:
        v = w * p + (1 - w) * q
        a = min(1.0, v / q)
    greedy = config.temperature == 0
    if greedy:
        a = float(right or v > 0.4)
    coin = None if greedy else rng.random() * (0.98 * a if right else 1.0)
    passed = a == 1 if greedy else coin < a
    top = [
        (text, p, q),
        *((t, (1 - p) * s, (1 - q) * s * 0.8) for t, s in zip(_others(text, rng), SHARES, strict=True)),
    ]
    detail = TokenDetail(
        text=text,
        target_prob=p,
        draft_prob=q,
        verifier_prob=v,
        accept_prob=a,
        coin=coin,
        target_weight=w,
        target_entropy=rng.uniform(0.2, 3),
        draft_entropy=rng.uniform(0.5, 4),
        target_rank=1 if right else rng.randint(2, 9),
        draft_rank=1 if q > 0.4 else 2,
        overlap=rng.uniform(0.4, 0.9),
        top=tuple(LawEntry(id=_id(t), text=t, target_prob=a_, draft_prob=b, prob=a_) for t, a_, b in top),
    )
    return detail, judged and passed


SHARES = (0.45, 0.2, 0.1, 0.05)


def _others(text: str, rng: random.Random) -> list[str]:
    return rng.sample([word for word in (*WRONG, *SKY[:40]) if word != text], len(SHARES))


def _next(text: str, rejected: bool, draft: TokenDetail | None, rng: random.Random) -> TokenDetail:
    share = rng.uniform(0.35, 0.95)
    rest = 1 - share
    top = [(text, share), *((t, rest * s) for t, s in zip(_others(text, rng), SHARES, strict=True))]
    p = share * 0.9 if rejected else share
    return TokenDetail(
        text=text,
        target_prob=p,
        draft_prob=0.05 if rejected else None,
        verifier_prob=share,
        target_entropy=rng.uniform(0.2, 3),
        target_rank=1,
        top=tuple(
            LawEntry(id=_id(t), text=t, target_prob=s * 0.9, draft_prob=0.03 if rejected else None, prob=s)
            for t, s in top
        ),
    )


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--round-s", type=float, default=0.05)
    parser.add_argument("--load-s", type=float, default=2.0)
    flags = parser.parse_args()
    if flags.port:
        from explorer.ui.app import build_app, launch_options

        app = build_app(FakeBackend(flags.round_s, flags.load_s))
        app.launch(**launch_options(port=flags.port))
    else:
        config = DecodeConfig(rule="static", target_weight=0.7, draft_length=4, temperature=0.8, seed=7, rank=144)
        lines = "".join(fake_trace("Why is the sky blue?", config))
        Path("assets/traces/static.ndjson").write_text(lines, "utf-8")
