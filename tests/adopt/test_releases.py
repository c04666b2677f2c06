"""What is taken in the models of the oldest known transformers and of the one that is installed.

``python -m tests.adopt.releases`` does the same for all of them, in half a minute each.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.adopt import releases
from tests.kit import fetched

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.models, pytest.mark.long]


def test_the_installed_release() -> None:
    assert releases.differences(version("transformers"), None) == []


@pytest.mark.wheel
def test_the_oldest_release(kept_folder: Callable[[str], Path]) -> None:
    oldest = releases.known()[0]
    site = fetched.package(f"transformers=={oldest}", kept_folder(f"transformers-{oldest}"))
    assert releases.differences(oldest, site) == []


@pytest.mark.wheel
def test_a_certificate_says_what_another_release_changed(kept_folder: Callable[[str], Path], tmp_path: Path) -> None:
    oldest, installed = releases.known()[0], version("transformers")
    places = {
        oldest: fetched.package(f"transformers=={oldest}", kept_folder(f"transformers-{oldest}")),
        installed: None,
    }
    for then, now in ((oldest, installed), (installed, oldest)):
        kept = tmp_path / f"{then}.json"
        releases.said(places[then], "--certificate", kept)
        assert releases.said(places[then], "--certificate", kept).split() == []
        lines = releases.said(places[now], "--certificate", kept).splitlines()
        assert lines[0] == f"transformers {then} then, {now} here"
        assert any(line.startswith("transformers.models.gemma3.") and " has another source: " in line for line in lines)
        assert not any("RMSNorm" in line for line in lines), "it is the same"
