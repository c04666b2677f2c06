"""csrc/LAUNCH.md against the code: every range in it is what the host code answers for every width.

The ranges come from the families' own functions (launch_table.cpp); what was measured is written here, by hand, with
where the figure is kept. ``--update-snapshots`` writes the page's table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.kit import spawn

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CSRC = ROOT / "csrc"
PAGE = CSRC / "LAUNCH.md"
FAMILIES = (
    "RMS_NORM",
    "RMS_NORM_BACKWARD",
    "LAYER_NORM",
    "LAYER_NORM_BACKWARD",
    "SOFTMAX",
    "SOFTMAX_BACKWARD",
)
MARKS = ("<!-- launch_table -->\n", "<!-- end of launch_table -->\n")
AGAIN = "reads rows twice"
THRICE = "reads rows three times"
SINGLE = "one element at a time"

# By op and the first width of a range, in 16-byte vectors: an H200, bf16, share of the copy rate.
# B: docs/benchmarks.md, M: docs/decisions, S: the source, where the kernel is chosen.
MEASURED = {
    ("rms_norm", 1): "19.0 us at 131072 x 128; one warp per row 31.4 (M)",
    ("rms_norm", 65): "0.93 at 65536 x 1024 (B)",
    ("rms_norm", 129): "0.97 at 32768 x 4096, 0.96 at 16384 x 8192 (B)",
    ("rms_norm", 2561): "144 us at 2048 x 65536; `any` 216 (M)",
    ("rms_norm", 32769): AGAIN,
    ("fused_add_rms_norm", 1): "35 us at 131072 x 128 (M)",
    ("fused_add_rms_norm", 33): "0.96 at 65536 x 1024, 0.98 at 32768 x 4096 (B)",
    ("fused_add_rms_norm", 1025): "72 us at 2048 x 16384; `wide` 74 (M)",
    ("fused_add_rms_norm", 2049): "",
    ("fused_add_rms_norm", 32769): AGAIN,
    ("rms_norm backward", 1): "30.3 us at 131072 x 128; one warp per row 47.1 (M)",
    ("rms_norm backward", 33): "90 us at 262144 x 128; four rows per block 94 (M)",
    ("rms_norm backward", 65): "0.89 at 65536 x 1024; three stages 0.83 (M)",
    ("rms_norm backward", 385): "0.93 at 32768 x 4096 (M); one vector 0.80, four 0.72 (S)",
    ("rms_norm backward", 513): "0.91 at 16384 x 5120, in pairs 0.90 (M)",
    ("rms_norm backward", 641): "0.93 at 16384 x 8192 (M)",
    ("rms_norm backward", 1281): "0.87 at 8192 x 12288; `any` 0.15 (M)",
    ("rms_norm backward", 2049): "with forward 386 us at 2048 x 65536; both `any` 1736 (M)",
    ("rms_norm backward", 16385): SINGLE,
    ("layer_norm", 1): "15.6 us at 131072 x 96; one warp per row 45.3 (M)",
    ("layer_norm", 65): "0.91 at 65536 x 1024 (B)",
    ("layer_norm", 129): "0.96 at 32768 x 4096 (B); two vectors 0.895 (S)",
    ("layer_norm", 2049): "46 us at 2048 x 18432; `any` 62 (M)",
    ("layer_norm", 32769): THRICE,
    ("layer_norm backward", 1): "31.4 us at 131072 x 96; one warp per row 57.9 (M)",
    ("layer_norm backward", 33): "110 us at 262144 x 128; four rows per block 115 (M)",
    ("layer_norm backward", 65): "0.87 at 65536 x 1024; three stages 0.80 (M)",
    ("layer_norm backward", 385): "0.92 at 32768 x 4096 (M)",
    ("layer_norm backward", 513): "0.89 at 16384 x 5120, in pairs 0.88 (M)",
    ("layer_norm backward", 641): "0.93 at 16384 x 8192; in pairs 0.89, two stages 0.87 (M)",
    ("layer_norm backward", 1281): "0.83 at 8192 x 12288; `any` 0.08 (M)",
    ("layer_norm backward", 2049): "with forward 135 us at 2048 x 18432; both `any` 702 (M)",
    ("layer_norm backward", 16385): SINGLE,
    ("softmax", 1): "19.5 us at 131072 x 128; one warp per row 53.9 (M)",
    ("softmax", 65): "masked 0.97 at 8 x 32 x 1024 x 1024 (B)",
    ("softmax", 129): "masked 0.97 at 8 x 32 x 2048 x 2048 (B)",
    ("softmax", 2049): "133 us at 4096 x 32768; in clusters 145 (M)",
    ("softmax", 4097): "209 us at 4096 x 49152; `wide` 228 (M)",
    ("softmax", 8193): "270 us at 2048 x 128256; `any` 428 (M)",
    ("softmax", 65537): AGAIN,
    ("causal softmax", 1): "",
    ("causal softmax", 65): "0.94 at 8 x 32 x 1024 x 1024 (B)",
    ("causal softmax", 129): "0.955 at 8 x 32 x 2048 x 2048; two rows per block 0.940 (M)",
    ("causal softmax", 4097): AGAIN,
    ("softmax backward", 1): "27.4 us at 131072 x 128; one warp per row 47.3 (M)",
    ("softmax backward", 65): "masked 1.02, causal 0.96 at 8 x 32 x 1024 x 1024 (B)",
    ("softmax backward", 129): "masked 1.04, causal 0.98 at 8 x 32 x 2048 x 2048 (B)",
    ("softmax backward", 2049): "with forward 661 us at 2048 x 128256; both `any` 1063 (M)",
    ("softmax backward", 32769): AGAIN,
}
FEW_ROWS = {
    ("rms_norm", 2561): "",
    ("fused_add_rms_norm", 1025): "",
    ("layer_norm", 2049): "",
    ("softmax", 2049): "6.6 us at 16 x 128256; blocks of 1024 threads 9.9 (M)",
    ("softmax backward", 2049): "",
}
FEW_TEXT = """\
As long as a launch has at most 1024 threads on a multiprocessor, a row has more: up to 32 if a warp can hold it, else
one for each two vectors, or for each vector if these are up to 256: 2.9 us instead of 3.8 for layer_norm at 513 x 1792
(M). The gradients of the norms do not. Kernels that differ for 16 rows:
"""
OLDER_TEXT = """\
What differs on an A100. On every GPU these rows of softmax apply with a mask, and to the gradient of causal softmax.
For float32, `any` takes the place of `softmax_v8`.
"""
UNALIGNED = {
    "rms_norm 8192 x 5137": ("55 us", "125"),
    "fused_add_rms_norm 8192 x 5137": ("89 us", "199"),
    "layer_norm 16384 x 769": ("25.7 us", "78.5"),
    "softmax 100864 x 197": ("30.7 us", "119"),
    "softmax 1024 x 50257": ("87 us", "277"),
    "softmax backward 100864 x 197": ("39.6 us", "128"),
}


def span(ends: tuple[int, int]) -> str:
    """One number, or the least and the most."""
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    """The first two rows of a table."""
    return [row(*cells), "| --- " * len(cells) + "|"]


@dataclass(frozen=True)
class Range:
    """One range of widths that the host code serves alike."""

    case: str  # many rows on an H200; few rows, a mask or an older GPU have the ranges that differ from these
    op: str
    unit: str  # vectors of 16 bytes; shifted: those a row touches that begins anywhere; elements: of any other row
    first: int
    last: int | None
    kernel: str
    threads: tuple[int, int]
    block: int  # its threads, if it has several rows
    stages: int
    blocks: tuple[int, int]  # of a row, if it is a kernel for clusters

    def cells(self) -> tuple[str, str, str, str]:
        """The vectors in a row, the kernel, the threads, and the rows of a block or the blocks of a row."""
        width = f"{self.first}-{self.last}" if self.last else f"{self.first}+"
        fewest, most = self.threads
        rows = "1" if not self.block else str(self.block // fewest) if fewest == most else f"{self.block}/threads"
        if self.blocks[1]:
            rows = f"1 in {span(self.blocks)} blocks"
        return width, f"`{self.kernel}`", span(self.threads), rows

    def line(self) -> str:
        """As the page has it."""
        width, kernel, threads, rows = self.cells()
        stages = str(self.stages) if self.stages else ""
        if self.case == "few":
            return row(self.op, width, kernel, threads, rows, FEW_ROWS.get((self.op, self.first), ""))
        if self.case == "older":
            return row(self.op, width, kernel, threads, stages)
        if self.unit == "shifted":
            return row(width, f"`..._{self.kernel.rpartition('_')[2]}`", threads, rows)  # of every op alike
        return row(width, kernel, threads, rows, stages, MEASURED.get((self.op, self.first), ""))


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> list[Range]:
    """What the host code says, from programs around its own files; the linker drops what would launch."""
    found = []
    for family in FAMILIES:
        options = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", f"-I{CSRC}", f"-DFAMILY_{family}")
        program = spawn.program(tmp_path_factory.mktemp("table") / family, *options, HERE / "launch_table.cpp")
        for line in spawn.run(program).stdout.splitlines():
            case, op, unit, first, last, kernel, *rest = line.split("|")
            fewest, most, block, stages, *blocks = map(int, rest)
            found.append(
                Range(
                    *(case, op, unit, int(first), int(last) if last else None, kernel),
                    *((fewest, most), block, stages, (blocks[0], blocks[1])),
                )
            )
    return found


def table(ranges: list[Range]) -> str:
    """The tables of the page: one for each op, then what differs for few rows and on older GPUs."""
    lines: list[str] = []
    many, few, older = ([one for one in ranges if one.case == case] for case in ("many", "few", "older"))
    few = [one for one in few if one.blocks[1]]
    for op in dict.fromkeys(one.op for one in many):
        lines += [f"\n### {op}\n", *head("vectors in a row", "kernel", "threads", "rows", "stages", "measured")]
        lines += [one.line() for one in many if one.op == op and one.unit == "vectors"]
    lines += ["\n### Few rows\n", FEW_TEXT]
    lines += head("op", "vectors in a row", "kernel", "threads", "rows", "measured")
    lines += [one.line() for one in few]
    lines += ["\n### GPUs without clusters\n", OLDER_TEXT]
    lines += head("op", "vectors in a row", "kernel", "threads", "stages")
    lines += [one.line() for one in older]
    lines += ["\n### Unaligned rows\n", *head("vectors in a row", "kernel", "threads", "rows")]
    lines += dict.fromkeys(one.line() for one in many if one.unit == "shifted")
    lines += ["", *head("Row", "in vectors", "element by element")]
    lines += [row(op, fast, slow) for op, (fast, slow) in UNALIGNED.items()]
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
    for case, measured in (("many", MEASURED), ("few", FEW_ROWS)):
        shown = [one for one in ranges if one.case == case and one.unit == "vectors"]
        assert {(one.op, one.first) for one in shown if case == "many" or one.blocks[1]} == set(measured)


@pytest.mark.compiler
def test_few_rows_are_spread_over_more_threads(ranges: list[Range]) -> None:
    few = [one for one in ranges if one.case == "few"]
    assert all(one.blocks[1] == 8 for one in few if one.kernel.endswith("_wide"))
    spread = {one.op for one in few if (one.unit, one.first) == ("vectors", 129)}
    assert spread == {"rms_norm", "layer_norm", "softmax", "softmax backward"}


@pytest.mark.compiler
def test_only_gpus_with_clusters_take_the_kernels_for_them(ranges: list[Range]) -> None:
    assert all(one.kernel.endswith(("_wide", "_walk")) == (one.blocks[1] > 0) for one in ranges)
    assert {one.op for one in ranges if one.blocks[1] and one.case == "many"} == {
        one.op for one in ranges if one.op != "causal softmax"
    }
    assert not any(one.blocks[1] for one in ranges if one.case == "older")


@pytest.mark.compiler
def test_masked_rows_take_what_gpus_without_clusters_take(ranges: list[Range]) -> None:
    masked = [replace(one, case="older") for one in ranges if one.case == "masked"]
    assert masked
    assert masked == [one for one in ranges if one.case == "older" and one.op.startswith("softmax")]


@pytest.mark.compiler
def test_what_is_not_aligned_goes_one_element_at_a_time_as_the_page_says(ranges: list[Range]) -> None:
    assert {one.case for one in ranges if one.unit == "elements"} == {"many"}
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
    for file, pattern, phrase, number in (
        ("activations/args.h", r"kThreads = (\d+)", "blocks of 64 threads", 64),
        ("rotary/host.cpp", r"kThreads = (\d+)", "blocks of 128 threads", 128),
        ("rotary/heads.cuh", r"kThreads = (\d+)", "blocks of 128 threads", 128),
        ("gpu/row_launch.h", r"int64_t\{(\d+)\} << 20\) / \(bytes", "3 MB", 3),
        ("gpu/row_launch.h", r"kMostBlocks = (\d+)", "up to 8 blocks", 8),
        ("gpu/row_launch.h", r"int64_t threads = (\d+)\)", "2048 threads per multiprocessor", 2048),
        ("activations/host.cpp", r"kEarlyThreads = (\d+)", "gated activations does up to 1024", 1024),
        ("activations/args.h", r"kManyThreads = (\d+)", "multiprocessor use 256", 256),
        ("activations/gated.h", r"kManyUnits = (\d+)", "more than 2048 vectors per", 2048),
        ("softmax/host.cpp", r"kTurnsFrom = int64_t\{(\d+)\} << 20", "12 MB", 12),
        ("gpu/walk.h", r"kResident = (\d+)", "640 threads", 640),
        ("gpu/row_launch.h", r"kSpreadThreads = (\d+)", "1024 threads on a multiprocessor", 1024),
        ("gpu/row_launch.h", r"kSingleThreads = (\d+)", "if these are up to 256", 256),
    ):
        found = re.search(pattern, (CSRC / file).read_text(encoding="utf-8"))
        assert found is not None and int(found[1]) == number, f"{file}: {pattern}"
        assert phrase in text, f"LAUNCH.md does not say {phrase!r}, which is in {file}"
