"""What a run under compute-sanitizer is taken for, with a made-up tool; a real run needs a GPU and is not made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import sanitize

CLEAN = "========= ERROR SUMMARY: 0 errors"
PASSED = "26 passed in 3.00s"


@pytest.mark.parametrize(
    ("said", "count"),
    [
        (CLEAN, 0),
        ("========= ERROR SUMMARY: 12 errors", 12),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0),
        ("========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)", 3),
        (f"========= Error: Target application terminated before first instrumented API call\n{CLEAN}", None),
        ("26 passed", None),
    ],
)
def test_what_was_found(said: str, count: int | None) -> None:
    assert sanitize.count_of(said) == count


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool that says what stands in a file, and ends as another one says."""
    made = tmp_path / "compute-sanitizer"
    made.write_text(
        f'#!/bin/sh\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING: $*" >> {tmp_path}/calls\n'
        f"cat {tmp_path}/said\nexit $(cat {tmp_path}/status)\n"
    )
    made.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


@pytest.mark.parametrize(
    ("said", "status", "verdict"),
    [
        (f"{PASSED}\n{CLEAN}", 0, 0),
        (f"{PASSED}\n========= ERROR SUMMARY: 1 error", 0, 1),
        (f"1 failed, 25 passed in 3.00s\n{CLEAN}", 1, 1),
        (f"{PASSED}\n", 0, 1),
    ],
    ids=["clean", "an error", "a failed test", "no count"],
)
def test_a_run_is_good_if_tests_and_tool_say_so(
    tool: Path, said: str, status: int, verdict: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tool / "said").write_text(said)
    (tool / "status").write_text(str(status))
    assert sanitize.main(["--only", "initcheck-each", "--logs", str(tool / "logs")]) == verdict
    assert capsys.readouterr().out.startswith("FAIL" if verdict else "ok")
    assert (tool / "logs" / "initcheck-each.log").read_text() == said


def test_every_tool_is_run_and_graphs_are_left_out_where_none_can_be(tool: Path) -> None:
    (tool / "said").write_text(f"{PASSED}\n{CLEAN}")
    (tool / "status").write_text("0")
    assert sanitize.main(["--logs", str(tool), "--", "-p", "tests.ops.only_plain", "some"]) == 0
    calls = (tool / "calls").read_text().splitlines()
    assert [call.split()[2] for call in calls] == [
        "memcheck",
        "memcheck",
        "initcheck",
        "racecheck",
        "synccheck",
    ]
    assert all(call.endswith("-p tests.ops.only_plain some") for call in calls)
    assert [call.startswith("1") for call in calls] == ["not captured" in call for call in calls]
    assert sum(call.startswith("1") for call in calls) == 2


def test_what_a_run_without_an_end_said_is_kept(tool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tool / "said").write_text("need gpu: met\n")
    (tool / "status").write_text("0")
    made = tool / "compute-sanitizer"
    made.write_text(made.read_text().replace("exit ", "sleep 60; exit "))
    assert sanitize.main(["--only", "racecheck", "--logs", str(tool), "--timeout", "1"]) == 1
    assert "gave no count; pytest said nothing, exit status: no end after 1 s" in capsys.readouterr().out
    assert (tool / "racecheck.log").read_text() == "need gpu: met\n"


def test_no_tool_is_said_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sanitize, "find_tool", lambda name: None)
    assert sanitize.main([]) == 3
    assert "no compute-sanitizer" in capsys.readouterr().err
