"""A forked Python is what a started one is: nothing of another child, and nothing of the server but torch, is in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forked

pytestmark = pytest.mark.torch

CHECKOUT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

# What one child does to itself: everything that a later one must not find.
MARKS = """
import ctypes, os, sys, threading, time, warnings
import torch, precast.ops
from precast._builder import catalogue
os.environ["PRECAST_MARK"] = "left"
os.chdir("/")
os.umask(0)
sys.path.append("left")
warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
torch.library.Library("forked_left", "DEF").define("op(Tensor x) -> Tensor")
torch.ones(400, 400) @ torch.ones(400, 400)
ctypes.CDLL(sys.argv[1])
threading.Thread(target=time.sleep, args=(0.01,)).start()
"""
SEES = """
import os, sys, threading, warnings
umask = os.umask(0o22)
found = {
    "mark": os.environ.get("PRECAST_MARK"), "cwd": os.getcwd(), "umask": umask, "path": sys.path[:2],
    "argv": sys.argv, "left": "left" in sys.path, "main": sorted(name for name in vars() if "annot" not in name),
    "name": __name__,
    "precast": sorted(name for name in sys.modules if name.partition(".")[0] in ("precast", "tests")),
    "maps": sys.argv[1] in open("/proc/self/maps").read(), "tasks": len(os.listdir("/proc/self/task")),
    "threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd")), "filters": len(warnings.filters),
}
import torch, json
found |= {
    "dtype": str(torch.get_default_dtype()), "seed": torch.initial_seed(), "torch_threads": torch.get_num_threads(),
    "op": hasattr(torch.ops.forked_left, "op"), "sum": torch.ones(3).sum().item(), "cuda": torch.cuda.is_initialized(),
}
print(json.dumps(found))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library that is in no process."""
    made = tmp_path / "left.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "-", "-o", str(made)], input=b"int left;", check=True)
    return made


def found(run: Run, env: dict[str, str], cwd: Path, library: Path) -> dict[str, Any]:
    done = run(SEES, str(library), env=env, cwd=cwd)
    assert done.returncode == 0 and done.stderr == "", done
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.compiler
def test_a_child_finds_nothing_of_another_and_is_like_a_process_of_its_own(tmp_path: Path, library: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "pkg"), "HOME": str(tmp_path)}
    found(forked.run, env, tmp_path, library)  # the first with such an environment is started
    before = found(forked.run, env, tmp_path, library)
    marking = forked.run(MARKS, str(library), env=env, cwd=tmp_path)
    assert marking.returncode == 0, marking.stderr
    assert marking.args == MARKS, "it was forked"
    after = found(forked.run, env, tmp_path, library)
    assert before.pop("seed") != after.pop("seed"), "torch draws one for each process"
    assert after == before
    assert (after["precast"], after["maps"], after["tasks"], after["mark"]) == ([], False, 1, None)
    own = found(forked.run_anew, env, tmp_path, library)
    own.pop("seed")
    assert own.pop("filters") <= before.pop("filters"), "torch adds some as it is imported"
    assert own == before


def test_what_a_process_reads_as_it_starts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_servers", {})
    code = "import os, sys, torch; print(torch.get_num_threads(), sys.flags.hash_randomization, os.environ.get('HOME'))"
    for threads in ("1", "2"):
        for home in ("/a", "/b", "/c"):
            env = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": "0", "HOME": home}
            assert forked.run(code, env=env, cwd=tmp_path).stdout == f"{threads} 0 {home}\n"
    assert [type(server) for server in forked._servers.values()] == [forked.Server] * 2
    for name in ("LD_PRELOAD", "LC_ALL", "CUDA_VISIBLE_DEVICES", "SOME"):
        assert forked._server((), {**os.environ, name: "", "PYTHONHASHSEED": "1"}) is None, "the first is no fork"
    assert len(forked._servers) == 6
    monkeypatch.setattr(forked, "MOST_SERVERS", 2)
    assert forked._server((), {**os.environ, "SOME": "", "PYTHONHASHSEED": "1"}) is None, "there are two"
    for server in filter(None, forked._servers.values()):
        server.close()


@pytest.mark.parametrize("offered", ["torch", "numpy.py", "json", "sitecustomize.py"])
def test_what_a_path_offers_is_imported(offered: str, tmp_path: Path) -> None:
    """The server has imported another module of that name."""
    site, name = tmp_path / "site", offered.partition(".")[0]
    file = site / offered if offered.endswith(".py") else site / offered / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("import builtins; builtins.customized = __name__")
    code = f"import {name}; print(__import__('builtins').customized)"
    for _ in range(3):
        done = forked.run(code, env={**os.environ, "PYTHONPATH": f"/nowhere:{site}"}, cwd=tmp_path)
        assert done.stdout == f"{name}\n", done.stderr


@pytest.mark.parametrize(
    ("code", "status", "out", "err"),
    [
        ("print('said')", 0, "said\n", ""),
        ("raise SystemExit(7)", 7, "", ""),
        ("import sys; sys.exit('why')", 1, "", "why\n"),
        ("import atexit; atexit.register(print, 'late')", 0, "late\n", ""),
        ("import os; os.kill(os.getpid(), 9)", -9, "", ""),
        ("import os; os.write(1, b'\\xff')", 0, "\N{REPLACEMENT CHARACTER}", ""),
    ],
)
def test_status_and_words_are_those_of_the_code(code: str, status: int, out: str, err: str, tmp_path: Path) -> None:
    for run in (forked.run, forked.run_anew):
        done = run(code, env=os.environ, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_a_traceback_is_that_of_the_code_alone(tmp_path: Path) -> None:
    code = "def f():\n    1 / 0\nf()"
    forks, own = (run(code, env=os.environ, cwd=tmp_path).stderr for run in (forked.run, forked.run_anew))
    assert forks == own and "ZeroDivisionError" in own


def test_who_takes_too_long_is_ended(tmp_path: Path) -> None:
    code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(code, env=os.environ, cwd=tmp_path, timeout=1)
    assert forked.run("print('next')", env=os.environ, cwd=tmp_path).stdout == "next\n"
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_process_with_a_thread_serves_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A child would have the locks of a thread that it does not have."""
    code = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    (tmp_path / "torch.py").write_text(code)
    with pytest.raises(RuntimeError, match="the process that imports torch ended: 1"):
        forked.Server((), {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert "something has started a thread" in capfd.readouterr().err
