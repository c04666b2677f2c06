"""Audit a wheel: derive every claim of its manifest again, from the bytes, and hold both against the matrix.

Exit status: 0, nothing to object to; 1, violations (a table of them is printed); 2, not a wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from precast._abi.build_info import BuildInfo, BuildMode, DeviceFile, HostFile, ManifestError
from precast._abi.label import PlatformTag
from precast._build import catalogue, headers, matrix, sources
from tools import binaries
from tools.claims import Violation, device_claims, host_claims, host_rules, release_rules, same
from tools.wheel import NotAWheel, Wheel, read_wheel, record_errors

MANIFEST = "precast/_C/build_info.json"


@dataclass(frozen=True, slots=True)
class Audited:
    """What the checks look at. ``repaired`` asks for the policy's platform tag."""

    wheel: Wheel
    info: BuildInfo
    matrix: matrix.Matrix
    repaired: bool


def audit(path: Path, known: matrix.Matrix, *, repaired: bool) -> list[Violation]:
    """Every violation of one wheel; NotAWheel when there is nothing to look at."""
    wheel = read_wheel(path)
    found = [Violation("record", where, wanted, was) for where, wanted, was in record_errors(wheel)]
    found += [Violation("archive", name, "once", "more than once") for name in wheel.repeated]
    try:
        info = BuildInfo.from_json(wheel.files[MANIFEST].decode("utf-8"))
    except KeyError:
        return [*found, Violation("manifest", MANIFEST, "a manifest", "no such file")]
    except (ManifestError, UnicodeDecodeError) as error:
        return [*found, Violation("manifest", MANIFEST, "a manifest that can be read", str(error))]
    audited = Audited(wheel, info, known, repaired)
    for check in _CHECKS:
        found += check(audited)
    return found


def check_tag(a: Audited) -> Iterator[Violation]:
    """File name, WHEEL and metadata agree with each other, with the mode and with the policy."""
    pure = a.info.mode is BuildMode.PURE
    python, abi, platform = a.wheel.tag
    tags = sorted(a.wheel.metadata("WHEEL").get_all("Tag", []))
    expected = sorted(f"{python}-{abi}-{part}" for part in platform.split("."))
    yield from same("tag", "WHEEL", expected, tags)
    yield from same("tag", "file name", ("py3", "none"), (python, abi))
    purelib = a.wheel.metadata("WHEEL").get("Root-Is-Purelib")
    yield from same("purelib", "WHEEL", str(pure).lower(), purelib)
    yield from same("version", "METADATA", a.wheel.version, a.wheel.metadata("METADATA").get("Version"))
    yield from same("version", "manifest", f"{a.info.version}{a.info.label.local}", a.wheel.version)
    if pure:
        yield from same("tag", "platform", "any", platform)
        return
    machine = a.info.host[0].machine if a.info.host else "no host library"
    wanted = f"{a.matrix.policy}_{machine}" if a.repaired else f"linux_{machine}"
    if wanted not in platform.split("."):
        yield Violation("tag", "platform", wanted, platform)
    for part in platform.split("."):
        policy = PlatformTag.parse(part).policy
        if policy is not None and policy > (a.matrix.glibc.major, a.matrix.glibc.minor):
            yield Violation("tag", "platform", f"nothing newer than {a.matrix.policy}", part)


def check_metadata(a: Audited) -> Iterator[Violation]:
    """The requirement on torch is the matrix's floor, without a ceiling; the licence is there."""
    requires = a.wheel.metadata("METADATA").get_all("Requires-Dist", [])
    torch = [line for line in requires if line.startswith("torch")]
    yield from same("metadata", "Requires-Dist", [f"torch>={a.matrix.torch_floor}"], torch)
    licences = [name for name in a.wheel.files if name.startswith(f"{a.wheel.dist_info}/licenses/")]
    if not licences:
        yield Violation("metadata", a.wheel.dist_info, "a licence file", "none")


def check_files(a: Audited) -> Iterator[Violation]:
    """What lies in the binary folders is what the manifest lists, byte for byte; nothing was grafted."""
    listed: dict[str, HostFile | DeviceFile] = {file.path: file for file in a.info.host}
    listed |= {file.path: file for file in a.info.device}
    there = a.wheel.below("precast/_C/")
    binary = {name for name in there if "/" in name and "__pycache__" not in name}
    for name in sorted({*listed, *binary}):
        if name not in there:
            yield Violation("files", name, "in the wheel, as the manifest says", "not there")
        elif name not in listed:
            yield Violation("files", name, "listed in the manifest", "not listed")
        else:
            yield from same("sha256", name, listed[name].sha256, hashlib.sha256(there[name]).hexdigest())
            yield from same("bytes", name, listed[name].bytes, len(there[name]))
    grafted = sorted(name for name in a.wheel.files if ".libs/" in name)
    yield from same("grafted", a.wheel.path.name, [], grafted)
    strays = [
        name for name in a.wheel.files if ".so" in Path(name).suffixes and not name.startswith("precast/_C/host/")
    ]
    yield from same("strays", a.wheel.path.name, [], strays)


def check_host(a: Audited) -> Iterator[Violation]:
    """Each host library against its manifest entry, the policy's ceilings and the rules of the house."""
    for file in a.info.host:
        data = a.wheel.files.get(f"precast/_C/{file.path}")
        if data is None:
            continue  # check_files has said so
        try:
            facts = binaries.read_library(data)
        except binaries.Unreadable as error:
            yield Violation("elf", file.path, "a shared library", str(error))
            continue
        yield from host_claims(file, facts, a.info)
        yield from host_rules(file, facts)
        if a.info.mode is BuildMode.RELEASE:
            yield from release_rules(file, facts, a.matrix)


def check_device(a: Audited) -> Iterator[Violation]:
    """Each device file against its manifest entry and its label's compiler; all of a family hold the same kernels."""
    entries: dict[str, tuple[str, frozenset[str]]] = {}
    for file in a.info.device:
        data = a.wheel.files.get(f"precast/_C/{file.path}")
        if data is None:
            continue
        try:
            facts = binaries.read_ptx(data) if file.path.endswith(".ptx") else binaries.read_cubin(data)
        except binaries.Unreadable as error:
            yield Violation("device", file.path, "device code", str(error))
            continue
        yield from device_claims(file, facts, a.info)
        first, wanted = entries.setdefault(file.family, (file.path, facts.entries))
        if facts.entries != wanted or not wanted:
            differing = sorted(facts.entries ^ wanted)[:3]
            yield Violation("kernels", file.path, f"the {len(wanted)} kernels of {first}", f"differs in {differing}")


def check_complete(a: Audited) -> Iterator[Violation]:
    """A label's wheel holds every family for every target of the label, and nothing else."""
    families = {family.name for family in catalogue.FAMILIES}
    for file in a.info.host:
        yield from same("complete", file.path, sorted(families), sorted(file.families))
    if a.info.mode is not BuildMode.RELEASE:
        return
    if not a.info.host:
        yield Violation("complete", "host", "a host library", "none")
    spec = a.matrix.label(a.info.label)
    with_device = [family.name for family in catalogue.FAMILIES if family.device is not None]
    wanted = {f"{name} {target}" for name in with_device for target in spec.targets}
    found = {f"{file.family} {file.target}" for file in a.info.device}
    for missing in sorted(wanted - found):
        yield Violation("complete", missing, f"in the wheel of +{a.info.label}", "not there")
    for extra in sorted(found - wanted):
        yield Violation("complete", extra, f"not in the matrix of +{a.info.label}", "there")
    compilers = {target: source.nvrtc for source, targets in a.matrix.device_sources(spec.label) for target in targets}
    for image in a.info.device:
        yield from same("nvrtc", image.path, compilers.get(image.target), image.nvrtc)


def check_paths(a: Audited) -> Iterator[Violation]:
    """No binary names a folder of the machine that built it."""
    for name, data in a.wheel.below("precast/_C/").items():
        paths = binaries.absolute_paths(data) if "/" in name else []
        if paths:
            yield Violation("paths", name, "no path of the build machine", ", ".join(paths[:3]))


def check_sources(a: Audited) -> Iterator[Violation]:
    """The sources for the JIT are those the manifest names, and the stable headers are the pinned ones."""
    ours = a.wheel.below("precast/csrc/")
    digest = sources.digest_of_pairs(
        (f"csrc/{name}", hashlib.sha256(data).hexdigest())
        for name, data in ours.items()
        if Path(name).suffix in {".h", ".cpp", ".cu", ".cuh"} and not name.startswith("torch_stable/")
    )
    yield from same("sources", "precast/csrc", a.info.source_digest, digest)
    pins = headers.load_pins()
    wanted = {f"include/{name}": sha for name, sha in pins.headers.items()} | dict(pins.notices)
    found = {
        name.removeprefix("torch_stable/"): hashlib.sha256(data).hexdigest()
        for name, data in ours.items()
        if name.startswith("torch_stable/")
    }
    for name in sorted(set(wanted) | set(found)):
        yield from same("headers", f"precast/csrc/torch_stable/{name}", wanted.get(name), found.get(name))


def check_size(a: Audited) -> Iterator[Violation]:
    """The wheel stays within its budget; a release within that of its label."""
    release = a.info.mode is BuildMode.RELEASE
    budget = a.matrix.max_bytes_of(a.info.label) if release else a.matrix.max_bytes
    size = a.wheel.path.stat().st_size
    if size >= budget:
        yield Violation("size", a.wheel.path.name, f"under {budget} bytes", str(size))


_CHECKS: tuple[Callable[[Audited], Iterator[Violation]], ...] = (
    check_tag,
    check_metadata,
    check_files,
    check_host,
    check_device,
    check_complete,
    check_paths,
    check_sources,
    check_size,
)


def table(violations: list[Violation]) -> str:
    """The violations as columns."""
    rows = [("check", "where", "wanted", "found"), *((v.check, v.where, v.wanted, v.found) for v in violations)]
    cut = [tuple(cell if len(cell) <= 70 else f"{cell[:67]}..." for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in cut) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut
    )


def main(arguments: list[str]) -> int:
    """Audit each wheel named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools audit", description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="+")
    parser.add_argument("--unrepaired", action="store_true", help="accept the plain linux tag, from before auditwheel")
    parser.add_argument("--matrix", type=Path, default=Path(__file__).resolve().parents[1] / "matrix.toml")
    options = parser.parse_args(arguments)
    known = matrix.load(options.matrix)
    status = 0
    for path in options.wheel:
        try:
            violations = audit(path, known, repaired=not options.unrepaired)
        except NotAWheel as error:
            print(f"{error}", file=sys.stderr)
            return 2
        size = path.stat().st_size
        print(f"{path.name}: {size} bytes, {len(violations)} violations")
        if violations:
            print(table(violations))
            status = 1
    return status
