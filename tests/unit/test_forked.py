"""A forked Python is what a started one is: nothing of another child, and nothing of the server but torch, is in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import forked, spawn

pytestmark = pytest.mark.torch

CHECKOUT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

# What a child can do to itself, and how that shows in a process: none of it may show in the next child.
KEPT = {
    "a variable": ("os.environ['PRECAST_MARK'] = 'left'", "os.environ.get('PRECAST_MARK')"),
    "a variable for C": ("os.putenv('XDG_MARK', 'left')", "bool(ctypes.CDLL(None).getenv(b'XDG_MARK'))"),
    "the folder": ("os.chdir('/')", "os.getcwd()"),
    "the mask of new files": ("os.umask(0)", "os.umask(0o22)"),
    "the search path": ("sys.path.append('left')", "sys.path[-1] == 'left'"),
    "modules": (
        "import precast.ops; sys.modules['tests'] = os",
        "[name for name in sys.modules if name.partition('.')[0] in ('precast', 'tests')]",
    ),
    "names": ("left = 1", "sorted(name for name in vars(sys.modules['__main__']) if 'annot' not in name)"),
    "names for all": ("builtins.left = 1", "hasattr(builtins, 'left')"),
    "filters of warnings": ("warnings.simplefilter('ignore')", "len(warnings.filters)"),
    "levels of logs": ("logging.getLogger('precast').setLevel(10)", "logging.getLogger('precast').level"),
    "the limit of recursion": ("sys.setrecursionlimit(5000)", "sys.getrecursionlimit()"),
    "the collector": ("gc.disable()", "gc.isenabled()"),
    "a handler of a signal": ("signal.signal(signal.SIGUSR1, print)", "str(signal.getsignal(signal.SIGUSR1))"),
    "a signal that is ignored": ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "signal.getsignal(signal.SIGCHLD)"),
    "blocked signals": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})",
        "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
    ),
    "an alarm": ("signal.alarm(100)", "signal.alarm(0) > 0"),
    "open files": ("os.open('/dev/null', os.O_RDONLY)", "len(os.listdir('/proc/self/fd'))"),
    "limits": ("resource.setrlimit(resource.RLIMIT_CPU, (900, 900))", "resource.getrlimit(resource.RLIMIT_CPU)"),
    "niceness": ("os.nice(1)", "os.nice(0)"),
    "the folder for temporary files": ("tempfile.tempdir = '/left'", "tempfile.gettempdir()"),
    "what runs at the end": ("atexit.register(print)", "atexit._ncallbacks() > before_marks"),
    "a library": ("ctypes.CDLL(sys.argv[1])", "sys.argv[1] in open('/proc/self/maps').read()"),
    "threads of Python": (
        "threading.Thread(target=threading.Event().wait, args=(30,), daemon=True).start()",
        "threading.active_count()",
    ),
    "threads of OpenMP": ("torch.ones(400, 400) @ torch.ones(400, 400)", "len(os.listdir('/proc/self/task'))"),
    "the number of torch's threads": ("torch.set_num_threads(77)", "torch.get_num_threads()"),
    "threads between its ops": ("torch.set_num_interop_threads(78)", "torch.get_num_interop_threads()"),
    "its seed": ("torch.manual_seed(3)", "torch.initial_seed() == 3"),
    "its default dtype": ("torch.set_default_dtype(torch.float64)", "str(torch.get_default_dtype())"),
    "its default device": ("torch.set_default_device('meta')", "str(torch.get_default_device())"),
    "whether it records gradients": ("torch.set_grad_enabled(False)", "torch.is_grad_enabled()"),
    "whether it is deterministic": (
        "torch.use_deterministic_algorithms(True)",
        "torch.are_deterministic_algorithms_enabled()",
    ),
    "the precision of its products": (
        "torch.set_float32_matmul_precision('medium')",
        "torch.get_float32_matmul_precision()",
    ),
    "its ops": (
        "library = torch.library.Library('forked_left', 'DEF'); library.define('op(Tensor x) -> Tensor')",
        "hasattr(torch.ops.forked_left, 'op')",
    ),
}
MODULES = "atexit, builtins, ctypes, gc, logging, os, resource, signal, sys, tempfile, threading, warnings"
LOOK = f"""
import {MODULES}, json, torch
before_marks = atexit._ncallbacks()
%s
print(json.dumps({{{", ".join(f"{name!r}: {look}" for name, (_, look) in KEPT.items())}}}), flush=True)
os._exit(0)  # whatever it left
"""
Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """How it shows in a child that does it all, in children before and after, and in a process of its own."""
    cwd = tmp_path_factory.mktemp("forked")
    library = spawn.library(cwd / "left.so", "int left;")
    # Without threads of OpenBLAS: an import starts them, a fork ends them.
    env = spawn.environ(PYTHONPATH=CHECKOUT / "pkg", HOME=cwd, TMPDIR=cwd, OPENBLAS_NUM_THREADS=1)

    def found(run: Run, code: str) -> dict[str, Any]:
        done = run(LOOK % code, str(library), env=env, cwd=cwd)
        assert done.returncode == 0 and done.stderr == "", done
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    found(forked.run, "")  # the first with such an environment is started
    marks = "\n".join(mark for mark, _ in KEPT.values())
    runs = {"before": (forked.run, ""), "marked": (forked.run, marks), "after": (forked.run, "")}
    return {name: found(*run) for name, run in (runs | {"own": (forked.run_anew, "")}).items()}


@pytest.mark.compiler
@pytest.mark.parametrize("name", KEPT)
def test_a_child_finds_nothing_of_another_and_is_like_a_process_of_its_own(name: str, seen: Found) -> None:
    before, marked, after, own = (seen[run][name] for run in ("before", "marked", "after", "own"))
    assert marked != before, "it would be seen"
    assert after == before == own


def test_what_a_child_is_given_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_servers", {})  # others may have begun as many as there may be
    code = (
        "import json, os, sys, tempfile, torch; from torch._inductor.runtime.cache_dir_utils import cache_dir; "
        "from precast._abi.settings import Settings; from precast._builder.roots import default_root; "
        "places = [tempfile.gettempdir(), cache_dir(), str(default_root(Settings.from_env(os.environ)))]; "
        "print(json.dumps([places, os.getcwd(), sys.argv[1:], os.environ.get('PRECAST_ONE'), __name__]))"
    )
    for name, more in [("one", {"PRECAST_ONE": "1"}), ("two", {}), ("three", {})]:
        place = tmp_path / name
        place.mkdir()
        caches = {"TMPDIR": place, "TORCHINDUCTOR_CACHE_DIR": place / "inductor", "PRECAST_CACHE_DIR": place / "cache"}
        env = spawn.environ("PRECAST_", PYTHONPATH=CHECKOUT / "pkg", **caches, **more)
        done = forked.run(code, name, env=env, cwd=place)
        places = [str(place), str(place / "inductor"), str(place / "cache")]
        assert json.loads(done.stdout) == [places, str(place), [name], more.get("PRECAST_ONE"), "__main__"], done.stderr
    assert done.args == code, "it was forked"
    for server in filter(None, forked._servers.values()):
        server.close()


def test_random_numbers_differ_from_child_to_child(tmp_path: Path) -> None:
    code = (
        "import os, random, tempfile, numpy, torch; "
        "print(random.random(), numpy.random.rand(), torch.rand(()).item(), tempfile.mktemp(), os.getpid())"
    )
    drawn = [forked.run(code, env=os.environ, cwd=tmp_path).stdout.split() for _ in range(4)]
    assert [len(set(numbers)) for numbers in zip(*drawn[1:], strict=True)] == [3] * 5


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
