"""What a person sees of a build: nothing for a hit, one line for a quick one, and where a slow one is."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._builder.cache import Artifact
from precast._load import messages, progress
from precast._load.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def artifact(*, cached: bool = False) -> Artifact:
    return Artifact(Path("x.so"), "0" * 64, 0.25, cached, "0" * 64)


def watched(stream: io.StringIO) -> Progress:
    return Progress("the host library of softmax", "g++ 12.2.0", "nothing prebuilt", stream)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.02)
    monkeypatch.setattr(progress, "_REFRESH_S", 0.01)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is written in an application that does not configure logging; pytest does."""
    stream = io.StringIO()
    monkeypatch.setattr(messages, "application_listens", lambda: False)
    monkeypatch.setattr(messages, "write", lambda record: stream.write(f"precast: {record.getMessage()}\n"))
    return stream


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_the_cache_has_is_not_told_but_logged(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    with caplog.at_level(logging.INFO, "precast"), watched(stream) as said:
        said.end(artifact(cached=True))
    assert stream.getvalue() == ""
    assert caplog.messages == ["the host library of softmax comes from the build cache (nothing prebuilt)"]


def test_a_quick_build_is_one_line_with_its_reason(monkeypatch: pytest.MonkeyPatch, heard: io.StringIO) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 60.0)
    with watched(io.StringIO()) as said:
        said.start()
        said.end(artifact())
    assert heard.getvalue() == (
        "precast: built the host library of softmax with g++ 12.2.0 in 0.2 s (nothing prebuilt)\n"
    )


def test_a_slow_build_tells_what_why_how_far_and_where_its_log_is(tmp_path: Path, heard: io.StringIO) -> None:
    log = tmp_path / "build.log"
    log.write_text("[1/9] g++ a\n[2/9] g++ b\nsomething [7/9]\n")
    with watched(io.StringIO()) as said:
        said.log(log)
        said.start()
        until(heard.getvalue)
        said.end(artifact())
    first, second = heard.getvalue().splitlines()
    assert re.fullmatch(
        r"precast: building the host library of softmax with g\+\+ 12\.2\.0 \(nothing prebuilt\): "
        r"2 of 9 steps done after \d+ s; log: " + re.escape(str(log)),
        first,
    )
    assert second == "precast: built the host library of softmax in 0.2 s"


def test_quiet_is_no_line_and_no_message_but_for_an_application_that_listens(
    heard: io.StringIO, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> str:
        stream = Terminal()
        said = Progress("the host library of softmax", "g++ 12.2.0", "nothing prebuilt", stream, quiet=True)
        with caplog.at_level(logging.INFO, "precast"), said:
            said.start()
            time.sleep(0.1)
            said.end(artifact())
        return stream.getvalue() + heard.getvalue()

    assert build() == "" and caplog.messages == []
    monkeypatch.setattr(messages, "application_listens", lambda: True)
    assert build() == "" and [text.split()[0] for text in caplog.messages] == ["building", "built"]


@pytest.mark.parametrize("rich", [True, False])
def test_on_a_terminal_the_line_is_kept_up_to_date_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rich: bool, heard: io.StringIO
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    count = "{}/9" if rich else "{} of 9 steps"
    if not rich:
        monkeypatch.setattr(progress, "open_display", progress.PlainDisplay)
    log = tmp_path / "build.log"
    log.write_text("[1/9] g++ a\n")
    stream = Terminal()
    with watched(stream) as said:
        said.log(log)
        said.start()
        until(lambda: count.format(1) in stream.getvalue())
        assert "softmax" in stream.getvalue() and "nothing prebuilt" in stream.getvalue()
        with log.open("a") as file:
            file.write("[8/9] g++ b\n")
        until(lambda: count.format(8) in stream.getvalue())
        said.end(artifact())
    assert heard.getvalue() == (
        "precast: built the host library of softmax with g++ 12.2.0 in 0.2 s (nothing prebuilt)\n"
    )


def test_a_terminal_is_served_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    assert isinstance(progress.open_display(Terminal()), progress.PlainDisplay)


def test_without_rich_the_whole_text_is_said_once_and_only_the_count_changes() -> None:
    stream = Terminal()
    display = progress.PlainDisplay(stream)
    for done in (3, 4):
        display.show("x" * 200, done, 9)
    display.close()
    assert stream.getvalue().count("x" * 200 + "\n") == 1
    short = stream.getvalue().rpartition("\n")[2].split("\r")
    assert [text.strip() for text in short if text.strip()] == [f"precast: {n} of 9 steps, 0 s" for n in (3, 4)]
    assert stream.getvalue().endswith("\r" + " " * 40 + "\r")


def test_with_rich_a_narrow_terminal_shows_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = progress.RichDisplay(stream)
    display.show("building this with that (and a long reason); log: /cache/v1/.staging/x/build.log", 3, 9)
    display.close()
    assert "reason" in stream.getvalue() and "build.log" in stream.getvalue() and "3/9" in stream.getvalue()


def test_a_build_that_fails_leaves_no_thread_and_no_line(heard: io.StringIO) -> None:
    stream = Terminal()
    said = watched(stream)
    with pytest.raises(RuntimeError, match="the compiler"), said:  # noqa: PT012 - what happens before it counts
        said.start()
        until(stream.getvalue)
        raise RuntimeError("the compiler")
    assert said._ticker is not None and not said._ticker.is_alive()
    assert heard.getvalue() == ""


def test_steps_only_go_forward() -> None:
    said = watched(io.StringIO())
    said.step(3, 8)
    said.step(2, 8)
    assert said._steps == (3, 8)
