"""The guard of a wheel's contents: exactly what matrix.toml lists for its label and architecture."""

from __future__ import annotations

from collections.abc import Iterator

from precast._builder import catalogue, elf, packing, parts
from precast.core.capability import TargetKind
from precast.core.manifest import BuildInfo, DeviceFile, HostKind, by_file, device_path
from precast.core.reasons import Rejection
from precast.core.version import CudaVersion
from tools.guards.subject import Audited, same
from tools.shared import binaries, cells
from tools.shared.binaries import DeviceFacts


def check_targets(a: Audited) -> Iterator[Rejection]:
    """Check the device code by its headers, then all contents against the plan."""
    yield from _packed_files(a)
    yield from _device_files(a)
    families = sorted(family.name for family in catalogue.FAMILIES)
    for file in a.info.host:
        wanted = families if file.kind is HostKind.LIBRARY else []
        yield from same("families", file.path, wanted, sorted(file.families))
    if a.released:
        yield from _plan(a)


def _device_files(a: Audited) -> Iterator[Rejection]:
    """Compare each image with its manifest entry and compiler; all images of a family have the same kernels."""
    isa = {spec.label.cuda: spec.isa for spec in a.matrix.labels}
    entries: dict[str, tuple[str, frozenset[str]]] = {}
    for file in _there(a):
        try:
            image = a.image(file)
            facts = binaries.read_ptx(image) if file.target.kind is TargetKind.PTX else binaries.read_cubin(image)
        except (packing.NotPacked, binaries.Unreadable) as error:
            yield Rejection("device", "device code", str(error), file.name)
            continue
        yield from device_claims(file, facts, a.info)
        if file.target.kind is TargetKind.SASS:
            yield from _stack(file, image)
        if facts.isa is not None:
            yield from same("ptx isa", file.name, isa.get(CudaVersion.parse(file.nvrtc)), facts.isa)
        first, wanted = entries.setdefault(file.family, (file.name, facts.entries))
        if facts.entries != wanted or not wanted:
            differing = sorted(facts.entries ^ wanted)[:3]
            yield Rejection("kernels", f"the {len(wanted)} kernels of {first}", f"differs in {differing}", file.name)


def _stack(file: DeviceFile, cubin: bytes) -> Iterator[Rejection]:
    """No kernel keeps registers or arrays in memory, whatever compiler made it."""
    try:
        deep = {name: frame for name, frame in elf.read_frames(cubin).items() if frame > 0}
    except elf.ElfError as error:
        yield Rejection("stack", "a size for each kernel", str(error), file.name)
        return
    for name, frame in sorted(deep.items()):
        yield Rejection(
            "stack", "no stack: no spilled register and no local array", f"{frame} bytes", f"{file.name}: {name}"
        )


def _packed_files(a: Audited) -> Iterator[Rejection]:
    """Each file unpacks to exactly the images of its manifest entries, and its name lists them in their order."""
    for path, images in by_file(_there(a)).items():
        yield from same("name", path, device_path(images[0].family, [file.target for file in images]), path)
        try:
            a.content(path)
        except packing.NotPacked as error:
            yield Rejection("device", "the images that the manifest lists", str(error), path)


def _there(a: Audited) -> list[DeviceFile]:
    """The entries whose file is in the wheel; the manifest guard reports the others."""
    return [file for file in a.info.device if f"precast/_C/{file.path}" in a.wheel.files]


def device_claims(file: DeviceFile, facts: DeviceFacts, info: BuildInfo) -> Iterator[Rejection]:
    """Compare a device file with its manifest entry."""
    toolkit = ".".join(file.nvrtc.split(".")[:2])
    major = int(toolkit.split(".")[0])
    yield from same("target", file.name, str(file.target), facts.target)
    if facts.layout is not None:
        # CUDA 13 writes all cubins in a newer layout; CUDA 12 does so only for Blackwell (seen with 12.8 and 12.9).
        newer = major >= 13 or file.target.capability.major >= 10
        yield from same("layout", file.name, 13 if newer else 12, facts.layout)
    if facts.nvrtc is not None:
        yield from same("nvrtc", file.name, file.nvrtc, facts.nvrtc)
    # SASS runs on any driver of its major; PTX needs the driver of its own toolkit.
    yield from same("driver", file.name, toolkit if facts.isa is not None else f"{major}.0", str(file.min_driver))
    if ("nvrtc", file.nvrtc) not in info.compilers:
        yield Rejection("compiler", f"NVRTC {file.nvrtc} among the compilers", str(dict(info.compilers)), file.name)


def _plan(a: Audited) -> Iterator[Rejection]:
    """The wheel has every family for every target of the label, by its compiler, and every host library in the plan."""
    spec = a.matrix.label(a.info.label)
    plan = cells.expand(a.matrix, a.matrix.event("release"), a.asked.only_torch)
    cell = next((cell for cell in plan.wheel if (cell.label, cell.machine) == (spec.name, a.machine)), None)
    if cell is None:
        yield Rejection("plan", "a wheel that matrix.toml plans", "no such cell", f"{spec.name} {a.machine}")
        return
    row = f"labels.{spec.name} of matrix.toml"
    hosts = {parts.host_name(file.abi, file.machine) for file in a.info.host}
    yield from _differ(a, hosts, needed=set(cell.host), allowed={*cell.host, *cell.lacks}, row=row)
    families = [family.name for family in catalogue.FAMILIES if family.device is not None]
    wanted = {f"{name} {target}" for name in families for target in cell.targets}
    found = {f"{file.family} {file.target}" for file in a.info.device}
    yield from _differ(a, found, needed=wanted, allowed=wanted, row=row)
    by_target = {str(target): a.matrix.label(source).nvrtc for source, some in spec.take for target in some}
    for image in a.info.device:
        yield from same("nvrtc", image.name, by_target.get(str(image.target), spec.nvrtc), image.nvrtc)


def _differ(a: Audited, found: set[str], *, needed: set[str], allowed: set[str], row: str) -> Iterator[Rejection]:
    for missing in sorted(needed - found):
        yield Rejection("complete", f"there, by {row}", f"not in {a.wheel.path.name}", missing)
    for extra in sorted(found - allowed):
        yield Rejection("complete", f"not there, by {row}", f"in {a.wheel.path.name}", extra)
