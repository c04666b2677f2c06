"""A line a minute in place of ten thousand dots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import progress


class Screen:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def ensure_newline(self) -> None:
        pass

    def write_line(self, text: str) -> None:
        self.lines.append(text)


def report(test: str, when: str = "teardown", outcome: str = "passed") -> Any:
    kinds = {name: outcome == name for name in ("passed", "failed", "skipped")}
    return SimpleNamespace(nodeid=test, when=when, **kinds)


@pytest.fixture
def screen() -> Screen:
    return Screen()


def run_of(screen: Screen, count: int, clock: list[float]) -> progress.Minutes:
    plugins = SimpleNamespace(get_plugin=lambda name: screen)
    minutes = progress.Minutes(SimpleNamespace(pluginmanager=plugins), lambda: clock[0])  # type: ignore[arg-type]
    minutes.pytest_xdist_node_collection_finished(["a::test"] * count)
    minutes.pytest_xdist_node_collection_finished(["a::test"] * count)
    return minutes


def test_many_tests_give_a_line_a_minute_and_one_for_each_failure(screen: Screen) -> None:
    clock = [0.0]
    minutes = run_of(screen, 5000, clock)
    for second in range(1, 131):
        clock[0] = second
        minutes.pytest_runtest_logreport(report("a::test", "call", "failed" if second == 90 else "passed"))
        minutes.pytest_runtest_logreport(report("a::test"))
    assert minutes.pytest_report_teststatus(report("a::test", "call")) == ("passed", "", "PASSED")
    assert minutes.pytest_report_teststatus(report("a::test", "setup", "skipped")) == ("skipped", "", "SKIPPED")
    assert minutes.pytest_report_teststatus(report("a::test", "call", "failed")) == ("failed", "", "FAILED")
    assert screen.lines == [
        "5000 tests, a line a minute; tests/README.md says how long they take",
        "1 min: 59 of 5000 tests, 0 failed; now in a",
        "failed: a::test",
        "2 min: 119 of 5000 tests, 1 failed; now in a",
    ]


def test_few_tests_keep_their_dots(screen: Screen) -> None:
    clock = [0.0]
    minutes = run_of(screen, 20, clock)
    clock[0] = 1000.0
    minutes.pytest_runtest_logreport(report("a::test"))
    assert minutes.pytest_report_teststatus(report("a::test", "call")) is None
    assert screen.lines == []
