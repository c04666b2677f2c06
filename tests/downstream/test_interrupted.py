"""A build that is ended from outside leaves no process and no temporary file, and the next one goes on from there."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tarfile
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast.build import environments, wheels
from tests.kit import spawn
from tests.kit.wheels import make_wheel

pytestmark = pytest.mark.compiler

# Waits in a child with a process group of its own, as ninja starts compilers.
WAITS = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
def wait():
    tempfile.mkdtemp()
    child = [sys.executable, "-c", "import time; time.sleep(60)"]
    children = [subprocess.Popen(child, process_group=0) if sys.version_info >= (3, 11) else subprocess.Popen(child)]
    Path(os.environ["NOTE"]).write_text(f"{os.getpid()} {children[0].pid}")
    children[0].wait()
"""
# Waits when it is fetched, if that is asked for; else compiles the first object first.
SETUP = f"""{WAITS}
from setuptools import setup
if "bdist_wheel" in sys.argv:
    made = Path("build/first.o")
    if made.exists():
        sys.exit("error: gone on")
    made.parent.mkdir(exist_ok=True)
    made.touch()
    wait()
if "WHEN_FETCHED" in os.environ:
    wait()
setup(name="slow", version="1.0", py_modules=[])
"""
RUN = """
import sys
from pathlib import Path
from precast._builder import process
from precast.build import __main__ as build_main, environments
process.end_cleanly()
made = environments.Environment(Path(sys.prefix), Path(sys.argv[1]), None, True)
environments.environment = lambda job, settings: made
process._TICK_S = 0.1
sys.exit(build_main.main(sys.argv[2:]))
"""


class Running:
    """A command of precast.build on the package ``slow``, with folders of its own."""

    def __init__(self, folder: Path, *words: object, **more: object) -> None:
        self.temporary, self.note, self.out, self.log = (folder / one for one in ("temporary", "note", "out", "log"))
        self.temporary.mkdir()
        own = {"TMPDIR": self.temporary, "NOTE": self.note, "PRECAST_CACHE_DIR": folder / "cache"}
        self.env = spawn.environ(**own, **more)
        site = str(Path(os.__file__).parent / "site-packages")
        self.command = (sys.executable, "-c", RUN, site, *map(str, words))

    def ended(self, seen: str) -> None:
        """Start it, and end it by a signal once it waits and has said something. Nothing of it is left."""
        with spawn.started("sh", "-c", 'exec "$@" >"$0" 2>&1', self.log, *self.command, env=self.env) as child:
            pids = str(spawn.wait_for(lambda: self.note.exists() and self.note.read_text())).split()
            spawn.wait_for(lambda: seen in self.log.read_text())
            child.send_signal(signal.SIGTERM)
            assert child.wait() == 128 + signal.SIGTERM, self.log.read_text()
        assert not any(Path("/proc", pid).exists() and "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
                       for pid in pids)  # fmt: skip
        assert list(self.temporary.iterdir()) == []


def slow(folder: Path) -> Path:
    tree = folder / "slow"
    tree.mkdir()
    (tree / "setup.py").write_text(SETUP)
    return tree


def test_a_signal_leaves_only_what_was_compiled(tmp_path: Path) -> None:
    tree, out = slow(tmp_path), tmp_path / "out"
    running = Running(tmp_path, "wheels", tree, "--torch", "2.13", "-o", out)
    running.ended("1 objects, of about 0")
    assert not out.exists()
    done = spawn.run(*running.command, env=running.env, status=1)
    assert "goes on with 1 objects of an earlier build" in done.stdout and "error: gone on" in done.stderr
    (tree / "setup.py").write_text(f"{SETUP}# changed\n")
    with wheels._going_on(
        tree, wheels.jobs_of("2.13", "")[0], Settings(cache_dir=str(tmp_path / "cache")), {}
    ) as place:
        assert not (place / "source" / "build").exists(), "other sources begin anew"
    assert not place.exists(), "a build that succeeds leaves nothing"


@pytest.mark.parametrize("when", ["fetched", "built"])
def test_a_signal_to_ship_leaves_only_what_the_next_one_goes_on_with(tmp_path: Path, when: str) -> None:
    links, out, listed = tmp_path / "links", tmp_path / "out", tmp_path / "list.toml"
    links.mkdir()
    with tarfile.open(links / "slow-1.0.tar.gz", "w:gz") as archive:
        archive.add(slow(tmp_path), "slow-1.0")
    sha256 = hashlib.sha256((links / "slow-1.0.tar.gz").read_bytes()).hexdigest()
    package = f'[[package]]\nname = "slow"\nversion = "1.0"\nsha256 = "{sha256}"\n'
    listed.write_text(f'torch = ["2.13"]\n{package}')
    more = {"PIP_FIND_LINKS": links, "PIP_NO_INDEX": 1, **({"WHEN_FETCHED": 1} if when == "fetched" else {})}
    running = Running(tmp_path, "ship", listed, "-o", out, **more)
    running.ended("1 objects, of about 0" if when == "built" else "slow 1.0, cpu")
    kept = [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()]
    assert kept == [f"archives/{sha256}/slow-1.0.tar.gz"] * (when == "built")
    assert len(list((out / "archives").iterdir())) == len(kept)
    if when == "built":
        done = spawn.run(*running.command, env=running.env, status=1)
        assert "goes on with 1 objects of an earlier build" in done.stdout and "error: gone on" in done.stderr


def test_a_signal_to_the_tests_of_a_wheel_leaves_nothing(tmp_path: Path) -> None:
    tests = tmp_path / "test_slow.py"
    tests.write_text(f"{WAITS}\ndef test_slow():\n    wait()\n")
    wheel = make_wheel(tmp_path, name="slow", requires=["torch"])
    # fails if a process or a folder is left, which `ended` looks for
    Running(tmp_path, "test", wheel, "--torch", "2.13", "--tests", tests).ended("")


def test_a_torch_without_cuda_is_the_cpu_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], *rest: object) -> str:
        asked.append(command)
        if "--index-url" in command and fails:
            raise wheels.KernelError("no such index")
        return ""

    monkeypatch.setattr(environments, "run", run)
    (cpu,), (cuda,) = wheels.jobs_of("2.13", ""), wheels.jobs_of("2.13", "cu130")
    for fails in (False, True):
        asked.clear()
        environments._install_torch(cpu, tmp_path / "bin" / "python")
        alone, rest = asked
        assert "torch==2.13.0+cpu" in alone and "--no-deps" in alone
        assert alone[alone.index("--index-url") + 1].endswith("/whl/cpu")
        assert "torch==2.13.0" in rest and "--no-deps" not in rest
        assert ("so the one of the package index" in capsys.readouterr().out) is fails
    asked.clear()
    environments._install_torch(cuda, tmp_path / "bin" / "python")
    assert len(asked) == 1, "the index has CUDA builds itself, or the job names where they are"
