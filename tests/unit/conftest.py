"""What several folders of unit tests ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from precast._abi.host import Nvrtc
from tests import fetched


@pytest.fixture(scope="session")
def label_nvrtc(pytestconfig: pytest.Config) -> Callable[[str], Nvrtc]:
    """A label's own NVRTC, kept beside pytest's cache where this environment has none."""

    def find(label: str) -> Nvrtc:
        assert pytestconfig.cache is not None
        return fetched.label_nvrtc(label, pytestconfig.cache.mkdir(f"nvrtc-{fetched.LABELS[label].nvrtc}"))

    return find
