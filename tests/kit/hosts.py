"""Short ways to write the values of ``precast._abi`` down in a test."""

from __future__ import annotations

from collections.abc import Mapping

from precast._abi import fixes
from precast._abi.settings import Settings
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.host import Builders, Compiler, Gpu, Host, Installer, Nvrtc, TorchInfo
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, HostKind, host_path
from precast.core.reasons import Rejection
from precast.core.torch_abi import Exact, parse_torch_abi
from precast.core.version import CudaVersion, Label, Release, TorchVersion

FAMILY = "rms_norm"
INDEX = "https://host/precast"
INSTALLER = Installer(compiler="apt-get update && apt-get install -y g++", sources="/src/precast", version="1.0")

# What nvrtcGetSupportedArchs answers in each version; 12.1 and 12.9 also know GPUs older than any this package serves.
NVRTC_TARGETS = {
    "12.1.105": "5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0",
    "12.6.85": "5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0",
    "12.8.93": "5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0 10.0 10.1 12.0",
    "12.9.86": "5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0 10.0 10.1 10.3 12.0 12.1",
    "13.0.88": "7.5 8.0 8.6 8.7 8.8 8.9 9.0 10.0 10.3 11.0 12.0 12.1",
}


def nvrtc(version: str) -> Nvrtc:
    targets = tuple(ComputeCapability.parse(text) for text in NVRTC_TARGETS[version].split())
    return Nvrtc("/lib/libnvrtc.so", "/lib/libnvrtc-builtins.so", version, targets, "torch's")


def builders(nvrtc_version: str | None = "13.0.88", *, compiler: bool = True, ninja: bool = True) -> Builders:
    return Builders(
        compiler=Compiler("/usr/bin/g++", "12.2.0", "g++") if compiler else None,
        ninja="/usr/bin/ninja" if ninja else None,
        nvrtc=None if nvrtc_version is None else nvrtc(nvrtc_version),
        looked_at=(
            "compiler: g++ on PATH: not there",
            "ninja: not on PATH",
            "nvrtc: torch's (/site/nvidia/cu13/lib): not there",
        ),
    )


def torch_info(
    version: str = "2.13.0+cu130",
    *,
    cxx11: bool = True,
    git: str | None = None,
    cuda: str | None = "13.0",
    hip: str | None = None,
    xpu: str | None = None,
) -> TorchInfo:
    built_with = None if cuda is None else CudaVersion.parse(cuda)
    return TorchInfo(TorchVersion.parse(version, git), cxx11, built_with, hip, xpu)


def gpus(*capabilities: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, ComputeCapability.parse(text), f"GPU model {text}") for i, text in enumerate(capabilities))


def host(
    *,
    system: str = "Linux",
    machine: str = "x86_64",
    python: str = "3.12",
    glibc: str | None = "2.36",
    glibcxx: str | None = "3.4.30",
    torch: TorchInfo | None = torch_info(),  # noqa: B008 - frozen
    torch_error: str | None = None,
    driver: str | None = "13.0",
    gpu: str = "9.0",
    build_with: Builders | None = None,
    installer: Installer | None = INSTALLER,
) -> Host:
    """``gpu`` lists the capabilities of the visible GPUs: ``"9.0 7.0"``."""
    return Host(
        system=system,
        machine=machine,
        python=Release.parse(python),
        glibc=None if glibc is None else Release.parse(glibc),
        glibcxx=glibcxx,
        torch=torch,
        torch_error=torch_error,
        driver=None if driver is None else CudaVersion.parse(driver),
        gpus=gpus(*gpu.split()),
        builders=build_with,
        installer=installer,
    )


def host_file(abi: str = "torch-table-1", *, path: str | None = None, **changes: object) -> HostFile:
    """An adapter for the ABI of one torch, otherwise a library."""
    parsed = parse_torch_abi(abi)
    fields: dict[str, object] = {
        "path": path or host_path(parsed, "x86_64"),
        "sha256": "0" * 64,
        "bytes": 90_000,
        "abi": parsed,
        "machine": "x86_64",
        "needed": ("libstdc++.so.6", "libc.so.6"),
        "glibc": Release(2, 28),
        "glibcxx": "3.4.22",
        "cpu_levels": ("baseline", "avx2", "avx512"),
        "families": ("rms_norm", "cpu_adam", "rotary"),
    }
    if isinstance(parsed, Exact):
        needed = ("libtorch_cpu.so", "libc10.so", "libc.so.6")
        fields |= {"kind": HostKind.ADAPTER, "needed": needed, "cpu_levels": (), "families": ()}
    return HostFile(**(fields | changes))  # type: ignore[arg-type]


def device_file(target: str, nvrtc_version: str = "13.0.88", family: str = FAMILY) -> DeviceFile:
    """SASS loads on every driver of the same CUDA major, PTX on drivers as new as the NVRTC that wrote it."""
    major, minor = nvrtc_version.split(".")[:2]
    ptx = target.startswith("compute_")
    return DeviceFile(
        path=f"device/{family}.{target}.{'ptx' if ptx else 'cubin'}.xz",
        sha256="1" * 64,
        bytes=5_000,
        family=family,
        target=GpuTarget.parse(target),
        nvrtc=nvrtc_version,
        min_driver=CudaVersion(int(major), int(minor) if ptx else 0),
        offset=0,
        content_bytes=9_000,
        content_sha256="e" * 64,
    )


def build_info(
    targets: str = "sm_75 sm_80 sm_90 compute_90",
    *,
    label: str = "cu130",
    nvrtc_version: str = "13.0.88",
    host_files: tuple[HostFile, ...] = (host_file(),),
    mode: BuildMode = BuildMode.RELEASE,
    index_url: str | None = INDEX,
    family: str = FAMILY,
) -> BuildInfo:
    return BuildInfo(
        version="1.0",
        label=Label(label),
        mode=mode,
        commit="0123456789abcdef0123456789abcdef01234567",
        dirty=False,
        source_digest="2" * 64,
        compilers=(("g++", "12.2.0"), ("nvrtc", nvrtc_version)),
        host=host_files,
        device=tuple(device_file(target, nvrtc_version, family) for target in targets.split()),
        index_url=index_url,
    )


def from_index(label: str, version: str = "1.0") -> str:
    """The fix that takes a wheel from the index of :func:`build_info`."""
    return f'pip install --force-reinstall --no-deps "precast=={version}+{label}" --index-url {INDEX}/{label}/'


def fix(
    why: Rejection,
    host: Host,
    info: BuildInfo | None = None,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    bad: Mapping[str, Rejection] = {},
) -> str:
    """The command that a person is told for a rejection."""
    return fixes.of(why, fixes.Facts(host, info, settings, bad))
