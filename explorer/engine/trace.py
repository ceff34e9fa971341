"""The trace of a run: newline-delimited JSON, one `meta` line, one `round` line per round, one `end` line.

Every view of the page is a pure function of it. Version 1; unknown keys are ignored, so that keys can be added.

    {"kind":"meta","version":1,"prompt":...,"prompt_ids":[...],"rule":"exact","target_weight":0.7,...every setting,
     "target":{"name","revision",...},"drafter":{"kind","name","rank",...}|null,"precision","device","created","command"}
    {"kind":"round","round":0,"drafts":[{"id","text","fate","p","q","v","a","u","w","hp","hq","rp","rq","overlap",
     "top":[[id,text,p,q],...]}],"next":{"id","text","fate","p","h","r","prob","top":[[id,text,p,q|null,prob],...]}|null,
     "draft_ms","verify_ms","overhead_ms"}
    {"kind":"end","finish":...,"text":...,"num_rounds","num_drafted","num_tested","num_accepted","num_emitted",
     "acceptance_rate","tested_rate","tokens_per_round","elapsed_s","tokens_per_s","prefill_ms"}
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from explorer.engine.events import LawEntry, RoundEvent, TokenDetail, TokenFate
from explorer.errors import TraceError

VERSION = 1
MAX_TRACE_BYTES = 20_000_000
FATES = tuple(TokenFate)


def _rounded(value: float | None) -> float | None:
    """Four significant digits: enough for every view, and half the bytes."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _draft(token_id: int, fate: TokenFate, detail: TokenDetail) -> dict[str, Any]:
    return {
        "id": token_id,
        "text": detail.text,
        "fate": fate,
        "p": _rounded(detail.target_prob),
        "q": _rounded(detail.draft_prob),
        "v": _rounded(detail.verifier_prob),
        "a": _rounded(detail.accept_prob),
        "u": _rounded(detail.coin),
        "w": _rounded(detail.target_weight),
        "hp": _rounded(detail.target_entropy),
        "hq": _rounded(detail.draft_entropy),
        "rp": detail.target_rank,
        "rq": detail.draft_rank,
        "overlap": _rounded(detail.overlap),
        "top": [[e.id, e.text, _rounded(e.target_prob), _rounded(e.draft_prob)] for e in detail.top],
    }


def _next(token_id: int, fate: TokenFate, detail: TokenDetail) -> dict[str, Any]:
    def entry(e: LawEntry) -> list[Any]:
        return [e.id, e.text, _rounded(e.target_prob), _rounded(e.draft_prob), _rounded(e.prob)]

    return {
        "id": token_id,
        "text": detail.text,
        "fate": fate,
        "p": _rounded(detail.target_prob),
        "h": _rounded(detail.target_entropy),
        "r": detail.target_rank,
        "prob": _rounded(detail.verifier_prob),
        "top": [entry(e) for e in detail.top],
    }


def meta_line(**values: Any) -> str:
    """The first line of a trace. `values` are JSON values; dataclasses are spread into their fields."""
    record: dict[str, Any] = {"kind": "meta", "version": VERSION}
    for name, value in values.items():
        record |= dataclasses.asdict(value) if dataclasses.is_dataclass(value) else {name: value}
    return _dump(record)


def round_line(event: RoundEvent) -> str:
    """One round; the event must carry details."""
    tokens = list(zip((*event.draft_ids, event.next_id), event.fates, event.details, strict=False))
    K = len(event.draft_ids)
    return _dump(
        {
            "kind": "round",
            "round": event.index,
            "drafts": [_draft(*token) for token in tokens[:K]],
            "next": _next(*tokens[K]) if event.next_id is not None else None,
            "draft_ms": _rounded(1000 * event.draft_s),
            "verify_ms": _rounded(1000 * event.verify_s),
            "overhead_ms": _rounded(1000 * event.overhead_s),
        }
    )


def end_line(**values: Any) -> str:
    """The last line of a trace."""
    return _dump({"kind": "end", **values})


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def read_trace(text: str) -> list[dict[str, Any]]:
    """The records of a trace: meta first, then rounds, then end (absent if the run was cut off).

    Raises:
        TraceError: The text is not such a trace; the message names the line.
    """
    if len(text) > MAX_TRACE_BYTES:
        raise TraceError(
            f"The trace holds {len(text):,} characters; at most {MAX_TRACE_BYTES:,} are read. Export a shorter run."
        )
    return list(_checked(text.split("\n")))


def _checked(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    previous = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            kind = record["kind"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise TraceError(
                f'Line {number} of the trace is not a JSON object with a "kind". Choose a file that this page saved.'
            ) from None
        _check_order(number, kind, previous, record)
        previous = kind
        yield record
    if previous is None:
        raise TraceError("The trace is empty. Choose a file that this page saved (.ndjson).")


def _check_order(number: int, kind: str, previous: str | None, record: dict[str, Any]) -> None:
    wanted = {None: ("meta",), "meta": ("round", "end"), "round": ("round", "end"), "end": ()}[previous]
    if kind not in wanted:
        raise TraceError(f"Line {number} of the trace is {kind!r}; {' or '.join(wanted) or 'nothing'} must come here.")
    if kind == "meta" and record.get("version") != VERSION:
        raise TraceError(f"The trace has version {record.get('version')!r}; this page reads version {VERSION}.")
    if kind == "round":
        _check_round(f"Line {number} of the trace", record)


def _check_round(where: str, record: dict[str, Any]) -> None:
    """What `assets/js/trace.js` asks of a round as well."""
    drafts, following = record.get("drafts"), record.get("next")
    if not isinstance(drafts, list):
        raise TraceError(f"{where} is a round without its list of drafts.")
    for token in [*drafts, following] if following else drafts:
        if not isinstance(token, dict) or not isinstance(token.get("text"), str) or token.get("fate") not in FATES:
            raise TraceError(f"{where} has a token without text or with an unknown fate.")
        top = token.get("top", [])
        if not isinstance(top, list) or not all(isinstance(entry, list) for entry in top):
            raise TraceError(f"{where} has a token whose list of likely tokens cannot be read.")
