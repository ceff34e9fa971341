"""Runs code that a model wrote against tests, in a process of its own that is killed when its time is up.

Prevented: running on without end (wall clock, CPU seconds, and the whole process group is killed), taking all memory or
disk (limits), starting processes, the network, changing files outside an empty temporary folder, flooding the output
(nothing is kept of it), and passing by leaving early: the tests count only if a random secret, which the code is not
given, is written after the last one.

How: `python -I -S`, an empty environment, resource limits and an audit hook; where the system permits, network and
process namespaces of their own (`unshare`); as root, the rights of nobody. Without namespaces and root, network and
files rest on the audit hook alone. Only the standard library can be imported, and of it nothing that needs sockets or
processes (`subprocess`, `asyncio`, `multiprocessing`), even by a right answer.

Not prevented: reading files that the user may read (/etc/passwd), which gains nothing, as tests are the only judge and
nothing can be sent; answers made to pass (an object equal to everything, the tests' values written out); and code made
to break out of CPython from within, which could find the secret or call the system past the hook. This keeps a model's
blunders and common cheats away from a machine; for hostile code, add a container or a virtual machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from explorer.errors import SettingError

TIMEOUT_S = 5.0
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
_VERDICT_BYTES = 1 << 16
_NOBODY = 65534  # as in harness.py, which can import nothing of ours
_HARNESS = Path(__file__).with_name("harness.py")


def check_supported() -> None:
    """Raise `SettingError` where processes cannot be limited."""
    if os.name != "posix":
        raise SettingError(f"Code tasks need the resource limits of Linux or macOS; this is {sys.platform}.")


def run_tests(
    code: str, tests: Sequence[str], *, setup: str = "", timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES
) -> list[bool]:
    """Which of the tests the code passes; all fail if it does not run to the end of the last one in time.

    Args:
        code: Python source of the solution.
        tests: Sources run after it in its namespace, one by one; one passes if it raises nothing.
        setup: Source run between code and tests.
        timeout_s: Wall-clock limit of everything together, in seconds.
        memory_bytes: Limit of the address space.
    """
    secret = secrets.token_hex(16)
    limits = {
        "RLIMIT_CPU": int(timeout_s) + 1,
        "RLIMIT_AS": memory_bytes,
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_NPROC": 0,
        "RLIMIT_CORE": 0,
    }
    job = {"code": code, "setup": setup, "tests": list(tests), "secret": secret, "limits": limits}
    # Lone surrogates, which a broken decoder may yield, pass through JSON as escapes.
    output = _run_harness(json.dumps(job).encode(), timeout_s)
    failed = [False] * len(tests)
    try:
        verdict = json.loads(output)
        passed = verdict["passed"] if secrets.compare_digest(str(verdict["secret"]), secret) else failed
    except (ValueError, KeyError, TypeError):
        return failed
    return [value is True for value in passed] if len(passed) == len(tests) else failed


def _run_harness(job: bytes, timeout_s: float) -> bytes:
    """What the child wrote before it ended or its time was up; nothing of it is alive afterwards."""
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="explorer-code-", ignore_cleanup_errors=True) as folder:
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                os.chown(folder, _NOBODY, _NOBODY)
        with tempfile.TemporaryFile() as given:
            given.write(job)
            given.seek(0)
            child = subprocess.Popen(
                [*_namespaces(), sys.executable, "-I", "-S", str(_HARNESS)],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={},
                start_new_session=True,
            )
        try:
            return _read(child, deadline)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()


def _read(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Output up to its end, the deadline or `_VERDICT_BYTES`, whichever is first."""
    descriptor = child.stdout.fileno()
    output = b""
    while len(output) < _VERDICT_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return b""
        chunk = os.read(descriptor, _VERDICT_BYTES)
        if not chunk:
            return output
        output += chunk
    return b""


@functools.cache
def _namespaces() -> tuple[str, ...]:
    """Words before the command that give it a network and a process tree of its own, or none where not permitted."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    tools = ("--net", "--pid", "--fork", "--kill-child")
    for words in ((unshare, *tools), (unshare, "--user", "--map-root-user", *tools)):
        trial = subprocess.run([*words, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if trial.returncode == 0:
            return words
    return ()
