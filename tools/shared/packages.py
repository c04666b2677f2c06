"""Programs and libraries from packages, which pip installs once into folders of the build cache."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from precast._builder.cache import Cache
from precast.errors import KernelError


def folder_of(requirement: str, cache: Cache) -> Path:
    """The folder that holds an exact requirement (``nvidia-cuda-nvrtc==13.0.88``), without its dependencies."""
    if not re.fullmatch(r"[\w.-]+==[\w.]+", requirement):
        raise ValueError(f"not an exact requirement: {requirement!r}")
    return _kept(kept(requirement, cache), ["--no-deps", "--only-binary=:all:", requirement])


def kept(requirement: str, cache: Cache) -> Path:
    """The path for the folder of an exact requirement, which may not exist."""
    return cache.root / "packages" / requirement.replace("==", "-")


def environment(requirements: Sequence[str], cache: Cache, options: Sequence[str]) -> Path:
    """The folder that holds requirements and their dependencies, for this Python."""
    asked = [*options, "--only-binary=:all:", *requirements]
    digest = hashlib.sha256("\n".join([sys.version, *asked]).encode()).hexdigest()
    return _kept(cache.root / "environments" / f"{requirements[-1].replace('==', '-')}-{digest[:12]}", asked)


def _kept(folder: Path, asked: list[str]) -> Path:
    """The folder, installed first if it is missing. It appears by one rename, so an existing folder is complete."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        done = subprocess.run([*command, "--target", str(staging), *asked], capture_output=True, text=True, check=False)
        if done.returncode:
            raise KernelError(
                f"pip does not bring {asked[-1]}",
                found=(done.stderr.strip().splitlines() or ["nothing was said"])[-1],
                needed="a package index that has it",
                fix=f"python -m pip download {' '.join(asked)}",
            )
        staging.chmod(0o755)
        if not folder.exists():  # otherwise another process was faster
            staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder
