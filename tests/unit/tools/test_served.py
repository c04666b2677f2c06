"""Every host that the matrix knows, under every driver that its torch brings along, against every planned wheel.

The table is written by hand: what code each GPU is to get from each label. It shares nothing with the rules of `_abi`,
which decide, nor with the lists of matrix.toml, which fill the wheels.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from precast._abi.decision import Refuse, UsePrebuilt
from precast._builder import matrix
from precast.core.capability import ComputeCapability
from precast.core.manifest import BuildInfo, HostFile
from precast.core.version import CudaVersion
from tools.shared import served
from tools.shared.cells import WheelCell, expand
from tools.shared.served import TorchCell

KNOWN = matrix.load(Path(__file__).resolve().parents[3] / "matrix.toml")
PLAN = expand(KNOWN, KNOWN.event("release"))
LABELS = [spec.name for spec in KNOWN.labels]

# A number is the SASS that runs, p is PTX for 9.0, - is nothing prebuilt. p/110: SASS for 11.0 from a driver for CUDA
# 13 on, PTX before. In words: V100 T4 A100 RTX30 Orin RTX40 H100
# B200 B300 Thor RTX50 Spark, and one yet to come.
TABLE = """
          7.0    7.5    8.0    8.6    8.7    8.9    9.0    10.0   10.3   11.0   12.0   12.1   13.0
cu121     70     75     80     86     -      86     90     p      p      p      p      p      p
cu124     70     75     80     86     -      86     90     p      p      p      p      p      p
cu126     70     75     80     86     -      86     90     p      p      p      p      p      p
cu128     70     75     80     86     -      86     90     100    100    p      120    120    p
cu129     70     75     80     86     -      86     90     100    100    p      120    120    p
cu130     -      75     80     86     -      86     90     100    100    110    120    120    p
cu132     -      75     80     86     -      86     90     100    100    110    120    120    p
cpu       -      -      -      -      -      -      -      -      -      -      -      -      -
default   70     75     80     86     -      86     90     100    100    p/110  120    120    p
"""
# The driver, as cuDriverGetVersion says it, from which a label's SASS and its PTX run.
DRIVERS = {
    "cu121": (12000, 12010),
    "cu124": (12000, 12040),
    "cu126": (12000, 12060),
    "cu128": (12000, 12080),
    "cu129": (12000, 12090),
    "cu130": (13000, 13000),
    "cu132": (13000, 13020),
    "cpu": (0, 0),
    "default": (12000, 12080),
}
HEAD, *ROWS = TABLE.strip().splitlines()
GPUS = HEAD.split()
WANTED = {row.split()[0]: dict(zip(GPUS, row.split()[1:], strict=True)) for row in ROWS}


def wanted(label: str, gpu: str, driver: int) -> str | None:
    """What the table says."""
    for_sass, for_ptx = DRIVERS[label]
    code = WANTED[label][gpu]
    if code == "p/110":
        code = "110" if driver >= 13000 else "p"
    if code == "p":
        return "compute_90" if driver >= for_ptx else None
    return f"sm_{code}" if code != "-" and driver >= for_sass else None


@functools.cache
def manifests(declared: bool) -> list[tuple[WheelCell, BuildInfo]]:
    return [(cell, served.manifest(KNOWN, cell, declared=declared)) for cell in PLAN.wheel]


def with_cuda(machine: str) -> list[TorchCell]:
    return [cell for cell in served.torch_cells(KNOWN) if cell.machine == machine and cell.build.cuda is not None]


def drivers_of(cell: TorchCell) -> set[int]:
    """The driver of torch's own CUDA, but one for CUDA 12 at least; and the newest one."""
    assert cell.build.cuda is not None
    return {max(cell.build.cuda.driver_number, 12000), 13020}


def test_the_table_is_about_the_labels_of_the_matrix() -> None:
    assert list(WANTED) == LABELS == list(DRIVERS)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("machine", KNOWN.machines)
def test_each_host_is_served_by_one_wheel_of_each_label_that_has_its_gpu(machine: str, label: str) -> None:
    wheels = [(cell, info) for cell, info in manifests(declared=True) if cell.label == label]
    asked = 0
    # Python takes no part in a decision about py3-none wheels: its ends stand for all of them (the next test).
    hosts = {(cell.torch, cell.build): cell for cell in with_cuda(machine)}
    for cell in hosts.values():
        minor = ".".join(cell.torch.split(".")[:2])
        adapter = f"host/torch-{minor}-cxx{int(cell.build.cxx11)}.so" if int(minor.split(".")[1]) < 10 else None
        for gpu in GPUS:
            for driver in drivers_of(cell):
                found = [
                    (wheel.machine, decision.host.path, adapter_of(decision), str(served.served_target(decision)))
                    for wheel, info in wheels
                    if isinstance(decision := judge(cell, info, gpu, driver), UsePrebuilt)
                ]
                target = wanted(label, gpu, driver)
                expected = [] if target is None else [(machine, f"host/kernels-{machine}.so", adapter, target)]
                assert found == expected, (cell, gpu, driver)
                asked += 1
    assert asked >= 20 * len(GPUS)


def adapter_of(decision: UsePrebuilt) -> str | None:
    return decision.binding.path if isinstance(decision.binding, HostFile) else None


def judge(cell: TorchCell, info: BuildInfo, gpu: str, driver: int) -> object:
    return served.judge(cell, info, ComputeCapability.parse(gpu), CudaVersion.from_driver(driver))


@pytest.mark.parametrize("machine", KNOWN.machines)
def test_every_python_is_served_alike(machine: str) -> None:
    (info,) = (info for cell, info in manifests(declared=True) if cell.name == f"wheel-cu128-{machine}")
    cells = with_cuda(machine)
    assert {str(cell.python) for cell in cells} == {str(python) for python in KNOWN.pythons}
    assert all(isinstance(judge(cell, info, "9.0", 13020), UsePrebuilt) for cell in cells)


@pytest.mark.parametrize("label", LABELS)
def test_cpu_kernels_are_in_every_wheel(label: str) -> None:
    for cell in served.torch_cells(KNOWN):
        accepted = [
            wheel.machine
            for wheel, info in manifests(declared=True)
            if wheel.label == label and isinstance(served.judge(cell, info, None, None), UsePrebuilt)
        ]
        assert accepted == [cell.machine]


def test_what_is_not_built_is_not_claimed() -> None:
    """With the files there are, a torch without its library is refused under every label."""
    built_machines = {machine.name for machine in KNOWN.machine_specs if machine.not_built is None}
    by_version = {release.version: release for release in KNOWN.releases}
    wheels = [info for cell, info in manifests(declared=False) if not cell.not_built]
    cells = served.torch_cells(KNOWN)
    expected = []
    for cell in cells:
        abi = KNOWN.binding_of(by_version[cell.torch], cell.build)
        there = cell.machine in built_machines and KNOWN.not_built(abi) is None
        decisions = [served.judge(cell, info, None, None) for info in wheels]
        assert any(isinstance(decision, UsePrebuilt) for decision in decisions) == there, cell
        assert there or all(isinstance(decision, Refuse) for decision in decisions)
        expected += [cell] * there
    assert served.planned(PLAN, KNOWN, cells) == cells
    assert served.built(PLAN, KNOWN, cells) == tuple(expected)


def test_a_pull_request_serves_as_many_with_fewer_wheels() -> None:
    reduced = expand(KNOWN, KNOWN.event("pr"))
    cells = served.torch_cells(KNOWN)
    assert served.planned(reduced, KNOWN, cells) == cells
    assert served.built(reduced, KNOWN, cells) == served.built(PLAN, KNOWN, cells)


def test_the_cells_of_one_torch_can_be_counted() -> None:
    cells = served.torch_cells(KNOWN, "2.6")
    assert {cell.torch for cell in cells} == {"2.6.0"}
    # x86_64: cpu, cu118, cu124 and cu126, aarch64: cpu; Python 3.10 to 3.13
    assert len(cells) == (4 + 1) * 4
