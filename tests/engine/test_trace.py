"""Traces: written and read back, and refused with a message that names the line."""

import json
from dataclasses import dataclass

import pytest

from explorer.engine import trace
from explorer.engine.config import DecodeConfig
from explorer.engine.events import LawEntry, RoundEvent, TokenDetail
from explorer.engine.trace import end_line, meta_line, read_trace, round_line
from explorer.errors import TraceError


def draft_detail(text="the", **more):
    values = {
        "target_prob": 0.123456,
        "draft_prob": 0.4,
        "verifier_prob": 0.2,
        "accept_prob": 0.5,
        "coin": 0.25,
        "target_weight": 0.7,
        "target_entropy": 1.5,
        "draft_entropy": 2.5,
        "target_rank": 1,
        "draft_rank": 2,
        "overlap": 0.75,
        "top": (LawEntry(id=3, text="the", target_prob=0.5, draft_prob=0.25, prob=0.5),),
    }
    return TokenDetail(text=text, **(values | more))


def next_detail(text=" end"):
    top = (LawEntry(id=9, text=text, target_prob=0.5, draft_prob=None, prob=0.625),)
    return TokenDetail(text=text, target_prob=0.5, verifier_prob=0.625, target_entropy=0.75, target_rank=4, top=top)


def round_event(**more):
    values = {
        "row": 0,
        "index": 7,
        "draft_ids": (3, 4, 5),
        "num_accepted": 1,
        "num_tested": 2,
        "next_id": 9,
        "draft_s": 0.0012345678,
        "verify_s": 0.03,
        "overhead_s": 0.5,
        "details": (draft_detail(), draft_detail("a"), draft_detail("b", coin=None), next_detail()),
    }
    return RoundEvent(**(values | more))


@dataclass(frozen=True)
class Facts:
    name: str = "toy"
    layers: int = 2


META = meta_line(prompt="hi", prompt_ids=[1, 2], config=DecodeConfig(), facts=Facts(), drafter=None)
END = end_line(finish="length", text="the end", num_rounds=1)


def test_meta_spreads_dataclasses_and_keeps_plain_values():
    record = json.loads(META)
    assert (record["kind"], record["version"], record["prompt"], record["prompt_ids"]) == ("meta", 1, "hi", [1, 2])
    assert (record["rule"], record["draft_length"], record["name"], record["layers"]) == ("exact", 2, "toy", 2)
    assert record["drafter"] is None


def test_round_says_every_number_of_every_token():
    record = json.loads(round_line(round_event()))
    assert (record["kind"], record["round"]) == ("round", 7)
    assert [draft["fate"] for draft in record["drafts"]] == ["accepted", "rejected", "discarded"]
    assert [draft["id"] for draft in record["drafts"]] == [3, 4, 5]
    assert record["drafts"][0] == {
        "id": 3,
        "text": "the",
        "fate": "accepted",
        "p": 0.1235,
        "q": 0.4,
        "v": 0.2,
        "a": 0.5,
        "u": 0.25,
        "w": 0.7,
        "hp": 1.5,
        "hq": 2.5,
        "rp": 1,
        "rq": 2,
        "overlap": 0.75,
        "top": [[3, "the", 0.5, 0.25]],
    }
    assert record["drafts"][2]["u"] is None
    assert record["next"] == {
        "id": 9,
        "text": " end",
        "fate": "residual",
        "p": 0.5,
        "h": 0.75,
        "r": 4,
        "prob": 0.625,
        "top": [[9, " end", 0.5, None, 0.625]],
    }
    assert (record["draft_ms"], record["verify_ms"], record["overhead_ms"]) == (1.235, 30.0, 500.0)


def test_round_that_ends_inside_its_drafts_has_no_next():
    event = round_event(num_accepted=2, num_tested=2, next_id=None, details=round_event().details[:3])
    record = json.loads(round_line(event))
    assert record["next"] is None
    assert [draft["fate"] for draft in record["drafts"]] == ["accepted", "accepted", "discarded"]


def test_autoregressive_round_has_a_bonus_and_no_drafts():
    event = round_event(draft_ids=(), num_accepted=0, num_tested=0, next_id=0, details=(next_detail(),))
    record = json.loads(round_line(event))
    assert record["drafts"] == []
    assert (record["next"]["id"], record["next"]["fate"]) == (0, "bonus")


def test_numbers_that_json_does_not_know_become_null():
    event = round_event(
        details=(draft_detail(target_entropy=float("nan"), overlap=float("inf")), *round_event().details[1:])
    )
    draft = json.loads(round_line(event))["drafts"][0]
    assert (draft["hp"], draft["overlap"]) == (None, None)


def test_small_probabilities_keep_four_digits():
    line = round_line(round_event(details=(draft_detail(target_prob=1.23456e-9), *round_event().details[1:])))
    assert json.loads(line)["drafts"][0]["p"] == 1.235e-9


@pytest.mark.parametrize("text", ["\n", "a\u2028b", "\u0085", '"}\n{"', "🙂", "\x00", "</script>", "\r\n"])
def test_any_text_stays_on_its_line(text):
    """A trace is split at line feeds only: other line breaks of Unicode may stand in a token."""
    lines = (
        meta_line(prompt=text) + round_line(round_event(details=(draft_detail(text), *round_event().details[1:]))) + END
    )
    assert lines.count("\n") == 3
    records = read_trace(lines)
    assert records[0]["prompt"] == text
    assert records[1]["drafts"][0]["text"] == text


def test_round_trip():
    lines = [META, round_line(round_event()), round_line(round_event(index=8)), END]
    records = read_trace("".join(lines))
    assert [record["kind"] for record in records] == ["meta", "round", "round", "end"]
    assert records == [json.loads(line) for line in lines]


def test_trace_that_was_cut_off_between_rounds_reads():
    assert [record["kind"] for record in read_trace(META + round_line(round_event()))] == ["meta", "round"]


def test_blank_lines_and_windows_line_ends_are_fine():
    assert len(read_trace("\n" + META.replace("\n", "\r\n") + "\n\n" + END + "\n")) == 2


def test_unknown_keys_are_kept():
    assert read_trace(meta_line(new_key=1))[0]["new_key"] == 1


ROUND = round_line(round_event())
NO_OBJECT = r'Line 2 of the trace is not a JSON object with a "kind"\. Choose a file that this page saved\.'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"The trace is empty\. Choose a file that this page saved \(\.ndjson\)\."),
        (" \n\n", r"The trace is empty\."),
        (META + "not json", NO_OBJECT),
        (META + ROUND[:50], NO_OBJECT),
        (META + "[1, 2]", NO_OBJECT),
        (META + "3", NO_OBJECT),
        (META + "null", NO_OBJECT),
        (META + '"kind"', NO_OBJECT),
        (META + '{"round": 1}', NO_OBJECT),
        (META + "[" * 100_000, NO_OBJECT),
        (META + '{"kind": NaN}', r"Line 2 of the trace is nan; round or end must come here\."),
        (META + '{"kind": ["round"]}', r"Line 2 of the trace is \['round'\]; round or end must come here\."),
        (ROUND + END, r"Line 1 of the trace is 'round'; meta must come here\."),
        (META + META, r"Line 2 of the trace is 'meta'; round or end must come here\."),
        (META + END + ROUND, r"Line 3 of the trace is 'round'; nothing must come here\."),
        (META + '{"kind":"x"}', r"Line 2 of the trace is 'x'; round or end must come here\."),
        (META.replace('"version":1', '"version":2'), r"The trace has version 2; this page reads version 1\."),
        ('{"kind":"meta"}', r"The trace has version None; this page reads version 1\."),
        (META + '{"kind":"round"}', r"Line 2 of the trace is a round without its list of drafts\."),
        (META + '{"kind":"round","drafts":3}', r"Line 2 of the trace is a round without its list of drafts\."),
    ],
)
def test_broken_traces_are_refused(text, message):
    with pytest.raises(TraceError, match=message):
        read_trace(text)


def test_trace_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(trace, "MAX_TRACE_BYTES", 1000)
    with pytest.raises(TraceError, match=r"The trace holds 1,001 characters; at most 1,000 are read\."):
        read_trace("x" * 1001)
