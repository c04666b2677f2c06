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
from tools.wheel import NotAWheel, Wheel, read_wheel, record_errors

MANIFEST = "precast/_C/build_info.json"

# What a host library may need: torch, the C++ runtime, the C library. CUDA is found at run time, never linked.
_NEEDED = {
    "libtorch_cpu.so",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "libc.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
# CUDA toolkit -> the PTX ISA it writes (PTX ISA reference, "Release Notes").
_PTX_ISA = {"12.1": "8.1", "12.4": "8.4", "12.6": "8.5", "12.8": "8.7", "12.9": "8.8", "13.0": "9.0", "13.2": "9.2"}


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it must be."""

    check: str
    where: str
    wanted: str
    found: str


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
    yield from _same("tag", "WHEEL", expected, tags)
    yield from _same("tag", "file name", ("py3", "none"), (python, abi))
    purelib = a.wheel.metadata("WHEEL").get("Root-Is-Purelib")
    yield from _same("purelib", "WHEEL", str(pure).lower(), purelib)
    yield from _same("version", "METADATA", a.wheel.version, a.wheel.metadata("METADATA").get("Version"))
    yield from _same("version", "manifest", f"{a.info.version}{a.info.label.local}", a.wheel.version)
    if pure:
        yield from _same("tag", "platform", "any", platform)
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
    yield from _same("metadata", "Requires-Dist", [f"torch>={a.matrix.torch_floor}"], torch)
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
            yield from _same("sha256", name, listed[name].sha256, hashlib.sha256(there[name]).hexdigest())
            yield from _same("bytes", name, listed[name].bytes, len(there[name]))
    grafted = sorted(name for name in a.wheel.files if ".libs/" in name)
    yield from _same("grafted", a.wheel.path.name, [], grafted)
    strays = [
        name for name in a.wheel.files if ".so" in Path(name).suffixes and not name.startswith("precast/_C/host/")
    ]
    yield from _same("strays", a.wheel.path.name, [], strays)


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
        yield from _host_claims(file, facts, a)
        yield from _host_rules(file, facts, a)


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
        yield from _device_claims(file, facts, a)
        first, wanted = entries.setdefault(file.family, (file.path, facts.entries))
        if facts.entries != wanted or not wanted:
            differing = sorted(facts.entries ^ wanted)[:3]
            yield Violation("kernels", file.path, f"the {len(wanted)} kernels of {first}", f"differs in {differing}")


def check_complete(a: Audited) -> Iterator[Violation]:
    """A label's wheel holds every family for every target of the label, and nothing else."""
    families = {family.name for family in catalogue.FAMILIES}
    for file in a.info.host:
        yield from _same("complete", file.path, sorted(families), sorted(file.families))
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
    for image in a.info.device:
        yield from _same("nvrtc", image.path, spec.nvrtc, image.nvrtc)


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
    yield from _same("sources", "precast/csrc", a.info.source_digest, digest)
    pins = headers.load_pins()
    wanted = {f"include/{name}": sha for name, sha in pins.headers.items()} | dict(pins.notices)
    found = {
        name.removeprefix("torch_stable/"): hashlib.sha256(data).hexdigest()
        for name, data in ours.items()
        if name.startswith("torch_stable/")
    }
    for name in sorted(set(wanted) | set(found)):
        yield from _same("headers", f"precast/csrc/torch_stable/{name}", wanted.get(name), found.get(name))


def check_size(a: Audited) -> Iterator[Violation]:
    """The wheel stays within its budget."""
    size = a.wheel.path.stat().st_size
    if size >= a.matrix.max_bytes:
        yield Violation("size", a.wheel.path.name, f"under {a.matrix.max_bytes} bytes", str(size))


def _host_claims(file: HostFile, facts: binaries.LibraryFacts, a: Audited) -> Iterator[Violation]:
    yield from _same("machine", file.path, file.machine, facts.machine)
    yield from _same("needed", file.path, file.needed, facts.needed)
    yield from _same("glibc", file.path, str(file.glibc), ".".join(map(str, facts.glibc[:2])))
    yield from _same("glibcxx", file.path, file.glibcxx, ".".join(map(str, facts.glibcxx)))
    yield from _same("families", file.path, sorted(file.families), sorted(facts.families))
    yield from _same("cpu levels", file.path, file.cpu_levels, facts.cpu_levels)
    yield from _same("debug", file.path, file.debug, facts.debug)
    yield from _same("python", file.path, ("none", None), (file.python, file.cuda_major))
    yield from _same("compiler", file.path, dict(a.info.compilers).get("g++", facts.compiler), facts.compiler)
    yield from _same("name", file.path, f"host/{file.abi}.so", file.path)


def _host_rules(file: HostFile, facts: binaries.LibraryFacts, a: Audited) -> Iterator[Violation]:
    foreign = sorted(set(facts.needed) - _NEEDED)
    yield from _same("needed", file.path, [], foreign)
    if "libtorch_cpu.so" not in facts.needed:
        yield Violation("needed", file.path, "libtorch_cpu.so", ", ".join(facts.needed))
    yield from _same("exports", file.path, [], sorted(n for n in facts.exported if not n.startswith("precast_"))[:5])
    yield from _same("run path", file.path, None, facts.run_path)
    yield from _same("text relocations", file.path, False, facts.text_relocations)
    yield from _same("executable stack", file.path, False, facts.executable_stack)
    if a.info.mode is BuildMode.RELEASE:
        ceiling = (a.matrix.glibc.major, a.matrix.glibc.minor)
        if facts.glibc[:2] > ceiling or facts.glibcxx > a.matrix.glibcxx:
            found = f"GLIBC_{'.'.join(map(str, facts.glibc))}, GLIBCXX_{'.'.join(map(str, facts.glibcxx))}"
            yield Violation("ceiling", file.path, f"at most {a.matrix.glibc}, {a.matrix.glibcxx}", found)
        yield from _same("debug", file.path, False, facts.debug)


def _device_claims(file: DeviceFile, facts: binaries.DeviceFacts, a: Audited) -> Iterator[Violation]:
    toolkit = ".".join(file.nvrtc.split(".")[:2])
    major = int(toolkit.split(".")[0])
    yield from _same("target", file.path, str(file.target), facts.target)
    suffix = "ptx" if facts.isa is not None else "cubin"
    yield from _same("name", file.path, f"device/{file.family}.{file.target}.{suffix}", file.path)
    if facts.cuda_major is not None:
        yield from _same("layout", file.path, major, facts.cuda_major)
    if facts.nvrtc is not None:
        yield from _same("nvrtc", file.path, file.nvrtc, facts.nvrtc)
    if facts.isa is not None:
        yield from _same("ptx isa", file.path, _PTX_ISA.get(toolkit), facts.isa)
    # SASS runs on any driver of its major; PTX needs the driver of its own toolkit.
    yield from _same("driver", file.path, toolkit if facts.isa is not None else f"{major}.0", str(file.min_driver))
    yield from _same("compiler", file.path, dict(a.info.compilers).get("nvrtc"), file.nvrtc)


def _same(check: str, where: str, wanted: object, found: object) -> Iterator[Violation]:
    if wanted != found:
        yield Violation(check, where, str(wanted), str(found))


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
