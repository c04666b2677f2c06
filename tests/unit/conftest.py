"""What several folders of unit tests ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from precast.core.host import Nvrtc
from tests.kit import fetched


@pytest.fixture(scope="session")
def label_nvrtc(kept_folder: Callable[[str], Path]) -> Callable[[str], Nvrtc]:
    """A label's own NVRTC, kept with what tests fetch where this environment has none."""

    def find(label: str) -> Nvrtc:
        return fetched.label_nvrtc(label, kept_folder(f"nvrtc-{fetched.LABELS[label].nvrtc}"))

    return find
