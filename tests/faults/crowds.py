"""Many at once, and those who are gone."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.faults.disks import start
from tests.faults.lab import BUILD, Lab, debris, fault, library, line
from tests.kit import spawn


@fault("eight-cold", "8 processes start cold at the same moment", how="a gate that all wait at; one lock for all")
def eight_cold(lab: Lab) -> str:
    site = lab.site()
    gate = site.home / "gate"
    wait = f"import time, pathlib\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
    code = "print('ready', flush=True)\n" + wait + BUILD
    children = [start(site, code, {}) for _ in range(8)]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    gate.touch()
    answers = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0] * 8, answers
    kinds = sorted(out.strip() for out, _ in answers)
    assert kinds == ["cache"] * 7 + ["jit"], kinds
    assert debris(site) == [] and library(site).is_file()
    return line("\n".join(err for _, err in answers), "built the host library")


@fault("dead-host", "a lock and a half-made build of a host that is gone", how="its files put there", lost="some bytes")
def dead_host(lab: Lab) -> str:
    site = lab.site()
    v1 = site.cache / "v1"
    (v1 / ".locks").mkdir()
    (v1 / ".locks" / "cpu_adam.lock").write_text("process 4711 on gone, since 01:00:00\n")
    (v1 / ".staging").mkdir()
    (v1 / ".staging" / "gone-12345678-4711-abc").mkdir()
    (v1 / "lock").touch()  # as file batons leave it
    done = site.run(BUILD)
    assert (done.returncode, done.stdout) == (0, "jit\n") and "waiting" not in done.stderr, done.stderr
    assert debris(site) == ["gone-12345678-4711-abc"], "another host's folder may be at work"
    return line(done.stderr, "built the host library")


WAITER = """
import sys
from pathlib import Path
from precast._builder import lock
lock_file = Path(sys.argv[1])
with lock.exclusive(lock_file, "cpu_adam") as turn:
    turn.tell(Path("/the/build.log"))
    print("held", flush=True)
    sys.stdin.read()
"""


@fault(
    "stuck-builder", "a builder that never ends", how="a process that keeps the lock; PRECAST_JIT_WAIT=1", lost="a wait"
)
def stuck_builder(lab: Lab) -> str:
    from precast._builder import lock

    site = lab.site()
    seed = next((lab.seed / "v1" / "cpu_adam").iterdir()).name
    path = lock.lock_file(site.cache, f"cpu_adam-{seed}")
    assert path is not None
    env = spawn.environ(PYTHONPATH=site.folder)
    with spawn.started(sys.executable, "-c", WAITER, path, env=env, stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        done = site.run(BUILD, env={"PRECAST_JIT_WAIT": "1"})
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    assert f"process {holder.pid} on {socket.gethostname()}" in done.stderr and "log /the/build.log" in done.stderr
    return line(done.stderr, "building it here as well")


@fault("planted-locks", "somebody else's folder where the locks go", how="TMPDIR and /dev/shm refused", lost="one lock")
def planted_locks(lab: Lab) -> str:
    site = lab.site()
    code = (
        "from pathlib import Path\nfrom precast._builder import trust\nfrom precast.errors import KernelError\n"
        "def refuse(path): raise KernelError(f'{path} is not safe')\ntrust.private_folder = refuse\n"
    )
    done = site.run(code + BUILD)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    assert Path(library(site)).is_file()
    return line(done.stderr, "built the host library")
