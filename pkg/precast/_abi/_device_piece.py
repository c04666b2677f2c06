"""The device half of the decision for each GPU: exact SASS, then same-major SASS, then PTX, then an NVRTC build."""

from __future__ import annotations

from collections.abc import Mapping

from precast._abi import remedy
from precast._abi._host_piece import looked_at, why_no_prebuilt
from precast._abi.build_info import BuildInfo, DeviceFile
from precast._abi.capability import MINIMUM_CAPABILITY, ComputeCapability, GpuTarget, TargetKind, min_driver
from precast._abi.decision import (
    JIT_CANDIDATE,
    PREBUILT_CANDIDATE,
    BuildImage,
    Choice,
    Need,
    Reason,
    Rejection,
    Unopened,
)
from precast._abi.host import Gpu, Host, Nvrtc
from precast._abi.settings import JitMode, Settings
from precast._abi.version import CudaVersion


def choose_image(
    gpu: Gpu,
    host: Host,
    build_info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, str | Unopened],
) -> Choice[DeviceFile | BuildImage]:
    """The best device code for one GPU. The caller has checked that there is a driver."""
    piece = f"cuda:{gpu.index}"
    if gpu.capability < MINIMUM_CAPABILITY:
        wanted = f"compute capability {MINIMUM_CAPABILITY} or newer"
        return Choice(None, (Rejection(piece, PREBUILT_CANDIDATE, Reason.ARCH, wanted, _found(gpu)),))
    rejections: list[Rejection] = []
    fitting: list[DeviceFile] = []
    unused = why_no_prebuilt(piece, build_info, settings, host)
    if unused is not None:
        rejections.append(unused)
    elif build_info is not None:
        files = [file for file in build_info.device if file.family == need.family]
        if not files:
            wanted = f"device code of {need.family}"
            fix = remedy.other_label(host, gpu.capability, build_info, settings)
            rejections.append(Rejection(piece, PREBUILT_CANDIDATE, Reason.FAMILY, wanted, "none in this wheel", fix))
        for file in files:
            why = _misfit(file, gpu, host, build_info, settings, bad)
            if why is None:
                fitting.append(file)
            else:
                rejections.append(why)
    if fitting:
        best = max(fitting, key=lambda file: _rank(file.target, gpu.capability))
        return Choice(best, tuple(rejections), _notes(best.target, best.name, piece))
    target, refusals = _buildable(piece, gpu, host, settings)
    if target is None:
        return Choice(None, (*rejections, *refusals))
    return Choice(BuildImage(target), (*rejections, *refusals), _notes(target, f"what is built for {target}", piece))


def _misfit(
    file: DeviceFile, gpu: Gpu, host: Host, info: BuildInfo, settings: Settings, bad: Mapping[str, str | Unopened]
) -> Rejection | None:
    piece = f"cuda:{gpu.index}"
    if file.name in bad:
        fix = remedy.reinstall(host, info, settings)
        return Rejection(piece, file.name, Reason.DAMAGED, "the file that was built", str(bad[file.name]), fix)
    if not file.target.runs_on(gpu.capability):
        found = _found(gpu) + remedy.served_range(gpu.capability, info.label)
        fix = remedy.other_label(host, gpu.capability, info, settings)
        return Rejection(piece, file.name, Reason.ARCH, file.target.serves, found, fix)
    if host.driver is None or host.driver < file.min_driver:
        fix = remedy.other_label(host, gpu.capability, info, settings)
        return Rejection(piece, file.name, Reason.DRIVER, _wanted_driver(file.min_driver), _found_driver(host), fix)
    if host.lzma_error is not None:
        # No remedy: this Python must be rebuilt with liblzma-dev, or another one chosen.
        wanted = "a Python that was compiled with liblzma-dev, to unpack it"
        found = f"Python {host.python} without: {host.lzma_error}"
        return Rejection(piece, file.name, Reason.NO_LZMA, wanted, found)
    return None


def _rank(target: GpuTarget, gpu: ComputeCapability) -> tuple[bool, bool, ComputeCapability, int]:
    """Greater is better: SASS before PTX, exact before same-major, newer before older, specific before general."""
    sass = target.kind is TargetKind.SASS
    return sass, sass and target.capability == gpu, target.capability, ("", "f", "a").index(target.suffix)


def _buildable(piece: str, gpu: Gpu, host: Host, settings: Settings) -> tuple[GpuTarget | None, list[Rejection]]:
    """The target for NVRTC, with the better ones that were rejected; or None and every reason.

    As for the host library, missing builders count under ``aot`` too, once they have been probed.
    """

    def no(reason: Reason, wanted: str, found: str, fix: str = "") -> Rejection:
        return Rejection(piece, JIT_CANDIDATE, reason, wanted, found, fix)

    refusals: list[Rejection] = []
    if settings.jit is JitMode.AOT:
        refusals.append(no(Reason.AOT_ONLY, "PRECAST_JIT to be auto or jit", "PRECAST_JIT=aot", remedy.ALLOW_JIT))
    if host.builders is None:
        return None, refusals or [no(Reason.BUILDERS_UNKNOWN, "NVRTC", "nobody has looked for it yet")]
    nvrtc = host.builders.nvrtc
    if nvrtc is None:
        fix = remedy.install_nvrtc(host)
        return None, [*refusals, no(Reason.NO_NVRTC, "NVRTC", looked_at(host.builders, "nvrtc"), fix)]
    targets = nvrtc_targets(nvrtc, gpu.capability)
    if not targets:
        wanted = f"an NVRTC that compiles for {gpu.capability}"
        oldest = f" (oldest {min(nvrtc.targets)})" if nvrtc.targets else ""
        return None, [*refusals, no(Reason.NVRTC_ARCH, wanted, f"NVRTC {nvrtc.version}{oldest}; {_found(gpu)}")]
    toolkit = CudaVersion.parse(nvrtc.version)
    passed_over: list[Rejection] = []
    for target in targets:
        needed = min_driver(target, toolkit)
        if host.driver is not None and host.driver >= needed:
            return (None, refusals) if refusals else (target, passed_over)
        wanted = f"{_wanted_driver(needed)} for {target} by NVRTC {nvrtc.version}"
        passed_over.append(no(Reason.DRIVER, wanted, _found_driver(host)))
    return None, [*refusals, *passed_over]


def nvrtc_targets(nvrtc: Nvrtc, gpu: ComputeCapability) -> tuple[GpuTarget, ...]:
    """The targets that this NVRTC can compile for a GPU, best first.

    SASS if NVRTC knows the GPU. Otherwise the newest PTX below it, which the driver compiles for the GPU; and, for a
    driver too old for that PTX, the newest SASS that the GPU runs.
    """
    if gpu in nvrtc.targets:
        return (GpuTarget(TargetKind.SASS, gpu),)
    known = sorted((capability for capability in nvrtc.targets if capability >= MINIMUM_CAPABILITY), reverse=True)
    candidates = [GpuTarget(kind, known_one) for kind in (TargetKind.PTX, TargetKind.SASS) for known_one in known]
    best: dict[TargetKind, GpuTarget] = {}
    for target in candidates:
        if target.runs_on(gpu):
            best.setdefault(target.kind, target)
    return tuple(best.values())


def _notes(target: GpuTarget, what: str, piece: str) -> tuple[str, ...]:
    if target.kind is TargetKind.SASS:
        return ()
    return (f"{piece} runs {what} through the driver's compiler: about 0.1 s once, then the driver's own cache",)


def _found(gpu: Gpu) -> str:
    return f"compute capability {gpu.capability} ({gpu.name})"


def _wanted_driver(needed: CudaVersion) -> str:
    return f"a driver for CUDA {needed} or newer"


def _found_driver(host: Host) -> str:
    return f"a driver for CUDA {host.driver}"
