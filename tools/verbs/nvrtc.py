"""Ask the NVRTC of each label which GPUs it compiles for, and keep the answer in the label's table of matrix.toml.

Each package is fetched with pip into a temporary folder, 380 MB of downloads in all. With --check nothing is written:
exit status 1 when an answer differs from the one that is kept.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from precast._builder import matrix, nvrtc
from precast.core.capability import ComputeCapability
from precast.errors import KernelError

MATRIX = Path(__file__).resolve().parents[2] / "matrix.toml"


def ask(spec: matrix.LabelSpec) -> tuple[ComputeCapability, ...]:
    """Fetch the label's exact NVRTC, and return the GPUs that it reports."""
    with tempfile.TemporaryDirectory() as site:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--target", site]
        subprocess.run([*command, str(spec.requirement)], check=True)
        found, looked_at = nvrtc.find_nvrtc(None, None, spec.nvrtc, site_dirs=[Path(site)])
    if found is None:
        raise KernelError("\n".join((f"{spec.requirement} holds no NVRTC {spec.nvrtc}", *looked_at)))
    return found.targets


def main(arguments: list[str]) -> int:
    """Ask the NVRTC of each label; write the answers, or compare them."""
    parser = argparse.ArgumentParser(prog="python -m tools nvrtc", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the answers that are kept")
    options = parser.parse_args(arguments)
    known = matrix.load(MATRIX)
    asked = {spec.name: ask(spec) for spec in known.labels if spec.nvrtc is not None}
    differing = [spec for spec in known.labels if spec.nvrtc is not None and spec.reports != asked[spec.name]]
    for spec in differing:
        kept, reported = _words(spec.reports), _words(asked[spec.name])
        print(f"NVRTC {spec.nvrtc}: kept {kept}, reported {reported}", file=sys.stderr)
    if options.check:
        return 1 if differing else 0
    MATRIX.write_text(with_answers(MATRIX.read_text(encoding="utf-8"), asked), encoding="utf-8")
    print(f"{MATRIX}: {len(differing)} of {len(asked)} answers changed")
    return 0


def with_answers(text: str, asked: Mapping[str, Sequence[ComputeCapability]]) -> str:
    """The text of matrix.toml with new answers in the labels' tables."""
    for label, gpus in asked.items():
        table = rf"(\[labels\.{label}\]\n(?:[^\[\n].*\n)*?reports = )\[.*\]"
        text, count = re.subn(table, rf"\g<1>{_words(gpus)}", text)
        if count != 1:
            raise KernelError(f"matrix.toml has no reports = [...] on one line of [labels.{label}]")
    return text


def _words(gpus: Sequence[ComputeCapability]) -> str:
    return json.dumps(list(map(str, gpus)))
