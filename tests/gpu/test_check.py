"""``python -m tests.gpu check``: what it runs, what it keeps, and what it does with a case that hangs."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpu import check
from tests.gpu.check import Case, Machine

HERE = Machine("abc", "NVIDIA H100 80GB HBM3", 1, "2.11.0+cu130")


def python(name: str, source: str, seconds: int = 20, gpus: int = 1) -> Case:
    return Case(name, (sys.executable, "-c", source), seconds, gpus)


def test_a_case_that_hangs_is_a_failure_and_leaves_no_process(tmp_path: Path) -> None:
    source = """import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("began", child.pid, flush=True)
time.sleep(600)
"""
    (result,) = check.check([python("hangs", source, seconds=3)], HERE, tmp_path, 60)
    assert result.outcome == "hung"
    assert result.said.startswith("no end after 3 s; last line: began ")
    child = int(result.said.rpartition(" ")[2])
    last = time.monotonic() + 5
    while time.monotonic() < last:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    # A killed child without a parent that waits for it stays as a zombie where process 1 reaps none.
    assert "Z" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2][:3]


def test_the_next_call_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counter = tmp_path / "count"
    counter.write_text("")
    counted = (
        f"import pathlib; p = pathlib.Path({str(counter)!r}); p.write_text(p.read_text() + 'x'); print('3 passed')"
    )
    todo = [python("good", counted), python("bad", counted + "; raise SystemExit(1)"), python("two", counted, gpus=2)]
    first = check.check(todo, HERE, tmp_path, 60)
    assert [(one.name, one.outcome, one.said) for one in first] == [
        ("good", "ok", "3 passed"),
        ("bad", "failed", "3 passed"),
    ]
    again = check.check(todo, HERE, tmp_path, 60)  # only what failed runs again
    assert counter.read_text() == "xxx"
    assert [one.outcome for one in again] == ["ok", "failed"]
    check.check(todo[:1], replace(HERE, commit="def"), tmp_path, 60)
    assert counter.read_text() == "xxxx"
    assert "ok     good" in capsys.readouterr().out


def test_a_call_for_some_cases_keeps_the_results_of_the_others(tmp_path: Path) -> None:
    one, two = python("one", "print(1)"), python("two", "print(2)")
    check.check([one], HERE, tmp_path, 60)
    assert [found.name for found in check.check([two], HERE, tmp_path, 60)] == ["two"]
    assert list(check.known(tmp_path, HERE)) == ["one", "two"]


def test_what_does_not_fit_is_left_to_the_next_call(tmp_path: Path) -> None:
    todo = [python("long", "print(1)", seconds=100), python("short", "print(2)", seconds=2)]
    assert [one.name for one in check.check(todo, HERE, tmp_path, 20)] == ["short"]
    assert [one.name for one in check.check(todo, HERE, tmp_path, 60)] == ["long", "short"]


def test_a_folder_without_a_test_for_a_gpu_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text("def test_one() -> None:\n    pass\n")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "other", str(tmp_path))
    assert check.run(Case("none", command, 60), tmp_path, os.environ, tmp_path).outcome == "ok"


def test_every_file_of_ops_is_in_one_part() -> None:
    parts = check.dealt()
    files = [file for part in parts for file in part]
    assert len(files) == len(set(files)) == len(list((check.ROOT / "tests/ops").glob("test_*.py")))
    assert all(parts)


def test_the_cases_without_a_wheel_are_those_that_need_none() -> None:
    without, everything = ({case.name for case in check.cases(wheel, 2)} for wheel in (None, Path("a.whl")))
    assert everything - without == {"wheel: prebuilt code", "attacks", "ranks", "wheel: two GPUs"}
    assert len(everything) == len(list(check.cases(Path("a.whl"), 2)))


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "machine", lambda commit: replace(HERE, gpu="", gpus=0))
    assert check.main([]) == 3
    assert "torch sees no NVIDIA GPU" in capsys.readouterr().err
