"""What the manifest claims of one file, against what its bytes say."""

from __future__ import annotations

from collections.abc import Iterator

from precast._abi.build_info import BuildInfo, DeviceFile, HostFile
from precast._abi.violation import Violation
from tools.binaries import DeviceFacts, LibraryFacts
from tools.guards.subject import same


def host_claims(file: HostFile, facts: LibraryFacts, info: BuildInfo) -> Iterator[Violation]:
    """A host library against its manifest entry."""
    yield from same("machine", file.path, file.machine, facts.machine)
    yield from same("needed", file.path, file.needed, facts.needed)
    yield from same("glibc", file.path, str(file.glibc), ".".join(map(str, facts.glibc[:2])))
    yield from same("glibcxx", file.path, file.glibcxx, ".".join(map(str, facts.glibcxx)))
    yield from same("families", file.path, sorted(file.families), sorted(facts.families))
    yield from same("cpu levels", file.path, file.cpu_levels, facts.cpu_levels)
    yield from same("debug", file.path, file.debug, facts.debug)
    yield from same("python", file.path, ("none", None), (file.python, file.cuda_major))
    yield from same("compiler", file.path, dict(info.compilers).get("g++", facts.compiler), facts.compiler)
    yield from same("name", file.path, f"host/{file.abi}.so", file.path)


def device_claims(file: DeviceFile, facts: DeviceFacts, info: BuildInfo) -> Iterator[Violation]:
    """A device file against its manifest entry."""
    toolkit = ".".join(file.nvrtc.split(".")[:2])
    major = int(toolkit.split(".")[0])
    yield from same("target", file.path, str(file.target), facts.target)
    suffix = "ptx" if facts.isa is not None else "cubin"
    yield from same("name", file.path, f"device/{file.family}.{file.target}.{suffix}.xz", file.path)
    if facts.layout is not None:
        # CUDA 12 writes Blackwell's cubins in the layout that CUDA 13 writes all of them in (seen with 12.8 and 12.9).
        newer = major >= 13 or file.target.capability.major >= 10
        yield from same("layout", file.path, 13 if newer else 12, facts.layout)
    if facts.nvrtc is not None:
        yield from same("nvrtc", file.path, file.nvrtc, facts.nvrtc)
    # SASS runs on any driver of its major; PTX needs the driver of its own toolkit.
    yield from same("driver", file.path, toolkit if facts.isa is not None else f"{major}.0", str(file.min_driver))
    if ("nvrtc", file.nvrtc) not in info.compilers:
        yield Violation("compiler", file.path, f"NVRTC {file.nvrtc} among the compilers", str(dict(info.compilers)))
