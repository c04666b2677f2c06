"""The place where faults are tried, shared by every test here: it holds a build that takes a while."""

from __future__ import annotations

import pytest

from tests.faults.lab import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("faults"))
