"""The verbs of a release, end to end, with the label that has no device code: parts, sdist, wheel, a kill."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precast._version import __version__
from tools.verbs.reproduce import recorded_index

from .conftest import CHECKOUT, Run

pytestmark = [pytest.mark.wheel, pytest.mark.compiler, pytest.mark.torch]

INDEX = "https://host/precast"
MACHINE = os.uname().machine
WHEEL = f"precast-{__version__}+cpu-py3-none-manylinux_2_28_{MACHINE}.whl"
GIT = ("git", "-c", "user.name=n", "-c", "user.email=e@example.org")


@pytest.fixture(scope="module")
def small(work: Path, tree: Path, run: Run) -> Path:
    """A repository of its own with a matrix that has one host library: the others are compiled alike."""
    copy = Path(shutil.copytree(tree, work / "small", symlinks=True, ignore=shutil.ignore_patterns(".git")))
    text = (copy / "matrix.toml").read_text()
    (copy / "matrix.toml").write_text(re.sub(r"^built = \[[^\]]*\]", "built = []", text, flags=re.MULTILINE))
    run("git", "init", "-q", copy)
    run(*GIT, "-C", copy, "add", "-A")
    run(*GIT, "-C", copy, "commit", "-q", "-m", "one host library")
    return copy


@pytest.fixture(scope="module")
def parts(work: Path, small: Path, run: Run) -> Path:
    """The one part that this wheel takes."""
    out = work / "parts"
    done = run(sys.executable, "-m", "tools", "host", "--out", out, PYTHONPATH=small)
    assert done.stdout.strip().endswith("written")
    return out


def build(run: Run, small: Path, parts: Path, out: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools", "build", "--label", "cpu", "--parts", parts, "--out", out]
    return run(*command, PYTHONPATH=small, PRECAST_INDEX_URL=INDEX, expect=expect)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_wheel_is_built_once_and_equals_the_one_from_git(
    run: Run, work: Path, small: Path, parts: Path, tmp_path: Path
) -> None:
    """From the unpacked sdist, and from the checkout by pip: the same bytes."""
    out = work / "wheelhouse"
    first = build(run, small, parts, out).stdout
    assert f"{WHEEL}: " in first and "built by hooks" in first and "equal to torch's" in first
    assert sorted(path.name for path in out.iterdir()) == [WHEEL, f"wheel-cpu-{MACHINE}.json"]
    assert build(run, small, parts, out).stdout.strip().endswith("there already")

    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path]
    variables = {"PRECAST_LABEL": "cpu", "PRECAST_PARTS": parts, "PRECAST_INDEX_URL": INDEX}
    run(*pip, small, **variables)
    (made,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "tools", "repair", made, "--out", tmp_path / "repaired", PYTHONPATH=small)
    assert sha256(tmp_path / "repaired" / WHEEL) == sha256(out / WHEEL)
    assert recorded_index(out / WHEEL) == INDEX


def test_the_sdist_is_the_same_from_another_folder(run: Run, small: Path, work: Path, tmp_path: Path) -> None:
    elsewhere = Path(shutil.copytree(small, tmp_path / "a folder of another name", symlinks=True))
    made = []
    for place in (small, elsewhere):
        out = tmp_path / f"out{len(made)}"
        run(sys.executable, "-m", "tools", "sdist", "--out", out, PYTHONPATH=place)
        made.append(sha256(out / f"precast-{__version__}.tar.gz"))
    assert made[0] == made[1]


def test_a_damaged_part_is_refused_before_anything_is_built(run: Run, small: Path, parts: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(parts, tmp_path / "parts"))
    library = damaged / f"host-kernels-{MACHINE}" / "kernels-x86_64.so"
    library.write_bytes(library.read_bytes() + b"\0")
    done = build(run, small, damaged, tmp_path / "out", expect=1)
    assert f"{library} cannot be used in this wheel" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_killed_build_leaves_no_wheel_and_goes_on(run: Run, small: Path, parts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tools", "build", "--label", "cpu", "--parts", str(parts), "--out", str(out)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PRECAST_")}
    env |= {"PYTHONPATH": str(small), "TMPDIR": str(tmp_path)}
    killed = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while killed.poll() is None and not list(tmp_path.glob("precast-wheel-*/built/*.whl")):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not out.exists() or not list(out.iterdir())
    build(run, small, parts, out)
    check = [sys.executable, "-m", "tools", "check-set", out, "--event", "release", "--cell", f"wheel-cpu-{MACHINE}"]
    assert "0 problems" in run(*check, PYTHONPATH=small).stdout


def test_the_hooks_are_those_of_cibuildwheel() -> None:
    """One table says how a wheel is repaired, audited and tried; both drivers read it."""
    from tools.shared import build_drivers

    commands = build_drivers.repair_hooks(CHECKOUT)
    assert [command.split()[:4] for command in commands] == [
        ["python", "-m", "tools", "repair"],
        ["python", "-m", "tools", "audit"],
    ]
