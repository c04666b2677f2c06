"""What the doctor says of this installation."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from precast._load import report
from precast._version import __version__


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (None, "no manifest: a checkout, or an installation that was never built"),
        ("build_info.json: schema 9", ""),
    ],
)
def test_an_installation_without_a_manifest_says_why(error: str | None, note: str) -> None:
    said = report.describe_build(SimpleNamespace(manifest=(None, error)))  # type: ignore[arg-type]
    assert (said["manifest_error"], said["note"], said["fix"]) == (error, note, "")
    assert (said["version"], said["mode"], said["label"], said["commit"]) == (__version__, None, None, None)
    assert (said["host_files"], said["device_files"], said["compilers"]) == ([], [], {})
