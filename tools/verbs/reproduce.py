"""Build a wheel twice, in unlike surroundings, and compare the bytes; or once, and compare them with a published wheel.

Another folder, umask, time zone, locale, order of hashes, number of jobs, age of the sources; nothing from any cache.
Exit status: 0, the same bytes; 1, not, and what differs is named.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from precast._builder import matrix, provenance
from precast.core.manifest import BuildInfo
from precast.errors import KernelError
from tools.guards.archive import differences
from tools.guards.subject import Result, Verdict
from tools.shared.cells import label_of
from tools.verbs.audit import show
from tools.verbs.repair import epoch_of

ROOT = Path(__file__).resolve().parents[2]
_NOT_SOURCES = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "wheelhouse", "*.egg-info"
)
# Variables that a developer may have set for other builds.
_FOREIGN = ("PRECAST_", "CUDA_", "TORCH_CUDA_ARCH_LIST", "PYTHONPATH", "MAX_JOBS", "CXX")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Conditions that must not affect a wheel. ``aged``: the sources keep their modification times."""

    folder: str
    umask: int
    aged: bool
    variables: Mapping[str, str]


HERE = Surroundings("one", 0o022, True, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1", "MAX_JOBS": "2"})
ELSEWHERE = Surroundings(
    "another folder, of a longer name",
    0o077,
    False,
    {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "2", "MAX_JOBS": "1"},
)


def build(
    sources: Path,
    label: str,
    work: Path,
    around: Surroundings,
    epoch: int,
    only_torch: str = "",
    index_url: str | None = None,
) -> Path:
    """One published wheel, built from a copy of the sources with an empty build cache."""
    place = work / around.folder
    tree = place / "tree"
    shutil.copytree(sources, tree, ignore=_NOT_SOURCES, symlinks=True)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~around.umask)
            if not around.aged:
                os.utime(path)
    (place / "tmp").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    env |= {"PRECAST_CACHE_DIR": str(place / "cache"), "TMPDIR": str(place / "tmp"), "SOURCE_DATE_EPOCH": str(epoch)}
    env |= around.variables
    env |= {"PRECAST_LABEL": label} if label else {}
    env |= {"PRECAST_ONLY_TORCH": only_torch} if only_torch else {}
    env |= {"PRECAST_INDEX_URL": index_url} if index_url else {}
    _run([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(place / "dist"), str(tree)], tree, env, around)
    (built,) = (place / "dist").glob("*.whl")
    _run([sys.executable, "-m", "tools", "repair", "--out", str(place / "out"), str(built)], tree, env, around)
    (made,) = (place / "out").glob("*.whl")
    return made


def _run(command: list[str], folder: Path, env: Mapping[str, str], around: Surroundings) -> None:
    done = subprocess.run(
        command, cwd=folder, env=dict(env), umask=around.umask, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise KernelError(f"{' '.join(command)} failed with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")


def recorded_index(wheel: Path) -> str | None:
    """The index that a wheel records as its place of publication, which is part of its bytes."""
    with zipfile.ZipFile(wheel) as archive:
        return BuildInfo.from_json(archive.read("precast/_C/build_info.json").decode()).index_url


def told(path: Path, seconds: float) -> str:
    """One line about a wheel."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{path.name}  {path.stat().st_size} bytes  sha256 {digest}  {seconds:.0f} s"


def main(arguments: list[str]) -> int:
    """Build and compare."""
    parser = argparse.ArgumentParser(prog="python -m tools reproduce", description=__doc__)
    parser.add_argument("--label", default="cpu", help="a label of matrix.toml, or default; empty for the pure wheel")
    parser.add_argument("--only-torch", default="", metavar="MINOR", help="a slim wheel, for one minor of torch")
    parser.add_argument("--against", type=Path, metavar="WHEEL", help="build once and compare with this wheel")
    parser.add_argument("--out", type=Path, help="keep the wheel of the last build in this folder")
    options = parser.parse_args(arguments)
    try:
        if options.label:
            matrix.load(ROOT / "matrix.toml").label(label_of(options.label))
        epoch = epoch_of(ROOT)
        with tempfile.TemporaryDirectory(prefix="precast-reproduce-") as folder:
            # Both builds use the same copy and commit, even if the checkout changes in the meantime.
            sources = shutil.copytree(ROOT, Path(folder) / "sources", ignore=_NOT_SOURCES, symlinks=True)
            provenance.record(provenance.of(ROOT), sources)
            made = [] if options.against is None else [options.against]
            index_url = recorded_index(options.against) if made else None
            for around in (HERE, ELSEWHERE)[len(made) :]:
                started = time.perf_counter()
                made.append(build(sources, options.label, Path(folder), around, epoch, options.only_torch, index_url))
                print(told(made[-1], time.perf_counter() - started), flush=True)
            found = tuple(differences(*made))
            if options.out is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made[-1], options.out / made[-1].name)
    except (KernelError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    show([Result("reproducible", Verdict.REFUSED if found else Verdict.PASSED, "", found)])
    return int(bool(found))
