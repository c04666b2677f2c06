"""``python -m precast.build wheels SOURCE --torch 2.13,2.14``: build a package once per torch, as one guarded wheel.

The package does not change: neither its source nor its build system, which is any that pip knows (setuptools, CMake by
scikit-build-core, meson). Each torch is installed into an environment of its own, which is kept for the next package.
``--cuda cu130`` builds with CUDA: by the toolkit of this machine if it has that version, else by nvcc from the package
index. The GPUs are those of TORCH_CUDA_ARCH_LIST or PRECAST_CUDA_ARCH_LIST, else those of precast's own wheels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from precast._abi.label import Label
from precast._abi.settings import Settings
from precast._builder import tables, xray
from precast._load import probe
from precast.build import audit, environments, guarding, planning
from precast.build.environments import Environment, Job
from precast.errors import KernelError

_NOT_SOURCES = ("build", "dist", "_skbuild", "*.egg-info", "__pycache__", ".venv", ".git", "*.so", "*.o")
# What a backend requires beside what pyproject.toml says (PEP 517), such as cmake.
_HOOK = """
import importlib, json, sys
module, _, attributes = sys.argv[1].partition(":")
backend = importlib.import_module(module)
for name in filter(None, attributes.split(".")):
    backend = getattr(backend, name)
print(json.dumps(getattr(backend, "get_requires_for_build_wheel", lambda: [])()))
"""


def main(arguments: Sequence[str]) -> int:
    """Build, guard and merge; or print the plan. Exit status 1: a build or the audit failed; 2: a bad argument."""
    parser = argparse.ArgumentParser(prog="python -m precast.build wheels", description=__doc__)
    parser.add_argument("source", type=Path, nargs="?", default=Path(), help="a folder or an sdist; default: here")
    parser.add_argument("--torch", required=True, metavar="RELEASES", help="such as 2.13,2.14")
    parser.add_argument("--cuda", default="", metavar="LABELS", help="such as cu126,cu130; default: without CUDA")
    parser.add_argument("-o", "--out", type=Path, default=Path("dist"), metavar="DIR", help="default: dist")
    parser.add_argument("--plan", action="store_true", help="print what would be built, and build nothing")
    options = parser.parse_args(arguments)
    try:
        jobs = jobs_of(options.torch, options.cuda)
    except ValueError as error:
        parser.error(str(error))
    try:
        settings = probe.read_settings(building=True)
        with tempfile.TemporaryDirectory(prefix="precast-wheels-") as folder:
            tree = _unpacked(options.source, Path(folder))
            print(planning.plan(tree, jobs, settings), flush=True)
            return 0 if options.plan else _build(tree, jobs, options.out, Path(folder), settings)
    except (KernelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


def jobs_of(torches: str, labels: str) -> tuple[Job, ...]:
    """A job for each torch and label, in the order given. ValueError for a word that is not understood."""
    releases = [environments.parse_torch(text.strip()) for text in torches.split(",") if text.strip()]
    wanted = [environments.parse_label(text.strip()) for text in labels.split(",") if text.strip()] or [Label("cpu")]
    if not releases:
        raise ValueError("--torch names no release; wanted such as 2.13,2.14")
    return tuple(dict.fromkeys(itertools.starmap(Job, itertools.product(releases, wanted))))


def _unpacked(source: Path, folder: Path) -> Path:
    """The folder of a package: as it is, or out of an sdist."""
    if source.is_file():
        try:
            with tarfile.open(source) as archive:
                archive.extractall(folder / "sdist", filter="data")
            (source,) = (folder / "sdist").iterdir()
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            needed = "name-version.tar.gz with one folder, or a folder"
            raise KernelError(f"{source} is no sdist\n  found   {error}\n  needed  {needed}") from error
    if not any((source / name).is_file() for name in ("setup.py", "pyproject.toml")):
        raise KernelError(f"{source} is no package\n  found   no setup.py, no pyproject.toml\n  needed  one of them")
    return source.resolve()


def _build(tree: Path, jobs: Sequence[Job], out: Path, folder: Path, settings: Settings) -> int:
    single = [_one(tree, job, folder / job.name, settings) for job in jobs]
    made = guarding.guard(single, out)
    refused = audit.report(made)
    for path in made:
        if refused:
            path.unlink()
        else:
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return refused


def _one(tree: Path, job: Job, work: Path, settings: Settings) -> Path:
    """The guarded wheel of one torch."""
    start = time.perf_counter()
    made = environments.environment(job, settings)
    ready = time.perf_counter()
    work.mkdir(parents=True)
    source = shutil.copytree(tree, work / "source", symlinks=True, ignore=shutil.ignore_patterns(*_NOT_SOURCES))
    env = environments.variables(job, made, _requires(source, made, work), work, settings)
    command = environments.pip(made.python, "wheel", "--no-deps", "--no-build-isolation", "-w", str(work / "dist"))
    environments.run([*command, str(source)], work, env, f"{tree.name} for {job.name}")
    (wheel,) = (work / "dist").glob("*.whl")
    libraries = xray.read(wheel).libraries
    (guarded,) = guarding.guard([wheel], work / "guarded", replace(job.torch, local=str(job.label)))
    times = f"{time.perf_counter() - ready:.0f} s, its environment {ready - start:.0f} s"
    megabytes = sum(len(one.data) for one in libraries) / 1e6
    print(f"{job.name}: {len(libraries)} libraries, {megabytes:.2f} MB unpacked, {times}", flush=True)
    return guarded


def _requires(source: Path, made: Environment, work: Path) -> Path:
    """A folder with what the package requires to build, by pyproject.toml and by its backend, and with this precast."""
    folder, path = work / "requires", source / "pyproject.toml"
    folder.mkdir()
    (folder / "precast").symlink_to(environments.PACKAGE)
    section = tables.read_toml(path).get("build-system", {}) if path.is_file() else {}
    _install(section.get("requires", ()), folder, source, made)
    backend = section.get("build-backend", "setuptools")
    if not backend.startswith("setuptools") and "backend-path" not in section:
        env = {**environments.plain(os.environ), "PYTHONPATH": str(folder)}
        said = environments.run([str(made.python), "-c", _HOOK, backend], source, env, f"the backend {backend}")
        _install(json.loads(said.splitlines()[-1]), folder, source, made)
    return folder


def _install(requirements: Sequence[str], folder: Path, source: Path, made: Environment) -> None:
    """Install requirements into a folder, but for torch and precast, which are there."""
    wanted = [text for text in requirements if not re.match(r"(torch|precast)(?![\w.-])", text.strip())]
    if wanted:
        command = environments.pip(made.python, "install", "--upgrade", "--target", str(folder), *wanted)
        what = f"what {source.parent.name} requires to build"
        environments.run(command, source.parent, environments.plain(os.environ), what)
