"""Rebuilding an extension after one of its ten files has changed, and after none has.

All sides use the same sources: ten small ops against the stable headers, as op authors write them. Each rebuild is the
command that a user types, from process start: `setup.py build_ext` with precast.build and with setuptools alone, and a
program that calls torch.utils.cpp_extension.load. Every side has been built completely before.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.child import environment, prebuilt_installation
from benchmarks.report import Report, Row, interleaved

ROUNDS = 3
FILES = 10

SOURCE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
static Tensor scale(Tensor x) {{
  Tensor y = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(y.data_ptr())[i] = {number}.0f * static_cast<const float*>(x.data_ptr())[i];
  return y;
}}
STABLE_TORCH_LIBRARY_FRAGMENT({name}, m) {{ m.def("scale{number}(Tensor x) -> Tensor"); }}
STABLE_TORCH_LIBRARY_IMPL({name}, CPU, m) {{ m.impl("scale{number}", TORCH_BOX(&scale)); }}
"""

OURS = """
from setuptools import setup
from precast.build import BuildExtension, StableExtension, ext_modules
files = [f"op{{i}}.cpp" for i in range(10)]
modules = ext_modules(StableExtension("ours.ops", files, extra_compile_args=["-std=c++20"]))
setup(name="ours", version="1", packages=["ours"], ext_modules=modules, cmdclass={{"build_ext": BuildExtension}})
"""

SETUPTOOLS = """
from setuptools import Extension, setup
setup(name="plain", version="1", packages=["plain"], ext_modules=[Extension(
    "plain.ops", [f"op{{i}}.cpp" for i in range(10)], include_dirs=[{include!r}], library_dirs=[{libraries!r}],
    libraries=["torch_cpu"], extra_compile_args=["-std=c++20", "-O2", "-g0"],
    define_macros=[("TORCH_TARGET_VERSION", "0x020a000000000000")],
)])
"""

LOAD = """
from torch.utils.cpp_extension import load
load("loaded", [f"op{{i}}.cpp" for i in range(10)], extra_include_paths=[{include!r}], is_python_module=False,
     extra_cflags=["-O2", "-DTORCH_TARGET_VERSION=0x020a000000000000"], build_directory="build")
"""

COMMANDS = {"ours": ("setup.py", "-q", "build_ext"), "plain": ("setup.py", "-q", "build_ext"), "loaded": ("load.py",)}
PEERS = {"plain": "setuptools", "loaded": "cpp_extension.load"}


def write(folder: Path, name: str, include: str, libraries: str) -> None:
    """Write one side's project: its own namespace, otherwise the same ten files."""
    (folder / name).mkdir(parents=True)
    (folder / "build").mkdir()
    (folder / name / "__init__.py").touch()
    for number in range(FILES):
        (folder / f"op{number}.cpp").write_text(SOURCE.format(number=number, name=name))
    text = {"ours": OURS, "plain": SETUPTOOLS, "loaded": LOAD}[name]
    (folder / COMMANDS[name][0]).write_text(text.format(include=include, libraries=libraries))


def build(folder: Path, name: str, env: dict[str, str]) -> float:
    """Run the user's command in that folder and return its seconds."""
    started = time.perf_counter()
    command = [sys.executable, *COMMANDS[name]]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"benchmark: {name} was not built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - started


def touch(folder: Path) -> None:
    """Change one of the ten files, so that its object changes."""
    path = folder / "op3.cpp"
    path.write_text(path.read_text() + f"static int edit{time.monotonic_ns()} __attribute__((used)) = 0;\n")


def main() -> Report:
    """Build each side completely, then repeatedly, in turns."""
    import torch

    site = prebuilt_installation()
    include = str(site / "precast" / "csrc" / "torch_stable" / "include")
    libraries = str(Path(torch.__file__).parent / "lib")
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as place:
        env = environment(PYTHONPATH=str(site), PRECAST_CACHE_DIR=f"{place}/cache")
        folders = {name: Path(place) / name for name in COMMANDS}
        for name, folder in folders.items():
            write(folder, name, include, libraries)
        whole = {name: build(folder, name, env) for name, folder in folders.items()}

        def again(name: str, *, edited: bool) -> Callable[[], float]:
            def run() -> float:
                if edited:
                    touch(folders[name])
                return build(folders[name], name, env)

            return run

        one = interleaved({name: again(name, edited=True) for name in folders}, ROUNDS)
        none = interleaved({name: again(name, edited=False) for name in folders}, ROUNDS)
    every = {name: [seconds] for name, seconds in whole.items()}
    cases = (("all ten files, at first", every), ("one file of ten changed", one), ("nothing changed", none))
    rows = [_row(what, samples, peer) for what, samples in cases for peer in PEERS]
    note = f"Whole processes, medians of {ROUNDS} rounds in turns; the first build is one run. load imports torch."
    return Report("rebuild", "Building an extension of ten C++ files again", tuple(rows), notes=(note,))


def _row(what: str, samples: dict[str, list[float]], peer: str) -> Row:
    ours, theirs = samples["ours"], samples[peer]
    ratios = sorted(there / here for here, there in zip(ours, theirs, strict=True))
    middle = len(ours) // 2
    return Row(
        what, sorted(ours)[middle], "s", PEERS[peer], sorted(theirs)[middle], target=">= 1", paired=ratios[middle]
    )
