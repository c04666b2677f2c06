"""``python -m benchmarks.device_images LABEL ... [--json FILE]``: what the device code of a label costs to build.

Builds every image of the labels into an empty cache, one after the other, and packs them as a wheel has them. Times are
seconds of a processor, which other programs on the machine change far less than seconds by the clock. NVRTC comes from
the cache of this user, or from PyPI.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from precast._abi.settings import Settings
from precast._builder import binaries, catalogue, device, matrix
from precast._builder.cache import Cache, default_root
from precast.core.capability import GpuTarget
from precast.core.host import Nvrtc
from tools.shared import packages
from tools.shared.cells import label_of

ROOT = Path(__file__).resolve().parents[1]
HEADING = f"{'label':8} {'family':22} {'images':>6} {'bytes':>12} {'NVRTC s':>9} {'packed':>12} {'packing s':>9}"


@dataclass(frozen=True, slots=True)
class Cost:
    """One family of a label: its images and their bytes before and after packing, and processor seconds."""

    label: str
    family: str
    images: int
    image_bytes: int
    compile_s: float
    packed_bytes: int
    pack_s: float

    def __str__(self) -> str:
        sizes = f"{self.images:6} {self.image_bytes:12,} {self.compile_s:9.2f} {self.packed_bytes:12,}"
        return f"{self.label:8} {self.family:22} {sizes} {self.pack_s:9.2f}"


def processor_s() -> float:
    """Processor seconds of this process and of the ended children, in which NVRTC runs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def cost(label: str, family: catalogue.Family, targets: Sequence[GpuTarget], found: Nvrtc, cache: Cache) -> Cost:
    """Build and pack the images of one family."""
    started = processor_s()
    made = device.build_images(family, targets, found, cache=cache, debug=False, jobs=1)
    images = {target: image.path.read_bytes() for target, image in zip(targets, made, strict=True)}
    compiled = processor_s()
    files = binaries.packed(family.name, images, found.version, cache, 1)
    packed = {file.path: file.bytes for file, _ in files}
    return Cost(
        label=label,
        family=family.name,
        images=len(images),
        image_bytes=sum(map(len, images.values())),
        compile_s=round(compiled - started, 2),
        packed_bytes=sum(packed.values()),
        pack_s=round(processor_s() - compiled, 2),
    )


def total(label: str, costs: Sequence[Cost]) -> Cost:
    """The sum over the families of a label."""
    return Cost(
        label=label,
        family="all",
        images=sum(each.images for each in costs),
        image_bytes=sum(each.image_bytes for each in costs),
        compile_s=round(sum(each.compile_s for each in costs), 2),
        packed_bytes=sum(each.packed_bytes for each in costs),
        pack_s=round(sum(each.pack_s for each in costs), 2),
    )


def measure(label: str, settings: Settings) -> list[Cost]:
    """Every family of a label, from an empty cache, and their sum."""
    spec = matrix.load(ROOT / "matrix.toml").label(label_of(label))
    if spec.requirement is None:
        raise SystemExit(f"{label} has no device code of its own")
    folder = packages.folder_of(spec.requirement, Cache(default_root(settings)))
    found = binaries.label_nvrtc(spec, settings, [folder])
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as name:
        for family in catalogue.FAMILIES:
            if family.device is not None:
                costs.append(cost(label, family, spec.targets, found, Cache(Path(name))))
                print(costs[-1], flush=True)
    return [*costs, total(label, costs)]


def main() -> int:
    """Measure the named labels."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_images", description=__doc__)
    parser.add_argument("labels", nargs="+", metavar="LABEL", help="such as cu121 cu129")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    print(HEADING)
    costs: list[Cost] = []
    for label in options.labels:
        costs += measure(label, Settings.from_env(os.environ))
        print(costs[-1], flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in costs], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
