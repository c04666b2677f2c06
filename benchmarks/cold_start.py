"""``python -m benchmarks.cold_start FILE``: from ``pip install`` to the first result, as a file of times for a chart.

Every contestant computes ``rms_norm`` of float32 rows on the CPU with our kernel. Its packages lie in a folder, so no
network is measured; torch is installed. Each round installs them into an empty folder, then starts a fresh process that
imports torch, builds or loads the kernel, and calls it. Nothing is cached between rounds.

* ``precast``: a wheel with prebuilt kernels. ``precast, from source``: sources, built at the first call.
* ``cpp_extension.load``: a pybind11 binding, with ninja.
* ``tvm_ffi``: ``tvm_ffi.cpp.build``, then ``load_module``, as flashinfer builds and loads.
* ``kernels``: its package, and a build that lies on the disk as its download would leave it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import loaders
from benchmarks.child import CHECKOUT, environment, run
from benchmarks.cold_jit import LEVELS
from benchmarks.report import Report, Row, host_facts, interleaved

ROUNDS = 3
PEERS = Path(__file__).parent / "peers"
OURS, UNBUILT, LOAD, TVM, HUB = "precast", "precast, from source", "cpp_extension.load", "tvm_ffi", "kernels"

_CHECK = """
x = torch.full((2, 8), 3.0)
y = forward(x)
assert torch.allclose(y, torch.ones(2, 8)), y
print("done")
"""
_OURS = "import torch, precast\nforward = lambda x: precast.ops.rms_norm(x, torch.ones(8))" + _CHECK
_LOAD = (
    """
import sys, torch
from torch.utils.cpp_extension import load
folder, csrc, flags, *files = sys.argv[1:]
module = load("peer", files, extra_cflags=flags.split(), extra_include_paths=[csrc], build_directory=folder)
forward = lambda x: module.forward(x, torch.ones(8), 1e-6)
"""
    + _CHECK
)
_TVM = (
    """
import sys, torch, tvm_ffi
from tvm_ffi import cpp
folder, csrc, flags, *files = sys.argv[1:]
options = {"extra_cflags": flags.split(), "extra_include_paths": [csrc], "build_directory": folder}
module = tvm_ffi.load_module(cpp.build("peer", cpp_files=files, **options))
def forward(x):
    y = torch.empty_like(x)
    module.forward(x, torch.ones(8), y, 1e-6)
    return y
"""
    + _CHECK
)
_HUB = (
    """
import sys, torch
from pathlib import Path
from kernels import get_local_kernel
module = get_local_kernel(Path(sys.argv[1]))
forward = lambda x: module.forward(x, torch.ones(8), 1e-6)
"""
    + _CHECK
)


@dataclass(frozen=True, slots=True)
class Contestant:
    """What is installed, and the program of the first result with its arguments; ``{}`` is an empty folder."""

    packages: tuple[str, ...]
    program: str
    arguments: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def first_result(contestant: Contestant, house: Path, work: Path) -> tuple[float, float]:
    """Seconds of ``pip install`` and of the process with the first result, in an empty folder below ``work``."""
    with tempfile.TemporaryDirectory(dir=work) as name:
        target, build = Path(name) / "site", Path(name) / "build"
        build.mkdir()
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--find-links", str(house)]
        start = time.perf_counter()
        subprocess.run([*pip, "--target", str(target), *contestant.packages], env=environment(), check=True)
        installed = time.perf_counter()
        path = f"{target / 'bin'}:{os.environ['PATH']}"  # where ninja is
        fresh = {"PYTHONPATH": str(target), "PATH": path, "PRECAST_CACHE_DIR": str(Path(name) / "cache")}
        arguments = (argument.replace("{}", str(build)) for argument in contestant.arguments)
        run(contestant.program, *arguments, env=environment(**fresh, **dict(contestant.variables)))
        return installed - start, time.perf_counter() - installed


def contestants(house: Path, work: Path) -> tuple[dict[str, Contestant], tuple[str, ...]]:
    """Fill ``house`` with packages; the contestants by name, and a note for each whose package cannot be had."""
    import torch

    level, flags = LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("baseline", ""))
    flags = f"-O3 -DNDEBUG -DPRECAST_CPU_LEVEL={level} {flags}"
    kernel = work / "rms_norm_cpu.cpp"
    kernel.write_text('#include "norm/rms_norm_cpu.cpp"\n', encoding="utf-8")
    build = ("{}", str(CHECKOUT / "csrc"), flags)
    found = {}
    for name, variables in ((OURS, {"CUDA_EXT": "1"}), (UNBUILT, {})):
        wheels = work / name.replace(" ", "-")
        words = ["wheel", "-q", "--no-build-isolation", "--no-deps", "--no-cache-dir", "-w", str(wheels), str(CHECKOUT)]
        subprocess.run([sys.executable, "-m", "pip", *words], env=environment(**variables), check=True)
        (wheel,) = wheels.iterdir()
        found[name] = Contestant((str(wheel), "ninja"), _OURS, (), (("PRECAST_QUIET", "1"),))
    _download(house, "ninja")
    found[LOAD] = Contestant(("ninja",), _LOAD, (*build, str(PEERS / "norm_binding.cpp"), str(kernel)))
    notes = []
    for name, package in ((TVM, "apache-tvm-ffi"), (HUB, "kernels")):
        packages = _download(house, package)
        if not packages:
            notes.append(f"{name}: not measured, as pip cannot download {package}")
        elif name == TVM:
            files = (str(PEERS / "tvm_binding.cpp"), str(kernel))
            found[name] = Contestant((*packages, "ninja"), _TVM, (*build, *files))
        else:
            (work / "peer").mkdir()
            run(_LOAD, str(work / "peer"), *build[1:], *found[LOAD].arguments[3:])
            loaded = loaders.hub_folder(work / "hub", work / "peer" / "peer.so")
            found[name] = Contestant(packages, _HUB, (str(loaded),), (("HF_HUB_OFFLINE", "1"),))
    return found, tuple(notes)


def _download(house: Path, package: str) -> tuple[str, ...]:
    """Put a package and what it needs, but no torch, into the folder; returns their files."""
    with tempfile.TemporaryDirectory() as name:
        words = ["download", "-q", "--only-binary", ":all:", "-d", name, package]
        done = subprocess.run([sys.executable, "-m", "pip", *words], env=environment(), check=False)
        files = sorted(Path(name).iterdir()) if done.returncode == 0 else []
        moved = [path.rename(house / path.name) for path in files]
    return tuple(str(path) for path in moved)


def measure() -> tuple[dict[str, tuple[float, float]], tuple[str, ...]]:
    """The medians of both parts for each contestant, and the notes."""
    with tempfile.TemporaryDirectory(prefix="precast-bench-", ignore_cleanup_errors=True) as name:
        house, work = Path(name) / "house", Path(name) / "work"
        house.mkdir()
        work.mkdir()
        found, notes = contestants(house, work)
        parts: dict[str, list[tuple[float, float]]] = {name: [] for name in found}

        def once(name: str) -> float:
            parts[name].append(first_result(found[name], house, work))
            return sum(parts[name][-1])

        interleaved({name: lambda name=name: once(name) for name in found}, ROUNDS)  # type: ignore[misc]
    return {name: sorted(one, key=sum)[len(one) // 2] for name, one in parts.items()}, notes


def times(found: Mapping[str, Sequence[float]], facts: str) -> dict[str, object]:
    """The file that ``benchmarks.plots`` draws."""
    return {
        "schema": 1,
        "name": "cold-start",
        "title": "From pip install to the first result",
        "facts": facts,
        "seconds": {
            "pip install and first result": {name: round(sum(parts), 2) for name, parts in found.items()},
            "of that, without pip install": {name: round(parts[1], 2) for name, parts in found.items()},
        },
    }


def main() -> Report:
    """The benchmark as ``python -m benchmarks`` runs it."""
    found, notes = measure()
    total = {name: sum(parts) for name, parts in found.items()}
    rows = [Row("prebuilt", total[OURS], "s", peer, total[peer]) for peer in total if not peer.startswith(OURS)]
    rows += [Row("nothing prebuilt", total[UNBUILT], "s", peer, total[peer]) for peer in (LOAD, TVM) if peer in total]
    return Report("cold_start", "From pip install to the first result, CPU", tuple(rows), notes=notes)


if __name__ == "__main__":
    medians, missing = measure()
    host = host_facts()
    said = f"{host['cpu']}, {host['threads']} threads, torch {host['torch']}, {host['date'][:10]}; medians of {ROUNDS}"
    said += f"; load {os.getloadavg()[2]:.0f}"  # other work on the machine, which cannot be told from the figures
    Path(sys.argv[1]).write_text(json.dumps(times(medians, said), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(medians), *missing, sep="\n")
