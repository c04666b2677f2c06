"""What a person sees of a build: nothing for a hit, one line for a quick one, and where a slow one is."""

from __future__ import annotations

import io
import logging
import time
from pathlib import Path

import pytest

from precast._builder.cache import Artifact
from precast._load import messages, progress
from precast._load.progress import Progress

NOT_THERE = Path("/nonexistent/build.log")


def artifact(*, cached: bool = False) -> Artifact:
    return Artifact(Path("x.so"), "0" * 64, 0.25, cached, "0" * 64)


def watched(*, quiet: bool = False) -> Progress:
    return Progress("the host library of softmax", "g++ 12.2.0", "nothing prebuilt", quiet=quiet)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.02)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is written in an application that does not configure logging; pytest does."""
    stream = io.StringIO()
    monkeypatch.setattr(messages, "application_listens", lambda: False)
    monkeypatch.setattr(messages, "write", lambda record: stream.write(f"precast: {record.getMessage()}\n"))
    return stream


def wait_until_told(said: Progress) -> None:
    deadline = time.monotonic() + 10
    while not said._told:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_the_cache_has_is_not_told_but_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "precast"), watched() as said:
        said.end(artifact(cached=True))
    assert caplog.messages == ["the host library of softmax comes from the build cache (nothing prebuilt)"]


def test_a_quick_build_is_one_line_with_its_reason(monkeypatch: pytest.MonkeyPatch, heard: io.StringIO) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 60.0)
    with watched() as said:
        said.start(NOT_THERE)
        said.end(artifact())
    assert heard.getvalue() == (
        "precast: built the host library of softmax with g++ 12.2.0 in 0.2 s (nothing prebuilt)\n"
    )


@pytest.mark.parametrize("compiler_writes", [True, False], ids=["log", "no log yet"])
def test_a_slow_build_tells_what_why_and_where_its_log_is(
    tmp_path: Path, heard: io.StringIO, compiler_writes: bool
) -> None:
    log = tmp_path / "build.log"
    if compiler_writes:
        log.write_text("[1/9] g++ a\n")
    with watched() as said:
        said.start(log)
        said.start(NOT_THERE)  # another of several builds
        wait_until_told(said)
        said.end(artifact())
    assert heard.getvalue().splitlines() == [
        "precast: building the host library of softmax with g++ 12.2.0 (nothing prebuilt)"
        + (f"; log: {log}" if compiler_writes else ""),
        "precast: built the host library of softmax in 0.2 s",
    ]


def test_quiet_is_no_message_but_for_an_application_that_listens(
    heard: io.StringIO, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> str:
        with caplog.at_level(logging.INFO, "precast"), watched(quiet=True) as said:
            said.start(NOT_THERE)
            wait_until_told(said)
            said.end(artifact())
        return heard.getvalue()

    assert build() == "" and caplog.messages == []
    monkeypatch.setattr(messages, "application_listens", lambda: True)
    assert build() == "" and [text.split()[0] for text in caplog.messages] == ["building", "built"]


def test_a_build_that_fails_leaves_no_thread_and_no_line(monkeypatch: pytest.MonkeyPatch, heard: io.StringIO) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 60.0)
    said = watched()
    with pytest.raises(RuntimeError, match="the compiler"), said:  # noqa: PT012 - what happens before it counts
        said.start(NOT_THERE)
        raise RuntimeError("the compiler")
    assert said._timer is not None and not said._timer.is_alive()
    assert heard.getvalue() == ""
