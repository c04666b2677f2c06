"""Stops in one of our kernels with cuda-gdb, and says at which line; or says what the debugger said instead.

``python tests/gpu/debugger.py --site FOLDER``, with precast installed in that folder. It builds rms_norm with
PRECAST_DEBUG=1, once without the debugger, so that only loading is left to watch, and then runs it again under it.
Prints JSON. Exit status: 0, stopped in the kernel; 1, not; 3, there is no cuda-gdb.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

KERNEL = "rms_norm_f32_v4"
PROGRAM = """
import torch, precast.ops
x = torch.ones(4, 1024, device="cuda")
print("SUM", precast.ops.rms_norm(x, torch.ones(1024, device="cuda")).sum().item())
"""
COMMANDS = (
    "set pagination off",
    "set breakpoint pending on",
    f"break {KERNEL}",
    "run",
    "info cuda kernels",
    "backtrace",
    "print threadIdx",
    "info locals",
    "delete",
    "continue",
)
_STOP = re.compile(rf"Breakpoint [\d.]+, .*\b{KERNEL}\b.* at (\S+:\d+)")
_TAIL = 6000


@dataclass(frozen=True)
class Outcome:
    """What the debugger did: where it stopped, or None, and the end of what it said."""

    tool: str
    version: str
    where: str | None
    finished: bool
    said: str


def stopped_at(said: str) -> str | None:
    """The file and line of the kernel in which a debugger stopped."""
    match = _STOP.search(" ".join(said.split()))
    return match[1] if match else None


def find_tool(name: str) -> str | None:
    """A program of PATH, else of a toolkit."""
    places = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    beside = (str(Path(place) / "bin" / name) for place in places if place)
    return shutil.which(name) or next((path for path in beside if os.access(path, os.X_OK)), None)


def main(arguments: list[str]) -> int:
    """Build, debug, and print the outcome of the first way that stops; of the last one if none does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--timeout", type=int, default=240, metavar="SECONDS")
    options = parser.parse_args(arguments)
    tool = find_tool("cuda-gdb")
    if tool is None:
        print("no cuda-gdb on PATH, in CUDA_HOME or in /usr/local/cuda", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as cache:
        settings = {"PRECAST_DEBUG": "1", "PRECAST_JIT": "jit", "PRECAST_CACHE_DIR": cache}
        env = {**os.environ, **settings, "PYTHONPATH": str(options.site.resolve())}
        subprocess.run([sys.executable, "-c", PROGRAM], env=env, cwd=cache, check=True)
        outcome = _debug(tool, env, cache, options.timeout)
        if outcome.where is None:  # the older of its two ways to reach the GPU
            outcome = _debug(tool, {**env, "CUDBG_USE_LEGACY_DEBUGGER": "1"}, cache, options.timeout)
    print(json.dumps(asdict(outcome), indent=1))
    return 0 if outcome.where else 1


def _debug(tool: str, env: dict[str, str], folder: str, timeout: int) -> Outcome:
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    steps = [word for command in COMMANDS for word in ("-ex", command)]
    command = [tool, "-nx", "-batch", *steps, "--args", sys.executable, "-c", PROGRAM]
    try:
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
        )
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = f"{_text(error.stdout)}{_text(error.stderr)}\n(no end after {timeout} s)"
    return Outcome(tool, version[0] if version else "", stopped_at(said), "SUM 4096" in said, said[-_TAIL:])


def _text(said: bytes | str | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
