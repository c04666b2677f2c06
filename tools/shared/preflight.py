"""Check, before the first job, everything that a release needs from this machine.

Only unfinished cells count, so a finished folder needs nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import headers, parts, toolchain, torch_wheel
from precast._builder.cache import Cache
from precast.errors import KernelError, block
from tools.shared import packages
from tools.shared.cells import DeviceCell, HostCell, Plan
from tools.verbs.repair import epoch_of

# Unpacked, the NVRTC of the seven labels takes 990 MB; objects, images and torch's headers take the rest.
CACHE_BYTES = 2_000_000_000
# 76 MB of wheels: once as parts, once as wheels, once on the index. Doubled, as each is staged before it appears.
OUT_BYTES = 500_000_000
INDEX_WAIT_S = 60


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that this machine lacks; the fix is a command that works when pasted."""

    found: str
    needed: str
    fix: str


def check(plan: Plan, out: Path, settings: Settings, cache: Cache, root: Path) -> None:
    """Refuse a release that cannot be finished here, and list everything that is missing."""
    devices = [cell for cell in plan.device if _to_make(cell, out)]
    hosts = [cell for cell in plan.host if _to_make(cell, out)]
    absent = [cell.requirement for cell in devices if not packages.kept(cell.requirement, cache).is_dir()]
    lacking = [
        *compilers(sorted({cell.machine for cell in hosts}), settings),
        *(space({cache.root: CACHE_BYTES, out: OUT_BYTES}) if devices or hosts else ()),
        *index(list(dict.fromkeys(absent))),
        *(torch_headers(root, cache) if hosts else ()),
        *moment(root),
    ]
    if lacking:
        refuse(out, lacking)


def refuse(out: Path, lacking: list[Missing]) -> None:
    """Raise one error for everything, with found, needed and fix of each item."""
    things = "1 thing is" if len(lacking) == 1 else f"{len(lacking)} things are"
    pairs = [f"the release in {out} cannot be made: {things} missing"]
    pairs += [block("", found=one.found, needed=one.needed).removeprefix("\n") for one in lacking]
    raise KernelError("\n".join(pairs), fix=[one.fix for one in lacking])


def compilers(machines: Sequence[str], settings: Settings) -> Iterator[Missing]:
    """Need ninja, and a C++ compiler for each architecture whose host libraries must be compiled."""
    answers = {machine: toolchain.find_compiler(settings, machine) for machine in machines}
    lacks = {machine: looked_at for machine, (found, looked_at) in answers.items() if found is None}
    if lacks:
        found = "; ".join(place for looked_at in lacks.values() for place in looked_at)
        debian = " ".join(map(toolchain.package_for, lacks))
        yield Missing(found, f"a C++ compiler for {' and for '.join(lacks)}", f"sudo apt-get install -y {debian}")
    ninja, places = toolchain.find_ninja()
    if machines and ninja is None:
        yield Missing("; ".join(places), "ninja", f"{sys.executable} -m pip install ninja")


def space(wanted: Mapping[Path, int], free: Callable[[Path], int] | None = None) -> Iterator[Missing]:
    """Need space for the build cache and for the release, and for the sum if they share a file system."""
    free = free or (lambda folder: shutil.disk_usage(folder).free)
    needs: dict[int, tuple[Path, int]] = {}
    for folder, size in wanted.items():
        there = _existing(folder)
        first, sum_so_far = needs.get(there.stat().st_dev, (there, 0))
        needs[there.stat().st_dev] = (first, sum_so_far + size)
    for there, size in needs.values():
        left = free(there)
        if left < size:
            fix = f"df -h {there}, and make room; or PRECAST_CACHE_DIR=/another/disk make release-local"
            yield Missing(f"{left / 1e9:.1f} GB free in {there}", f"{size / 1e9:.1f} GB", fix)


def index(requirements: Sequence[str], ask: Callable[[str], str | None] | None = None) -> Iterator[Missing]:
    """Need each NVRTC, checked with a dry run of pip; ``ask`` returns pip's output if it finds none."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = dict(zip(requirements, pool.map(ask or _ask_pip, requirements), strict=True))
    absent = {requirement: said for requirement, said in answers.items() if said is not None}
    if absent:
        found = "; ".join(dict.fromkeys(absent.values()))
        tried = f"{sys.executable} -m pip download -q --no-deps -d /tmp"
        yield Missing(found, f"{', '.join(absent)}", f"for one in {' '.join(absent)}; do {tried} $one; done")


def torch_headers(root: Path, cache: Cache) -> Iterator[Missing]:
    """Need the headers for extensions: here already, or in a wheel of torch on an index."""
    torch = headers.load_pins().torch
    if headers.are_here(root / "csrc", cache):
        return
    try:
        with torch_wheel.opened(torch_wheel.find_wheel(torch)):
            return
    except OSError as error:
        fix = f"{sys.executable} -m pip download -q --no-deps -d /tmp torch=={torch}"
        yield Missing(str(error).splitlines()[0], f"the wheel of torch {torch}, read by range", fix)


def moment(root: Path) -> Iterator[Missing]:
    """Need the time of the sources, which becomes the date of every file in a wheel."""
    try:
        epoch_of(root)
    except KernelError as error:
        found = error.what
        yield Missing(found, "a commit, or SOURCE_DATE_EPOCH", "SOURCE_DATE_EPOCH=$(date +%s) make release-local")


def _to_make(cell: DeviceCell | HostCell, out: Path) -> bool:
    """Whether a part is planned and missing."""
    return not cell.not_built and not (out / "parts" / cell.name / parts.MANIFEST).is_file()


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def _ask_pip(requirement: str) -> str | None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"]
    try:
        done = subprocess.run(
            [*command, requirement], capture_output=True, text=True, timeout=INDEX_WAIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"pip: no answer from the package index in {INDEX_WAIT_S} s"
    if done.returncode == 0:
        return None
    return f"pip: {(done.stderr.strip().splitlines() or ['nothing was said'])[-1]}"
