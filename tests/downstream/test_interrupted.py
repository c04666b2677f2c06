"""A build that is ended from outside leaves no process and no temporary file, and the next one goes on from there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast.build import environments, wheels
from tests.kit import spawn

pytestmark = pytest.mark.compiler

# Compiles the first object, then waits in a child with a process group of its own, as ninja starts compilers.
SETUP = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
from setuptools import setup
if "bdist_wheel" in sys.argv:
    made, note = Path("build/first.o"), Path(os.environ["NOTE"])
    if made.exists():
        sys.exit("error: gone on")
    made.parent.mkdir(exist_ok=True)
    made.touch()
    tempfile.mkdtemp()
    child = [sys.executable, "-c", "import time; time.sleep(60)"]
    children = [subprocess.Popen(child, process_group=0) if sys.version_info >= (3, 11) else subprocess.Popen(child)]
    note.write_text(f"{os.getpid()} {children[0].pid}")
    children[0].wait()
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
sys.exit(build_main.main(["wheels", sys.argv[2], "--torch", "2.13", "-o", sys.argv[3]]))
"""


def test_a_signal_leaves_only_what_was_compiled(tmp_path: Path) -> None:
    tree, temporary, note, out = (tmp_path / name for name in ("slow", "temporary", "note", "out"))
    tree.mkdir()
    temporary.mkdir()
    (tree / "setup.py").write_text(SETUP)
    more = {"TMPDIR": temporary, "NOTE": note, "PRECAST_CACHE_DIR": tmp_path / "cache"}
    env = spawn.environ(**more)
    site = str(Path(os.__file__).parent / "site-packages")
    command = (sys.executable, "-c", RUN, site, str(tree), str(out))
    log = tmp_path / "log"
    with spawn.started("sh", "-c", 'exec "$@" >"$0" 2>&1', log, *command, env=env) as child:
        pids = str(spawn.wait_for(lambda: note.exists() and note.read_text())).split()
        spawn.wait_for(lambda: "1 objects, of about 0" in log.read_text())
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 128 + signal.SIGTERM, log.read_text()
    assert not any(Path("/proc", pid).exists() and "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
                   for pid in pids)  # fmt: skip
    assert list(temporary.iterdir()) == [] and not out.exists()
    done = spawn.run(*command, env=env, status=1)
    assert "goes on with 1 objects of an earlier build" in done.stdout and "error: gone on" in done.stderr
    (tree / "setup.py").write_text(f"{SETUP}# changed\n")
    with wheels._going_on(
        tree, wheels.jobs_of("2.13", "")[0], Settings(cache_dir=str(tmp_path / "cache")), {}
    ) as place:
        assert not (place / "source" / "build").exists(), "other sources begin anew"
    assert not place.exists(), "a build that succeeds leaves nothing"


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
