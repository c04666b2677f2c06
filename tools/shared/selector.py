"""The data of the install selector: for a machine, a torch, a driver and a GPU, the label to install and what happens.

The page decides nothing itself: each answer is the decision of ``decide`` about the manifest of a label's wheel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from precast._abi.toolkits import FIRST_TOOLKIT
from precast._builder.matrix import Matrix
from precast._builder.torch_releases import TorchBuild, TorchRelease
from precast.core.capability import ComputeCapability, TargetKind
from precast.core.manifest import BuildInfo
from precast.core.version import CudaVersion, Label
from tools.shared import served
from tools.shared.cells import expand, label_of
from tools.shared.dists import PROJECT, Dist
from tools.shared.published import in_order
from tools.shared.served import TorchCell

SCHEMA = 4
# Well-known GPUs of each compute capability (NVIDIA, "CUDA GPU Compute Capability").
GPUS = {
    "7.0": ("V100", "TITAN V"),
    "7.5": ("T4", "RTX 20 series", "GTX 16 series"),
    "8.0": ("A100", "A30"),
    "8.6": ("A10", "A40", "RTX 30 series", "RTX A6000"),
    "8.7": ("Jetson Orin",),
    "8.9": ("L4", "L40S", "RTX 40 series", "RTX 6000 Ada"),
    "9.0": ("H100", "H200", "GH200"),
    "10.0": ("B200", "GB200"),
    "10.3": ("B300", "GB300"),
    "11.0": ("Jetson Thor",),
    "12.0": ("RTX 50 series", "RTX PRO 6000 Blackwell"),
    "12.1": ("GB10 (DGX Spark)",),
}
# These are parts of an ARM machine.
ARM_ONLY = ("8.7", "11.0", "12.1")
# The first driver that supports the older ones is older than any that a label needs.
OLDEST_DRIVER = CudaVersion(12, 0)
# The first branch of Linux drivers for each CUDA (NVIDIA, release notes of the CUDA toolkit).
BRANCHES = {
    525: "12.0", 530: "12.1", 535: "12.2", 545: "12.3", 550: "12.4", 555: "12.5", 560: "12.6", 565: "12.7", 570: "12.8",
    575: "12.9", 580: "13.0", 590: "13.1", 595: "13.2",
}  # fmt: skip
# Torch for Jetson Orin is on no index of torch.
JETSON = {
    "capability": "8.7",
    "url": "https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/",
}
# The device code of an answer: for this GPU, for its major version, PTX for the driver, or none, so it must be built.
SASS, SAME_MAJOR, PTX, JIT = "exact", "same major", "PTX", "built at first use"
_RANK = (SASS, SAME_MAJOR, PTX, JIT)
HERE = "."  # the address of an index, as its own first page sees it


def data(matrix: Matrix, dists: Sequence[Dist]) -> dict[str, Any]:
    """The data of an index's page as plain values, for the newest release, or the newest version without a release."""
    ordered = in_order([dist for dist in dists if dist.machines])
    releases = [dist for dist in ordered if not dist.version.is_prerelease] or ordered
    version = releases[-1].version.public if releases else None
    files = [dist for dist in releases if dist.version.public == version]
    return of_labels(matrix, version, {machine: _labels_for(machine, files) for machine in matrix.machines}, HERE)


def planned(matrix: Matrix, version: str, base: str) -> dict[str, Any]:
    """The data of a page away from an index at ``base``, for a release that has every planned wheel."""
    cells = expand(matrix, matrix.event("release")).wheel
    there = {m: frozenset(label_of(c.label).text for c in cells if c.machine == m) for m in matrix.machines}
    return of_labels(matrix, version, there, base)


def of_labels(matrix: Matrix, version: str | None, there: Mapping[str, frozenset[str]], base: str) -> dict[str, Any]:
    """The data for the labels that each machine has, at the index ``base``."""
    specs = [spec for spec in matrix.labels if any(spec.label.text in labels for labels in there.values())]
    builds = {build.name: build for each in matrix.releases for found in each.builds.values() for build in found}
    names = sorted(builds, key=lambda name: builds[name].cuda or CudaVersion(0, 0))
    driver_of = {name: max(cuda, OLDEST_DRIVER) for name in names if (cuda := builds[name].cuda) is not None}
    drivers = sorted(
        {OLDEST_DRIVER, *driver_of.values(), *(c for s in matrix.labels if (c := s.label.cuda) is not None)}
    )
    codes = {machine: _codes(matrix, machine, there[machine], drivers) for machine in matrix.machines}
    return {
        "schema": SCHEMA,
        "project": PROJECT,
        "version": version,
        "base": base,
        "labels": {
            spec.name: {
                "toolkit": spec.nvrtc,
                "targets": [str(target) for target in spec.targets],
                "machines": [machine for machine in matrix.machines if spec.label.text in there[machine]],
            }
            for spec in specs
        },
        "torch_index": matrix.torch_index,
        "torch": [_torch(matrix, release) for release in reversed(matrix.releases)],
        "machines": list(matrix.machines),
        "builds": names,
        "drivers": [str(driver) for driver in drivers],
        "branches": [list(pair) for pair in BRANCHES.items()],
        "jetson": JETSON,
        "driver_of": {name: str(driver) for name, driver in driver_of.items()},
        "gpus": [
            {
                "capability": capability,
                "names": list(names),
                "driver": FIRST_TOOLKIT.get(capability, str(OLDEST_DRIVER)),
                "machines": [m for m in matrix.machines if m == "aarch64" or capability not in ARM_ONLY],
            }
            for capability, names in GPUS.items()
        ],
        "no_code": {name: without_code(matrix, Label(name)) for name in names},
        "cpu": [machine for machine in matrix.machines if "cpu" in there[machine]],
        "ranks": list(_RANK),
        "choice": {machine: _choices(codes[machine]) for machine in matrix.machines},
        "codes": codes,
    }


def _torch(matrix: Matrix, release: TorchRelease) -> dict[str, Any]:
    """A release: on each machine its builds and whether the wheels serve them, PyPI's build, the newest Python."""
    return {
        "version": release.version,
        "builds": {
            machine: {build.name: matrix.not_built(matrix.binding_of(release, build)) is None for build in builds}
            for machine, builds in release.builds.items()
        },
        "pypi": dict(release.pypi),
        "python": {machine: str(pythons[-1]) for machine, pythons in release.pythons.items()},
    }


def _labels_for(machine: str, files: Iterable[Dist]) -> frozenset[str]:
    return frozenset(dist.label for dist in files if machine in dist.machines)


def without_code(matrix: Matrix, build: Label) -> list[str]:
    """The GPUs that torch's own wheel of a build has no machine code for. Jetson's torch comes from NVIDIA."""
    if build.cuda is None:
        return []
    spec = matrix.label(matrix.without_label.get(build.text, build))
    gpus = [ComputeCapability.parse(text) for text in GPUS]
    able = {gpu for gpu in gpus for target in spec.targets if target.kind is TargetKind.SASS and target.runs_on(gpu)}
    return [str(gpu) for gpu in gpus if gpu not in able and str(gpu) != JETSON["capability"]]


# For each driver and label of a machine, a digit for each GPU: the place of its kind of device code in ``_RANK``.
_Codes = dict[str, dict[str, str]]


def _codes(matrix: Matrix, machine: str, labels: frozenset[str], drivers: Sequence[CudaVersion]) -> _Codes:
    """The device code that each label has for each driver and GPU; a driver has no label of a newer major."""
    plan = expand(matrix, matrix.event("release"))
    infos = {
        label: served.manifest(matrix, cell, declared=True)
        for cell in plan.wheel
        if cell.machine == machine and (label := label_of(cell.label)).text in labels and label.cuda
    }
    release = matrix.releases[-1]
    found: _Codes = {}
    for driver in drivers:
        build = TorchBuild(f"cu{driver.major}{driver.minor}", cxx11=True)
        cell = TorchCell(release.version, build, release.pythons[machine][-1], machine)
        found[str(driver)] = {
            label.text: "".join(
                str(_RANK.index(_code(cell, ComputeCapability.parse(gpu), info, driver))) for gpu in GPUS
            )
            for label, info in sorted(infos.items(), key=lambda one: one[0].cuda or OLDEST_DRIVER)
            if label.cuda is not None and label.cuda.major <= driver.major
        }
    return found


def _code(cell: TorchCell, gpu: ComputeCapability, info: BuildInfo, driver: CudaVersion) -> str:
    target = served.served_target(served.judge(cell, info, gpu, driver))
    if target is None:
        return JIT
    if target.kind is TargetKind.PTX:
        return PTX
    return SASS if target.capability == gpu else SAME_MAJOR


def _choices(codes: _Codes) -> dict[str, dict[str, list[str]]]:
    """For each driver and GPU, the label with the best code, among equals the newest one, and its kind of code."""
    return {
        driver: {
            gpu: [label, _RANK[int(digits[place])]]
            for place, gpu in enumerate(GPUS)
            for label, digits in [min(reversed(labels.items()), key=lambda one: one[1][place])]
        }
        if labels
        else {}
        for driver, labels in codes.items()
    }


def common(codes: Mapping[str, _Codes], machines: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """The label for several (architecture, driver, GPU) with the best worst code, then the best sum; and that code."""
    places = [(codes[machine][driver], list(GPUS).index(gpu)) for machine, driver, gpu in machines]
    shared = [label for label in places[0][0] if all(label in labels for labels, _ in places)]
    ranks = {label: [int(labels[label][place]) for labels, place in places] for label in reversed(shared)}
    label = min(ranks, key=lambda one: (max(ranks[one]), sum(ranks[one])))
    return label, _RANK[max(ranks[label])]
