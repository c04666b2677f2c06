"""The hosts that a planned release serves: ``decide`` judges each planned wheel by its future manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from precast._abi.decide import decide
from precast._abi.decision import Decision, UsePrebuilt
from precast._abi.settings import Settings
from precast._builder import catalogue, flags
from precast._builder.matrix import Matrix, TorchBuild
from precast.core.capability import ComputeCapability, GpuTarget, min_driver
from precast.core.host import Gpu, Host, TorchInfo
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, HostKind, device_path, host_path
from precast.core.reasons import Need
from precast.core.torch_abi import ANY_TORCH, parse_torch_abi
from precast.core.version import CudaVersion, Label, Release, TorchVersion
from tools.shared.cells import Plan, WheelCell, label_of

_FAMILY = next(family.name for family in catalogue.FAMILIES if family.device is not None)
_SHA256 = "0" * 64  # the files do not exist yet, and decide reads none of them
# The GPU of a host for which only torch matters: every CUDA label has code for it.
_ANY_GPU = ComputeCapability(8, 0)


@dataclass(frozen=True, slots=True)
class TorchCell:
    """One torch installation: the unit of projects that have one wheel for each."""

    torch: str
    build: TorchBuild
    python: Release
    machine: str


def torch_cells(matrix: Matrix, only_torch: str | None = None) -> tuple[TorchCell, ...]:
    """Every (torch, CUDA, Python, architecture) of the matrix."""
    return tuple(
        TorchCell(release.version, build, python, machine)
        for release in matrix.releases
        if only_torch in (None, str(release.release))
        for machine in matrix.machines
        for build in release.builds[machine]
        for python in release.pythons[machine]
    )


def manifest(matrix: Matrix, cell: WheelCell, *, declared: bool) -> BuildInfo:
    """The future build_info.json of a wheel; with ``declared``, including the host files that it still lacks."""
    names = (*cell.host, *cell.lacks) if declared else cell.host
    families = tuple(family.name for family in catalogue.FAMILIES)
    glibcxx = ".".join(map(str, matrix.glibcxx))
    levels = tuple(level.name for level in flags.cpu_levels(cell.machine))
    hosts = []
    for name in names:
        file = HostFile("", _SHA256, 0, ANY_TORCH, cell.machine, (), matrix.glibc, glibcxx, levels, families)
        if name.startswith("adapter-"):
            abi = parse_torch_abi(name.removeprefix("adapter-").removesuffix(f"-{cell.machine}"))
            file = replace(file, abi=abi, cpu_levels=(), families=(), kind=HostKind.ADAPTER)
        hosts.append(replace(file, path=host_path(file.abi, cell.machine)))
    return BuildInfo(
        version="0",
        label=label_of(cell.label),
        mode=BuildMode.RELEASE,
        commit=None,
        dirty=False,
        source_digest=_SHA256,
        host=tuple(hosts),
        device=tuple(_device_files(matrix, label_of(cell.label))),
    )


def _device_files(matrix: Matrix, label: Label) -> Iterable[DeviceFile]:
    spec = matrix.label(label)
    for source, targets in spec.take or ((label, spec.targets),):
        nvrtc = matrix.label(source).nvrtc
        for target in targets if nvrtc is not None else ():
            yield DeviceFile(
                path=device_path(_FAMILY, [target]),
                sha256=_SHA256,
                bytes=0,
                family=_FAMILY,
                target=target,
                nvrtc=nvrtc or "",
                min_driver=min_driver(target, CudaVersion.parse(nvrtc or "")),
                offset=0,
                content_bytes=0,
                content_sha256=_SHA256,
            )


def host_of(cell: TorchCell, gpu: ComputeCapability | None, driver: CudaVersion | None) -> Host:
    """A machine with that torch, as old as the platform tag allows."""
    return Host(
        system="Linux",
        machine=cell.machine,
        python=cell.python,
        glibc=flags.GLIBC_CEILING,
        glibcxx=".".join(map(str, flags.GLIBCXX_CEILING)),
        torch=TorchInfo(TorchVersion.parse(cell.torch), cell.build.cxx11, cell.build.cuda),
        driver=driver,
        gpus=() if gpu is None else (Gpu(0, gpu, f"GPU {gpu}"),),
    )


def judge(cell: TorchCell, info: BuildInfo, gpu: ComputeCapability | None, driver: CudaVersion | None) -> Decision:
    """The loader's decision about one wheel; without a GPU, about its CPU kernels."""
    need = Need(_FAMILY, "cpu" if gpu is None else "cuda")
    return decide(host_of(cell, gpu, driver), info, Settings(), need)


def served_target(decision: Decision) -> GpuTarget | None:
    """The target of the prebuilt device code in the decision; None if anything is built or refused."""
    if not isinstance(decision, UsePrebuilt) or not decision.images:
        return None
    return decision.images[0][1].target


def planned(plan: Plan, matrix: Matrix, cells: Sequence[TorchCell]) -> tuple[TorchCell, ...]:
    """The cells that the plan's wheels serve from prebuilt files once all of it is built."""
    return serving([manifest(matrix, cell, declared=True) for cell in plan.wheel], cells)


def built(plan: Plan, matrix: Matrix, cells: Sequence[TorchCell]) -> tuple[TorchCell, ...]:
    """The cells that the wheels that can be built serve from prebuilt files."""
    return serving([manifest(matrix, cell, declared=False) for cell in plan.wheel if not cell.not_built], cells)


def serving(wheels: Sequence[BuildInfo], cells: Sequence[TorchCell]) -> tuple[TorchCell, ...]:
    """The cells for which at least one of these wheels has every file."""
    return tuple(cell for cell in cells if any(isinstance(_on_any_gpu(cell, w), UsePrebuilt) for w in wheels))


def _on_any_gpu(cell: TorchCell, wheel: BuildInfo) -> Decision:
    """Judge a CPU build by its CPU kernels, and a CUDA build by its device code too, with the driver of its CUDA."""
    if cell.build.cuda is None:
        return judge(cell, wheel, None, None)
    return judge(cell, wheel, _ANY_GPU, max(cell.build.cuda, CudaVersion(12, 0)))
