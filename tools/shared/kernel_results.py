"""Results of kernels as files, and the distance of two results; for processors that cannot run in one process.

A file is a run of records: a line "name format count", then that many numbers, little-endian.
"""

from __future__ import annotations

from array import array
from pathlib import Path

# The formats by their number in a record: the bits of infinity, and those of a magnitude.
FORMATS = {"0": (0x7F800000, 0x7FFFFFFF), "1": (0x7C00, 0x7FFF), "2": (0x7F80, 0x7FFF)}  # float32, float16, bfloat16

Results = dict[str, tuple[str, list[int]]]


def read(path: Path) -> Results:
    """The bits of every result, by name. Every NaN becomes 0, because the bits of a NaN depend on the architecture."""
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        end = data.index(b"\n", at)
        name, number, count = data[at:end].decode().split()
        numbers = array("I" if number == "0" else "H")
        at = end + 1 + int(count) * numbers.itemsize
        numbers.frombytes(data[end + 1 : at])
        infinity, magnitude = FORMATS[number]
        found[name] = number, [0 if bits & magnitude > infinity else bits for bits in numbers]
    return found


def furthest(ours: Results, theirs: Results) -> dict[str, int]:
    """The greatest distance in units of the last place, for each result that differs."""
    if ours.keys() != theirs.keys():
        raise ValueError(f"not the same results: {sorted(ours.keys() ^ theirs.keys())[:5]}")
    far = {}
    for name, (number, some) in ours.items():
        others = theirs[name][1]
        if len(some) != len(others):
            raise ValueError(f"{name}: {len(some)} and {len(others)} numbers")
        if some != others:
            magnitude = FORMATS[number][1]
            far[name] = max(abs(_place(a, magnitude) - _place(b, magnitude)) for a, b in zip(some, others, strict=True))
    return far


def _place(bits: int, magnitude: int) -> int:
    """The position of a number among all numbers of its format."""
    return -(bits & magnitude) if bits > magnitude else bits
