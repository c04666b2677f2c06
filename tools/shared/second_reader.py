"""Ask NVIDIA's own tools for the target of a cubin, as an independent check of our reading of its header.

The tools come from PyPI, at the versions that matrix.toml names; they need no GPU and no toolkit. cuobjdump of CUDA 13
prints nothing for sm_90 code that CUDA 12.1 compiled; nvdisasm reads that code, but refuses sm_70.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from precast._builder.cache import Cache
from precast.errors import KernelError
from tools.shared import packages

# cuobjdump lists the file name with the architecture that it found inserted before the suffix.
_LISTED = re.compile(r"^ELF file +\d+: .*\.(sm_\d+[af]?)\.cubin$", re.MULTILINE)
_FLAGS = re.compile(r'^\s*\.headerflags\s+@"[^"]*\bEF_CUDA_SM(\d+)', re.MULTILINE)


def fetch(requirements: Sequence[str], cache: Cache) -> tuple[Path, Path]:
    """Fetch cuobjdump and nvdisasm from exactly these packages."""
    found = {}
    for requirement in requirements:
        for program in packages.folder_of(requirement, cache).glob("nvidia/cu*/bin/*"):
            program.chmod(0o755)
            found[program.name] = program
    return found["cuobjdump"], found["nvdisasm"]


def check(programs: tuple[Path, Path], cubins: Iterable[tuple[Path, str]]) -> int:
    """Compare each cubin with its target and return their number; KernelError names the first mismatch."""
    count = 0
    for path, target in cubins:
        found = ask(programs, path)
        if found != [target]:
            raise KernelError(
                f"{path} is not code for {target}",
                found=", ".join(found) or "nothing that cuobjdump or nvdisasm can read",
                needed=f"{target}, once",
                fix="empty the build cache, and build it again",
            )
        count += 1
    return count


def ask(programs: tuple[Path, Path], path: Path) -> list[str]:
    """The targets of the code in a file, from the first tool that has an answer."""
    cuobjdump, nvdisasm = programs
    done = subprocess.run([str(cuobjdump), "-lelf", str(path)], capture_output=True, text=True, check=False)
    listed = _LISTED.findall(done.stdout) if done.returncode == 0 else []
    return listed or _flags(nvdisasm, path)


def _flags(nvdisasm: Path, path: Path) -> list[str]:
    """The targets from the header flags in the first lines of a disassembly, without waiting for the rest."""
    with subprocess.Popen(
        [str(nvdisasm), "-c", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        head = running.stdout.read(1 << 16).decode("utf-8", "replace")
        running.kill()
    return [f"sm_{number}" for number in _FLAGS.findall(head)]
