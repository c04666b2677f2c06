"""Estimate time and size of a build for several torches, from the headers that the sources include.

The seconds are of one 2021 server core, measured with torch 2.13; nearly all of them go into headers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import toolchain
from precast.build import environments
from precast.build.environments import Job
from precast.core.torch_abi import STABLE_FLOOR

_SOURCES = {".cpp", ".cc", ".cxx", ".c", ".cu"}
_ASIDE = {"test", "tests", "third_party", "build", "dist", "benchmark", "benchmarks", "examples", "docs"}
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# What a library has once, and what one with its schemas in Python has instead.
_LIBRARY = re.compile(r"\b(PyInit_\w+|PYBIND11_MODULE|(STABLE_)?TORCH_LIBRARY(_FRAGMENT)?)\b\s*\(")
_PART = re.compile(r"\b(STABLE_)?TORCH_LIBRARY_IMPL\b\s*\(")
_ALL_OF_TORCH = re.compile(r"torch/(extension|torch|all|python|script)\.h|ATen/ATen\.h")
# What the stable ABI has nothing for: random numbers, gradients in C++, TorchScript, process groups.
_BOUND = re.compile(
    r"\b(\w*GeneratorImpl|PhiloxCudaState|at::Generator|torch::autograd|torch::class_|CustomClassHolder|c10d::\w+)\b"
)
_SOME_OF_TORCH = re.compile(r"(torch/library|ATen/|c10/|torch/types)")
# By the headers of torch that a source includes; nvcc with all of them; and more for each GPU target.
_SECONDS, _TARGET = {"all": 21.0, "some": 6.0, "none": 1.0, "nvcc": 58.0}, 0.6
_MB, _MB_TARGET = 0.25, 0.06  # a source with torch's headers; and the code of a .cu file for one GPU target


@dataclass(frozen=True)
class Source:
    """One file that is compiled: whether it makes a library, which of torch's headers it includes, and for whom."""

    path: Path
    library: bool
    torch: str  # "all", "some" or "none"
    bound: str = ""  # the first name of torch in it that the stable ABI has nothing for

    @property
    def device(self) -> bool:
        """Whether nvcc compiles the source."""
        return self.path.suffix == ".cu"

    def seconds(self, targets: int) -> float:
        """The seconds that one processor needs for the source."""
        whole = _SECONDS["nvcc" if self.device and self.torch == "all" else self.torch]
        return whole + (_TARGET * targets if self.device else 0)

    def megabytes(self, targets: int) -> float:
        """The megabytes that the source adds to a library."""
        return (_MB if self.torch != "none" else 0.02) + (_MB_TARGET * targets if self.device else 0)


def read(tree: Path) -> tuple[Source, ...]:
    """The sources of a package, without tests, examples and other projects' code."""
    found = []
    for path in sorted(tree.rglob("*")):
        inside = path.relative_to(tree).parts
        if path.suffix in _SOURCES and path.is_file() and not _ASIDE & set(inside[:-1]) and inside[0][:1] != ".":
            names = set(_headers(path, tree, set()))
            torch = "all" if any(map(_ALL_OF_TORCH.match, names)) else "none"
            if torch == "none" and any(map(_SOME_OF_TORCH.match, names)):
                torch = "some"
            found.append((path, path.read_text(encoding="utf-8", errors="replace"), torch))
    mark = _LIBRARY if any(_LIBRARY.search(text) for _, text, _ in found) else _PART
    named = {path: _BOUND.search(text) for path, text, _ in found}
    return tuple(
        Source(path, mark.search(text) is not None, torch, "" if (it := named[path]) is None else it[0])
        for path, text, torch in found
    )


def _headers(path: Path, tree: Path, seen: set[Path]) -> Iterator[str]:
    """Every header that a file includes, also by way of the package's own headers."""
    seen.add(path)
    for name in _INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace")):
        yield name
        for own in (path.parent / name, tree / name):
            if own.is_file() and own.resolve() not in seen:
                yield from _headers(own.resolve(), tree, seen)


def plan(tree: Path, jobs: Sequence[Job], settings: Settings) -> str:
    """The builds with their libraries, megabytes and minutes, and what would make them fewer."""
    sources, processors = read(tree), toolchain.default_jobs(settings)
    lines, libraries, megabytes, minutes = [f"{tree.name}: about"], 0, 0.0, 0.0
    for job in jobs:
        targets = () if job.label.cuda is None else environments.targets_of(job.label, settings)
        used = [one for one in sources if targets or not one.device]
        count, size = sum(one.library for one in used), sum(one.megabytes(len(targets)) for one in used)
        time = sum(one.seconds(len(targets)) for one in used) / min(processors, max(1, len(used))) / 60
        there = "there" if environments.is_ready(job, settings) else f"pip install {' '.join(job.requirements)}"
        lines.append(f"  {job.name}: {_amounts(count, size, time)}; environment: {there}")
        libraries, megabytes, minutes = libraries + count, megabytes + size, minutes + time
    lines.append(f"  in all: {_amounts(libraries, megabytes, minutes)}, by {processors} processors")
    return "\n".join([*lines, *(f"  fewer: {text}" for text in _fewer(sources, jobs, settings))])


def _amounts(libraries: int, megabytes: float, minutes: float) -> str:
    return f"{_libraries(libraries)}, {megabytes:.1f} MB unpacked, {math.ceil(minutes)} min"


def _libraries(count: int) -> str:
    return "1 library" if count == 1 else f"{count} libraries"


def _fewer(sources: Sequence[Source], jobs: Sequence[Job], settings: Settings) -> Iterator[str]:
    torches = {job.torch.release for job in jobs}
    stable = {release for release in torches if release >= STABLE_FLOOR}
    classic = [one for one in sources if one.torch != "none" and one.library]
    bound = [one for one in sources if one.bound]
    if classic and len(stable) > 1 and bound:
        yield f"not by torch's stable ABI, which has no {bound[0].bound}: {bound[0].path.name}"
    elif classic and len(stable) > 1:
        yield f"{_libraries(len(classic))} for all torches from {STABLE_FLOOR} on, on torch's stable ABI"
    heavy = [one for one in sources if one.torch == "all" and not one.device]
    if heavy:
        names = ", ".join(one.path.name for one in heavy[:3]) + (", ..." if len(heavy) > 3 else "")
        some, every = _SECONDS["some"], _SECONDS["all"]
        yield f"torch/library.h and single ATen headers take {some:.0f} s, torch/extension.h {every:.0f}: {names}"
    device = [one for one in sources if one.device]
    mixed = [one for one in device if one.torch == "all"]
    targets = [environments.targets_of(job.label, settings) for job in jobs if job.label.cuda is not None]
    if targets and mixed:
        whole, alone = _SECONDS["nvcc"], _SECONDS["none"]
        yield f"{len(mixed)} .cu files include all of torch, {whole:.0f} s each; kernels apart from it take {alone:.0f}"
    if targets and device and max(map(len, targets)) > 3:
        least = f'TORCH_CUDA_ARCH_LIST="8.0;9.0+PTX" for 3 GPU targets, not {max(map(len, targets))}'
        yield f"{least}: newer GPUs take a second at first use"
    if len({job.label for job in jobs}) > 1:
        yield "one CUDA label for each CUDA major: a library for CUDA 13.0 runs under every CUDA 13 driver"
