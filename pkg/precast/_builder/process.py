"""Run a compiler as a child that never outlives us, whether an interrupt, an error or a signal ends this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from precast._builder import python

PRIVATE, INHERITED = 0o077, -1
_TICK_S, _PATIENCE_S = 15.0, 5.0
_ENDS = (signal.SIGTERM, signal.SIGHUP)
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


def end_cleanly() -> None:
    """Let SIGTERM and SIGHUP end this process as an interrupt does: children end, and temporary folders go.

    For a process that has no other use for these signals, such as a command line.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for one in _ENDS:
            signal.signal(one, signal.SIG_IGN)  # a second signal must not end the cleaning up
        raise SystemExit(128 + number)

    for number in _ENDS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, end)


def run(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    umask: int = PRIVATE,
    tick: Callable[[], None] | None = None,
) -> tuple[int, str]:
    """Run a program and return its exit status and its output, which is written to ``log`` while it runs.

    By default only this user can read or write the files it makes; ``INHERITED`` keeps the umask of this process.
    ``tick`` is called every few seconds until the program ends.
    """
    own = python.interpreter()
    shim = [own, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())] if own else []
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*shim, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            umask=umask,
            start_new_session=True,  # its own session, so that all of its children can be found and ended
        )
        try:
            while (status := _waited(child, None if tick is None else _TICK_S)) is None:
                if tick is not None:
                    tick()
        finally:
            if child.returncode is None:  # interrupted; raise only once no process writes into the folder
                _end(child)
    return status, log.read_text(encoding="utf-8", errors="replace")


def _waited(child: subprocess.Popen[bytes], seconds: float | None) -> int | None:
    """The exit status; None if the child still runs after that time."""
    try:
        return child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and everything that it started: pip, ninja and each compiler, which has a process group of its own.

    All are asked first, and killed if they are still there after a timeout.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _PATIENCE_S
        while there := [*_session(child)]:
            for pid in there if number == signal.SIGKILL or until - time.monotonic() > _PATIENCE_S - 1 else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > until:
                break
            time.sleep(0.02)
    child.wait()


def _session(child: subprocess.Popen[bytes]) -> Iterator[int]:
    """The processes of the session of a child that have not ended."""
    if child.poll() is None:
        yield child.pid
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, _, session, *_ = place.read_text("utf-8", "replace").rpartition(")")[2].split()
            pid = int(place.parent.name)
            if session == str(child.pid) and state not in "ZX" and pid != child.pid:
                yield pid
