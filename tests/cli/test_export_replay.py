"""`export --replay`: one page from a trace, or one sentence and nothing written."""

import pytest

from explorer import __main__ as command_line
from explorer.engine import replay

TRACE = '{"kind":"meta","version":1,"prompt":"p","rule":"ar"}\n'


def run(*words):
    return command_line.main(["export", *map(str, words)])


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.ndjson"
    path.write_text(TRACE, "utf-8")
    return path


def test_a_page_is_written_and_the_snippet_that_embeds_it_is_said(tmp_path, trace, capsys):
    page = tmp_path / "new" / "page.html"
    assert run("--replay", trace, "--out", page) == 0
    out, err = capsys.readouterr()
    assert out == f"{page}\n"
    assert '<iframe src="page.html" title="Speculative decoding replay"' in err
    assert page.read_text("utf-8") == replay.replay_page(TRACE)
    assert [path.name for path in page.parent.iterdir()] == ["page.html"]


def test_an_earlier_replay_is_replaced_and_nothing_else_is(tmp_path, trace, capsys):
    page = tmp_path / "page.html"
    assert run("--replay", trace, "--out", page) == 0
    assert run("--replay", trace, "--out", page) == 0, "a replay may be made again"
    page.write_text("<h1>mine</h1>")
    assert run("--replay", trace, "--out", page) == 2
    assert "holds something else and would be replaced. Choose a new name." in capsys.readouterr().err
    assert page.read_text() == "<h1>mine</h1>"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--out", "page.html", "--layout=speculators"],
            "layout is speculators, but a replay is made of a trace alone.",
        ),
        (["--out", "page.html", "--trim=5"], "trim is 5, but a replay is made of a trace alone."),
        (["--out", "page.html", "--no-merge"], "merge is False, but a replay is made of a trace alone."),
        (["--out="], "out is empty; give a file, as in --out page.html."),
        ([], "out is empty; give a file, as in --out page.html."),
        (["--out", "page.txt"], "out is page.txt; a replay must end in .html, so that a browser opens it."),
        (["--out", "folder.html"], "out is folder.html, which is no file (Is a directory). Choose another --out."),
        (["--out", "run.ndjson/page.html"], "out is run.ndjson/page.html, which could not be written ("),
        (["--out", "page.html", "--replay="], "replay is empty; give a file, as in --replay run.ndjson."),
        (["--out", "page.html", "--replay=no.ndjson"], "replay is no.ndjson, which cannot be read (No such file"),
        (
            ["--out", "page.html", "--replay=folder.html"],
            "replay is folder.html, which cannot be read (Is a directory)",
        ),
        (["--out", "page.html", "--replay=latin"], "replay is latin, which is not UTF-8 text. Give a trace"),
        (["--out", "page.html", "--replay=text"], "text: Line 1 of the trace is not a JSON object"),
        (["--out", "page.html", "--replay=none"], "none: The trace is empty."),
    ],
)
def test_bad_flags(tmp_path, trace, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "none").write_text("")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert run("--replay=run.ndjson", *words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[: len(message)]) == ("", 1, message)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_the_earlier_page(tmp_path, trace, capsys, monkeypatch):
    page = tmp_path / "page.html"
    assert run("--replay", trace, "--out", page) == 0
    before = page.read_bytes()

    def refuse(data):
        raise OSError(28, "No space left on device")

    def open_(*words, make=replay.tempfile.NamedTemporaryFile, **options):
        file = make(*words, **options)
        file.write = refuse
        return file

    monkeypatch.setattr(replay.tempfile, "NamedTemporaryFile", open_)
    assert run("--replay", trace, "--out", page) == 2
    assert "could not be written (No space left on device); nothing was changed." in capsys.readouterr().err
    assert page.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.ndjson"]


def test_a_bom_is_not_part_of_the_trace(tmp_path, trace):
    trace.write_bytes(b"\xef\xbb\xbf" + TRACE.encode())
    assert run("--replay", trace, "--out", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text("utf-8") == replay.replay_page(TRACE)
