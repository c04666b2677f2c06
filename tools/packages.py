"""Programs and libraries that a step takes from pinned packages: fetched once by pip into the build cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from precast._build.cache import Cache
from precast.errors import KernelError


def folder_of(requirement: str, cache: Cache) -> Path:
    """The folder that holds an exact requirement (``nvidia-cuda-nvrtc==13.0.88``), without what it depends on.

    It appears by one rename, so a folder that is there is whole.
    """
    if not re.fullmatch(r"[\w.-]+==[\w.]+", requirement):
        raise ValueError(f"not an exact requirement: {requirement!r}")
    kept = cache.root / "packages" / requirement.replace("==", "-")
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{kept.name}-", dir=kept.parent))
    try:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--target", str(staging), requirement], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KernelError(
                f"pip does not bring {requirement}\n"
                f"  found   {(done.stderr.strip().splitlines() or ['nothing was said'])[-1]}\n"
                f"  needed  a package index that has it\n"
                f"  fix     1) python -m pip download --no-deps {requirement}"
            )
        if not kept.exists():  # else another process was faster
            staging.rename(kept)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return kept
