"""The child process in which code written by a model runs against its tests. Started by `sandbox.py`, never imported.

It reads one JSON object from its input, gives up what it can of its rights, runs the code and then every test, and only
after the last one writes the secret it was given with the number of tests passed. Leaving early, by whatever means, is
therefore a failure. It may use the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
from typing import Any

_NOBODY = 65534
# An unprivileged user may not be able to read the standard library (an interpreter under /root): what code commonly
# uses is imported before the rights are dropped.
_PRELOADED = (
    "array", "bisect", "cmath", "collections.abc", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "hashlib", "heapq", "itertools", "math", "operator", "queue", "random", "re", "statistics", "string",
    "sys", "textwrap", "time", "traceback", "typing", "unicodedata",
)  # fmt: skip
_DENIED = (
    "socket.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.setxattr",
    "subprocess.", "pty.", "ctypes.", "syslog.", "sqlite3.", "mmap.", "signal.", "gc.", "sys._current_frames",
    "sys.settrace", "sys.setprofile", "sys.addaudithook", "resource.", "ftplib.", "urllib.", "smtplib.", "webbrowser.",
)  # fmt: skip
_DENIED_IMPORTS = {
    "ctypes",
    "_ctypes",
    "_posixsubprocess",
    "multiprocessing",
    "_multiprocessing",
    "_socket",
    "resource",
}
_CHANGES_FILES = {
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate",
    "os.utime", "shutil.rmtree", "shutil.move", "shutil.chown",
}  # fmt: skip


def main() -> None:
    """Read the job, run it, write the verdict."""
    job = json.loads(sys.stdin.buffer.read())
    verdict = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    _limit(job["limits"])
    _drop_root()
    sys.addaudithook(_make_guard(os.path.realpath(os.curdir)))
    write, leave, dumps = os.write, os._exit, json.dumps
    passed = _run(job["code"], job["setup"], job["tests"])
    write(verdict, dumps({"secret": job["secret"], "passed": passed}).encode())
    # Nothing the code left behind (threads, exit handlers) may run any more.
    leave(0)


def _limit(limits: dict[str, int]) -> None:
    """Set hard limits by the name that `resource` knows them by; a system may lack some."""
    for name, value in limits.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _drop_root() -> None:
    """As root, become nobody: root is bound by no limit on processes and may write anywhere."""
    if os.geteuid() != 0:
        return
    for name in _PRELOADED:
        importlib.import_module(name)
    # A user namespace maps one user only; there the change fails, and root has few rights.
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


def _run(code: str, setup: str, tests: list[str]) -> list[bool]:
    """Which tests pass; all fail if the code itself does."""
    namespace: dict[str, Any] = {"__name__": "solution"}
    if not (_succeeds(code, namespace) and _succeeds(setup, namespace)):
        return [False] * len(tests)
    return [_succeeds(test, namespace) for test in tests]


def _succeeds(source: str, namespace: dict[str, Any]) -> bool:
    try:
        exec(compile(source, "<solution>", "exec"), namespace)
    except BaseException:  # noqa: BLE001 (SystemExit is the cheat this is for)
        return False
    return True


def _make_guard(folder: str) -> Any:
    """Audit hook that refuses network, processes and changes to files outside `folder`."""
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    realpath, fsdecode = os.path.realpath, os.fsdecode

    def is_inside(path: Any) -> bool:
        if isinstance(path, int):
            return True
        return (realpath(fsdecode(path)) + os.sep).startswith(folder + os.sep)

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_DENIED) or (event == "import" and arguments[0] in _DENIED_IMPORTS):
            raise PermissionError(f"{event} is not allowed here.")
        if event in _CHANGES_FILES and not all(is_inside(path) for path in arguments[:1]):
            raise PermissionError(f"{event} outside the working folder is not allowed.")
        if event == "open" and not isinstance(arguments[0], int):
            path, mode, flags = arguments
            is_write = bool((flags or 0) & writing) or any(letter in str(mode) for letter in "wax+")
            if (is_write and not is_inside(path)) or realpath(fsdecode(path)).startswith("/proc/"):
                raise PermissionError(f"opening {path!r} this way is not allowed.")

    return guard


if __name__ == "__main__":
    main()
