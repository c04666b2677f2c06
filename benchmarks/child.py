"""Fresh processes and a prebuilt installation for them: what is measured once per process must start from nothing."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def environment(**more: str) -> dict[str, str]:
    """Take this environment without the settings that steer precast, and add some."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "PYTHONPATH"))}
    return {**kept, **more}


def run(code: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run Python code away from the checkout and return the last line it printed; a failure shows its message."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=environment() if env is None else env,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"benchmark: a child process failed, its message is above; its code was\n{code}")
    return done.stdout.splitlines()[-1] if done.stdout else ""


@functools.cache
def prebuilt_installation() -> Path:
    """Build a wheel for this machine and install it into a folder that lasts as long as this process."""
    keep = tempfile.TemporaryDirectory(prefix="precast-bench-")
    _KEPT.append(keep)
    target = Path(keep.name) / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    subprocess.run([*command, "--target", str(target), str(CHECKOUT)], env=environment(CUDA_EXT="1"), check=True)
    return target


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
