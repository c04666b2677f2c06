"""``python -m tests.causes``: the processor seconds of `make test` by what uses them. Arguments are those of pytest.

The kernel writes a line for each process that ends, if root asks it to (acct(2)); the processes below pytest's own are
counted. Without that, only the sum is known.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# struct acct_v3 of linux/acct.h; times are in ticks of 1/100 s, memory in KiB.
RECORD = struct.Struct("<BBHIIIIIIf8H16s")
FORKED = 1  # without an exec of its own
LOG = "PRECAST_TESTS_CAUSES_LOG"  # tells a run inside of another's where the kernel writes already
FOLDERS = (tempfile.gettempdir(), "/dev/shm")  # where the kernel may have space to write
TORCH_KIB, NVRTC_KIB = 400 << 10, 100 << 10  # of addresses: the libraries of each

COMPILERS = {
    "C++ compiled": ("cc1plus", "g++", "c++", "clang++", "as", "aarch64-linux-gn"),
    "libraries linked": ("ld", "collect2", "ld.lld", "ar"),
    "device code by nvcc": ("nvcc", "cicc", "ptxas", "cudafe++", "fatbinary"),
}


@dataclass(frozen=True)
class Process:
    """One that has ended."""

    pid: int
    parent: int
    name: str
    forked: bool
    seconds: float  # of a processor
    began: int  # in seconds of the clock
    lasted: float  # seconds
    kib: int


def read(data: bytes) -> Iterator[Process]:
    """The processes of a file that acct(2) has written."""
    for offset in range(0, len(data) - RECORD.size + 1, RECORD.size):
        flags, _, _, _, _, _, pid, parent, began, lasted, *rest, name = RECORD.unpack_from(data, offset)
        user, system, kib = map(_expanded, rest[:3])
        text = name.partition(b"\0")[0].decode(errors="replace")
        yield Process(pid, parent, text, bool(flags & FORKED), (user + system) / 100, began, lasted / 100, kib)


def _expanded(number: int) -> int:
    """A comp_t: three bits of an exponent of 8, and 13 of a mantissa."""
    return (number & 0x1FFF) << 3 * (number >> 13)


def below(processes: Sequence[Process], root: int) -> list[Process]:
    """The last process of that number and all that it and its children have started; numbers are used again."""
    (first,) = [process for process in processes if process.pid == root][-1:]
    by_parent: dict[int, list[Process]] = {}
    for process in processes:
        by_parent.setdefault(process.parent, []).append(process)
    found = [first]
    for one in found:  # which grows
        children = by_parent.get(one.pid, ())
        found += [child for child in children if one.began - 1 <= child.began <= one.began + one.lasted + 1]
    return found


def cause(process: Process, root: Process) -> str:
    """What a process is there for, as far as its name, size and parent tell."""
    for name, programs in COMPILERS.items():
        if process.name in programs:
            return name
    if not process.name.startswith("python"):
        return "other programs"
    if process.pid == root.pid or (process.parent == root.pid and process.lasted > root.lasted / 3):
        return "tests in the processes of pytest"
    if process.kib >= TORCH_KIB:
        return "Pythons with torch, forked" if process.forked else "Pythons that import torch"
    return "device code by NVRTC" if process.kib >= NVRTC_KIB else "Pythons without torch, pip among them"


def table(processes: Sequence[Process], root: int) -> str:
    """Processes and seconds by cause, the largest first, as the table of tests/README.md."""
    found = below(processes, root)
    sums: dict[str, list[float]] = {}
    for process in found:
        entry = sums.setdefault(cause(process, found[0]), [0, 0.0])
        entry[0] += 1
        entry[1] += process.seconds
    rows = [f"| {name} | {count:.0f} | {seconds:.0f} |" for name, (count, seconds) in sums.items()]
    rows.sort(key=lambda row: -int(row.rsplit("|", 2)[1]))
    total = sum(seconds for _, seconds in sums.values())
    return "\n".join(
        ("| Cause | Processes | Processor seconds |", "| --- | --- | --- |", *rows, f"| all | | {total:.0f} |")
    )


@contextmanager
def counting(folders: Sequence[str] = FOLDERS) -> Iterator[Path | None]:
    """The file to which the kernel writes each process that ends; None: it does not. A run around this one has one.

    acct(2) succeeds on a nearly full disk as well, and then nothing is written: the first folder that gets a line is
    taken.
    """
    if LOG in os.environ:
        yield Path(os.environ[LOG])
        return
    acct = ctypes.CDLL(None, use_errno=True).acct
    for parent in filter(os.path.isdir, folders):
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            log = Path(folder, "log")
            log.touch()
            if acct(os.fsencode(log)) != 0:
                continue
            try:
                subprocess.run(["true"], check=True)
                if log.stat().st_size:
                    yield log
                    return
            finally:
                acct(None)
    yield None


def main(arguments: list[str]) -> int:
    """Run pytest as `make test` does and print the table."""
    command = [sys.executable, "-m", "pytest", "-n", "auto", *arguments]
    with counting() as log:
        tests = subprocess.Popen(command, env=os.environ if log is None else {**os.environ, LOG: str(log)})
        status = tests.wait()
        if log is not None:
            print(table(list(read(log.read_bytes())), tests.pid))
            return status
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(f"{seconds:.0f} processor seconds; by cause for root alone, with space on a disk: acct(2)")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
