"""One thread for models so small that more would wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def forget_sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Forget the fingerprints, for a test that changes a source; it is called once more when the source is back."""
    from precast._adopt import source

    yield source._fingerprint.cache_clear
    monkeypatch.undo()
    source._fingerprint.cache_clear()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
