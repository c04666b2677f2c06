"""Times of calls on the CPU: with overwritten caches, and one call after another on the same tensors."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.graphs import COLD, ROUNDS, STEADY, Call, Samples

if TYPE_CHECKING:
    import torch

COLD_REPEATS, STEADY_REPEATS = 5, 5
TURN_US = 2000  # of one steady sample, so that the clock does not matter
WARM_US = 10_000  # of calls before a turn: until the threads of the pool are awake, each on a core of its own
FLUSH_FLOATS = 48 << 20  # 192 MiB: more than the last cache of most processors


def sample_us(call: Call, calls: int) -> float:
    """The microseconds of one call, over some calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls


@functools.cache
def _flush() -> torch.Tensor:
    import torch

    return torch.empty(FLUSH_FLOATS)


def cold_us(call: Call) -> float:
    """The microseconds of one call after the caches were overwritten."""
    _flush().fill_(1.0)
    return sample_us(call, 1)


def turn_us(call: Call, repeats: int, *, calls: int = 1, cold: bool = False) -> list[float]:
    """Samples of one turn, after calls that do not count."""
    end = time.perf_counter() + WARM_US / 1e6
    while time.perf_counter() < end:
        call()
    return [cold_us(call) if cold else sample_us(call, calls) for _ in range(repeats)]


def in_turns(contestants: Mapping[str, Sequence[Any]]) -> Samples:
    """The samples of all contestants, measured in turns: other work on the machine then meets each of them.

    A contestant has one call, or one of another process (``other_site.OtherCall``).
    """
    found: Samples = {measure: {name: [] for name in contestants} for measure in (COLD, STEADY)}
    turns = {
        name: getattr(some[0], "turn_us", functools.partial(turn_us, some[0])) for name, some in contestants.items()
    }
    once = {name: min(turn(2)) for name, turn in turns.items()}
    calls = {name: max(1, math.ceil(TURN_US / max(1.0, us))) for name, us in once.items()}
    for _ in range(ROUNDS):
        for name, turn in turns.items():
            found[COLD][name] += turn(COLD_REPEATS, cold=True)
        for name, turn in turns.items():
            found[STEADY][name] += turn(STEADY_REPEATS, calls=calls[name])
    return found
