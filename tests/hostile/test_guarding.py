"""A thousand hostile wheels keep the law of guard; and the law, shown refusing."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast._builder import wheel_file
from precast.build import answering, calls, described, trial
from tests.hostile import guarding

pytestmark = pytest.mark.compiler

COUNT = 1000


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return guarding.libraries(tmp_path_factory.mktemp("code"))


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries are for another torch, so the process that would import them is not started."""
    monkeypatch.setattr(trial, "run", lambda *arguments: (0, []))
    monkeypatch.setattr(wheel_file, "LEVEL", 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In memory if possible: thousands of folders are made and removed."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        yield Path(place, "cases")


def outcome(case: guarding.Case, code: dict[str, bytes], folder: Path) -> str:
    try:
        return guarding.judge(case, code, folder)
    except guarding.Broken as error:
        return f"{case}: {error}"


def outcomes(code: dict[str, bytes], folder: Path, count: int) -> tuple[Counter[str], set[str]]:
    """How many passed and were refused, and the cases that broke the law."""
    counts = Counter(outcome(case, code, folder / str(at)) for at, case in enumerate(guarding.cases(count)))
    return counts, counts.keys() - {"passed", "refused"}


def test_hostile_wheels_keep_the_law(code: dict[str, bytes], folder: Path) -> None:
    counts, broken = outcomes(code, folder, COUNT)
    assert broken == set()
    assert counts["passed"] > COUNT // 4 and counts["refused"] > COUNT // 4


def lines(source: bytes, where: str) -> bytes:
    """As a reader of lines puts it: behind the first line."""
    first, newline, rest = source.partition(b"\n")
    return first + newline + answering.LINE.encode() + b"\n" + rest


BREAKS = {
    "the line by lines": (answering, "answering", lines),
    "other calls": (calls, "through", lambda source, core, level: source.text.replace("(p", "(q").encode()),
    "no requirement": (described, "requiring", lambda text, infos, why: text.replace("torch", "torchlike")),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_guard_is_found(
    what: str, code: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, wrong = BREAKS[what]
    monkeypatch.setattr(module, name, wrong)
    monkeypatch.setattr(answering, "why_not", lambda *arguments: None)
    assert outcomes(code, folder, 40)[1]
