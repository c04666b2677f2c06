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
