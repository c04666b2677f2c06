"""A compiler ends with the process that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._builder import nvrtc_child, process, python
from precast.core import pip
from precast.errors import KernelError
from tests.kit import spawn

PARENT = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what a shell starts in the background
from precast._builder import process
child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
process.run([sys.executable, "-c", child], log=Path(sys.argv[1]), environment=dict(os.environ))
"""


def test_the_status_and_what_was_said_come_back(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    status, said = process.run([sys.executable, "-c", code], log=tmp_path / "log", environment={"LC_ALL": "C"})
    assert (status, said) == (3, "out\nerr\n") and (tmp_path / "log").read_text() == said


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_child_ends_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    log = tmp_path / "log"
    with spawn.started(sys.executable, "-c", PARENT, log, stderr=subprocess.DEVNULL) as parent:
        child = int(spawn.wait_for(lambda: log.exists() and log.read_text()))
        parent.send_signal(how)
        parent.wait()
    spawn.wait_for(lambda: not running(child))  # fails if it is never true


def test_everything_in_the_session_of_a_child_ends(tmp_path: Path) -> None:
    """Ninja gives each compiler a process group of its own, and a shell that ends leaves its children to others."""
    code = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(60)"
    tree = f"{sys.executable} -c '{code}' & wait"
    stubborn = "trap '' TERM; " + tree
    log = tmp_path / "log"
    parent = PARENT.replace('[sys.executable, "-c", child]', "['sh', '-c', sys.argv[2]]")
    for shell in (tree, stubborn):
        with spawn.started(sys.executable, "-c", parent, log, shell, stderr=subprocess.DEVNULL) as process_:
            child = int(spawn.wait_for(lambda: log.exists() and log.read_text()))
            process_.send_signal(signal.SIGINT)
            process_.wait()
        assert not running(child)
        log.unlink()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_an_interrupt_does(tmp_path: Path, how: signal.Signals) -> None:
    if signal.getsignal(how) is signal.SIG_IGN:
        pytest.skip(f"whoever started these tests ignores {how.name}, as nohup does, and so do their children")
    code = "import tempfile, time\nfrom precast._builder import process\nprocess.end_cleanly()\n"
    code += "with tempfile.TemporaryDirectory() as it: print(it, flush=True); time.sleep(60)"
    with spawn.started(sys.executable, "-c", code, env=spawn.environ(TMPDIR=tmp_path)) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(how)
        assert child.wait() == 128 + how
    assert list(tmp_path.iterdir()) == []


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_a_frozen_program_never_starts_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that PyInstaller froze, ``sys.executable`` is the program: it would run again for each child."""
    found = SimpleNamespace(path="libnvrtc.so", builtins="")
    for word, value in (("frozen", True), ("executable", "/bin/false")):
        monkeypatch.setattr(sys, word, value, raising=False)
    monkeypatch.setattr(nvrtc_child, "Compiler", lambda *given: given)
    assert process.run(["echo", "out"], log=tmp_path / "log", environment=dict(os.environ)) == (0, "out\n")
    assert nvrtc_child.open_nvrtc(found) == ("libnvrtc.so", "")  # type: ignore[arg-type]
    assert pip.install_command() == "pip install"
    with pytest.raises(KernelError, match="pip cannot run in a child process"):
        python.command("pip", "list")
