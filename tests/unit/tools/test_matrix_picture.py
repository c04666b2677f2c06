"""The picture of the matrix: its states from made-up evidence, and one sign for each build of torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

from precast._builder import matrix
from tools.shared import evidence, matrix_picture
from tools.shared.matrix_picture import BUILT, EMULATED, HARDWARE, PART

KNOWN = matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")
RUN = {
    "torch": "2.11.0",
    "build": "cu130",
    "python": "3.12",
    "machine": "x86_64",
    "host": "torch-table-1",
    "wheel": "cu130",
    "device": "cuda",
    "hardware": "a GPU",
    "checks": ["rms_norm against torch"],
}
RUNS = [
    RUN,
    RUN | {"torch": "2.12.1", "device": "cpu", "hardware": "a processor"},
    RUN | {"torch": "2.13.0", "build": "cpu", "device": "cpu", "machine": "aarch64", "hardware": "qemu-aarch64 7.2"},
]


def record(folder: Path) -> evidence.Evidence:
    path = folder / "a.json"
    document = {
        "schema": 1,
        "title": "runs",
        "date": "2026-11-21",
        "commit": None,
        "command": "make test",
        "runs": RUNS,
    }
    path.write_text(json.dumps(document))
    return evidence.read(path, KNOWN)


def test_a_state_is_what_the_evidence_says(tmp_path: Path) -> None:
    found = matrix_picture.states(KNOWN, (record(tmp_path),))
    assert found["x86_64", "2.11.0", "cu130"] == HARDWARE
    assert found["x86_64", "2.12.1", "cu130"] == PART
    assert found["aarch64", "2.13.0", "cpu"] == EMULATED
    assert found["x86_64", "2.13.0", "cpu"] == BUILT
    builds = sum(len(of) for release in KNOWN.releases for of in release.builds.values())
    assert len(found) == builds and sum(state == BUILT for state in found.values()) == builds - 3


def test_each_build_of_torch_has_one_sign_and_the_legend_counts_them(tmp_path: Path) -> None:
    records = (record(tmp_path),)
    svg, found = matrix_picture.picture(KNOWN, records), matrix_picture.states(KNOWN, records)
    for state, (sign, words) in matrix_picture.STATES.items():
        count = sum(value == state for value in found.values())
        assert svg.count(f'<rect class="{state}"') == count + 1 == svg.count(f">{sign}</text>"), state
        assert f">{count}: {words}</text>" in svg
    assert len(re.findall("<svg ", svg)) == 1 and "prefers-color-scheme:dark" in svg
