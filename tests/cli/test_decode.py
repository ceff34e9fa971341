"""`decode`: what it prints, where, and the trace it saves."""

import contextlib
import io
import json
import os
import shlex
import sys

import pytest
from toys import toy_pair

from explorer import __main__ as command_line
from explorer.cli import decode
from explorer.cli.terminal import STYLES, harmless
from explorer.engine import loading
from explorer.engine.config import DecodeConfig
from explorer.engine.trace import read_trace
from explorer.errors import WeightsError
from explorer.heads.choice import OWN_HEAD, HeadChoice

PROMPT = "abcabcabc"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True

    def reconfigure(self, **options):
        pass


def run(*words):
    return command_line.main(["decode", "--prompt", PROMPT, "--max-new-tokens=20", *words])


def run_in_terminal(monkeypatch, *words, no_color=""):
    """What a terminal is sent; pytest captures `sys.stdout` anew for each phase, so it is swapped here."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    with contextlib.redirect_stdout(Terminal()) as stream:
        assert run(*words) == 0
    return stream.getvalue()


def last_json(text):
    return json.loads(text.rstrip("\n").rpartition("\n")[2])


def test_json_has_what_scripts_need(pair, capsys):
    assert run("--json", "--seed", "3", "--temperature", "0.8", "--draft-length", "3") == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    facts = last_json(out)
    assert {"text", "token_ids", "tokens_per_s", "finish", "target", "drafter", "precision", "command"} <= facts.keys()
    assert (facts["rule"], facts["seed"], facts["draft_length"], facts["temperature"]) == ("exact", 3, 3, 0.8)
    assert facts["num_emitted"] == len(facts["token_ids"]) == 20
    assert 0 < facts["num_accepted"] <= facts["num_drafted"]
    assert facts["tokens_per_round"] == pytest.approx(facts["num_emitted"] / facts["num_rounds"])
    assert f"{facts['num_rounds']} rounds" in err
    assert f"{facts['num_accepted']} of {facts['num_drafted']} drafts accepted" in err


def test_piped_output_is_the_text_alone(pair, capsys):
    run("--json")
    text = last_json(capsys.readouterr().out)["text"]
    assert run() == 0
    out, err = capsys.readouterr()
    assert out == harmless(text) + "\n"
    assert "\x1b" not in out + err


def test_the_same_seed_gives_the_same_text_and_another_one_another(pair, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        run("--temperature=1.5", f"--seed={seed}")
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_the_command_in_the_json_repeats_the_run(pair, capsys):
    words = ["--rule=static", "--target-weight=0.4", "--stop=x y", "--stop=z", "--seed=5", "--temperature=1.0"]
    run("--json", *words)
    first = last_json(capsys.readouterr().out)
    again = shlex.split(first["command"])
    assert again[:3] == ["python", "-m", "explorer"]
    assert command_line.main([*again[3:], "--json"]) == 0
    second = last_json(capsys.readouterr().out)
    assert second["token_ids"] == first["token_ids"]
    assert (second["rule"], second["target_weight"], second["stop"]) == ("static", 0.4, ["x y", "z"])


def test_every_setting_has_a_flag(pair, capsys):
    words = ["--rule=lossy", "--lenience=0.3", "--target-weight=0.2", "--draft-length=1", "--temperature=0.5"]
    words += ["--top-p=0.9", "--top-k=7", "--seed=2", "--stop=q", "--rank=0"]
    assert run("--json", *words, "--precision=float32", "--target=here", "--drafter=there") == 0
    facts = last_json(capsys.readouterr().out)
    expected = DecodeConfig(
        rule="lossy", lenience=0.3, target_weight=0.2, draft_length=1, temperature=0.5, top_p=0.9, top_k=7, seed=2,
        stop=("q",), max_new_tokens=20,
    )  # fmt: skip
    for name in expected.__dataclass_fields__:
        value = getattr(expected, name)
        assert facts[name] == (list(value) if isinstance(value, tuple) else value), name
    assert pair == [("here", "there", "float32")]


def test_prompt_from_standard_input(pair, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abcb\n")))
    assert command_line.main(["decode", "--prompt", "-", "--max-new-tokens=2", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["prompt"] == "abcb"


def test_terminal_shows_fates_in_colour_and_json_last(pair, monkeypatch, capsys):
    out = run_in_terminal(monkeypatch, "--json", "--draft-length=4")
    starts = {fate: look.split("{")[0] for fate, (look, _) in STYLES.items()}
    facts = last_json(out)
    assert out.count(starts["accepted"]) <= facts["num_accepted"]
    assert out.count(starts["accepted"]) > 0
    assert out.count(starts["rejected"]) == out.count(starts["residual"]) > 0
    assert out.count("\x1b[0m") == sum(out.count(start) for start in starts.values())
    assert "accepted  [-rejected-]  {+residual+}  *bonus*" in capsys.readouterr().err  # stderr is no terminal here


def test_terminal_without_colour_still_tells_fates_apart(pair, monkeypatch, capsys):
    out = run_in_terminal(monkeypatch, "--draft-length=4", no_color="1")
    assert "\x1b" not in out
    assert "[-" in out
    assert "{+" in out
    assert "accepted  [-rejected-]  {+residual+}  *bonus*" in capsys.readouterr().err


def test_autoregressive_text_is_plain(pair, monkeypatch):
    out = run_in_terminal(monkeypatch, "--rule=ar", "--drafter=none")
    assert "\x1b" not in out
    assert len(out.strip()) == 20


def test_control_characters_of_the_model_never_reach_the_terminal(pair, monkeypatch):
    """The toy's vocabulary holds DEL and the C1 controls, U+009B among them, which opens an escape sequence."""
    out = run_in_terminal(monkeypatch, "--max-new-tokens=50", "--temperature=2")
    for look, _ in STYLES.values():
        out = out.replace(look.split("{")[0], "")
    out = out.replace("\x1b[0m", "")
    assert "\ufffd" in out
    assert [character for character in out if ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0] == ["\n"]


# Traces.


def test_trace_file_reads_back_and_agrees_with_the_json(pair, capsys, tmp_path):
    path = tmp_path / "run.ndjson"
    assert run("--json", "--trace", str(path)) == 0
    facts = last_json(capsys.readouterr().out)
    records = read_trace(path.read_text(encoding="utf-8"))
    assert records[0]["kind"] == "meta"
    assert records[-1]["text"] == facts["text"]
    emitted = []
    for record in records[1:-1]:
        emitted += [draft["id"] for draft in record["drafts"] if draft["fate"] == "accepted"]
        emitted += [record["next"]["id"]] if record["next"] else []
    assert emitted == facts["token_ids"]
    assert [file.name for file in tmp_path.iterdir()] == ["run.ndjson"]


@pytest.mark.parametrize("where", ["missing/run.ndjson", "."])
def test_trace_that_cannot_be_written_is_refused_before_loading(pair, capsys, tmp_path, where):
    assert run("--trace", str(tmp_path / where)) == 2
    assert pair == []
    err = capsys.readouterr().err
    assert err.startswith(f"The trace cannot be written to {tmp_path / where} (")
    assert err.count("\n") == 1


def test_trace_never_replaces_a_device(pair, capsys):
    assert run("--trace", os.devnull) == 2
    assert "(it is not a file)" in capsys.readouterr().err
    assert not os.path.isfile(os.devnull)  # noqa: PTH113


def test_a_failed_run_leaves_the_old_trace_alone(pair, capsys, monkeypatch, tmp_path):
    path = tmp_path / "run.ndjson"
    path.write_text("old")

    def broken(*args, **options):
        raise WeightsError("Nothing there.")

    monkeypatch.setattr(loading, "load_pair", broken)
    assert run("--trace", str(path)) == 2
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["run.ndjson"]


def test_ctrl_c_keeps_the_rounds_so_far(pair, capsys, monkeypatch, tmp_path):
    path = tmp_path / "run.ndjson"

    def interrupted(records, hidden, is_json):
        for _ in range(3):
            next(records)
        raise KeyboardInterrupt

    monkeypatch.setattr(decode, "_printed", interrupted)
    assert run("--trace", str(path)) == 130
    assert [record["kind"] for record in read_trace(path.read_text())] == ["meta", "round", "round"]
    assert capsys.readouterr().err.endswith("Stopped.\n")


# Heads.


def test_the_head_reaches_the_drafter_and_the_command(monkeypatch, capsys):
    seen = []

    def load_pair(*arguments):
        seen.append(arguments[4])
        return toy_pair("llama", "model")

    monkeypatch.setattr(loading, "load_pair", load_pair)

    assert run("--json", "--head=truncated", "--head-size=9") == 0

    command = last_json(capsys.readouterr().out)["command"]
    assert "--head=truncated --head-size=9" in command
    assert run("--json") == 0
    assert "--head" not in last_json(capsys.readouterr().out)["command"]
    assert seen == [HeadChoice("truncated", 9), OWN_HEAD]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--head=huge"], "Argument --head: invalid choice: 'huge'"),
        (["--head-size=9"], "head size is 9, but the own head has no size to choose. Leave it out"),
        (["--head=dynamic", "--head-size=-2"], "head size is -2; it must be at least 1"),
    ],
)
def test_heads_that_cannot_be_are_refused_before_anything_is_loaded(pair, capsys, words, message):
    assert run(*words) == 2
    assert capsys.readouterr().err.startswith(message)
    assert pair == []
