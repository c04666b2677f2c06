"""The plan of a release: matrix.toml expanded into frozen cells, each one job that makes or tests one thing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from precast._builder import parts
from precast._builder.matrix import EventSpec, LabelSpec, Machine, Matrix, TorchBuild, TorchRelease
from precast.core.torch_abi import ANY_TORCH, TorchAbi
from precast.core.version import Label, Release
from precast.errors import KernelError

# "A matrix will generate a maximum of 256 jobs per workflow run" (GitHub Actions, workflow syntax, jobs.<id>.strategy).
MAX_JOBS = 256
# Device code does not depend on the CPU, and this architecture has NVRTC packages of all seven CUDA versions.
DEVICE_MACHINE = "x86_64"

T = TypeVar("T")


class PlanError(KernelError):
    """A plan that no workflow could run; the message names the cell."""


@dataclass(frozen=True, slots=True)
class DeviceCell:
    """All device code of one label, compiled by its NVRTC. ``not_built``: why the build cannot make it."""

    name: str
    label: str
    requirement: str
    targets: tuple[str, ...]
    runner: str
    not_built: str | None


@dataclass(frozen=True, slots=True)
class HostCell:
    """The library of one architecture, or one adapter. ``headers`` is the torch whose headers an adapter uses."""

    name: str
    abi: str
    headers: str | None
    machine: str
    runner: str
    image: str
    not_built: str | None


@dataclass(frozen=True, slots=True)
class WheelCell:
    """One wheel, from the named device and host cells. ``lacks`` are the planned host cells that cannot be built."""

    name: str
    label: str
    machine: str
    runner: str
    image: str
    device: tuple[str, ...]
    targets: tuple[str, ...]
    host: tuple[str, ...]
    lacks: tuple[str, ...]
    max_bytes: int
    not_built: str | None


@dataclass(frozen=True, slots=True)
class TestCell:
    """One installation of a wheel with one torch and one Python. ``index`` has that build of torch."""

    __test__ = False  # pytest collects classes by name

    name: str
    wheel: str
    torch: str
    build: str
    index: str
    abi: str
    python: str
    machine: str
    runner: str
    not_built: str | None


Cell = DeviceCell | HostCell | WheelCell | TestCell


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one event builds and tests, plus the sdist, which is made on ``sdist_runner``.

    ``gpu_runner`` is the label of our own machine with a GPU.
    """

    event: str
    only_torch: str | None
    device: tuple[DeviceCell, ...]
    host: tuple[HostCell, ...]
    wheel: tuple[WheelCell, ...]
    test: tuple[TestCell, ...]
    sdist_runner: str
    gpu_runner: str

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, in the order of their dependencies."""
        return (*self.device, *self.host, *self.wheel, *self.test)

    def matrices(self) -> dict[str, tuple[Cell, ...]]:
        """The cells as one GitHub matrix for each kind of job; tests have one for each architecture."""
        found: dict[str, tuple[Cell, ...]] = {"device": self.device, "host": self.host, "wheel": self.wheel}
        for machine in dict.fromkeys(cell.machine for cell in self.test):
            found[f"test-{machine}"] = tuple(cell for cell in self.test if cell.machine == machine)
        return found


def expand(matrix: Matrix, event: EventSpec, only_torch: str | None = None) -> Plan:
    """All cells of an event; with ``only_torch`` ("2.6"), slim wheels for only that minor release."""
    releases = _releases(matrix, only_torch)
    specs = [matrix.label(label) for label in event.labels]
    host = _host_cells(matrix, releases)
    wheel = tuple(_wheel_cell(matrix, spec, machine, host) for spec in specs for machine in matrix.machine_specs)
    needed = {name for cell in wheel for name in cell.device}
    device = tuple(cell for cell in map(_device_cell(matrix), matrix.labels) if cell and cell.name in needed)
    test = [cell for machine in matrix.machine_specs for cell in _tests(matrix, event, machine, releases, wheel)]
    plan = Plan(
        event.name, only_torch, device, host, wheel, tuple(test), matrix.runners[DEVICE_MACHINE], matrix.gpu_runner
    )
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Raise PlanError for a duplicate cell, an unknown name, or a matrix that is too large for GitHub."""
    names: set[str] = set()
    for cell in plan.cells:
        if cell.name in names:
            raise PlanError(f"the plan for {plan.event} has the cell {cell.name} twice")
        names.add(cell.name)
    for cell in plan.cells:
        for name in _inputs(cell):
            if name not in names:
                raise PlanError(f"the plan for {plan.event}: {cell.name} needs {name}, which no cell makes")
    for name, cells in plan.matrices().items():
        if len(cells) > MAX_JOBS:
            raise PlanError(f"the plan for {plan.event}: {len(cells)} jobs in {name}, GitHub runs at most {MAX_JOBS}")


def _inputs(cell: Cell) -> tuple[str, ...]:
    if isinstance(cell, WheelCell):
        return (*cell.device, *cell.host, *cell.lacks)
    return (cell.wheel,) if isinstance(cell, TestCell) else ()


def _releases(matrix: Matrix, only_torch: str | None) -> tuple[TorchRelease, ...]:
    if only_torch is None:
        return matrix.releases
    found = tuple(release for release in matrix.releases if str(release.release) == only_torch)
    if not found:
        known = ", ".join(str(release.release) for release in matrix.releases)
        raise PlanError(f"matrix.toml has no torch {only_torch!r}; it has: {known}")
    return found


def _device_cell(matrix: Matrix) -> Callable[[LabelSpec], DeviceCell | None]:
    def make(spec: LabelSpec) -> DeviceCell | None:
        if spec.requirement is None:
            return None
        targets = tuple(map(str, spec.targets))
        runner = matrix.runners[DEVICE_MACHINE]
        return DeviceCell(f"device-{spec.name}", spec.name, spec.requirement, targets, runner, spec.not_built)

    return make


def _host_cells(matrix: Matrix, releases: Sequence[TorchRelease]) -> tuple[HostCell, ...]:
    """For each architecture that has a build of these torch releases, the library and the adapters that they need."""
    found: dict[str, HostCell] = {}
    for machine in matrix.machine_specs:
        for release in releases:
            for build in release.builds[machine.name]:
                binding = matrix.binding_of(release, build)
                for abi, headers in ((ANY_TORCH, None), (binding, release.version)):
                    name = parts.host_name(abi, machine.name)
                    if name in found:
                        continue
                    found[name] = HostCell(
                        name=name,
                        abi=str(abi),
                        headers=headers,
                        machine=machine.name,
                        runner=machine.runner,
                        image=machine.image,
                        not_built=matrix.not_built(abi) or machine.not_built,
                    )
    return tuple(found.values())


def _wheel_cell(matrix: Matrix, spec: LabelSpec, machine: Machine, hosts: Iterable[HostCell]) -> WheelCell:
    here = [cell for cell in hosts if cell.machine == machine.name]
    lacking = [cell for cell in here if cell.not_built]
    sources = [source.text for source, _ in spec.take] if spec.take else [spec.name] if spec.requirement else []
    no_host = lacking[0].not_built if len(lacking) == len(here) else None
    return WheelCell(
        name=f"wheel-{spec.name}-{machine.name}",
        label=spec.name,
        machine=machine.name,
        runner=machine.runner,
        image=machine.image,
        device=tuple(f"device-{source}" for source in sources),
        targets=tuple(map(str, spec.targets)),
        host=tuple(cell.name for cell in here if cell not in lacking),
        lacks=tuple(cell.name for cell in lacking),
        max_bytes=matrix.max_bytes_of(spec.label),
        not_built=machine.not_built or spec.not_built or no_host,
    )


def _tests(
    matrix: Matrix,
    event: EventSpec,
    machine: Machine,
    releases: Sequence[TorchRelease],
    wheels: Sequence[WheelCell],
) -> Iterable[TestCell]:
    """Multiply the axes that the event names; on the other axes, take the least used value next."""
    here = [cell for cell in wheels if cell.machine == machine.name]
    pythons, labels = _Turns(), _Turns()
    for release in releases:
        builds = _builds_to_test(matrix, release, machine)
        for build in builds:
            # Another build is only tested for its adapter, so one job is enough.
            first = build is builds[0]
            all_pythons = event.tests == "torch, python" and first
            all_labels = event.tests == "torch, label" and first
            for wheel in here if all_labels else [None]:
                for python in release.pythons[machine.name] if all_pythons else [None]:
                    yield _test_cell(
                        matrix,
                        machine,
                        (release, build),
                        labels.next(here) if wheel is None else wheel,
                        pythons.next(release.pythons[machine.name]) if python is None else python,
                    )
    newest = releases[-1]
    if event.nightly and newest is matrix.releases[-1]:
        build = _builds_to_test(matrix, newest, machine)[0]
        cell = _test_cell(matrix, machine, (newest, build), here[-1], newest.pythons[machine.name][-1], nightly=True)
        yield cell


def _builds_to_test(matrix: Matrix, release: TorchRelease, machine: Machine) -> tuple[TorchBuild, ...]:
    """The CPU build, which is small, and the first build for each other adapter."""
    found: dict[TorchAbi, TorchBuild] = {}
    for build in sorted(release.builds[machine.name], key=lambda build: build.cuda is not None):
        found.setdefault(matrix.binding_of(release, build), build)
    return tuple(found.values())


def _test_cell(
    matrix: Matrix,
    machine: Machine,
    torch: tuple[TorchRelease, TorchBuild],
    wheel: WheelCell,
    python: Release,
    *,
    nightly: bool = False,
) -> TestCell:
    release, build = torch
    abi = matrix.binding_of(release, build)
    version = "nightly" if nightly else release.version
    host = parts.host_name(abi, machine.name)
    return TestCell(
        name=f"test-torch{version}-{build.name}-py{python}-{wheel.label}-{machine.name}",
        wheel=wheel.name,
        torch=version,
        build=build.name,
        index=f"{matrix.torch_index}/{'nightly/' if nightly else ''}{build.name}",
        abi=str(abi),
        python=str(python),
        machine=machine.name,
        runner=machine.runner,
        not_built=wheel.not_built or (None if host in wheel.host else matrix.not_built(abi)),
    )


class _Turns:
    """Returns the least used candidate; of equals, the first."""

    def __init__(self) -> None:
        self._met: dict[Hashable, int] = {}

    def next(self, candidates: Sequence[T]) -> T:
        chosen = min(candidates, key=lambda candidate: self._met.get(candidate, 0))
        self._met[chosen] = self._met.get(chosen, 0) + 1
        return chosen


def label_of(name: str) -> Label:
    """The label for the name in a cell, where "default" means the wheel without a label."""
    return Label("" if name == "default" else name)
