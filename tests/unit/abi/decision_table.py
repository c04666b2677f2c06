"""The decision table, by hand: every combination of what a wheel holds, what could build, and the mode.

docs/reference/decision.md shows it; test_decision_table.py holds it against ``decide`` for every combination, and holds
the page against it. ``any`` stands for every value of a column.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

COLUMNS = {
    "prebuilt": ("yes", "no"),  # whether the wheel holds anything
    "library": ("fits", "no adapter", "does not"),  # its library and this libc, machine; its adapters and this torch
    "gpu": ("SASS", "PTX", "none"),  # what of its device code serves the GPU
    "builders": ("yes", "no"),  # a compiler, ninja and NVRTC
    "mode": ("auto", "aot", "jit", "none"),  # PRECAST_JIT
}
ANY = "any"


@dataclass(frozen=True)
class Row:
    """One row: a pattern of the columns, the outcome, and the reasons that must be among those given."""

    number: str
    prebuilt: str
    library: str
    gpu: str
    builders: str
    mode: str
    outcome: str  # prebuilt, refuse, or "build" with library, adapter, code
    reasons: str
    meaning: str

    def covers(self, case: tuple[str, ...]) -> bool:
        """Whether a combination belongs to this row."""
        pattern = (self.prebuilt, self.library, self.gpu, self.builders, self.mode)
        return all(want in (ANY, is_) or is_ in want.split(", ") for want, is_ in zip(pattern, case, strict=True))


ROWS = (
    Row("1", "yes", "fits", "SASS", ANY, "auto, aot", "prebuilt", "", "loaded, without a search for compilers"),
    Row("2", "yes", "fits", "PTX", ANY, "auto, aot", "prebuilt", "", "the same; the driver compiles the PTX"),
    Row(
        "3",
        "yes",
        "fits",
        "none",
        "yes",
        "auto",
        "build code",
        "arch",
        "NVRTC builds for this GPU",
    ),
    Row(
        "4",
        "yes",
        "fits",
        "none",
        "no",
        "auto",
        "refuse",
        "arch no-nvrtc",
        "the next extension is tried, else KernelUnavailable",
    ),
    Row("5", "yes", "does not", "SASS, PTX", "yes", "auto", "build library", "glibc", "the reason is logged"),
    Row("5", "yes", "does not", "none", "yes", "auto", "build library, code", "glibc arch", "both reasons are logged"),
    Row("5", "yes", "does not", ANY, "no", "auto", "refuse", "glibc no-compiler", "KernelUnavailable"),
    Row(
        "5", "yes", "no adapter", "SASS, PTX", "yes", "auto", "build adapter", "torch-abi", "one file, for all kernels"
    ),
    Row("5", "yes", "no adapter", "none", "yes", "auto", "build adapter, code", "torch-abi arch", ""),
    Row("5", "yes", "no adapter", ANY, "no", "auto", "refuse", "torch-abi no-compiler", "KernelUnavailable"),
    Row("6", "no", ANY, ANY, "yes", "auto", "build library, code", "no-prebuilt", "torch below 2.10: also the adapter"),
    Row("6", "no", ANY, ANY, "no", "auto", "refuse", "no-prebuilt no-compiler", "KernelUnavailable"),
    Row("7", ANY, "fits, does not", ANY, "yes", "jit", "build library, code", "", "prebuilt files are skipped"),
    Row("7", "yes", "no adapter", ANY, "yes", "jit", "build library, adapter, code", "", "prebuilt files are skipped"),
    Row("7", ANY, ANY, ANY, "no", "jit", "refuse", "no-compiler", "KernelUnavailable"),
    Row(
        "8",
        "yes",
        "fits",
        "none",
        ANY,
        "aot",
        "refuse",
        "arch aot-only",
        "JitDisabled",
    ),
    Row("8", "yes", "does not", ANY, ANY, "aot", "refuse", "glibc aot-only", "JitDisabled"),
    Row("8", "yes", "no adapter", ANY, ANY, "aot", "refuse", "torch-abi aot-only", "JitDisabled"),
    Row("8", "no", ANY, ANY, ANY, "aot", "refuse", "no-prebuilt aot-only", "JitDisabled"),
    Row(
        "off",
        ANY,
        ANY,
        ANY,
        ANY,
        "none",
        "refuse",
        "jit-off",
        "JitDisabled",
    ),
)

# What a decision alone does not show: row 9 is in tests/defects, row 10 beside this file.
AFTERWARDS = (
    (
        "9",
        "a file that fitted will not open",
        "the linker's message is kept; the file is built once",
    ),
    ("10", "an extension of lower priority can be loaded", "one warning names what it replaces"),
)


def cases() -> Iterator[tuple[str, ...]]:
    """Every combination; without prebuilt files the columns about them have one value."""
    for case in itertools.product(*COLUMNS.values()):
        if case[0] == "yes" or case[1:3] == ("fits", "SASS"):
            yield case


def decision_table() -> str:
    """The table of the page."""
    lines = ["| | prebuilt | library | code for the GPU | builders | `PRECAST_JIT` | outcome | reasons given | |"]
    lines += ["| --- " * 9 + "|"]
    for row in ROWS:
        mode = " ".join(f"`{mode}`" for mode in row.mode.split(", "))
        reasons = " ".join(f"`{reason}`" for reason in row.reasons.split())
        cells = (row.number, row.prebuilt, row.library, row.gpu, row.builders, mode, row.outcome, reasons, row.meaning)
        lines.append("| " + " | ".join(cells) + " |")
    lines += [f"| {number} | {ANY} | {when} | | | `auto` | | | {then} |" for number, when, then in AFTERWARDS]
    return "\n".join(lines)
