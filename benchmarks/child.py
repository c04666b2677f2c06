"""Fresh processes, and a prebuilt installation for them: costs that occur once per process need a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def environment(**more: str) -> dict[str, str]:
    """This environment without the settings that affect precast, plus the given ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "PYTHONPATH"))}
    return {**kept, **more}


def run(code: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run Python code outside of the checkout and return the last line it prints. A failure shows its message."""
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


def build_installation(folder: Path) -> Path:
    """Build a wheel for this machine and install it into a separate folder."""
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    subprocess.run([*command, "--target", str(target), str(CHECKOUT)], env=environment(CUDA_EXT="1"), check=True)
    return target


def use_installation(target: Path) -> None:
    """Measure the precast that is installed in ``target``, here and in child processes."""
    if not (target / "precast" / "_C" / "build_info.json").is_file():
        raise SystemExit(f"benchmark: nothing prebuilt in {target}; needed: pip install --target {target} WHEEL")
    sys.path.insert(0, str(target))
    _INSTALLATION.append(target)


def prebuilt_installation() -> Path:
    """The folder that was passed to ``use_installation``."""
    return _INSTALLATION[-1]


_INSTALLATION: list[Path] = []
