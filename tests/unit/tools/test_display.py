"""What a release shows: bars on a terminal, lines elsewhere, one table at the end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tools.shared.display import console as standard_console
from tools.shared.display import display, summary
from tools.shared.schedule import Outcome, Step
from tools.shared.wheelhouse import Record

STEPS = [Step(name, kind, (), Path("none")) for name, kind in (("device-a", "device code"), ("wheel-a", "wheels"))]
OUTCOMES = [
    Outcome(STEPS[0], 0, 1.5, True, "device-a: 2 images, there already", Path("log")),
    Outcome(STEPS[1], 0, 8.0, False, "a.whl: 10 bytes, built", Path("log")),
]


def shown(*, terminal: bool, outcomes: list[Outcome] = OUTCOMES) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with display(STEPS, console) as display_:
        for outcome in outcomes:
            display_.start(outcome.step)
            display_.end(outcome)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_pipe_gets_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(terminal=False) == ""
    assert capsys.readouterr().out.splitlines() == [
        "[  1/2]    1.5 s  reused  device-a: 2 images, there already",
        "[  2/2]    8.0 s  made    a.whl: 10 bytes, built",
    ]


def test_a_terminal_gets_bars_and_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(terminal=True)
    assert "device code" in text and "wheels" in text and "a.whl: 10 bytes, built" in text
    assert "there already" not in text and capsys.readouterr().out == ""


def test_a_failure_is_shown_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    failed = [Outcome(STEPS[1], 1, 1.0, False, "the reason", Path("log"))]
    assert "the reason" in shown(terminal=True, outcomes=failed)
    shown(terminal=False, outcomes=failed)
    assert "FAILED  the reason" in capsys.readouterr().out


def test_the_table_counts_files_bytes_and_what_was_reused() -> None:
    console = Console(file=io.StringIO(), width=100)
    summary(OUTCOMES, {"wheel-a": Record("wheel-a", "a.whl", "0" * 64, 1234567, "key", 8.0)}, 9.5, console)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["a.whl", "1,234,567", "8.0", "built"] in rows
    assert ["1", "x", "device", "code", "1.5", "1", "reused"] in rows
    assert rows[-1] == ["1", "files", "1,234,567", "9.5", "1", "built,", "0", "reused"]


def test_a_table_in_a_file_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"precast-1.0+cu130-py3-none-{'x' * 120}.whl"
    summary(OUTCOMES, {"wheel-a": Record("wheel-a", name, "0" * 64, 1234567, "key", 8.0)}, 9.5, standard_console())
    said = capsys.readouterr().out
    assert name in said and "1,234,567" in said and "\N{HORIZONTAL ELLIPSIS}" not in said
