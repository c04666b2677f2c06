"""The table of processor seconds: which processes count, and for what."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from tests import causes
from tests.causes import Process

KIB = {"torch": 500 << 10, "nvrtc": 200 << 10, "": 20 << 10}


def record(process: Process) -> bytes:
    """As the kernel writes it."""
    times = (round(process.seconds * 100), 0, process.kib >> 9 | 3 << 13)
    flags, name = causes.FORKED * process.forked, process.name.encode()
    return causes.RECORD.pack(
        flags, 3, 0, 0, 0, 0, process.pid, process.parent, process.began, process.lasted * 100, *times, *[0] * 5, name
    )


def made(pid: int, parent: int, name: str, seconds: float = 1.0, size: str = "", *, forked: bool = False) -> Process:
    return Process(pid, parent, name, forked, seconds, 1000 + pid, 100.0 if pid in (1, 2) else 5.0, KIB[size])


TREE = [
    made(9, 8, "cc1plus", 4.0),  # of somebody else
    dataclasses.replace(made(12, 3, "cc1plus", 4.0), began=900),  # when another process had the number 3
    made(5, 4, "cc1plus", 2.0),
    made(4, 3, "g++", 0.5),
    made(3, 2, "python3.11", 7.0, "torch"),
    made(6, 2, "python", 8.0, "nvrtc"),
    made(7, 2, "python", 0.25, "torch", forked=True),
    made(10, 2, "python", 3.0),
    made(11, 1, "python", 20.0, "torch"),  # a probe
    made(2, 1, "python", 50.0, "torch"),
    made(1, 0, "python", 6.0),
]


def test_a_record_is_read_as_it_was_written() -> None:
    assert list(causes.read(b"".join(map(record, TREE)) + b"an unfinished one")) == TREE


def test_each_process_below_pytest_counts_for_what_it_is() -> None:
    rows = [row.split(" | ") for row in causes.table(TREE, 1).replace("|\n", "\n").splitlines()[2:]]
    assert {(row[0].strip("| "), row[-1].strip("| ")) for row in rows} == {
        ("tests in the processes of pytest", "56"),
        ("Pythons that import torch", "27"),
        ("device code by NVRTC", "8"),
        ("Pythons without torch, pip among them", "3"),
        ("C++ compiled", "2"),
        ("Pythons with torch, forked", "0"),
        ("all", "97"),
    }


@pytest.mark.mounts  # that is: as root
def test_the_kernel_counts_a_run(tmp_path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import subprocess, sys\ndef test_it():\n    subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    (tmp_path / "test_it.py").write_text(code)
    with causes.counting() as log:  # which the run inside does not end
        assert log is not None, f"the kernel writes to none of {causes.FOLDERS}"
        monkeypatch.setenv(causes.LOG, str(log))
        for _ in range(2):
            assert causes.main(["-n0", "-p", "no:cacheprovider", str(tmp_path)]) == 0
            said = capfd.readouterr().out
            assert "| tests in the processes of pytest | 1 |" in said
            assert "| Pythons without torch, pip among them | 1 |" in said


@pytest.mark.mounts
def test_a_disk_without_space_is_passed_over(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(causes.LOG, raising=False)
    small, large = tmp_path / "small", tmp_path / "large"
    for folder, size in ((small, "1m"), (large, "8m")):
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        (small / "fill").write_bytes(bytes(1010 << 10))  # the kernel stops where 2 in 100 are left and starts at 4
        with causes.counting([str(small)]) as log:
            assert log is None
        with causes.counting([str(small), str(large)]) as log:
            assert log is not None and log.parent.parent == large
    finally:
        for folder in (small, large):
            subprocess.run(["umount", folder], check=True)


def test_without_leave_the_sum_is_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    class Refuses:
        def __init__(self, *_: object, **__: object) -> None: ...
        def acct(self, _: object) -> int:
            return -1

    monkeypatch.delenv(causes.LOG, raising=False)
    monkeypatch.setattr("ctypes.CDLL", Refuses)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert causes.main([]) == 0
    assert "processor seconds; by cause for root alone" in capfd.readouterr().out
