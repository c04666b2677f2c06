"""Intact files that this machine does not open: the cause is named, nothing is called damaged, and it recovers."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.load.conftest import Site, make_site

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

LOAD = "import precast; print(precast.load('adam_').host.kind)"
RECOVERS = """
import subprocess, precast
from precast.errors import KernelError
try:
    precast.load("adam_")
except KernelError as error:
    print(type(error).__name__, error)
subprocess.run(["mount", "-o", "remount,exec", {mount!r}], check=True)
print(precast.load("adam_").host.kind)
"""


@pytest.fixture
def noexec() -> Iterator[Callable[[Path], Path]]:
    """Mount a tmpfs without execution in the place of a folder, with the files that the folder has."""
    mounted = []

    def mount(folder: Path) -> Path:
        before = folder.rename(folder.with_name(f"{folder.name}-before")) if folder.exists() else None
        folder.mkdir()
        options = ["-t", "tmpfs", "-o", "noexec,size=200m,mode=700", "none", str(folder)]
        subprocess.run(["mount", *options], check=True)
        mounted.append(folder)
        if before is not None:
            shutil.copytree(before, folder, dirs_exist_ok=True)
            folder.chmod(0o700)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.mounts
def test_a_wheel_on_a_noexec_mount_is_intact_and_serves_once_it_is_remounted(
    wheel: Site, noexec: Callable[[Path], Path]
) -> None:
    mount = noexec(wheel.c_dir / "host")
    found = f"{mount} is mounted noexec, which forbids to load code from it"
    done = wheel.run(LOAD)
    assert done.stdout == "cache\n" and "corrupted" not in done.stderr, done.stderr
    assert f"{wheel.library} is intact, but is not used: {found}" in done.stderr
    said = wheel.ok(RECOVERS.format(mount=str(mount)), env={"PRECAST_JIT": "aot"})
    assert said.startswith("JitDisabled adam_ cannot be loaded for cpu (prebuilt file not opened; ")
    assert f"(unopened): needs a file system without noexec; found {found}" in said
    assert f"fix     1) mount -o remount,exec {mount}\n" in said and said.endswith("prebuilt\n")


@pytest.mark.mounts
def test_a_cache_on_a_noexec_mount_is_refused_before_anything_is_built(
    cold: Site, built: Site, noexec: Callable[[Path], Path]
) -> None:
    noexec(cold.cache)
    for there in (False, True):  # nothing is in it, then a library of an earlier time
        if there:
            (entry,) = built.cache.glob("v1/cpu_adam/*")
            shutil.copytree(entry, cold.cache / "v1" / "cpu_adam" / entry.name)
        said = cold.refusal(LOAD)
        assert said.startswith("KernelUnavailable: libraries in the build cache cannot be loaded here")
        assert f"{cold.cache} is mounted noexec" in said and "fix     1) export PRECAST_CACHE_DIR=" in said
        assert "report this" not in said and there == bool(list(cold.cache.glob("v1/cpu_adam/*")))


@pytest.mark.mounts
def test_builds_of_a_home_on_a_noexec_mount_are_kept_in_the_temp_folder(
    cold: Site, tmp_path: Path, noexec: Callable[[Path], Path]
) -> None:
    home = noexec(cold.home)
    code = "from precast._abi.settings import Settings; import os\nfrom precast._builder.roots import default_root\n"
    code += "print(default_root(Settings.from_env(os.environ)))"
    done = cold.run(code, env={"PRECAST_CACHE_DIR": "", "TMPDIR": str(tmp_path)})
    assert done.stdout == f"{tmp_path}/precast-{os.getuid()}\n", done.stderr
    assert f"as {home}/.cache is on a file system that is mounted noexec" in done.stderr


# The limit is in force while the linker maps the library, and nowhere else.
NO_MEMORY = """
import precast, resource, torch
from precast._load import loader
from precast.errors import KernelUnavailable
free, real = resource.getrlimit(resource.RLIMIT_AS), loader.HostLibrary
def opened(path):
    with open("/proc/self/statm") as facts:
        pages = int(facts.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + 65536, free[1]))
    try:
        return real(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, free)
loader.HostLibrary = opened
for _ in range(2):
    try:
        precast.load("adam_")
    except KernelUnavailable as error:
        print(error)
loader.HostLibrary = real
print(precast.load("adam_").host.kind)
"""


@pytest.mark.parametrize("mode", ["auto", "aot"])
def test_without_memory_nothing_is_built_and_the_next_call_is_served(wheel: Site, mode: str) -> None:
    done = wheel.run(NO_MEMORY, env={"PRECAST_JIT": mode})
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.count("kernels-x86_64.so cannot be opened now; the next call tries again") == 2
    assert "no memory to map it" in done.stdout and done.stdout.endswith("\nprebuilt\n")


REPAIRS = """
import pathlib, precast
from precast.errors import KernelError
library = pathlib.Path({library!r})
away = library.rename(library.with_suffix(".away"))
try:
    precast.load("adam_")
except KernelError as error:
    print(type(error).__name__)
away.rename(library)
print(precast.load("adam_").host.kind)
"""


def test_a_library_that_is_repaired_serves_the_next_call(wheel: Site) -> None:
    said = wheel.ok(REPAIRS.format(library=str(wheel.library)), env={"PRECAST_JIT": "aot"})
    assert said == "JitDisabled\nprebuilt\n"


def test_a_package_in_a_zip_says_so_in_one_sentence(wheel: Site, tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in wheel.folder.rglob("*"):
            packed.write(path, path.relative_to(wheel.folder))
    done = wheel.run("import precast", env={"PYTHONPATH": str(archive)})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: precast cannot be used from the archive {archive}")


def test_a_path_that_is_not_utf_8_is_said_in_one_sentence(tmp_path: Path) -> None:
    odd = Path(tmp_path, "caf\udce9")
    odd.mkdir()
    site = make_site(odd, tmp_path / "cache", sources=False)
    done = site.run("import precast")
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("ImportError: ")]
    assert said.startswith(f"ImportError: precast cannot be used from {ascii(str(site.folder))[:-1]}/precast/")
    assert "the path is not UTF-8" in said
