"""``python -m precast.build wheels SOURCE --torch 2.13,2.14``: build a package once per torch, as one guarded wheel.

The package needs no change of its source or its build system, which may be any that pip knows (setuptools, CMake by
scikit-build-core, meson). Each torch is installed into a separate environment, which is kept for the next package.
``--cuda cu130`` builds with CUDA: by the toolkit of this machine if it has that version, else by nvcc from the package
index. The GPUs are those of TORCH_CUDA_ARCH_LIST or PRECAST_CUDA_ARCH_LIST, else those of precast's own wheels.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import lock, roots, tables, xray
from precast._load import probe
from precast._version import __version__
from precast.build import environments, guarding, planning
from precast.build.environments import Environment, Job
from precast.build.stated import Stated
from precast.core.version import Label
from precast.errors import KernelError

# What earlier builds left: at the top of a package, and anywhere.
_LEFT_AT_TOP, _LEFT = {"build", "dist", "_skbuild", ".venv", ".git"}, ("*.egg-info", "__pycache__", "*.so", "*.o")
_FLAGS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "NVCC_APPEND_FLAGS", "CMAKE_ARGS")
# In which a build in CI gets the tag manylinux_2_28, as matrix.toml has it for precast itself.
IMAGE = "quay.io/pypa/manylinux_2_28_x86_64@sha256:e0adf18521ad35192df733a6c62d35df7801957d24e0470238aacecfab2188a3"
_THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# What a backend requires beside what pyproject.toml says (PEP 517), such as cmake.
_HOOK = """
import importlib, json, sys
module, _, attributes = sys.argv[1].partition(":")
backend = importlib.import_module(module)
for name in filter(None, attributes.split(".")):
    backend = getattr(backend, name)
print(json.dumps(getattr(backend, "get_requires_for_build_wheel", lambda: [])()))
"""


@dataclass(frozen=True)
class Built:
    """The guarded wheel of one torch: its libraries, their bytes, the seconds of the build and of its environment."""

    wheel: Path
    libraries: int
    size: int
    seconds: float
    waited: float


def main(arguments: Sequence[str]) -> int:
    """Build, guard and merge; or print the plan. Exit status 1: a build or the audit failed; 2: a bad argument."""
    parser = argparse.ArgumentParser(prog="python -m precast.build wheels", description=__doc__)
    parser.add_argument(
        "source",
        type=Path,
        nargs="?",
        default=Path(),
        help="the folder of a package, or an sdist; default: the current folder",
    )
    add_jobs(parser)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("dist"), metavar="DIR", help="the output folder; default: dist"
    )
    parser.add_argument("--plan", action="store_true", help="print what would be built, and build nothing")
    parser.add_argument("--outputs", type=Path, metavar="FILE", help="with --plan: add a matrix of jobs for GitHub")
    parser.add_argument(
        "--python", default="", metavar="RELEASES", help="Python versions of that matrix, such as 3.11,3.12"
    )
    options = parser.parse_args(arguments)
    try:
        jobs = jobs_of(options.torch, options.cuda)
    except ValueError as error:
        parser.error(str(error))
    try:
        settings = probe.read_settings(building=True)
        with tempfile.TemporaryDirectory(prefix="precast-wheels-") as folder:
            tree = unpacked(options.source, Path(folder))
            print(planning.plan(tree, jobs, settings), flush=True)
            if options.plan and options.outputs is not None:
                with options.outputs.open("a", encoding="utf-8") as file:
                    file.write(f"matrix={json.dumps(matrix_of(jobs, options.python))}\n")
            return 0 if options.plan else _build(tree, jobs, options.out, Path(folder), settings)
    except (KernelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """The arguments that :func:`jobs_of` takes."""
    parser.add_argument("--torch", required=True, metavar="RELEASES", help="torch versions, such as 2.13,2.14")
    parser.add_argument(
        "--cuda", default="", metavar="LABELS", help="CUDA versions, such as cu126,cu130; default: without CUDA"
    )


def matrix_of(jobs: Sequence[Job], pythons: str) -> dict[str, list[dict[str, str]]]:
    """The jobs as a matrix of GitHub's, once per Python: each entry has the arguments of one build."""
    entries = []
    for python in filter(None, (text.strip() for text in pythons.split(","))) if pythons else [_THIS_PYTHON]:
        for job in jobs:
            label = "" if job.label.cuda is None else str(job.label)
            name = f"{job.name}-python{python}"
            entries.append({"name": name, "python": python, "torch": str(job.torch), "cuda": label, "image": IMAGE})
    return {"include": entries}


def jobs_of(torches: str, labels: str) -> tuple[Job, ...]:
    """A job for each torch and label, in the order given. ValueError for a word that is not understood."""
    releases = [environments.parse_torch(text.strip()) for text in torches.split(",") if text.strip()]
    wanted = [environments.parse_label(text.strip()) for text in labels.split(",") if text.strip()] or [Label("cpu")]
    if not releases:
        raise ValueError("--torch names no release; needed one or more, such as 2.13,2.14")
    return tuple(dict.fromkeys(itertools.starmap(Job, itertools.product(releases, wanted))))


def unpacked(source: Path, folder: Path) -> Path:
    """The folder of a package, which is unpacked if it is an sdist."""
    if source.is_file():
        try:
            with tarfile.open(source) as archive:
                archive.extractall(folder / "sdist", filter="data")
            (source,) = (folder / "sdist").iterdir()
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            needed = "name-version.tar.gz with one folder, or a folder"
            raise KernelError(
                f"{source} is not an sdist",
                found=str(error),
                needed=needed,
                fix="name an sdist (.tar.gz) or a folder with setup.py or pyproject.toml",
            ) from error
    if not any((source / name).is_file() for name in ("setup.py", "pyproject.toml")):
        raise KernelError(
            f"{source} is not a package",
            found="no setup.py, no pyproject.toml",
            needed="one of them",
            fix="name a folder with setup.py or pyproject.toml",
        )
    return source.resolve()


def _build(tree: Path, jobs: Sequence[Job], out: Path, folder: Path, settings: Settings) -> int:
    made = guarding.audited([build(tree, job, folder / job.name, settings).wheel for job in jobs], out)
    for path in made:
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return int(not made)


def build(tree: Path, job: Job, work: Path, settings: Settings, variables: Mapping[str, str] | None = None) -> Built:
    """Build a package for one torch, and guard it into ``work``; ``variables`` are those of the package.

    KernelError if the environment cannot be made, if the build fails, or if a library cannot have a guard.
    Compiled objects stay in the cache until a build succeeds, so that the next build can use them.
    """
    start = time.perf_counter()
    made = environments.environment(job, settings)
    ready = time.perf_counter()
    with _going_on(tree, job, settings, dict(variables or {})) as place:
        source = place / "source"
        env = environments.variables(job, made, _requires(source, made, place), place, settings)
        options = ("--no-deps", "--no-build-isolation", "-w", str(place / "dist"))
        command = environments.pip(made.python, "wheel", *options, str(source))
        told = _Told(job, place, sum(job.label.cuda is not None or not one.device for one in planning.read(tree)))
        environments.run(command, place, env | dict(variables or {}), f"{tree.name} for {job.name}", told.tell)
        (wheel,) = (place / "dist").glob("*.whl")
        sizes = [len(one.data) for one in xray.read(wheel).libraries]
        (guarded,) = guarding.guard([wheel], work / "guarded", Stated(other=replace(job.torch, local=str(job.label))))
    done = Built(guarded, len(sizes), sum(sizes), time.perf_counter() - ready, ready - start)
    times = f"{done.seconds:.0f} s, its environment {done.waited:.0f} s"
    print(f"{job.name}: {done.libraries} libraries, {done.size / 1e6:.2f} MB unpacked, {times}", flush=True)
    return done


@contextlib.contextmanager
def _going_on(tree: Path, job: Job, settings: Settings, variables: Mapping[str, str]) -> Iterator[Path]:
    """A folder with a copy of the package, and with the objects of an earlier build that did not succeed.

    One folder is kept for each package and job, as long as the inputs of the objects are the same.
    """
    targets = environments.targets_of(job.label, settings) if job.label.cuda is not None else ()
    flags = {name: os.environ.get(name, "") for name in _FLAGS}
    caches = _caches(settings)
    key = json.dumps(
        [_digest(tree, caches), list(map(str, targets)), settings.debug, dict(variables), flags, __version__]
    )
    place = environments.folder_of(job, settings).parents[1] / "builds" / f"{tree.name}-{job.name}"
    with lock.exclusive(lock.lock_file(place.parent, place.name), place.name, wait_s=3600):
        known = place / "key"
        if not known.is_file() or known.read_text(encoding="utf-8") != key:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            shutil.copytree(
                tree, place / "source", symlinks=True, ignore=lambda *listed: _left(tree, listed[0], listed[1], caches)
            )
            known.write_text(key, encoding="utf-8")
        elif count := _objects(place):
            print(f"{job.name}: goes on with {count} objects of an earlier build", flush=True)
        shutil.rmtree(place / "dist", ignore_errors=True)
        yield place
        shutil.rmtree(place, ignore_errors=True)


@dataclass
class _Told:
    """Prints the number of objects of a build whenever it has grown."""

    job: Job
    place: Path
    planned: int
    last: int = 0

    def tell(self) -> None:
        """A line if there are more objects than before."""
        count = _objects(self.place)
        if count > self.last:
            print(f"{self.job.name}: {count} objects, of about {self.planned}", flush=True)
        self.last = count


def _objects(place: Path) -> int:
    return sum(1 for part in ("source", "objects") for _ in (place / part).rglob("*.o"))


def _caches(settings: Settings) -> tuple[Path, ...]:
    """The folders of the cache, which CI keeps within the project: a copy of the package must not hold itself."""
    root = roots.default_root(settings).resolve()
    return root, root / "builds", root / "torches"


def _digest(tree: Path, caches: Collection[Path] = ()) -> str:
    """A digest of the files that are copied."""
    total = hashlib.sha256()
    for folder, folders, names in os.walk(tree):
        left = _left(tree, folder, [*folders, *names], caches)
        folders[:] = sorted({*folders} - left)
        for path in (Path(folder, name) for name in sorted({*names} - left)):
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            total.update(f"{path.relative_to(tree)}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return total.hexdigest()


def _left(tree: Path, folder: str, names: list[str], caches: Collection[Path] = ()) -> set[str]:
    paths = {name: Path(folder, name) for name in names}
    left = {name for name, path in paths.items() if path in caches or path.is_fifo() or path.is_socket()}
    return left | shutil.ignore_patterns(*_LEFT)(folder, names) | (_LEFT_AT_TOP if Path(folder) == tree else set())


def _requires(source: Path, made: Environment, work: Path) -> Path:
    """A folder with what the package requires to build, by pyproject.toml and by its backend, and with this precast."""
    path = source / "pyproject.toml"
    section = tables.read_toml(path).get("build-system", {}) if path.is_file() else {}
    what = f"what {source.parent.name} requires to build"
    folder = environments.folder_with(section.get("requires", ()), work / "requires", made, what)
    backend = section.get("build-backend", "setuptools")
    if not backend.startswith("setuptools") and "backend-path" not in section:
        env = {**environments.plain(os.environ), "PYTHONPATH": str(folder)}
        said = environments.run([str(made.python), "-c", _HOOK, backend], source, env, f"the backend {backend}")
        environments.folder_with(json.loads(said.splitlines()[-1]), folder, made, what)
    return folder
