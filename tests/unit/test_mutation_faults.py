"""The faults of tests/mutation fit the tree, and the program that tries them can say killed, survived and stale."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.mutation import faults
from tests.mutation.faults import Fault, Verdict

FAULTS = faults.read()

CODE = "def half(x):\n    return x // 2\n"
TESTS = """
from toy import half

def test_half():
    assert half(4) == 2

def test_nothing():
    assert half(0) == 0

def test_hang():
    while half(3) != 1:
        pass
"""
TOY = Fault("toy.rounded-up", "it rounds up", "pkg/toy.py", "x // 2", "x // 2 + 1", ("test_toy.py::test_half",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "toy.py").write_text(CODE)
    (tmp_path / "test_toy.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -rfE\nmarkers = long\n")
    return tmp_path


def tried(tree: Path, fault: Fault, limit_s: float = 60) -> str:
    return faults.try_one(fault, tree, tree / "cache", limit_s=limit_s).word


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_fits_the_tree(fault: Fault) -> None:
    assert faults.stale(fault, faults.ROOT) is None
    assert fault.find != fault.replace and fault.what
    assert fault.tests and all((faults.ROOT / test.partition("::")[0]).exists() for test in fault.tests)


def test_there_are_faults_of_every_kind() -> None:
    assert {name.partition(".")[0] for name in FAULTS} >= {"csrc", "known", "ops", "optim"}


def test_a_fault_that_a_test_notices_is_killed_and_is_gone_afterwards(tree: Path) -> None:
    assert tried(tree, TOY) == "killed"
    assert (tree / "pkg" / "toy.py").read_text() == CODE


def test_a_fault_that_no_test_notices_survives(tree: Path) -> None:
    assert tried(tree, dataclasses.replace(TOY, replace="(x + 1) // 2")) == "survived"


def test_tests_that_do_not_end_have_noticed_the_fault(tree: Path) -> None:
    fault = dataclasses.replace(TOY, replace="(x + 1) // 2", tests=("test_toy.py::test_hang",))
    assert tried(tree, fault, limit_s=3) == "killed"


@pytest.mark.parametrize("find", ["x // 3", "x"])
def test_a_text_that_is_not_there_once_is_stale(tree: Path, find: str) -> None:
    assert tried(tree, dataclasses.replace(TOY, find=find)) == "stale"


def test_a_file_that_is_gone_is_stale(tree: Path) -> None:
    assert tried(tree, dataclasses.replace(TOY, file="pkg/gone.py")) == "stale"


def test_a_test_that_is_not_there_kills_nothing(tree: Path) -> None:
    assert tried(tree, dataclasses.replace(TOY, tests=("test_toy.py::test_gone",))) == "broken"


def test_tests_that_fail_without_a_fault_are_named(tree: Path) -> None:
    assert faults.failing([TOY], tree, tree / "cache") is None
    (tree / "pkg" / "toy.py").write_text(CODE.replace("//", "*"))
    assert "test_half" in (faults.failing([TOY], tree, tree / "cache") or "")


@pytest.mark.parametrize(
    ("status", "output", "word"),
    [
        (0, "", "survived"),
        (1, "FAILED tests/x.py::test_y - assert 1 == 2", "killed"),
        (2, "ERROR tests/x.py - ImportError", "killed"),
        (-11, "", "killed"),
        (None, "", "killed"),
        (5, "no tests ran", "broken"),
        (1, "FAILED tests/x.py::test_y\ncsrc/host/lists.h:12:3: error: expected ';'", "broken"),
        (1, "FAILED tests/x.py::test_y\ncsrc/softmax/device.cu(12): error: expected a ';'", "broken"),
    ],
)
def test_what_the_end_of_the_tests_means(status: int | None, output: str, word: str) -> None:
    assert faults.judge(status, output).word == word


def test_the_exit_status_says_whether_all_were_killed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"a.one": "killed", "a.two": "killed", "b.one": "survived"}
    monkeypatch.setattr(faults, "read", lambda: {name: dataclasses.replace(TOY, name=name) for name in words})
    monkeypatch.setattr(faults, "copy_tree", lambda to: tree)
    monkeypatch.setattr(faults, "try_one", lambda fault, *_, **__: Verdict(words[fault.name], ""))
    assert faults.main(["--trusted", "a"]) == 0
    assert faults.main(["--trusted"]) == 1
    assert capsys.readouterr().out.endswith("2 killed, 1 survived\n")
    with pytest.raises(SystemExit):
        faults.main(["c"])


def test_the_copy_has_what_git_has(tmp_path: Path) -> None:
    copy = faults.copy_tree(tmp_path / "copy")
    for name in ("pkg/precast/__init__.py", "csrc/host/api.cpp", "tests/mutation/faults.py", "pyproject.toml"):
        assert (copy / name).read_bytes() == (faults.ROOT / name).read_bytes()
    assert not (copy / ".git").exists() and not (copy / ".venv").exists()
