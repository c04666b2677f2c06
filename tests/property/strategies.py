"""Values of ``precast._abi`` for Hypothesis: every one of them is one that could really occur."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

from hypothesis import strategies as st

from precast._abi.served import LABELS
from precast._abi.settings import JitMode, Settings
from precast.core.capability import ComputeCapability, GpuTarget, TargetKind, min_driver
from precast.core.host import Builders, Compiler, Gpu, Host, Nvrtc, TorchInfo
from precast.core.manifest import (
    MAX_CONTENT_BYTES,
    MAX_FILE_BYTES,
    BuildInfo,
    BuildMode,
    DeviceFile,
    HostFile,
    HostKind,
    device_path,
)
from precast.core.torch_abi import ANY_TORCH, Exact, Stable, TorchAbi
from precast.core.version import CudaVersion, Label, Release, TorchVersion
from tools.shared.platform_tag import PlatformTag

FAMILIES = ("rms_norm", "cpu_adam")
CAPABILITIES = (
    *(ComputeCapability(6, 1), ComputeCapability(7, 0), ComputeCapability(7, 2), ComputeCapability(7, 5)),
    *(ComputeCapability(8, minor) for minor in (0, 6, 7, 9)),
    *(ComputeCapability(9, 0), ComputeCapability(10, 0), ComputeCapability(10, 1), ComputeCapability(10, 3)),
    *(ComputeCapability(11, 0), ComputeCapability(12, 0), ComputeCapability(12, 1), ComputeCapability(13, 0)),
)

numbers = st.integers(0, 99)
sha256s = st.text("0123456789abcdef", min_size=64, max_size=64)
gits = st.text("0123456789abcdef", min_size=7, max_size=40)
words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)
dotted = st.lists(numbers, min_size=2, max_size=4).map(lambda parts: ".".join(map(str, parts)))

releases = st.builds(Release, numbers, numbers)
cuda_versions = st.builds(CudaVersion, st.integers(11, 14), st.integers(0, 9))
capabilities = st.sampled_from(CAPABILITIES)
any_capabilities = st.builds(ComputeCapability, st.integers(1, 99), st.integers(0, 9))


@st.composite
def targets(draw: st.DrawFn, of: st.SearchStrategy[ComputeCapability] = capabilities) -> GpuTarget:
    capability = draw(of)
    suffixes = ["", *("a" for _ in range(capability.major >= 9)), *("f" for _ in range(capability.major >= 10))]
    return GpuTarget(draw(st.sampled_from(list(TargetKind))), capability, draw(st.sampled_from(suffixes)))  # type: ignore[arg-type]


def with_suffix(suffix: Literal["a", "f"]) -> st.SearchStrategy[GpuTarget]:
    """Targets with this suffix, of the generations that have it."""
    oldest = {"a": 9, "f": 10}[suffix]
    known = st.sampled_from([capability for capability in CAPABILITIES if capability.major >= oldest])
    unknown = st.builds(ComputeCapability, st.integers(oldest, 99), st.integers(0, 9))
    return st.builds(GpuTarget, st.sampled_from(list(TargetKind)), known | unknown, st.just(suffix))


pre_releases = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["a", "b", "rc"]), numbers),
    st.builds("dev{}".format, st.integers(20240101, 20301231)),
    st.builds("a{}.dev{}".format, numbers, numbers),
)
torch_versions = st.builds(
    TorchVersion,
    release=st.builds(Release, st.just(2), st.integers(4, 16)),
    patch=st.integers(0, 3),
    pre=st.none() | pre_releases,
    local=st.none() | st.sampled_from(["cpu", "cu130", "b4e4ee81d3.nv25.12", "cpu.cxx11.abi", "rocm7.0"]),
    git=st.none() | st.sampled_from(["a" * 40, "b" * 40, "Unknown"]),
    post=st.none() | st.integers(0, 999),
)
exact_abis = st.builds(Exact, releases, st.booleans(), st.none() | gits)
stable_abis = st.builds(Stable, releases)
torch_abis = exact_abis | stable_abis | st.just(ANY_TORCH)
# Those that have a chance with `torch_versions`.
near_abis = st.one_of(
    st.just(ANY_TORCH),
    st.builds(Stable, st.builds(Release, st.just(2), st.integers(9, 13))),
    st.builds(
        Exact,
        st.builds(Release, st.just(2), st.integers(4, 16)),
        st.booleans(),
        st.none() | st.sampled_from(["a" * 40, "b" * 40]),
    ),
)
labels = st.sampled_from((*LABELS, Label("cpu"), Label("")))
platform_tags = st.builds(
    PlatformTag,
    st.sampled_from(["x86_64", "aarch64", "riscv64"]),
    st.none() | st.tuples(st.just(2), st.integers(0, 99)),
)


def host_files(abis: st.SearchStrategy[TorchAbi] = torch_abis, near: bool = False) -> st.SearchStrategy[HostFile]:
    """``near``: with values that have a chance on the machines of ``hosts``."""
    files = _libraries(abis, near)
    return files | files.map(lambda file: replace(file, kind=HostKind.ADAPTER) if isinstance(file.abi, Exact) else file)


def _libraries(abis: st.SearchStrategy[TorchAbi], near: bool) -> st.SearchStrategy[HostFile]:
    return st.builds(
        HostFile,
        path=st.from_regex(r"host/[A-Za-z0-9_][A-Za-z0-9._+-]{0,12}", fullmatch=True),
        sha256=sha256s,
        bytes=st.integers(0, MAX_FILE_BYTES),
        abi=abis,
        machine=st.sampled_from(["x86_64", "aarch64"]) if near else words,
        needed=st.lists(printable, unique=True, max_size=3).map(tuple),
        glibc=st.sampled_from([Release(2, 17), Release(2, 28), Release(2, 39)]) if near else releases,
        glibcxx=st.sampled_from(["3.4.9", "3.4.22", "3.4.33"]) if near else dotted,
        cpu_levels=st.lists(words, unique=True, max_size=3).map(tuple),
        families=st.lists(st.sampled_from(FAMILIES) if near else words, unique=True, max_size=3).map(tuple),
        python=st.sampled_from(["none", "none", "abi3", "cp310", "cp312", "cp313t"]),
        cuda_major=st.none() | st.sampled_from([12, 13]),
        debug=st.booleans(),
    )


@st.composite
def device_files(draw: st.DrawFn) -> DeviceFile:
    target, toolkit, family = draw(targets()), draw(cuda_versions), draw(st.sampled_from(FAMILIES))
    return DeviceFile(
        path=device_path(family, [target]),
        sha256=draw(sha256s),
        bytes=draw(st.integers(0, MAX_FILE_BYTES)),
        family=family,
        target=target,
        nvrtc=f"{toolkit}.{draw(numbers)}",
        min_driver=min_driver(target, toolkit),
        offset=0,
        content_bytes=draw(st.integers(1, MAX_CONTENT_BYTES)),
        content_sha256=draw(sha256s),
    )


# A library that most machines of `usual_hosts` can load.
usual_host_files = st.builds(
    HostFile,
    path=st.sampled_from(["host/a.so", "host/b.so", "host/c.so"]),
    sha256=st.just("0" * 64),
    bytes=st.just(90_000),
    abi=st.sampled_from([ANY_TORCH, Stable(Release(2, 10)), Stable(Release(2, 12)), Exact(Release(2, 13), True)]),
    machine=st.just("x86_64"),
    needed=st.just(("libc.so.6",)),
    glibc=st.just(Release(2, 28)),
    glibcxx=st.just("3.4.22"),
    cpu_levels=st.just(("baseline", "avx2")),
    families=st.sampled_from([("rms_norm",), ("rms_norm", "cpu_adam")]),
    debug=st.booleans(),
)
near_host_files = usual_host_files | host_files(near_abis, near=True)


@st.composite
def usual_device_files(draw: st.DrawFn) -> DeviceFile:
    """Device code as releases have it: plain targets by the toolkits of the labels."""
    target = GpuTarget(draw(st.sampled_from([TargetKind.SASS, TargetKind.SASS, TargetKind.PTX])), draw(capabilities))
    toolkit = draw(st.sampled_from([CudaVersion(12, 1), CudaVersion(12, 8), CudaVersion(13, 0)]))
    path = device_path("rms_norm", [target])
    driver = min_driver(target, toolkit)
    return DeviceFile(path, "1" * 64, 5_000, "rms_norm", target, f"{toolkit}.88", driver, 0, 9_000, "e" * 64)


usual_build_infos = st.builds(
    BuildInfo,
    version=st.just("1.0"),
    label=st.sampled_from([Label("cu121"), Label("cu130")]),
    mode=st.just(BuildMode.RELEASE),
    commit=st.none(),
    dirty=st.just(False),
    source_digest=st.just("2" * 64),
    host=st.lists(usual_host_files, min_size=1, max_size=3, unique_by=lambda file: file.path).map(tuple),
    device=st.lists(usual_device_files(), min_size=1, max_size=8, unique_by=lambda file: file.path).map(tuple),
)


def sharing(images: list[DeviceFile]) -> list[DeviceFile]:
    """The same images, with those of a family and kind in one file."""
    made: list[DeviceFile] = []
    by_kind = itertools.groupby(sorted(images, key=_kind), key=_kind)
    for first, *others in (list(group) for _, group in by_kind):
        path, offset = device_path(first.family, [image.target for image in (first, *others)]), 0
        for image in (first, *others):
            size = image.content_bytes // (len(others) + 1)
            about = {"path": path, "sha256": first.sha256, "bytes": first.bytes}
            made.append(replace(image, **about, offset=offset, content_bytes=size))  # type: ignore[arg-type]
            offset += size
    return made


def _kind(image: DeviceFile) -> tuple[str, str]:
    return image.family, image.target.kind.value


@st.composite
def any_build_infos(draw: st.DrawFn, near: bool = False) -> BuildInfo:
    """``near``: with host libraries that have a chance on the machines of ``hosts``."""
    mode = draw(st.sampled_from([BuildMode.RELEASE, BuildMode.RELEASE, BuildMode.MACHINE, BuildMode.PURE]))
    label = draw(labels)
    files = near_host_files if near else host_files()
    host = draw(st.lists(files, max_size=4, unique_by=lambda file: file.path))
    device = draw(st.lists(device_files(), max_size=5, unique_by=lambda file: file.path))
    device = sharing(device) if draw(st.booleans()) else device
    return BuildInfo(
        version=draw(st.sampled_from(["1.0", "0.1.0", "1.2.3.dev4", "2.0rc1"])),
        label=label,
        mode=mode,
        commit=draw(st.none() | gits),
        dirty=draw(st.booleans()),
        source_digest=draw(sha256s),
        compilers=tuple(draw(st.lists(st.tuples(printable, printable), max_size=2))),
        host=() if mode is BuildMode.PURE else tuple(host),
        device=() if mode is BuildMode.PURE or label.text == "cpu" else tuple(device),
        index_url=draw(st.none() | st.sampled_from(["https://host/precast", "file:///a/b%20c"])),
    )


build_infos = any_build_infos()
near_build_infos = st.one_of(usual_build_infos, usual_build_infos, usual_build_infos, any_build_infos(near=True))

nvrtcs = st.builds(
    Nvrtc,
    path=st.just("/lib/libnvrtc.so"),
    builtins=st.none() | st.just("/lib/libnvrtc-builtins.so"),
    version=st.builds("{}.{}".format, cuda_versions, numbers),
    targets=st.lists(capabilities, unique=True).map(lambda found: tuple(sorted(found))),
    found_via=st.just("torch's"),
)
builders = st.builds(
    Builders,
    compiler=st.none() | st.just(Compiler("/usr/bin/g++", "12.2.0", "g++")),
    ninja=st.none() | st.just("/usr/bin/ninja"),
    nvrtc=st.none() | nvrtcs,
    looked_at=st.just(("compiler: g++ on PATH: not there", "nvrtc: torch's (/x): not there")),
)
usual_builders = st.builds(
    Builders,
    compiler=st.just(Compiler("/usr/bin/g++", "12.2.0", "g++")),
    ninja=st.just("/usr/bin/ninja"),
    nvrtc=st.sampled_from([CudaVersion(13, 0), CudaVersion(12, 8)]).map(
        lambda version: Nvrtc(
            "/lib/libnvrtc.so",
            None,
            f"{version}.88",
            tuple(c for c in CAPABILITIES if ComputeCapability(7, 5) <= c <= ComputeCapability(12, 0)),
            "torch's",
        )
    ),
)
torch_infos = st.builds(
    TorchInfo,
    version=torch_versions,
    cxx11=st.booleans(),
    cuda=st.sampled_from([None, CudaVersion(12, 8), CudaVersion(13, 0), CudaVersion(13, 0)]),
    hip=st.sampled_from([None, None, None, None, "7.0"]),
)
gpu_tuples = st.lists(capabilities, max_size=3).map(
    lambda found: tuple(Gpu(i, capability, f"GPU {capability}") for i, capability in enumerate(found))
)
# Machines on which something usually works, and machines on which anything may be missing.
usual_hosts = st.builds(
    Host,
    system=st.just("Linux"),
    machine=st.just("x86_64"),
    python=st.just(Release(3, 12)),
    glibc=st.just(Release(2, 36)),
    glibcxx=st.just("3.4.30"),
    torch=st.builds(
        TorchInfo,
        version=st.sampled_from(["2.13.0+cu130", "2.10.0+cu128", "2.11.0a0+b4e4ee81d3.nv26.01"]).map(
            TorchVersion.parse
        ),
        cxx11=st.just(True),
        cuda=st.just(CudaVersion(13, 0)),
    ),
    torch_error=st.none(),
    driver=st.sampled_from([CudaVersion(13, 0), CudaVersion(13, 2), CudaVersion(12, 4)]),
    gpus=gpu_tuples.filter(len),
    builders=usual_builders | st.none() | builders,
)
wild_hosts = st.builds(
    Host,
    system=st.sampled_from([*["Linux"] * 7, "Windows"]),
    machine=st.sampled_from(["x86_64", "x86_64", "aarch64"]),
    python=st.sampled_from([Release(3, 10), Release(3, 12)]),
    glibc=st.sampled_from([Release(2, 36), Release(2, 27), None]),
    glibcxx=st.sampled_from(["3.4.30", "3.4.9", None]),
    torch=torch_infos | st.none(),
    torch_error=st.none() | st.just("OSError: libc10.so"),
    driver=st.sampled_from([CudaVersion(13, 0), CudaVersion(13, 2), CudaVersion(12, 4), CudaVersion(11, 8), None]),
    gpus=gpu_tuples,
    builders=st.none() | builders,
    lzma_error=st.sampled_from([None, None, None, "No module named '_lzma'"]),
)
hosts = st.one_of(usual_hosts, usual_hosts, usual_hosts, wild_hosts)
settings = st.builds(
    Settings,
    jit=st.sampled_from([*[JitMode.AUTO] * 9, *JitMode]),
    debug=st.booleans(),
    visible_devices=st.sampled_from([None, "", "0"]),
)
