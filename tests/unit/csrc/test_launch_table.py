"""docs/reference/launch.md against the code: every range in it is what the host code answers for every width.

The ranges come from the families' own functions (launch_table.cpp); what was measured is written here, by hand, with
where the figure is kept. ``--update-snapshots`` writes the page's table.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CSRC = ROOT / "csrc"
PAGE = ROOT / "docs" / "reference" / "launch.md"
FAMILIES = (
    "RMS_NORM",
    "RMS_NORM_BACKWARD",
    "LAYER_NORM",
    "LAYER_NORM_BACKWARD",
    "SOFTMAX",
    "SOFTMAX_BACKWARD",
)
MARKS = ("<!-- launch_table -->\n", "<!-- end of launch_table -->\n")
SECOND_SOURCE = "read again from the caches; not measured by itself"

# By op and the first width of a range, in 16-byte vectors: an H200, bf16, share of the copy rate.
# B: docs/benchmarks.md, M: docs/decisions, S: the source, where the kernel is chosen.
MEASURED = {
    ("rms_norm", 1): "131072 x 128: 19.0 us; before, with one warp for each row, 31.4 (M)",
    ("rms_norm", 65): "0.93 at 65536 x 1024 (B)",
    ("rms_norm", 129): "0.97 at 32768 x 4096, 0.96 at 16384 x 8192 (B); four vectors are within 0.2 % of the best (M)",
    ("rms_norm", 2561): SECOND_SOURCE,
    ("fused_add_rms_norm", 1): "131072 x 128: 35 us; before 38 (M)",
    ("fused_add_rms_norm", 33): "0.96 at 65536 x 1024, 0.98 at 32768 x 4096 and 16384 x 8192 (B)",
    ("fused_add_rms_norm", 1025): SECOND_SOURCE,
    (
        "rms_norm backward",
        33,
    ): "sixteen short rows fill a block, which leaves one line of sums: 90 us at 262144 x 128, 94 with four (M)",
    (
        "rms_norm backward",
        65,
    ): "two stages: 0.89 at 65536 x 1024 and 32768 x 2048, where three reach 0.83 (M); 640 threads "
    "on a multiprocessor beat 768 (M)",
    (
        "rms_norm backward",
        385,
    ): "0.93 at 32768 x 4096, 0.92 if the next row sets out later, 0.90 if earlier (M); one vector 0.80, four 0.72 (S)",
    ("rms_norm backward", 513): "0.91 at 16384 x 5120, 0.90 in pairs (M)",
    ("rms_norm backward", 641): "0.93 at 16384 x 8192, 0.92 with two rows under way all the time (M)",
    ("rms_norm backward", 1281): "0.87 at 8192 x 12288, 0.88 at 8192 x 16384, where the next kernel has 0.15 (M)",
    ("rms_norm backward", 2049): "one element at a time",
    ("layer_norm", 1): "131072 x 96: 15.6 us; before, with one warp for each row, 45.3 (M)",
    ("layer_norm", 65): "0.91 at 65536 x 1024 (B)",
    ("layer_norm", 129): "0.96 at 32768 x 4096 and 16384 x 8192 (B); two vectors 0.895 at 4096 (S)",
    ("layer_norm", 2049): SECOND_SOURCE,
    (
        "layer_norm backward",
        33,
    ): "sixteen short rows fill a block, which leaves one line of sums: 110 us at 262144 x 128, 115 with four (M)",
    ("layer_norm backward", 65): "two stages: 0.87 at 65536 x 1024 and 32768 x 2048, where three reach 0.80 (M)",
    ("layer_norm backward", 385): "0.92 at 32768 x 4096, 0.90 if the next row sets out later, 0.87 if earlier (M)",
    ("layer_norm backward", 513): "0.89 at 16384 x 5120, 0.88 in pairs (M)",
    (
        "layer_norm backward",
        641,
    ): "three stages: 0.93 at 16384 x 8192, 0.89 in pairs, 0.87 with two, and 0.64 without rows on "
    "their way to shared memory (M)",
    ("layer_norm backward", 1281): "0.83 at 8192 x 12288, 0.82 at 8192 x 16384, where the next kernel has 0.08 (M)",
    ("layer_norm backward", 2049): "one element at a time",
    ("softmax", 1): "131072 x 128: 19.5 us; before, with one warp for each row, 53.9 (M)",
    ("softmax", 65): "masked 0.97 at 8 x 32 x 1024 x 1024 (B)",
    ("softmax", 129): "masked 0.97 at 8 x 32 x 2048 x 2048, 0.93 at 2 x 32 x 4096 x 4096 (B)",
    ("softmax", 2049): "what four vectors do not hold; not measured by itself. Not for float32",
    ("softmax", 4097): SECOND_SOURCE,
    ("causal softmax", 1): "as the next row; four short rows fill a block",
    ("causal softmax", 65): "0.94 at 8 x 32 x 1024 x 1024 (B)",
    ("causal softmax", 129): "0.955 at 8 x 32 x 2048 x 2048, 0.940 with two or four rows in a block, 0.78 with the "
    "masked rows' kernel (M); 0.91 at 2 x 32 x 4096 x 4096 (B)",
    ("causal softmax", 4097): SECOND_SOURCE,
    ("softmax backward", 1): "131072 x 128: 27.4 us; before, with one warp for each row, 47.3 (M)",
    ("softmax backward", 65): "masked 1.02, causal 0.96 at 8 x 32 x 1024 x 1024 (B)",
    ("softmax backward", 129): "masked 1.04, causal 0.98 at 8 x 32 x 2048 x 2048 (B)",
    ("softmax backward", 2049): SECOND_SOURCE,
    ("rms_norm backward", 1): "131072 x 128: 30.3 us; before, with one warp for each row, 47.1 (M)",
    ("layer_norm backward", 1): "131072 x 96: 31.4 us; before, with one warp for each row, 57.9 (M)",
}
_UNALIGNED = {
    "rms_norm": "8192 x 5137: 55 us; one element at a time 125 (M)",
    "fused_add_rms_norm": "8192 x 5137: 89 us; one element at a time 199 (M)",
    "layer_norm": "16384 x 769: 25.7 us; one element at a time 78.5 (M)",
    "softmax": "100864 x 197: 30.7 us; one element at a time 119 (M)",
    "causal softmax": "not measured by itself",
    "softmax backward": "100864 x 197: 39.6 us; one element at a time 128 (M)",
}
for _op, _said in _UNALIGNED.items():
    MEASURED |= {(f"{_op}, unaligned", _first): "as the first row" for _first in (65, 129)}
    MEASURED |= {(f"{_op}, unaligned", 1): _said, (f"{_op}, unaligned", 2049): "one element at a time"}


@dataclass(frozen=True)
class Range:
    """One range of widths that the host code serves alike."""

    op: str
    unit: str  # vectors of 16 bytes; shifted: those a row touches that begins anywhere; elements: of any other row
    first: int
    last: int | None
    kernel: str
    threads: tuple[int, int]
    block: int  # its threads, if it has several rows
    stages: int

    @property
    def measured(self) -> tuple[str, int]:
        """Where MEASURED has it."""
        return (f"{self.op}, unaligned" if self.unit == "shifted" else self.op), self.first

    def line(self) -> str:
        """As the page has it."""
        width = f"{self.first} to {self.last}" if self.last else f"{self.first} and more"
        width += ", unaligned" if self.unit == "shifted" else ""
        fewest, most = self.threads
        threads = str(fewest) if fewest == most else f"{fewest} to {most}"
        found = re.search(r"_v(\d)(_pair)?$", self.kernel.replace("_shifted", "_v4"))
        one = "1 element" if "norm backward" in self.op else "1 x 16 bytes"
        per_thread = f"{found[1]} x 16 bytes" if found else f"{one} at a time"
        measured = MEASURED[self.measured]
        rows = 1 if not self.block else self.block // fewest if fewest == most else f"{self.block} / threads"
        stages = str(self.stages) if self.stages else ""
        return f"| {width} | `{self.kernel}` | {threads} | {per_thread} | {rows} | {stages} | {measured} |"


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> list[Range]:
    """What the host code says, from programs around its own files; the linker drops what would launch."""
    found = []
    for family in FAMILIES:
        program = tmp_path_factory.mktemp("table") / family
        command = ["g++", "-std=c++17", "-O1", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]
        command += [f"-I{CSRC}", f"-DFAMILY_{family}", str(HERE / "launch_table.cpp")]
        built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr
        said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        for line in said.splitlines():
            op, unit, first, last, kernel, fewest, most, block, stages = line.split("|")
            threads = (int(fewest), int(most))
            found.append(
                Range(op, unit, int(first), int(last) if last else None, kernel, threads, int(block), int(stages))
            )
    return found


def table(ranges: list[Range]) -> str:
    """The tables of the page, one for each op."""
    lines: list[str] = []
    for op in dict.fromkeys(one.op for one in ranges):
        lines += [
            f"\n### {op}\n",
            "| 16-byte vectors in a row | kernel | threads | in a thread | rows | stages | measured |",
        ]
        lines += ["| --- " * 7 + "|"]
        lines += [one.line() for one in ranges if one.op == op and one.unit != "elements"]
    return "\n".join(lines) + "\n\n"


@pytest.mark.compiler
def test_the_page_is_what_the_host_code_chooses(ranges: list[Range], pytestconfig: pytest.Config) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    shown, _, after = rest.partition(MARKS[1])
    made = table(ranges)
    if pytestconfig.getoption("--update-snapshots"):
        PAGE.write_text(before + MARKS[0] + made + MARKS[1] + after, encoding="utf-8")
        return
    assert shown == made, f"{PAGE} differs from the host code: --update-snapshots writes it"


@pytest.mark.compiler
def test_every_row_of_the_page_says_what_was_measured(ranges: list[Range]) -> None:
    assert {one.measured for one in ranges if one.unit != "elements"} == set(MEASURED)


@pytest.mark.compiler
def test_what_is_not_aligned_goes_one_element_at_a_time_as_the_page_says(ranges: list[Range]) -> None:
    unaligned = [one for one in ranges if one.unit == "elements"]
    assert {one.op for one in unaligned} == {one.op for one in ranges}
    assert all(one.kernel.endswith("_any") for one in unaligned)
    assert {(one.first, one.last, one.threads, one.block) for one in unaligned} == {
        (1, 128, (32, 32), 128),
        (129, None, (64, 512), 0),
    }
    text = PAGE.read_text(encoding="utf-8")
    assert "up to 128 columns" in text and "64 to 512 threads" in text


def test_the_constants_beside_the_table_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    wanted = {
        "activations/args.h": (r"kThreads = (\d+)", "blocks of 64 threads", 64),
        "rotary/host.cpp": (r"kThreads = (\d+)", "blocks of 128 threads", 128),
        "rotary/heads.cuh": (r"kThreads = (\d+)", "blocks of 128 threads", 128),
        "common/row_launch.h": (r"int64_t\{(\d+)\} << 20\) / \(bytes", "3 MB", 3),
        "softmax/host.cpp": (r"kTurnsFrom = int64_t\{(\d+)\} << 20", "12 MB", 12),
        "common/walk.h": (r"kResident = (\d+)", "640 threads", 640),
    }
    for file, (pattern, phrase, number) in wanted.items():
        found = re.search(pattern, (CSRC / file).read_text(encoding="utf-8"))
        assert found is not None and int(found[1]) == number, f"{file}: {pattern}"
        assert phrase in text, f"launch.md does not say {phrase!r}, which is in {file}"
