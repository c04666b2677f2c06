"""Ask the NVRTC of each label which GPUs it compiles for, and keep the answers in tools/nvrtc_targets.json.

Each package is fetched with pip into a temporary folder, 380 MB of downloads in all. With --check nothing is written:
exit status 1 when an answer differs from the one that is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from precast._abi.capability import ComputeCapability
from precast._builder import matrix, nvrtc
from precast.errors import KernelError

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tools" / "nvrtc_targets.json"


def kept(path: Path = KEPT) -> Mapping[str, tuple[ComputeCapability, ...]]:
    """The answers, by exact version."""
    document: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    return {version: tuple(map(ComputeCapability.parse, gpus)) for version, gpus in document.items()}


def ask(spec: matrix.LabelSpec) -> tuple[ComputeCapability, ...]:
    """What the label's very NVRTC reports, fetched for this question."""
    with tempfile.TemporaryDirectory() as site:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--target", site]
        subprocess.run([*command, str(spec.requirement)], check=True)
        found, looked_at = nvrtc.find_nvrtc(None, None, spec.nvrtc, site_dirs=[Path(site)])
    if found is None:
        raise KernelError("\n".join((f"{spec.requirement} holds no NVRTC {spec.nvrtc}", *looked_at)))
    return found.targets


def main(arguments: list[str]) -> int:
    """Ask all of them; write the answers, or compare them."""
    parser = argparse.ArgumentParser(prog="python -m tools nvrtc", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the answers that are kept")
    options = parser.parse_args(arguments)
    known = matrix.load(ROOT / "matrix.toml")
    asked = {spec.nvrtc: ask(spec) for spec in known.labels if spec.nvrtc is not None}
    if options.check:
        before = kept()
        differing = [version for version, gpus in asked.items() if before.get(version) != gpus]
        for version in differing:
            print(f"NVRTC {version}: kept {before.get(version)}, reported {asked[version]}", file=sys.stderr)
        return 1 if differing else 0
    rows = [f' "{version}": {json.dumps(list(map(str, gpus)))}' for version, gpus in asked.items()]
    KEPT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"{KEPT}: {len(asked)} versions")
    return 0
