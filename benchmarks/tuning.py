"""Times the configurations that row kernels can have, for ``python -m tools tune``.

The host library takes a configuration through ``precast_ask_rows``, so the kernels under test are those of the wheel.
Each configuration is captured in CUDA graphs and measured in turns with the others (graphs.py).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import child, graphs, shapes_cases
from benchmarks.graphs import COLD, STEADY
from benchmarks.shapes_cases import OURS, Case

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TRIES = Path(__file__).with_name("tuning.toml")
POLICY = "-"
FLUSH_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration to ask for. Zero threads and blocks, and None, leave the choice to the policy."""

    text: str
    threads: int = 0
    cluster: int = 0
    early: bool | None = None

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """``512x4``: threads and blocks; ``early``, ``late`` or ``-``."""
        if text in ("early", "late"):
            return cls(text, early=text == "early")
        if text == POLICY:
            return cls(text)
        found = re.fullmatch(r"(\d+)x(\d+)", text)
        if found is None:
            raise ValueError(f"{text!r} is no configuration; needed THREADSxBLOCKS, early, late or {POLICY}")
        return cls(text, int(found[1]), int(found[2]))


def tries() -> list[dict[str, Any]]:
    """The groups of tuning.toml."""
    groups: list[dict[str, Any]] = tomllib.loads(TRIES.read_text(encoding="utf-8"))["tries"]
    return groups


def host_libraries() -> list[ctypes.CDLL]:
    """The host libraries of precast that this process has loaded: one of a wheel, or one for each family built here."""
    rows = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {f"/{path}" for row in rows if (path := row.partition("/")[2]).endswith(".so")}
    libraries = [ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_NOLOAD) for path in sorted(paths)]
    found = [library for library in libraries if hasattr(library, "precast_ask_rows")]
    if not found:
        raise RuntimeError("this process has loaded no host library of precast; call one of its ops first")
    return found


def fits(candidate: Candidate, case: Case) -> bool:
    """Whether a kernel has so many threads and registers. A kernel holds at most eight vectors of 16 bytes per thread,
    four if it is not the forward of softmax.
    """
    if candidate.threads == 0:
        return True
    size = 4 if case.dtype == "float32" else 2
    vectors = -(-case.shape[-1] * size // 16)
    each = 8 if case.op == "scaled_softmax" and case.way == "forward" and candidate.cluster else 4
    if case.op == "fused_add_rms_norm" and not candidate.cluster:
        each = 1
    held = candidate.threads * max(candidate.cluster, 1)
    return vectors <= held * each and held < vectors + 32 * max(candidate.cluster, 1)


def times(case: Case, candidates: Sequence[Candidate], flush: Any, l2_bytes: int) -> dict[str, dict[str, float]]:
    """The medians of each configuration in microseconds, by measure. The results must be those of the policy's."""
    import torch

    given = shapes_cases.buffers(case, graphs.sets_for(shapes_cases.call_bytes(case), l2_bytes), "cuda")
    function = shapes_cases.functions(case, "cuda")[0][OURS]
    calls = [shapes_cases.call_of(function, given, index) for index in range(len(given.inputs))]
    expected = calls[0]()
    libraries = host_libraries()

    def ask(threads: int, cluster: int, early: int) -> None:
        for library in libraries:
            library.precast_ask_rows(threads, cluster, early)

    captured = {}
    try:
        for candidate in candidates:
            if not fits(candidate, case):
                continue
            early = -1 if candidate.early is None else int(candidate.early)
            ask(candidate.threads, candidate.cluster, early)
            try:
                for one, other in zip(calls[0](), expected, strict=True):
                    torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))
                captured[candidate.text] = graphs.captured(calls)
            except (AssertionError, RuntimeError) as error:
                print(f"{case.text} {candidate.text}: {str(error).splitlines()[0]}", file=sys.stderr)
    finally:
        ask(0, 0, -1)
    samples = graphs.in_turns(captured, flush)
    return {
        measure: {name: round(statistics.median(some), 2) for name, some in samples[measure].items()}
        for measure in (STEADY, COLD)
    }


def measured(only: str) -> Iterator[dict[str, Any]]:
    """Each case of tuning.toml whose text has ``only``, with its times."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for group in tries():
        candidates = [Candidate.parse(text) for text in group["candidates"]]
        for op, way, shape, dtype in group["cases"]:
            case = Case(op, way, tuple(shape), dtype, "tuning")
            if only in case.text:
                yield {"case": case.text, "why": group["why"], **times(case, candidates, flush, l2_bytes)}
                torch.cuda.empty_cache()


def line(result: Mapping[str, Any]) -> str:
    """One case: its configurations, fastest first, by their steady times."""
    steady = sorted(result[STEADY].items(), key=lambda item: item[1])
    cold = result[COLD]
    return f"{result['case']}: " + ", ".join(f"{name} {us:.2f} ({cold[name]:.2f})" for name, us in steady)


def write(path: Path, results: Sequence[Mapping[str, Any]], device: str) -> None:
    """A file for review: one line per case, so that a diff shows what changed."""
    rows = ",\n".join(f"  {json.dumps(result)}" for result in results)
    path.write_text(f'{{"device": {json.dumps(device)}, "cases": [\n{rows}\n]}}\n', encoding="utf-8")


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m tools tune", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file with the medians")
    parser.add_argument("--site", type=Path, help="measure what is installed in this folder (pip install --target)")
    parser.add_argument("--only", default="", help="the cases whose text has this")
    options = parser.parse_args()
    if options.site is not None:
        child.use_installation(options.site.resolve())

    import torch

    import precast.ops

    precast.ops.scaled_softmax(torch.zeros(1, 8, device="cuda"), 1.0)  # loads the host library
    results = []
    for result in measured(options.only):
        print(line(result), flush=True)
        results.append(result)
        write(options.out, results, torch.cuda.get_device_name())
    return 0


if __name__ == "__main__":
    sys.exit(main())
