"""Run a compiler as a child that never outlives us, whether an interrupt, an error or SIGKILL ends this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PRIVATE, INHERITED = 0o077, -1
_SEARCH_PATHS = {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"}

# Runs in the child before it becomes the program. PR_SET_PDEATHSIG (prctl(2)) survives exec, and ninja ends its
# compilers when it is told to end. No Python may run between fork and exec of a process with threads, so a child does.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a compiler, without variables that add search paths, because no key contains them.

    The locale is C, because the compiler's messages are parsed.
    """
    return {**{name: value for name, value in environment.items() if name not in _SEARCH_PATHS}, "LC_ALL": "C"}


def run(command: Sequence[str], *, log: Path, environment: Mapping[str, str], umask: int = PRIVATE) -> tuple[int, str]:
    """Run a program and return its exit status and its output, which is written to ``log`` while it runs.

    By default only this user can read or write the files it makes; ``INHERITED`` keeps the umask of this process.
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
            start_new_session=True,  # its own process group, so that the whole group can be ended at once
        )
        try:
            status = child.wait()
        finally:
            if child.returncode is None:  # interrupted; raise only once no process writes into the folder
                _end(child)
    return status, log.read_text(encoding="utf-8", errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask ninja to end its compilers, each of which has its own group; kill ninja's group after a timeout."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
