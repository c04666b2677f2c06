"""What a run of thousands of tests prints while it goes on: one line a minute, in place of a dot for each test."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

LINE_EVERY_S = 60.0
MANY = 1000  # fewer tests than that print their dots


class Minutes:
    """Replaces pytest's dots by a line a minute; failures are named at once."""

    def __init__(self, config: pytest.Config, now: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._now = now
        self._started = self._told = now()
        self._seen: Counter[str] = Counter()
        self._processes = 0
        self.total = 0  # not known before the tests are collected

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Say once what will be run."""
        self._processes += 1
        if self._processes == 1:
            self.total = len(ids)
            if self.total >= MANY:
                self._say(f"{self.total} tests, a line a minute; tests/README.md says how long they take")

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """No letters: what fails has a line of its own."""
        if self.total < MANY or hasattr(report, "wasxfail"):
            return None
        if report.when == "call" and (report.passed or report.failed):
            return ("passed", "", "PASSED") if report.passed else ("failed", "", "FAILED")
        if report.skipped:
            return "skipped", "", "SKIPPED"
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the test, name it if it failed, and say how far the run is if a minute has passed."""
        if self.total < MANY:
            return
        if report.failed:
            self._say(f"failed: {report.nodeid}")
        if report.when == "teardown":
            self._seen["done"] += 1
        self._seen["failed"] += report.failed
        if self._now() - self._told >= LINE_EVERY_S:
            self._told = self._now()
            minutes = round((self._told - self._started) / 60)
            self._say(
                f"{minutes} min: {self._seen['done']} of {self.total} tests, {self._seen['failed']} failed; now in "
                f"{report.nodeid.partition('::')[0]}"
            )

    def _say(self, text: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(text)
