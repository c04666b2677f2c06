"""Times of calls on the CPU: with overwritten caches, and one call after another on the same tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from benchmarks.graphs import COLD, ROUNDS, STEADY, Call, Samples

COLD_REPEATS, STEADY_REPEATS = 5, 5
TURN_US = 2000  # of one steady sample, so that the clock does not matter
FLUSH_FLOATS = 48 << 20  # 192 MiB: more than the last cache of a processor


def sample_us(call: Call, calls: int) -> float:
    """The microseconds of one call, over some calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls


def in_turns(contestants: Mapping[str, Sequence[Call]]) -> Samples:
    """The samples of all contestants, measured in turns: other work on the machine then meets each of them."""
    import torch

    found: Samples = {measure: {name: [] for name in contestants} for measure in (COLD, STEADY)}
    flush = torch.empty(FLUSH_FLOATS)
    calls = {name: max(1, math.ceil(TURN_US / max(1.0, sample_us(some[0], 2)))) for name, some in contestants.items()}
    for _ in range(ROUNDS):
        for name, some in contestants.items():
            for _ in range(COLD_REPEATS):
                flush.fill_(1.0)
                found[COLD][name].append(sample_us(some[0], 1))
        for name, some in contestants.items():
            some[0]()
            found[STEADY][name] += [sample_us(some[0], calls[name]) for _ in range(STEADY_REPEATS)]
    return found
