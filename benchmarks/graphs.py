"""Times of calls in CUDA graphs, without the host: from an overwritten cache, and one call after another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
Samples = dict[str, dict[str, list[float]]]  # by measure, then by contestant; microseconds of a call

COLD, STEADY = "cold", "steady"
ROUNDS, COLD_REPEATS = 3, 7
TURN_US = 8000  # how long a contestant's turn takes if its graph is short, so that the median has some samples
MOST_REPLAYS, MOST_CALLS = 12, 64
L2_TIMES = 3  # buffers of a graph, in sizes of the L2 cache


@dataclass(frozen=True, slots=True)
class Graphs:
    """One contestant: a graph of one call, and one of as many calls as there are sets of buffers."""

    cold: torch.cuda.CUDAGraph
    steady: torch.cuda.CUDAGraph
    calls: int


def sets_for(call_bytes: int, l2_bytes: int) -> int:
    """How many sets of buffers a graph goes through: more than the L2 cache holds, but at most MOST_CALLS."""
    return max(2, min(MOST_CALLS, math.ceil(L2_TIMES * l2_bytes / max(call_bytes, 1))))


def captured(calls: Sequence[Call]) -> Graphs:
    """Capture a contestant's calls, once they have been warmed up on a stream of their own, as captures ask for."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            calls[0]()
    torch.cuda.current_stream().wait_stream(side)

    def graph_of(some: Sequence[Call]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results: list[Any] = [call() for call in some]  # kept until the end, so that each call writes elsewhere
        del results
        return graph

    return Graphs(graph_of(calls[:1]), graph_of(calls), len(calls))


def replay_us(graph: torch.cuda.CUDAGraph, repeats: int, flush: torch.Tensor | None) -> list[float]:
    """The times of a graph's replays. The first replay, which is slower, is left out."""
    import torch

    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    graph.replay()
    for begin, end in pairs:
        if flush is not None:
            flush.zero_()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [1e3 * float(begin.elapsed_time(end)) for begin, end in pairs]


def in_turns(contestants: Mapping[str, Graphs], flush: torch.Tensor) -> Samples:
    """The samples of all contestants, measured in turns: a GPU is sometimes slower for some milliseconds."""
    found: Samples = {measure: {name: [] for name in contestants} for measure in (COLD, STEADY)}
    for _ in range(ROUNDS):
        for name, graphs in contestants.items():
            found[COLD][name] += replay_us(graphs.cold, COLD_REPEATS, flush)
    replays = {}
    for name, graphs in contestants.items():
        once = replay_us(graphs.steady, 1, None)[0]
        replays[name] = max(3, min(MOST_REPLAYS, math.ceil(TURN_US / max(once, 1.0))))
    for _ in range(ROUNDS):
        for name, graphs in contestants.items():
            found[STEADY][name] += [us / graphs.calls for us in replay_us(graphs.steady, replays[name], None)]
    return found


def spread(samples: Sequence[float]) -> float:
    """Half of what lies between the quartiles, as a share of the median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle
