"""How one run uses several cores: how many processes there are, and which tests share one."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# Each process takes a gigabyte once it has imported torch, and the longest unit below bounds the run anyway.
MOST_WORKERS = 8
# Folders whose tests share something that takes long to build. One process runs all of such a folder.
BUILDS = ("tests/wheel", "tests/load", "tests/downstream", "tests/unit/csrc", "tests/unit/load")
# Files whose tests share nothing and take a minute or more together: a process may run any one of them.
PARTED = ("tests/hostile/test_adopting.py",)
# What takes longest, in that order: a long unit that starts last would run alone at the end.
LONGEST_FIRST = (
    "tests/examples/test_port.py",
    *("tests/wheel", "tests/unit/csrc", "tests/load", "tests/downstream", "tests/workflows", "tests/faults"),
    *("tests/unit/test_benchmarks.py", "tests/ops", "tests/unit/csrc_cpu", "tests/defects"),
)


def is_worker(config: pytest.Config) -> bool:
    """Return whether another process hands out the tests that this one runs."""
    return hasattr(config, "workerinput")


def workers(config: pytest.Config) -> int:
    """Return the number of processes for ``-n auto``; 0 runs the tests in this one.

    Tests on a GPU share its memory, so they run one by one. A single test needs no second process.
    """
    if Path("/dev/nvidiactl").exists() or any("::" in named for named in config.args):
        return 0
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def one_thread_each() -> None:
    """Let torch, which no test has imported yet, compute in one thread of each process, unless a test asks for more.

    The processes use all cores. More threads than those would wait for each other, and OpenMP's do so at full speed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def unit(nodeid: str) -> str:
    """Return the name of the group of tests that run in one process, one after the other."""
    file = nodeid.partition("::")[0]
    if file in PARTED:
        return nodeid
    folder = file.rpartition("/")[0]
    return folder if folder in BUILDS else file


def rank(nodeid: str) -> int:
    """Return when a test starts: the folders of LONGEST_FIRST in that order, then all others as they are."""
    places = (place for place, folder in enumerate(LONGEST_FIRST) if nodeid.startswith((f"{folder}/", f"{folder}::")))
    return next(places, len(LONGEST_FIRST))


@contextmanager
def turn(item: pytest.Item) -> Iterator[None]:
    """Let one test at a time have most of a GPU, of all the processes of a user; it leaves the memory to the next."""
    if item.get_closest_marker("large") is None or item.get_closest_marker("gpu") is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"precast-tests-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


def sendable(data: Any) -> Any:
    """Return a report as xdist can send it: a test may log bytes that are no UTF-8, which the channel refuses."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(data, dict):
        return {sendable(key): sendable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(map(sendable, data))
    return data


def scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Hand out unit by unit, in the order of the collected tests."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False
    return ByUnit(config, log)
