"""The CPU kernels level by level: the libraries that the product itself builds, with the level chosen by hand."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from precast._builder import flags
from precast.core import probe


def levels_here() -> tuple[str, ...]:
    """What this processor can run, by its own account; the libraries' own choice is tested against this."""
    if platform.machine() != "x86_64":
        features = probe.cpu_features()
        levels = flags.cpu_levels(platform.machine())
        return tuple(level.name for level in levels if features.issuperset(level.features))
    line = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    words = set(line.split())
    found = ["baseline"]
    if {"avx2", "fma", "f16c"} <= words:
        found.append("avx2")
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= words:
            found.append("avx512")
    return tuple(found)


LEVELS = levels_here()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return request.param


class Levels:
    """Chooses the level that one loaded library uses."""

    def __init__(self, path: Path) -> None:
        self._set = ctypes.CDLL(str(path)).precast_set_cpu_level

    def choose(self, name: str) -> None:
        error = ctypes.create_string_buffer(400)
        if self._set(name.encode(), error, ctypes.c_size_t(len(error))) != 0:
            raise ValueError(error.value.decode())

    def each(self, compute: Callable[[], Any]) -> dict[str, Any]:
        """What ``compute`` returns at every level of this machine."""
        results = {}
        for name in LEVELS:
            self.choose(name)
            results[name] = compute()
        return results


def _levels_of(op: str) -> Iterator[Levels]:
    import precast

    path = precast.load(op, "cpu").host.path
    assert path is not None
    levels = Levels(path)
    yield levels
    levels.choose("")


@pytest.fixture
def adam_levels() -> Iterator[Levels]:
    yield from _levels_of("adam_")


@pytest.fixture
def optim_levels() -> Iterator[Levels]:
    yield from _levels_of("optimize_")


@pytest.fixture
def norm_levels() -> Iterator[Levels]:
    yield from _levels_of("rms_norm")


@pytest.fixture(params=["gated_activation", "gated_activation_backward"])
def activation_levels(request: pytest.FixtureRequest) -> Iterator[Levels]:
    yield from _levels_of(request.param)


@pytest.fixture
def softmax_levels() -> Iterator[Levels]:
    yield from _levels_of("softmax")


@pytest.fixture
def loss_levels() -> Iterator[Levels]:
    yield from _levels_of("cross_entropy")


@pytest.fixture(params=["causal_conv1d", "causal_conv1d_backward", "rms_norm_gated", "rms_norm_gated_backward"])
def sequence_levels(request: pytest.FixtureRequest) -> Iterator[Levels]:
    yield from _levels_of(request.param)


@pytest.fixture
def state_levels() -> Iterator[Levels]:
    yield from _levels_of("selective_state_update_")


@pytest.fixture
def decode_levels() -> Iterator[Levels]:
    yield from _levels_of("paged_decode_attention")


@pytest.fixture
def delta_levels() -> Iterator[Levels]:
    yield from _levels_of("gated_delta_rule")


@pytest.fixture
def gating_levels() -> Iterator[Levels]:
    yield from _levels_of("topk_gating")


@pytest.fixture
def layer_norm_levels() -> Iterator[Levels]:
    yield from _levels_of("layer_norm")


@pytest.fixture
def softmax_backward_levels() -> Iterator[Levels]:
    yield from _levels_of("scaled_softmax_backward")


@pytest.fixture
def layer_norm_backward_levels() -> Iterator[Levels]:
    yield from _levels_of("layer_norm_backward")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of torch's threads for the length of a test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
