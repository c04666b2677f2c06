"""One channel for messages: an application's handlers hear each once, and nobody's silence hides a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import spawn

TELL = """
from precast._load import messages
messages.install()  # again is a no-op
messages.tell("built %s", "softmax", quiet=False)
messages.log.warning("%s is not used", "a file")
"""


def said(code: str) -> list[str]:
    done = spawn.python("-c", code)
    assert done.stdout == ""
    return done.stderr.splitlines()


BUILT, WARNED = "built softmax", "a file is not used"
OWN = (
    "log = logging.getLogger('precast'); log.setLevel('INFO'); log.addHandler(logging.StreamHandler()); "
    "log.propagate = False"
)


@pytest.mark.parametrize(
    ("before", "heard"),
    [
        ("", [f"precast: {BUILT}", f"precast: {WARNED}"]),
        ("import logging; logging.basicConfig(format='app: %(message)s')", [f"app: {WARNED}"]),
        (
            "import logging; logging.basicConfig(level='INFO', format='app: %(message)s')",
            [f"app: {BUILT}", f"app: {WARNED}"],
        ),
        (f"import logging; {OWN}", [BUILT, WARNED]),
        ("import logging; logging.getLogger('precast').addHandler(logging.NullHandler())", []),
    ],
    ids=["nothing", "basicConfig", "basicConfig at INFO", "a handler for precast", "muted"],
)
@pytest.mark.parametrize("when", ["before the import", "after the import"])
def test_each_message_is_heard_once(before: str, heard: list[str], when: str) -> None:
    first = "from precast._load import messages\n" if when == "after the import" else ""
    assert said(first + before + TELL) == heard


def test_quiet_silences_builds_and_no_warning() -> None:
    assert said(TELL.replace("quiet=False", "quiet=True")) == [f"precast: {WARNED}"]


@pytest.mark.parametrize(
    "application", ["", "import logging; logging.basicConfig(filename={path!r}, encoding='utf-8')"]
)
def test_a_name_that_is_no_text_is_escaped_and_no_message_is_lost(application: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    code = application.format(path=str(file)) + TELL.replace('"a file"', '"/home/caf\\u00e9/\\udcff"')
    heard = said(code)
    if application:
        assert heard == [], "logging prints a traceback for what a handler cannot write"
        heard = file.read_text(encoding="utf-8").splitlines()
    assert heard[-1].endswith("/home/café/\\udcff is not used")


@pytest.mark.parametrize("stream", ["None", "open('/dev/full', 'w')", "type('X', (), {'write': lambda *_: 1 / 0})()"])
def test_a_standard_error_that_takes_nothing_ends_no_build(stream: str) -> None:
    code = f"import sys; sys.stderr = {stream}{TELL}sys.stderr = None"
    done = spawn.python("-c", code, status=None)
    assert (done.returncode == 0) == ("1 / 0" not in stream), "only what a stream may raise is expected"
