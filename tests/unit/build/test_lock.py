"""The lock of one build: exclusive, never stale, and a wait that says for whom."""

from __future__ import annotations

import errno
import fcntl
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from precast._build import lock
from precast.errors import BuildTimeout


def test_a_second_builder_waits_and_gives_up_by_name(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    with (
        lock.exclusive(path, "family/1234"),
        pytest.raises(BuildTimeout, match=r"process \d+ on .* family/1234"),
        lock.exclusive(path, "family/1234", wait_s=0.1),
    ):
        pytest.fail("two held the lock")


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    code = "import os, sys; from pathlib import Path; from precast._build import lock\n"
    code += "with lock.exclusive(Path(sys.argv[1]), 'x'): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    with lock.exclusive(path, "x", wait_s=0):
        assert path.is_file()


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


def test_a_long_wait_is_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "k.lock"
    times = iter([0.0, 6.0, 7.0, 2000.0])
    with (
        lock.exclusive(path, "x"),
        caplog.at_level(logging.WARNING, "precast"),
        pytest.raises(BuildTimeout),
        lock.exclusive(path, "x", clock=lambda: next(times)),
    ):
        pytest.fail("two held the lock")
    assert caplog.text.count("waiting for process") == 1
