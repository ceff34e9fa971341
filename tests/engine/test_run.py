"""One prompt, one trace: order of the lines, figures recounted from them, the answer, and refusals."""

import json
import math

import pytest
from toys import (
    ScriptDrafter,
    answers,
    byte_tokenizer,
    language_model,
    perturbed,
    random_network,
    random_table,
    table_model,
)

from explorer.engine.config import DecodeConfig
from explorer.engine.drafters import ModelDrafter, NgramDrafter
from explorer.engine.pair import ModelPair, encode_chat
from explorer.engine.run import Answer, run_trace
from explorer.engine.trace import read_trace
from explorer.errors import ModelPairError, SettingError

PROMPT = "Say 😀 <b>now</b>"
SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 0.95}


def byte_pair(drafter="model", end_ids=(), context=256):
    network = random_network("llama", vocab=300, context=context)
    target = language_model(network, byte_tokenizer(), name="bytes", end_ids=end_ids)
    drafters = {
        "model": lambda: ModelDrafter(language_model(perturbed(network, 0.2), byte_tokenizer(), name="bytes too")),
        "ngram": NgramDrafter,
        "none": lambda: None,
    }
    return ModelPair(target, drafters[drafter]())


def lines_of(pair, prompt=PROMPT, **settings):
    lines = list(run_trace(pair, prompt, DecodeConfig(**settings), command="again"))
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    return lines, read_trace("".join(lines))


def numbers_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from numbers_of(part)
    elif isinstance(value, float):
        yield value


@pytest.mark.parametrize("sampling", [{}, SAMPLING])
@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("rule", ["ar", "exact", "static", "lossy"])
def test_figures_are_a_recount_of_the_lines(rule, drafter, sampling):
    _, (meta, *rounds, end) = lines_of(byte_pair(drafter), rule=rule, draft_length=3, max_new_tokens=24, **sampling)
    assert (meta["kind"], end["kind"]) == ("meta", "end")
    assert [line["round"] for line in rounds] == list(range(len(rounds)))
    fates = [draft["fate"] for line in rounds for draft in line["drafts"]]
    after = [line["next"] for line in rounds if line["next"]]
    assert end["num_rounds"] == len(rounds)
    assert end["num_drafted"] == len(fates)
    assert end["num_accepted"] == fates.count("accepted")
    assert end["num_tested"] == fates.count("accepted") + fates.count("rejected")
    assert end["num_emitted"] == fates.count("accepted") + len(after) == len(end["token_ids"]) == 24
    assert end["tokens_per_round"] == pytest.approx(24 / len(rounds))
    assert end["acceptance_rate"] == (fates.count("accepted") / len(fates) if fates else None)
    emitted = []
    for line in rounds:
        emitted += [draft["id"] for draft in line["drafts"] if draft["fate"] == "accepted"]
        emitted += [line["next"]["id"]] if line["next"] else []
        is_rejected = "rejected" in [draft["fate"] for draft in line["drafts"]]
        assert line["next"]["fate"] == ("residual" if is_rejected else "bonus")
    assert emitted == end["token_ids"]
    assert end["finish"] == "length"
    assert 0 < end["elapsed_s"] <= end["wall_s"]
    assert end["tokens_per_s"] == pytest.approx(24 / end["elapsed_s"])
    assert end["elapsed_s"] + end["overhead_s"] <= end["wall_s"] * 1.01


def test_every_number_is_finite_and_every_verdict_follows_from_its_numbers():
    lines, records = lines_of(byte_pair(), draft_length=4, max_new_tokens=60, **SAMPLING)
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert all(math.isfinite(number) for number in numbers_of(records))
    for line in records[1:-1]:
        for draft in line["drafts"]:
            assert draft["a"] == pytest.approx(min(1, draft["p"] / draft["q"]), rel=2e-3)
            assert draft["v"] == pytest.approx(draft["p"], rel=1e-3)
            if draft["fate"] in ("accepted", "rejected") and abs(draft["u"] - draft["a"]) > 1e-3:
                assert (draft["u"] < draft["a"]) == (draft["fate"] == "accepted")


def test_the_first_line_comes_before_any_model_work():
    pair = byte_pair()
    called = []
    for model in (pair.target, pair.drafter.model):
        forward = model.forward
        model.forward = lambda *a, forward=forward, **k: called.append(1) or forward(*a, **k)
    lines = run_trace(pair, PROMPT, DecodeConfig(max_new_tokens=4))
    meta = json.loads(next(lines))
    assert called == []
    next(lines)
    assert called
    assert meta["prompt"] == PROMPT
    assert meta["prompt_ids"] == encode_chat(pair.target, PROMPT)
    assert (meta["version"], meta["rule"], meta["draft_length"]) == (1, "exact", 2)
    assert meta["target"]["name"] == "bytes"
    assert meta["drafter"]["kind"] == "model"


def test_the_ids_are_those_of_decode():
    pair, settings = byte_pair(), {"draft_length": 3, "max_new_tokens": 24, **SAMPLING}
    _, records = lines_of(pair, **settings)
    assert records[-1]["token_ids"] == answers(pair, [encode_chat(pair.target, PROMPT)], **settings)[0]


@pytest.mark.parametrize("sampling", [{}, SAMPLING])
def test_the_text_is_the_tokenizers_own(sampling):
    """Pieces of the lines add up to the answer; special tokens are in the lines and not in the text."""
    _, (_, *rounds, end) = lines_of(byte_pair(), draft_length=3, max_new_tokens=80, **sampling)
    tokenizer = byte_tokenizer()
    pieces = ""
    for line in rounds:
        pieces += "".join(draft["text"] for draft in line["drafts"] if draft["fate"] == "accepted")
        pieces += line["next"]["text"]
    whole = tokenizer.decode(end["token_ids"], skip_special_tokens=False)
    assert whole.startswith(pieces)
    assert len(whole) - len(pieces) <= 3
    special = set(tokenizer.all_special_ids)
    if not special & set(end["token_ids"]):
        assert end["text"] == whole


def answer_of(text, stop=(), end=True):
    """The answer that a run which wrote this text reports."""
    model = language_model(random_network("llama", vocab=300), byte_tokenizer())
    answer = Answer(ModelPair(model, None), byte_tokenizer().encode("prompt"))
    for token_id in byte_tokenizer().encode(text):
        event = type("Event", (), {"emitted_ids": (token_id,)})
        answer.add(event)
    return answer.text(stop)


def test_special_tokens_are_left_out_of_the_answer():
    assert answer_of("one<|user|> two 😀<|end|>") == "one two 😀"


def test_an_answer_that_ends_inside_a_character_shows_it():
    tokenizer = byte_tokenizer()
    answer = Answer(ModelPair(language_model(random_network("llama", vocab=300), tokenizer), None), [1])
    answer.add(type("Event", (), {"emitted_ids": tuple(tokenizer.encode("a😀")[:-1])}))
    assert answer.text() == tokenizer.decode(tokenizer.encode("a😀")[:-1]) == "a\ufffd"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [((), "one two three"), (("two",), "one "), (("three", "ne"), "o"), (("absent",), "one two three")],
)
def test_the_answer_is_cut_before_the_first_stop_text(stop, expected):
    assert answer_of("one two three", stop) == expected


@pytest.mark.parametrize("rule", ["ar", "exact"])
def test_a_run_with_a_stop_text(rule):
    target = byte_pair().target
    _, records = lines_of(ModelPair(target, None), rule="ar", max_new_tokens=40)
    text, ids = records[-1]["text"], records[-1]["token_ids"]
    stop = text[7:9]
    pair = ModelPair(target, ScriptDrafter([[*encode_chat(target, PROMPT), *ids]]))
    _, records = lines_of(pair, rule=rule, stop=(stop,), draft_length=5, max_new_tokens=40)
    assert records[-1]["finish"] == "stop_text"
    assert records[-1]["text"] == text[: text.index(stop)]
    assert records[-1]["token_ids"] == ids[: len(records[-1]["token_ids"])]


def test_a_run_that_ends_inside_its_drafts_has_no_next():
    target = byte_pair().target
    _, records = lines_of(ModelPair(target, None), rule="ar", max_new_tokens=12)
    ids = records[-1]["token_ids"]
    target.end_ids = frozenset({ids[2]})
    length = ids.index(ids[2]) + 1
    pair = ModelPair(target, ScriptDrafter([[*encode_chat(target, PROMPT), *ids]]))
    _, (_, only, end) = lines_of(pair, draft_length=8, max_new_tokens=12)
    assert only["next"] is None
    assert [draft["fate"] for draft in only["drafts"]] == ["accepted"] * length + ["discarded"] * (8 - length)
    assert (end["finish"], end["num_emitted"]) == ("end_token", length)


def test_a_seed_writes_the_same_trace():
    def without_clock(line):
        return {key: value for key, value in line.items() if not key.endswith(("_ms", "_s")) and key != "created"}

    settings = {"draft_length": 3, "max_new_tokens": 16, **SAMPLING}
    first, again, other = (
        [without_clock(line) for line in lines_of(byte_pair(), seed=seed, **settings)[1]] for seed in (3, 3, 4)
    )
    assert first == again
    assert first[1:] != other[1:]


def test_time_that_the_reader_takes_is_not_decoding(monkeypatch):
    import time

    lines = []
    for line in run_trace(byte_pair(), PROMPT, DecodeConfig(max_new_tokens=6, draft_length=1)):
        time.sleep(0.05)
        lines.append(json.loads(line))
    end = lines[-1]
    assert end["wall_s"] - end["elapsed_s"] - end["overhead_s"] > 0.05 * (len(lines) - 2) * 0.9


@pytest.mark.parametrize(
    ("prompt", "settings", "error", "message"),
    [
        ("  ", {}, SettingError, "The prompt is empty"),
        ("x" * 400, {}, SettingError, "The prompt has .* tokens; bytes reads at most 255"),
        ("hi", {"rank": 8}, SettingError, "rank is 8, but bytes too has no low-rank head"),
    ],
)
def test_input_that_cannot_run_is_refused_in_one_sentence(prompt, settings, error, message):
    with pytest.raises(error, match=message):
        list(run_trace(byte_pair(), prompt, DecodeConfig(**settings)))


def test_a_rule_without_a_drafter_is_refused():
    with pytest.raises(ModelPairError, match="The exact rule needs a drafter"):
        list(run_trace(byte_pair("none"), PROMPT, DecodeConfig()))


def test_numbers_that_are_none_end_the_run_with_a_sentence():
    table = random_table(8, 0)
    table[3] = math.nan
    pair = ModelPair(table_model(table), NgramDrafter())
    with pytest.raises(ModelPairError, match="logits that are not numbers"):
        list(run_trace(pair, "dddd", DecodeConfig(max_new_tokens=8)))
