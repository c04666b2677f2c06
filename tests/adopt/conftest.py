"""One thread for models so small that more would wait for each other; and the devices that they are made on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a test makes what it names no device for; for the CPU, without the mode that this takes."""
    import torch

    with contextlib.nullcontext() if request.param == "cpu" else torch.device(request.param):
        yield request.param
