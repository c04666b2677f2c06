"""Compile all device code of one label, by its very NVRTC, into a part that wheels take.

Writes ``OUT/device-<label>``: the packed files of each family, and ``parts.json``. The NVRTC comes from PyPI
into the build cache; each cubin is held against its target twice, by its header and by NVIDIA's own tools.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path, PurePosixPath

from precast._abi.settings import Settings
from precast._builder import matrix, packing, parts
from precast._builder.binaries import Made, label_nvrtc, make_device
from precast._builder.cache import Cache, default_root
from precast.core.capability import TargetKind
from precast.errors import KernelError
from tools.shared import packages, second_reader
from tools.shared.cells import label_of

ROOT = Path(__file__).resolve().parents[2]


def make(label: str, out: Path, settings: Settings) -> str:
    """Make the part unless it is up to date; return a line that says what was done."""
    known = matrix.load(ROOT / "matrix.toml")
    spec = known.label(label_of(label))
    if spec.requirement is None:
        raise KernelError(
            f"+{spec.name} has no device code of its own",
            found=spec.name,
            needed="a label with an NVRTC",
            fix=f"python -m tools device --label cu130 --out {out}",
        )
    cache = Cache(default_root(settings))
    found = label_nvrtc(spec, settings, [packages.folder_of(spec.requirement, cache)])
    made = make_device(spec.targets, found, settings, cache)
    folder = out / parts.device_name(spec)
    changed = parts.write(made, spec.label, ROOT, folder)
    seen = _read_again(made, second_reader.fetch(known.readers, cache))
    size = sum(size for size, _ in made.files.values())
    how = "written" if changed else "there already"
    return f"{folder.name}: {len(made.device)} images, {size} bytes, {seen} cubins read twice, {how}"


def _read_again(made: Made, programs: tuple[Path, Path]) -> int:
    """Unpack each cubin, as a user of the part would, and check its target with NVIDIA's tools."""
    with tempfile.TemporaryDirectory(prefix="precast-cubins-") as folder:
        cubins = []
        for file, packed in made.device:
            if file.target.kind is TargetKind.SASS:
                path = Path(folder) / PurePosixPath(file.name).name
                image = packing.image(packed.read_bytes(), file.offset, file.content_bytes, file.content_sha256)
                path.write_bytes(image)
                cubins.append((path, str(file.target)))
        return second_reader.check(programs, cubins)


def main(arguments: list[str]) -> int:
    """Make one part."""
    parser = argparse.ArgumentParser(prog="python -m tools device", description=__doc__)
    parser.add_argument("--label", required=True, help="whose device code, such as cu121")
    parser.add_argument("--out", type=Path, required=True, help="the folder of parts")
    options = parser.parse_args(arguments)
    try:
        print(make(options.label, options.out, Settings.from_env(os.environ)))
    except (KernelError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
