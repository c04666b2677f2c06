"""Builds that are ended from outside: the next process finds no debris, no lock, and builds in peace."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.lab import BUILD, Lab, debris, fault, library, line
from tests.kit import spawn
from tests.load.conftest import Site

KILL = "import os; from precast._builder import cache, host, process; from pathlib import Path\n"
DIE = "lambda *args, **more: os.kill(os.getpid(), 9)\n"


def killed_by_itself(site: Site, patch: str) -> None:
    done = site.run(KILL + patch + BUILD)
    assert done.returncode == -signal.SIGKILL, done.stderr


def builds_again(site: Site, kind: str = "jit") -> str:
    started = time.monotonic()
    done = site.run(BUILD, env={"PRECAST_JIT_WAIT": "120"})
    assert (done.returncode, done.stdout) == (0, f"{kind}\n"), done.stderr
    assert "waiting" not in done.stderr and time.monotonic() - started < 100
    assert debris(site) == [] and library(site).is_file()
    return line(done.stderr, "built the host library") if kind == "jit" else "nothing: the entry was complete"


@fault("kill-staged", "kill -9 before the compiler starts", how="SIGKILL in place of the compile", lost="the build")
def kill_staged(lab: Lab) -> str:
    site = lab.site()
    killed_by_itself(site, "process.run = " + DIE)
    assert len(debris(site)) == 1
    return builds_again(site)


@fault("kill-compiling", "kill -9 while compilers run", how="SIGKILL from outside, empty cache", lost="the build")
def kill_compiling(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    child = start(site)
    compilers = spawn.wait_for(lambda: running_in(site.cache))
    child.kill()
    child.communicate()
    spawn.wait_for(lambda: not running_in(site.cache))
    assert compilers and len(debris(site)) == 1
    library_of_the_seed = lab.site(warm="objects")  # the compile itself has been seen; the rest is the same
    (site.cache / "v1" / "objects").mkdir(exist_ok=True)
    for entry in (library_of_the_seed.cache / "v1" / "objects").iterdir():
        entry.rename(site.cache / "v1" / "objects" / entry.name)
    return builds_again(site)


@fault("kill-linked", "kill -9 after the link, before the marker", how="SIGKILL in Cache.publish", lost="the build")
def kill_linked(lab: Lab) -> str:
    site = lab.site()
    killed_by_itself(site, "cache.Cache.publish = " + DIE)
    return builds_again(site)


@fault("kill-marked", "kill -9 after the marker, before the rename", how="SIGKILL in Path.rename", lost="the build")
def kill_marked(lab: Lab) -> str:
    site = lab.site()
    killed_by_itself(site, "Path.rename = " + DIE)
    assert list((site.cache / "v1" / ".staging").glob("*/meta.json"))
    return builds_again(site)


@fault("kill-shown", "kill -9 after the rename, before the load", how="SIGKILL after Path.rename")
def kill_shown(lab: Lab) -> str:
    site = lab.site()
    killed_by_itself(site, "real = Path.rename\nPath.rename = lambda a, b: (real(a, b), os.kill(os.getpid(), 9))\n")
    return builds_again(site, "cache")


@fault("ctrl-c", "Ctrl-C while compilers run", how="SIGINT from outside, empty cache", lost="the build")
def ctrl_c(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    child = start(site)
    spawn.wait_for(lambda: running_in(site.cache))
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == -signal.SIGINT, said
    assert debris(site) == [] and not running_in(site.cache), "a compiler or its folder outlived the interrupt"
    return line(said, "KeyboardInterrupt")


def start(site: Site) -> subprocess.Popen[str]:
    env = spawn.environ(PYTHONPATH=site.folder, HOME=site.home, PRECAST_CACHE_DIR=site.cache)
    env |= {"PRECAST_JIT": "jit", "MAX_JOBS": "2"}
    # A shell without job control starts what runs in the background deaf to interrupts, and children inherit that.
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.Popen(
        [sys.executable, "-c", hear + BUILD], env=env, cwd=site.home, stderr=subprocess.PIPE, text=True
    )


def running_in(folder: Path) -> list[str]:
    """The compilers whose command line names a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "cc1plus" in command and str(folder) in command:
            found.append(command)
    return found
