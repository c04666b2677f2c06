"""``python -m benchmarks.gpu --json DIR [NAME ...]``: every GPU benchmark in one table, with all that figures rest on.

Written to ``DIR/gpu.json``: commit, wheel, GPU, versions, date, the copy rate, and for each op and shape the raw
samples of everybody who computes it; where a peer is missing, that is said. Then the plots, which
``python -m benchmarks.plots DIR/gpu.json`` draws again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import child, gpu_table, liger, plots
from benchmarks.gpu_cases import FAMILIES, OURS, SECOND, STATIC, Case, Family, Shape
from benchmarks.norm import COPY, COPY_ELEMENTS, FLUSH_BYTES, compiled_for_one_shape, copy_of, in_turns_ms, samples_ms
from benchmarks.report import host_facts

if TYPE_CHECKING:
    import torch

SCHEMA = 1
Json = dict[str, Any]


def facts(wheel: Path | None) -> Json:
    """What was measured, with what, where."""
    import torch

    from precast._load import prebuilt
    from precast.core import gpus

    info = prebuilt.load_build_info()
    build = None if info is None else {"label": info.label.text, "commit": info.commit, "version": info.version}
    return {
        **host_facts(),
        "driver": str(gpus.driver_version()),
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "liger-kernel": liger.installed(),
        "build": build,
        "wheel": wheel and wheel.name,
        "wheel_sha256": wheel and hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }


def _version(name: str) -> str | None:
    return importlib.metadata.version(name) if importlib.util.find_spec(name) is not None else None


def copy_samples(flush: torch.Tensor) -> tuple[int, list[float]]:
    """One large ``copy_``: its bytes, read and written, and its times."""
    import torch

    source = torch.randn(COPY_ELEMENTS, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * source.nbytes, samples_ms(lambda: target.copy_(source), flush)


def launch_ms(flush: torch.Tensor) -> list[float]:
    """The least that any launch takes: a ``copy_`` of a few bytes."""
    import torch

    source, target = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    return samples_ms(lambda: target.copy_(source), flush)


def measure(family: Family, shape: Shape, flush: torch.Tensor, *, compiled: bool) -> Iterator[Json]:
    """All cases at one shape: first with torch.compile for it alone, then once it has seen another; or without it."""
    import torch
    from torch._functorch import config

    if not compiled:
        for case in family.make(shape, lambda function: function):
            case.runs.pop(STATIC, None)
            yield measured(case, flush)
        return
    with config.patch(donated_buffer=False):
        torch.compiler.reset()
        found = [measured(case, flush) for case in family.make(shape, compiled_for_one_shape)]
        torch.compiler.reset()
        for case in family.make(family.first_shape, torch.compile):
            if STATIC in case.runs:
                case.runs[STATIC]()
        for result, case in zip(found, family.make(shape, torch.compile), strict=True):
            if STATIC in case.runs:
                result["samples_ms"].update(samples({SECOND: case.runs[STATIC]}, flush))
            yield result


def measured(case: Case, flush: torch.Tensor) -> Json:
    """The samples of one case, once ours has been compared with torch's, beside a copy of as many bytes."""
    check(case)
    runs = {**case.runs, COPY: copy_of(case.moved_bytes)}
    return {
        "op": case.op,
        "shape": list(case.shape),
        "dtype": case.dtype,
        "moved_bytes": case.moved_bytes,
        "absent": case.absent,
        "samples_ms": samples(runs, flush),
        "cached_samples_ms": samples(runs, None),
    }


def samples(runs: Mapping[str, Callable[[], object]], flush: torch.Tensor | None) -> dict[str, list[float]]:
    """Times in milliseconds, to a tenth of a microsecond: CUDA's events resolve half of one."""
    return {name: [round(ms, 4) for ms in found] for name, found in in_turns_ms(runs, flush).items()}


def check(case: Case) -> None:
    """Raises unless ours, and what torch.compile makes, agree with the reference within what bfloat16 allows."""
    import torch

    theirs = case.runs[case.reference]()
    for name in (OURS, STATIC):
        if name not in case.runs:
            continue
        result = case.runs[name]()
        for one, other in zip(result, theirs, strict=True) if isinstance(result, tuple) else ((result, theirs),):
            atol = 2e-2 * float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=2e-2, atol=atol, msg=lambda text: f"{case.op}, {name}: {text}")  # noqa: B023 - called at once


def run(names: list[str], wheel: Path | None, *, compiled: bool) -> Json:
    """Measure the named families at their shapes."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise SystemExit("benchmarks.gpu: torch sees no NVIDIA GPU; needed one, to measure kernels on it")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    copied, copy_ms = copy_samples(flush)
    results: Json = {
        "schema": SCHEMA,
        "facts": facts(wheel),
        "copy": {"bytes": copied, "samples_ms": copy_ms},
        "launch": {"samples_ms": launch_ms(flush)},
        "cases": [],
    }
    for name in names:
        family = FAMILIES[name]
        for shape in family.shapes:
            results["cases"] += measure(family, shape, flush, compiled=compiled)
            torch.cuda.empty_cache()
    return results


def main() -> int:
    """Measure, print, keep, draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FAMILIES)}; all of them by default")
    parser.add_argument("--json", type=Path, required=True, metavar="DIR", help="where gpu.json and the plots go")
    parser.add_argument("--wheel", type=Path, help="the wheel that was installed, for its name and SHA-256")
    parser.add_argument("--site", type=Path, help="measure what is installed in this folder (pip install --target)")
    parser.add_argument(
        "--without-compile", action="store_true", help="leave torch.compile out, which takes most of the time"
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in FAMILIES]
    if unknown:
        parser.error(f"no GPU benchmark is called {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as folder:
        child.use_installation((options.site or child.build_installation(Path(folder))).resolve())
        results = run(options.names or list(FAMILIES), options.wheel, compiled=not options.without_compile)
    options.json.mkdir(parents=True, exist_ok=True)
    path = options.json / "gpu.json"
    path.write_text(json.dumps(results) + "\n", encoding="utf-8")
    print("\n".join(gpu_table.table([results])))
    print(f"\nThe samples are in {path}.")
    for drawn in plots.draw(results, options.json):
        print(f"drawn: {drawn}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
