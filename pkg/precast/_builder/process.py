"""A compiler as a child that never outlives us: not an interrupt, not an error, not even the end by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PRIVATE, INHERITED = 0o077, -1
_SEARCH_PATHS = {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"}

# Runs in the child before it becomes the program: PR_SET_PDEATHSIG (prctl(2)) outlives exec, and ninja, when it is
# told to end, ends its compilers. Between fork and exec of a process with threads no Python may run, hence a child.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a compiler. No search path may come from a variable, because no key holds it.

    The messages of the compiler are read, so they are in English.
    """
    return {**{name: value for name, value in environment.items() if name not in _SEARCH_PATHS}, "LC_ALL": "C"}


def run(command: Sequence[str], *, log: Path, environment: Mapping[str, str], umask: int = PRIVATE) -> tuple[int, str]:
    """The exit status of a program and what it said, which goes into ``log`` while it runs.

    By default nobody else can read or write the files that it makes; ``INHERITED`` is the umask of this process.
    """
    shim = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())] if sys.executable else []
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*shim, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            umask=umask,
            start_new_session=True,  # a group of its own, so that all of it can be ended at once
        )
        try:
            status = child.wait()
        finally:
            if child.returncode is None:  # an interrupt; it goes on as soon as nobody writes into the folder
                _end(child)
    return status, log.read_text(encoding="utf-8", errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask ninja to end its compilers, each of which has a group of its own; then insist."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
