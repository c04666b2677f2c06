"""Disks that are full, read-only, shared between machines, or wrong about names and times."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

from tests.faults.lab import BUILD, Lab, NotRun, debris, fault, library, line
from tests.kit import spawn
from tests.load.conftest import Site


def refused(site: Site, **env: str) -> str:
    """The KernelError of a load."""
    return site.refusal(BUILD, env=env)


def still_works(site: Site, env: dict[str, str], kind: str = "jit") -> str:
    done = site.run(BUILD, env=env)
    assert (done.returncode, done.stdout) == (0, f"{kind}\n"), done.stderr
    return done.stderr


@fault("full-compile", "disk full while the compiler writes", how="objects open as /dev/full", lost="the build")
def full_compile(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    said = refused(site, **lab.faulty(site.cache, full=".o"))
    assert said.startswith("BuildFailed: ") and debris(site) == []
    assert "the disk is full" in said and "export PRECAST_CACHE_DIR=" in said
    return line(said, "found", "No space left on device")


@fault("full-publish", "disk full as the build is kept", how="meta.json opens as /dev/full", lost="the cached copy")
def full_publish(lab: Lab) -> str:
    site = lab.site()
    said = still_works(site, lab.faulty(site.cache, full="meta.json"))
    assert not list(site.cache.glob("v1/cpu_adam/*")) and debris(site) == []
    assert still_works(site, {}) and library(site).is_file(), "with space again it is built and kept"
    return line(said, "not kept for later", "No space left")


@fault("full-tmpfs", "disk full for real", how="a tmpfs of 200 kB as the cache", lost="the build")
def full_tmpfs(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    site.cache.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", "size=200k,mode=700", "none", str(site.cache)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise NotRun(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        said = refused(site)
        assert "No space left" in said and debris(site) == [], (said, debris(site))
    finally:
        subprocess.run(["umount", str(site.cache)], check=True)
    return line(said, "No space left")


@fault("readonly-home", "read-only home", how="EROFS for everything below HOME", lost="the cache after a reboot")
def readonly_home(lab: Lab) -> str:
    site = lab.site()
    env = lab.faulty(site.home, readonly="1") | {"PRECAST_CACHE_DIR": "", "TMPDIR": str(site.home.parent)}
    said = still_works(site, env | {"PRECAST_CACHE_PATH": str(site.cache)})
    assert list(site.home.iterdir()) == []
    return line(said, "builds are kept in", "cannot be written")


@fault("readonly-cache", "read-only cache that was named", how="EROFS for everything below it", lost="the build")
def readonly_cache(lab: Lab) -> str:
    site = lab.site()
    said = refused(site, **lab.faulty(site.cache, readonly="1"))
    assert "PRECAST_CACHE_DIR=" in said
    return line(said, "found", "Read-only file system")


@fault("readonly-site", "read-only cache of a site, filled before", how="EROFS below it, in PRECAST_CACHE_PATH")
def readonly_site(lab: Lab) -> str:
    site = lab.site(warm="all")
    env = lab.faulty(site.cache, readonly="1")
    env |= {"PRECAST_CACHE_PATH": str(site.cache), "PRECAST_CACHE_DIR": str(site.home / "empty")}
    assert still_works(site, env, "cache") == "" and list(site.home.iterdir()) == []
    return "nothing: it is used as it is"


def two_hosts(lab: Lab, **faults: str) -> tuple[Site, list[str]]:
    """Two machines start cold on one cache at the same moment, with no lock between them. What each said."""
    site = lab.site()
    env = lab.faulty(site.cache, **faults)
    code = MEET.format(folder=str(site.home)) + BUILD
    children = [start(site, code, env) for _ in range(2)]
    answers = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], answers
    assert [out for out, _ in answers] == ["jit\n", "jit\n"], answers
    assert debris(site) == []
    return site, [err for _, err in answers]


# Both are in the middle of their builds before either goes on.
MEET = """
import os, pathlib, time
from precast._builder import process
run, folder = process.run, pathlib.Path({folder!r})
def meet(*args, **more):
    (folder / f"building-{{os.getpid()}}").touch()
    while len(list(folder.glob("building-*"))) < 2:
        time.sleep(0.01)
    return run(*args, **more)
process.run = meet
"""


def start(site: Site, code: str, env: dict[str, str]) -> subprocess.Popen[str]:
    steering = {"PYTHONPATH": site.folder, "HOME": site.home, "PRECAST_CACHE_DIR": site.cache, "MAX_JOBS": 1}
    env, both = spawn.environ(**steering) | env, {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], env=env, cwd=site.home, text=True, **both)


@fault("nfs-local-flock", "two hosts whose flock excludes nobody", how="flock() says yes to all", lost="a second build")
def nfs_local_flock(lab: Lab) -> str:
    site, said = two_hosts(lab, flock="0")
    assert library(site).is_file() and not (site.cache / "v1" / ".damaged").exists()
    return line(said[0], "built the host library")


@fault("nfs-no-flock", "a file system without flock", how="flock() gives ENOLCK", lost="a second build")
def nfs_no_flock(lab: Lab) -> str:
    site, said = two_hosts(lab, flock=str(errno.ENOLCK))
    assert library(site).is_file()
    return line(said[0], "has no locks")


@fault("nfs-late-names", "entries show up late", how="ENOENT for what is younger than an hour", lost="the shared copy")
def nfs_late_names(lab: Lab) -> str:
    site, said = two_hosts(lab, flock="0", late="3600")
    assert still_works(site, {}, "cache") == "", "once it has shown up it is used"
    return line(said[0], "not kept for later")


@fault("nfs-no-rename", "folders cannot be renamed", how="rename() gives EXDEV")
def nfs_no_rename(lab: Lab) -> str:
    site = lab.site()
    said = still_works(site, lab.faulty(site.cache, rename=str(errno.EXDEV)))
    assert still_works(site, {}, "cache") == "" and debris(site) == []
    return line(said, "built the host library")


@fault("nfs-rename-and-copy", "nothing can be published", how="EIO for rename, ENOSPC for meta.json", lost="the copy")
def nfs_nothing_published(lab: Lab) -> str:
    site = lab.site()
    said = still_works(site, lab.faulty(site.cache, rename=str(errno.EIO), full="meta.json"))
    return line(said, "not kept for later")


@fault("times-lie", "every time stamp is wrong", how="mtimes of all files set to 1970 and 2100")
def times_lie(lab: Lab) -> str:
    site = lab.site(warm="all")
    for index, path in enumerate(sorted([*site.cache.rglob("*"), *(site.folder / "precast" / "csrc").rglob("*.*")])):
        os.utime(path, (0, 0) if index % 2 else (4_102_444_800, 4_102_444_800), follow_symlinks=False)
    assert still_works(site, {}, "cache") == ""
    return "nothing: no time is ever read"


@fault("clock-back", "the clock goes backwards", how="each look at the time of day is a minute earlier")
def clock_back(lab: Lab) -> str:
    site = lab.site()
    said = still_works(site, lab.faulty(site.cache, clock="1"))
    assert still_works(site, lab.faulty(site.cache, clock="1"), "cache") == ""
    return line(said, "built the host library")
