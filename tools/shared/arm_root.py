"""A folder for running ARM programs under qemu-user: Debian's Python for arm64, and torch's wheel for aarch64.

Nothing is installed on this machine: packages are only unpacked, and apt keeps its lists in that folder too.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from precast.errors import KernelError

MACHINE = "aarch64"
# The interpreter and the libraries that torch links; apt adds their dependencies.
_PACKAGES = ("python3", "libstdc++6", "libgomp1")
# The packages that torch imports. pip would evaluate the markers of torch's own list for the machine it runs on.
_BESIDE_TORCH = ("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "typing-extensions")
# pip matches platform tags exactly.
_PLATFORMS = [f"--platform=manylinux_2_{minor}_{MACHINE}" for minor in range(17, 37)]


@dataclass(frozen=True, slots=True)
class Root:
    """The unpacked system, its interpreter, and the folder of torch."""

    system: Path
    python: Path
    site: Path

    @property
    def version(self) -> str:
        """The interpreter's version, such as 3.11."""
        return self.python.name.removeprefix("python")

    def command(self, processor: str, *arguments: str, env: dict[str, str]) -> list[str]:
        """The command for a Python program on an emulated processor, with torch and the variables of ``env``."""
        path = ":".join(filter(None, (env.get("PYTHONPATH", ""), str(self.site))))
        passed = {**env, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        options = [word for name, value in passed.items() for word in ("-E", f"{name}={value}")]
        return ["qemu-aarch64", "-cpu", processor, "-L", str(self.system), *options, str(self.python), *arguments]


def prepare(work: Path, torch: str) -> Root:
    """Fetch the missing folders below ``work``; each gets its name at the end, so existing ones are complete."""
    system, site = work / "system", work / f"torch-{torch}"
    if not system.is_dir():
        _unpack_system(work, system)
    python = next(path for path in sorted((system / "usr/bin").glob("python3.*")) if path.suffix[1:].isdigit())
    root = Root(system, python, site)
    if not site.is_dir():
        _install_torch(root, torch, site)
    return root


def _unpack_system(work: Path, system: Path) -> None:
    apt, fresh = work / "apt", work / "system.new"
    for folder in (apt / "state/lists/partial", apt / "cache/archives/partial", fresh):
        folder.mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    own = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
    }
    options = [f"-o{name}={value}" for name, value in own.items()]
    _run(["apt-get", *options, "-qq", "update"])
    _run(["apt-get", *options, "-qq", "-y", "--no-install-recommends", "--download-only", "install", *_PACKAGES])
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(fresh)])
    fresh.rename(system)


def _install_torch(root: Root, torch: str, site: Path) -> None:
    fresh = site.with_name(f"{site.name}.new")
    options = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={root.version}"]
    wanted = [f"torch=={torch}", *_BESIDE_TORCH]
    _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(fresh), *_PLATFORMS, *options, *wanted])
    fresh.rename(site)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise KernelError(
            f"the ARM system cannot be put together on this {platform.machine()} machine",
            found=f"{' '.join(command[:4])} ... ended with {done.returncode}: {done.stdout.strip()[-1000:]}",
            needed="Debian's apt with access to its archive, and pip with access to an index",
        )
