"""The command line as a whole: bad input, the other commands, and a real terminal."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from explorer import __main__ as command_line
from explorer.engine import loading, weights
from explorer.errors import WeightsError


def run(*words):
    return command_line.main(["decode", "--prompt", "abc", "--max-new-tokens=20", *words])


# Bad input.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature=-1"], "temperature is -1.0; it must be in [0.0, 2.0] (0 is greedy)."),
        (["--temperature=nan"], "temperature is nan; it must be in [0.0, 2.0] (0 is greedy)."),
        (["--temperature=warm"], "Argument --temperature: invalid float value: 'warm'; see `"),
        (["--rule=magic"], "Argument --rule: invalid choice: 'magic' (choose from "),
        (["--precision=int3"], "Argument --precision: invalid choice: 'int3'"),
        (["--temp=1"], "Unrecognized arguments: --temp=1; see `"),
        (["--prompt", ""], "The prompt is empty. Give a question or a text to continue with --prompt."),
        (["--prompt", " \n"], "The prompt is empty."),
        (["--prompt", "\udcff"], "The prompt is not UTF-8 text."),
    ],
)
def test_bad_flags_exit_with_2_and_one_sentence(pair, capsys, words, message):
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert err.startswith(message)
    assert (out, err.count("\n"), pair) == ("", 1, [])


@pytest.mark.parametrize("words", [[], ["bake"], ["decode"], ["--nonsense"]])
def test_bad_commands_exit_with_2_and_one_sentence(capsys, words):
    assert command_line.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--help`." in err


def test_errors_of_the_engine_exit_with_2(pair, capsys):
    assert run("--drafter=none") == 2
    assert "drafter" in capsys.readouterr().err


def test_escape_sequences_in_an_error_are_harmless(capsys):
    assert command_line.main(["decode", "--prompt=a", "--rule=\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_precisions_are_those_of_the_engine(pair, capsys):
    with pytest.raises(SystemExit):
        command_line.main(["decode", "--help"])
    assert "{" + ",".join(loading.PRECISIONS) + "}" in "".join(capsys.readouterr().out.split())


# The other commands.


def test_pull_prints_the_folder_and_progress_on_stderr(monkeypatch, capsys, tmp_path):
    def default_folder(progress, cache):
        progress("Downloading", 1, 2)
        progress("Downloading", 2, 2)
        return tmp_path / str(cache)

    monkeypatch.setattr(weights, "default_folder", default_folder)
    assert command_line.main(["pull", "--cache", "here"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'here'}\n"
    assert err == "Downloading\n"


def test_pull_without_network_says_what_to_do(monkeypatch, capsys):
    def default_folder(progress, cache):
        raise WeightsError("The weights are not there: put them at X.")

    monkeypatch.setattr(weights, "default_folder", default_folder)
    assert command_line.main(["pull"]) == 2
    assert capsys.readouterr().err == "The weights are not there: put them at X.\n"


def test_help_needs_no_torch():
    """`--help` answers at once: the heavy imports belong to the commands."""
    code = "import sys; from explorer.__main__ import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'transformers', 'gradio', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    for name, module in command_line.COMMANDS.items():
        assert name in done.stdout
        assert module.HELP.split(" (")[0][:40] in " ".join(done.stdout.split())


# In a real terminal, stopped by a real Ctrl-C.

SLOW_TOY = """
import sys, time
from explorer.engine import loading, run
from explorer.__main__ import main
from toys import toy_pair
loading.load_pair = lambda *args: toy_pair("llama")
fast = run.run_trace
def slow(*args, **options):
    for line in fast(*args, **options):
        yield line
        time.sleep(0.2)
run.run_trace = slow
sys.exit(main(["decode", "--prompt=abc", "--max-new-tokens=50"]))
"""


def test_ctrl_c_in_a_terminal_exits_130_without_a_traceback():
    leader, follower = pty.openpty()
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TOY], stdin=follower, stdout=follower, stderr=follower,
        env=os.environ | {"PYTHONPATH": paths, "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    seen, began = b"", time.monotonic()
    while b"\x1b[34m" not in seen and time.monotonic() - began < 60:
        seen += os.read(leader, 1024)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    seen += os.read(leader, 65536)
    os.close(leader)
    assert b"Stopped." in seen
    assert b"Traceback" not in seen


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    code = "import sys; from explorer import __main__ as m\nfrom explorer.cli import pull\n"
    code += "pull.run = lambda flags: [sys.stdout.write('x' * 100) and sys.stdout.flush() for _ in range(10**5)]\n"
    code += "sys.exit(m.main(['pull']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()
