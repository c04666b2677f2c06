"""The matrix as a picture: for each architecture, torch and CUDA build, how far it was executed.

A cell is as good as its best Python: executed on hardware, under an emulator, its CPU part alone, built, or declared.
The states differ by sign as well as by colour.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from precast._builder.matrix import Matrix
from precast.core.version import CudaVersion
from tools.shared import evidence, served
from tools.shared.cells import expand
from tools.shared.evidence import Evidence
from tools.shared.served import TorchCell

HARDWARE, EMULATED, PART, BUILT, DECLARED = "hardware", "emulated", "part", "built", "declared"
# State -> sign, words of the legend, and the class of the style below.
STATES = {
    HARDWARE: ("●", "executed on hardware, on a GPU if it has CUDA"),
    EMULATED: ("◐", "executed under an emulator"),
    PART: ("◔", "CUDA build, of which only the CPU kernels were executed"),
    BUILT: ("○", "built from the same sources, not executed"),
    DECLARED: ("·", "declared, not built yet"),
}
CELL, ROW, LEFT, TOP, WIDTH = 50, 26, 70, 62, 600
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2430;text-anchor:middle}.l{text-anchor:start}.b{font-weight:600}"
    ".s{font-size:16px}.paper{fill:#fff}.hardware{fill:#7cc7a6}.emulated{fill:#b9dccb}.part{fill:#d9e8df}"
    ".built{fill:#e4e8ed}.declared{fill:#f4e3c8}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.paper{fill:#12181f}.hardware{fill:#0f6b4c}.emulated{fill:#1d4a3b}"
    ".part{fill:#22382f}.built{fill:#2c3643}.declared{fill:#4d3d20}}"
)

PAPER = '<rect class="paper" width="100%" height="100%"/>'  # a page may be dark where the reader's system is not


def states(matrix: Matrix, records: tuple[Evidence, ...]) -> dict[tuple[str, str, str], str]:
    """(architecture, torch, build) -> state."""
    cells = served.torch_cells(matrix)
    built = set(served.built(expand(matrix, matrix.event("release")), matrix, cells))
    order = list(STATES)
    found: dict[tuple[str, str, str], str] = {}
    for cell in cells:
        state = _state(cell, records, built=cell in built)
        key = cell.machine, cell.torch, cell.build.name
        found[key] = min(state, found.get(key, state), key=order.index)
    return found


def _state(cell: TorchCell, records: tuple[Evidence, ...], *, built: bool) -> str:
    runs = [run for record in records for run in record.runs if run.is_of(cell)]
    on_hardware = [run for run in runs if "qemu" not in run.hardware]
    if any(run.executes(cell) for run in on_hardware):
        return HARDWARE
    if any(run.executes(cell) for run in runs):
        return EMULATED
    if runs:
        return PART
    return BUILT if built else DECLARED


def picture(matrix: Matrix, records: tuple[Evidence, ...]) -> str:
    """The picture as SVG: a table for each architecture, and the legend."""
    found = states(matrix, records)
    builds = {build.name: build for release in matrix.releases for of in release.builds.values() for build in of}
    names = sorted(builds, key=lambda name: builds[name].cuda or CudaVersion(0, 0))
    height_of = TOP + ROW * len(matrix.releases)
    lines: list[str] = []
    for number, machine in enumerate(matrix.machines):
        lines += _table(matrix, machine, names, found, number * (height_of + 10))
    y = len(matrix.machines) * (height_of + 10) + 24
    counts = {state: sum(value == state for value in found.values()) for state in STATES}
    for state, (sign, words) in STATES.items():
        lines.append(f'<rect class="{state}" x="12" y="{y - 15}" width="22" height="20"/>')
        lines.append(f'<text class="s" x="23" y="{y}">{sign}</text>')
        lines.append(f'<text class="l" x="44" y="{y}">{counts[state]}: {html.escape(words)}</text>')
        y += ROW
    said = "; ".join(f"{counts[state]} {words}" for state, (_, words) in STATES.items())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - 6}" role="img">'
    about = f"<title>torch, CUDA and architecture</title><desc>{html.escape(said)}</desc><style>{STYLE}</style>"
    return "\n".join((head, about, PAPER, *lines, "</svg>", ""))


def _table(
    matrix: Matrix, machine: str, names: list[str], found: dict[tuple[str, str, str], str], top: int
) -> Iterator[str]:
    yield f'<text class="l b" x="12" y="{top + 22}">{machine}</text>'
    yield f'<text class="l" x="12" y="{top + TOP - 10}">torch</text>'
    for column, name in enumerate(names):
        yield f'<text class="b" x="{LEFT + CELL * column + CELL / 2:g}" y="{top + TOP - 10}">{name}</text>'
    for row, release in enumerate(reversed(matrix.releases)):
        y = top + TOP + ROW * row
        yield f'<text class="l" x="12" y="{y + 17}">{release.version}</text>'
        for column, name in enumerate(names):
            state = found.get((machine, release.version, name))
            if state is not None:
                x = LEFT + CELL * column
                yield f'<rect class="{state}" x="{x + 1}" y="{y}" width="{CELL - 2}" height="{ROW - 3}"/>'
                yield f'<text class="s" x="{x + CELL / 2:g}" y="{y + 17}">{STATES[state][0]}</text>'


def draw(matrix: Matrix) -> str:
    """The picture of this matrix with the evidence that is kept."""
    return picture(matrix, evidence.load(evidence.FOLDER, matrix))
