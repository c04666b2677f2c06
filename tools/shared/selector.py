"""The data of the landing page's selector: for a machine, a torch and a GPU, the label to install.

The page decides nothing itself: each answer is the decision of ``decide`` about the manifest of a label's wheel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from precast._abi.build_info import BuildInfo
from precast._abi.capability import ComputeCapability, TargetKind
from precast._abi.version import CudaVersion
from precast._builder.matrix import Matrix, TorchBuild
from tools.shared import served
from tools.shared.cells import expand, label_of
from tools.shared.dists import PROJECT, Dist
from tools.shared.published import in_order
from tools.shared.served import TorchCell

SCHEMA = 1
# A well-known GPU for each compute capability (NVIDIA, "CUDA GPU Compute Capability").
GPUS = {
    "7.0": "V100",
    "7.5": "T4, RTX 20",
    "8.0": "A100, A30",
    "8.6": "A10, A40, RTX 30",
    "8.7": "Jetson Orin",
    "8.9": "L4, L40S, RTX 40",
    "9.0": "H100, H200, GH200",
    "10.0": "B200, GB200",
    "10.3": "B300, GB300",
    "11.0": "Jetson Thor",
    "12.0": "RTX 50, RTX PRO 6000",
    "12.1": "GB10 (DGX Spark)",
}
# The device code of an answer: for this GPU, for its major version, PTX for the driver, or none, so it must be built.
SASS, SAME_MAJOR, PTX, JIT = "exact", "same major", "PTX", "built at first use"
_RANK = (SASS, SAME_MAJOR, PTX, JIT)


def data(matrix: Matrix, dists: Sequence[Dist]) -> dict[str, Any]:
    """The data of the page as plain values, for the newest release, or the newest version if there is no release."""
    ordered = in_order([dist for dist in dists if dist.machines])
    releases = [dist for dist in ordered if not dist.version.is_prerelease] or ordered
    version = releases[-1].version.public if releases else None
    files = [dist for dist in releases if dist.version.public == version]
    there = {machine: _labels_for(machine, files) for machine in matrix.machines}
    specs = [spec for spec in matrix.labels if any(spec.label.text in labels for labels in there.values())]
    return {
        "schema": SCHEMA,
        "project": PROJECT,
        "version": version,
        "labels": {
            spec.name: {
                "toolkit": spec.nvrtc,
                "targets": [str(target) for target in spec.targets],
                "machines": [machine for machine in matrix.machines if spec.label.text in there[machine]],
            }
            for spec in specs
        },
        "torch": [
            {
                "version": release.version,
                "builds": {
                    machine: {
                        build.name: matrix.abi_not_built(matrix.abi_of(release, build)) is None
                        for build in release.builds[machine]
                    }
                    for machine in matrix.machines
                },
            }
            for release in reversed(matrix.releases)
        ],
        "gpus": [{"capability": capability, "name": name} for capability, name in GPUS.items()],
        "choice": {machine: _choices(matrix, machine, there[machine]) for machine in matrix.machines},
    }


def _labels_for(machine: str, files: Iterable[Dist]) -> frozenset[str]:
    return frozenset(dist.label for dist in files if machine in dist.machines)


def _choices(matrix: Matrix, machine: str, labels: frozenset[str]) -> dict[str, dict[str, list[str]]]:
    """For each build of torch on this machine and each GPU, the label to install and its kind of device code."""
    plan = expand(matrix, matrix.event("release"))
    infos = {
        cell.label: served.manifest(matrix, cell, declared=True)
        for cell in plan.wheel
        if cell.machine == machine and label_of(cell.label).text in labels and label_of(cell.label).cuda
    }
    release = matrix.releases[-1]
    builds = {build.name: build for each in matrix.releases for build in each.builds[machine]}
    found: dict[str, dict[str, list[str]]] = {}
    for name in sorted(builds, key=lambda name: builds[name].cuda or CudaVersion(0, 0)):
        if builds[name].cuda is None:
            found[name] = {"": ["cpu", SASS]} if "cpu" in labels else {}
            continue
        cell = TorchCell(release.version, TorchBuild(name, cxx11=True), release.pythons[machine][-1], machine)
        answers = {gpu: best(cell, ComputeCapability.parse(gpu), infos) for gpu in GPUS}
        found[name] = {gpu: list(answer) for gpu, answer in answers.items() if answer is not None}
    return found


def best(cell: TorchCell, gpu: ComputeCapability, infos: Mapping[str, BuildInfo]) -> tuple[str, str] | None:
    """The best label for this GPU with the driver that torch's CUDA needs."""
    driver = max(cell.build.cuda or CudaVersion(0, 0), CudaVersion(12, 0))
    offers = []
    for label, info in infos.items():
        cuda = label_of(label).cuda
        if cuda is None or cuda.major > driver.major:
            continue
        target = served.served_target(served.judge(cell, info, gpu, driver))
        if target is None:
            code = JIT
        elif target.kind is TargetKind.PTX:
            code = PTX
        else:
            code = SASS if target.capability == gpu else SAME_MAJOR
        offers.append((_RANK.index(code), -cuda.driver_number, label, code))
    return None if not offers else min(offers)[2:]
