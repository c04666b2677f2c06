"""The torch releases in matrix.toml: the Python and CUDA versions of their builds, and their C++ ABI."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from precast._builder.tables import MatrixError, Table
from precast.core.version import CudaVersion, Label, Release, TorchVersion

_CXX_STANDARDS = (17, 20)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """One build of a release, with its name on torch's index: ``cpu`` or ``cu126``."""

    name: str
    cxx11: bool

    @property
    def cuda(self) -> CudaVersion | None:
        """The CUDA version it was built with."""
        return Label.parse(self.name).cuda


@dataclass(frozen=True, slots=True)
class TorchRelease:
    """One torch minor at its newest patch. ``builds``, ``pythons`` and ``pypi`` (PyPI's build) are by architecture."""

    version: str
    cxx_standard: int
    pypi: Mapping[str, str]
    builds: Mapping[str, tuple[TorchBuild, ...]]
    pythons: Mapping[str, tuple[Release, ...]]

    @property
    def release(self) -> Release:
        """The minor, ``2.6``."""
        return TorchVersion.parse(self.version).release


def read_releases(torch: Table, pythons: tuple[Release, ...], machines: tuple[str, ...]) -> tuple[TorchRelease, ...]:
    """Every release, oldest first, without the Pythons that the project does not support."""
    found = tuple(_release(table, pythons, machines) for table in torch.tables("releases", "version"))
    minors = [release.release for release in found]
    for before, after in itertools.pairwise(minors):
        if before >= after:
            raise MatrixError(f"{torch.where}.releases: {after} after {before}: needed each minor once, oldest first")
    return found


def _release(table: Table, pythons: tuple[Release, ...], machines: tuple[str, ...]) -> TorchRelease:
    pypi = table.table("pypi")
    release = TorchRelease(
        version=str(table.parsed("version", TorchVersion.parse)),
        cxx_standard=table.take("cxx_standard", int),
        pypi={machine: pypi.take(machine, str) for machine in machines},
        builds={machine: _builds(table.table(machine)) for machine in machines},
        pythons=_pythons(table, pythons, machines),
    )
    pypi.finish()
    table.finish()
    if release.cxx_standard not in _CXX_STANDARDS:
        raise MatrixError(f"{table.where}.cxx_standard: needed one of {_CXX_STANDARDS}, found {release.cxx_standard}")
    for machine in machines:
        if release.pypi[machine] not in {build.name for build in release.builds[machine]}:
            raise MatrixError(f"{table.where}.pypi: {machine} has no build {release.pypi[machine]}")
        if not release.pythons[machine]:
            raise MatrixError(f"{table.where}.python: needed some of {', '.join(map(str, pythons))} for {machine}")
    return release


def _builds(table: Table) -> tuple[TorchBuild, ...]:
    builds = []
    for name in tuple(table.values):
        table.parse(name, name, Label.parse)
        flag = table.take(name, int)
        if flag not in (0, 1):
            raise MatrixError(f"{table.where}.{name}: the cxx11 ABI is 0 or 1, found {flag}")
        builds.append(TorchBuild(name, flag == 1))
    return tuple(builds)


def _pythons(table: Table, known: tuple[Release, ...], machines: tuple[str, ...]) -> Mapping[str, tuple[Release, ...]]:
    """The Pythons of each architecture, from one range for all or one for each."""
    if type(table.values.get("python")) is dict:
        ranges = table.table("python")
        found = {machine: _range(ranges, machine, known) for machine in machines}
        ranges.finish()
        return found
    return dict.fromkeys(machines, _range(table, "python", known))


def _range(table: Table, key: str, known: tuple[Release, ...]) -> tuple[Release, ...]:
    ends = table.all_parsed(key, Release.parse)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise MatrixError(f"{table.where}.{key}: needed a first and a last version, found {list(map(str, ends))}")
    return tuple(python for python in known if ends[0] <= python <= ends[1])
