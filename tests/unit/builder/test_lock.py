"""The lock of one build: exclusive, never stale, never fatal, and a wait that says for whom."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from precast._builder import lock, trust
from tests.kit import odd, spawn


def test_a_second_process_waits_and_then_builds_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "k.lock"
    with (
        holding(path) as holder,
        caplog.at_level(logging.WARNING, "precast"),
        lock.exclusive(path, "family/1234", wait_s=0.2) as turn,
    ):
        assert not turn.alone
    assert f"waited 0 s for process {holder.pid} on " in caplog.text
    assert "since " in caplog.text and "log /the/log" in caplog.text and "building it here as well" in caplog.text


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock, and ends at the end."""
    code = "import signal, sys, time; from pathlib import Path; from precast._builder import lock\n"
    # It is ignored in what a shell starts in the background.
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "with lock.exclusive(Path(sys.argv[1]), 'x') as turn:\n"
    code += "    turn.tell(Path('/the/log')); print('held', flush=True); time.sleep(60)"
    with spawn.started(sys.executable, "-c", code, path) as child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        yield child


def test_who_gave_up_waiting_leaves_the_lock_and_its_note_alone(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    with holding(path) as holder:
        for _ in range(2):
            with lock.exclusive(path, "x", wait_s=0) as turn:
                turn.tell(Path("/another/log"))
            assert f"process {holder.pid} " in path.read_text()


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "listening"])
def test_an_odd_file_in_the_place_of_a_lock_costs_the_lock_and_no_more(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock, "_folders", lambda: (tmp_path,))
    tmp_path.chmod(0o700)
    path = lock.lock_file(tmp_path / "cache", "k")
    assert path is not None
    odd.put(kind, path)
    with odd.no_hang(), lock.exclusive(path, "family/1234", wait_s=1) as turn:
        turn.tell(Path("/the/log"))
        assert lock.held(tmp_path / "cache") == ()
    assert "building without a lock" in caplog.text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_lock_of_a_process_that_ended_is_free(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "k.lock"
    with holding(path) as child:
        child.send_signal(how)
        child.wait()
    with lock.exclusive(path, "x", wait_s=0) as turn:
        assert turn.alone and path.is_file()
    assert path.read_text() == "", "who held it is nobody's business afterwards"


def test_threads_take_turns_even_where_flock_excludes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
    inside, most = [], []

    def work() -> None:
        with lock.exclusive(tmp_path / "k.lock", "x"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_a_thread_that_waited_too_long_builds_as_well(tmp_path: Path) -> None:
    with lock.exclusive(tmp_path / "k.lock", "x"):
        turns: list[bool] = []

        def late() -> None:
            with lock.exclusive(tmp_path / "k.lock", "x", wait_s=0) as turn:
                turns.append(turn.alone)

        thread = threading.Thread(target=late)
        thread.start()
        thread.join()
    assert turns == [False]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_forked_while_a_thread_builds_neither_waits_nor_keeps_the_lock(tmp_path: Path) -> None:
    path, held, done = tmp_path / "k.lock", threading.Event(), threading.Event()

    def build() -> None:
        with lock.exclusive(path, "x"):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=build)
    thread.start()
    held.wait()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with lock.exclusive(tmp_path / "other.lock", "x"), lock._held.guard:  # free, though the parent has them
            os.close(write)
            os.read(read, 1)
        os._exit(0)
    os.close(read)
    done.set()
    thread.join()
    with lock.exclusive(path, "x", wait_s=0) as turn:
        assert turn.alone, "the forked child still has the lock"
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_builder_that_forks_inside_its_turn_stays_the_only_holder(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    with lock.exclusive(path, "x") as turn:
        turn.tell(Path("/the/log"))
        child = os.fork()
        if child == 0:
            try:
                lock._held.guard.acquire(timeout=1)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert hold_is_refused(path)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_that_leaves_the_block_does_not_give_up_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    child = -1
    with lock.exclusive(path, "x") as turn:
        turn.tell(Path("/the/log"))
        note = path.read_bytes()
        child = os.fork()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert hold_is_refused(path), "the child has unlocked it"
            assert path.read_bytes() == note, "and emptied the note"
    if child == 0:
        os._exit(0)
    assert not hold_is_refused(path) and path.read_bytes() == b""


def hold_is_refused(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_file_system_without_locks_is_built_on_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING, "precast"), lock.exclusive(tmp_path / "k.lock", "x"):
        pass
    assert "has no locks" in caplog.text


def test_another_failure_of_the_lock_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output"), lock.exclusive(tmp_path / "k.lock", "x"):
        pytest.fail("built without a lock")


def test_a_lock_file_that_cannot_be_made_is_no_reason_to_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "precast"), lock.exclusive(tmp_path / "none" / "k.lock", "x") as turn:
        assert turn.alone
    assert "building without a lock" in caplog.text


def test_a_long_wait_is_announced_at_5_and_30_seconds_and_then_each_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "k.lock"
    seconds = (0.0, 4.0, 5.0, 6.0, 7.0, 29.0, 30.0, 31.0, 60.0, 61.0, 62.0, 119.0, 120.0, 121.0, 1800.0, 1801.0)
    times = iter([7000.0 + second for second in seconds])  # a clock does not start with the wait
    with (
        holding(path),
        caplog.at_level(logging.WARNING, "precast"),
        lock.exclusive(path, "x", clock=lambda: next(times)) as turn,
    ):
        assert not turn.alone
    said = [line.rpartition(", ")[2] for line in caplog.text.splitlines() if "so far" in line]
    assert said == ["6 s so far", "31 s so far", "61 s so far", "121 s so far", "1800 s so far"]
    assert "x: waited 1801 s for " in caplog.text


def test_two_caches_and_two_keys_do_not_meet(tmp_path: Path) -> None:
    one, two = lock.lock_file(tmp_path / "a", "k"), lock.lock_file(tmp_path / "b", "k")
    assert one is not None and two is not None and one != two and one.parent == two.parent
    assert one.parent.stat().st_mode & 0o777 == 0o700 and not one.exists()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert lock.lock_file(tmp_path / "link", "k") == one, "one cache under two names is one cache"


def test_a_folder_that_somebody_else_planted_holds_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Path:
        raise trust.KernelError(f"{path} is not safe")

    monkeypatch.setattr(trust, "private_folder", refuse)
    assert lock.lock_file(tmp_path, "k") is None
    with lock.exclusive(None, "x") as turn:
        assert turn.alone
