"""matrix.toml as values. Read by wheel builds and by the tools; an installed precast does not have the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast._builder.tables import MatrixError, Table, read_toml
from precast._builder.torch_releases import TorchBuild, TorchRelease, read_releases
from precast.core.capability import MINIMUM_CAPABILITY, ComputeCapability, GpuTarget, TargetKind, min_driver
from precast.core.torch_abi import ANY_TORCH, AnyTorch, Exact, TorchAbi, parse_torch_abi
from precast.core.version import CudaVersion, Label, Release, dotted

__all__ = ["EventSpec", "LabelSpec", "Machine", "Matrix", "MatrixError", "TorchBuild", "TorchRelease", "load", "parse"]

SCHEMA = 2
DEFAULT = "default"  # the name in matrix.toml for the wheel without a label


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU architecture, with the CI runner and the image that build for it."""

    name: str
    runner: str
    image: str
    not_built: str | None


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """The content of one label's wheels. Without NVRTC there is no device code, or it is taken from other labels.

    ``reports`` are the GPUs that NVRTC says it compiles for; ``isa`` is the PTX ISA that it writes.
    """

    label: Label
    nvrtc: str | None
    package: str | None
    targets: tuple[GpuTarget, ...]
    max_bytes: int | None = None
    not_built: str | None = None
    take: tuple[tuple[Label, tuple[GpuTarget, ...]], ...] = ()
    reports: tuple[ComputeCapability, ...] = ()
    isa: str | None = None

    @property
    def requirement(self) -> str | None:
        """The exact NVRTC package, as a build requirement."""
        return None if self.package is None else f"{self.package}=={self.nvrtc}"

    @property
    def name(self) -> str:
        """The label as a word; the wheel without a label is "default"."""
        return self.label.text or DEFAULT


@dataclass(frozen=True, slots=True)
class EventSpec:
    """The part of the matrix that CI tests for one kind of event; ``tests`` are the axes that the jobs multiply."""

    name: str
    labels: tuple[Label, ...]
    tests: str
    nightly: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """The whole of matrix.toml."""

    torch_floor: str
    stable_floor: Release
    headers: str
    torch_index: str
    classic_built: tuple[TorchAbi, ...]
    classic_not_built: str
    without_label: Mapping[str, Label]
    releases: tuple[TorchRelease, ...]
    pythons: tuple[Release, ...]
    policy: str
    glibc: Release
    glibcxx: tuple[int, ...]
    max_bytes: int
    readers: tuple[str, ...]
    machine_specs: tuple[Machine, ...]
    gpu_runner: str
    labels: tuple[LabelSpec, ...]
    events: tuple[EventSpec, ...]

    def label(self, label: Label) -> LabelSpec:
        """The entry of a label; the MatrixError for an unknown label lists the known ones."""
        for spec in self.labels:
            if spec.label == label:
                return spec
        known = ", ".join(spec.name for spec in self.labels)
        raise MatrixError(f"matrix.toml has no label {str(label)!r}; it has: {known}")

    def event(self, name: str) -> EventSpec:
        """The entry of an event; the MatrixError for an unknown event lists the known ones."""
        for spec in self.events:
            if spec.name == name:
                return spec
        raise MatrixError(f"matrix.toml has no event {name!r}; it has: {', '.join(spec.name for spec in self.events)}")

    @property
    def machines(self) -> tuple[str, ...]:
        """The architectures of a release."""
        return tuple(machine.name for machine in self.machine_specs)

    @property
    def runners(self) -> Mapping[str, str]:
        """The runner of each architecture."""
        return {machine.name: machine.runner for machine in self.machine_specs}

    def binding_of(self, release: TorchRelease, build: TorchBuild) -> AnyTorch | Exact:
        """What binds the library to a build of torch: an adapter of its own, or ANY_TORCH if it needs none."""
        return ANY_TORCH if release.release >= self.stable_floor else Exact(release.release, build.cxx11)

    def not_built(self, host: TorchAbi) -> str | None:
        """Why the build cannot make a host file; None if it can."""
        return None if host == ANY_TORCH or host in self.classic_built else self.classic_not_built

    def hosts(self, machine: str, only: Release | None = None) -> tuple[AnyTorch | Exact, ...]:
        """The host files of a wheel for this architecture: the library, and the adapters that its torch builds need.

        A slim wheel has only what the minor ``only`` needs. Nothing if no torch is served.
        """
        releases = [release for release in self.releases if only in (None, release.release)]
        builds = [(release, build) for release in releases for build in release.builds.get(machine, ())]
        needed = dict.fromkeys(self.binding_of(release, build) for release, build in builds)
        built = [binding for binding in needed if self.not_built(binding) is None]
        return tuple(dict.fromkeys([ANY_TORCH, *built])) if built else ()

    def device_sources(self, label: Label) -> tuple[tuple[LabelSpec, tuple[GpuTarget, ...]], ...]:
        """The labels whose NVRTC compiles a label's device code, with the targets: itself, or those it takes from."""
        spec = self.label(label)
        if spec.take:
            return tuple((self.label(source), targets) for source, targets in spec.take)
        return () if spec.nvrtc is None else ((spec, spec.targets),)

    def max_bytes_of(self, label: Label) -> int:
        """The size budget of a label's wheels."""
        own = self.label(label).max_bytes
        return self.max_bytes if own is None else own


def load(path: Path) -> Matrix:
    """Read and check a matrix."""
    return parse(read_toml(path))


def parse(document: Mapping[str, Any]) -> Matrix:
    """Check a document. Unknown, missing and contradictory entries are MatrixErrors."""
    root = Table(document, "matrix.toml")
    schema = root.take("schema", int)
    if schema != SCHEMA:
        raise MatrixError(f"matrix.toml.schema: needed {SCHEMA}, found {schema}")
    python, wheel, torch = root.table("python"), root.table("wheel"), root.table("torch")
    device, gpu = root.table("device"), root.table("gpu")
    machines, labels, events = root.table("machines"), root.table("labels"), root.table("events")
    classic, without_label = torch.table("classic"), torch.table("without_label")
    pythons = python.all_parsed("versions", Release.parse)
    specs = tuple(_machine(name, machines.table(name)) for name in tuple(machines.values))
    label_specs = tuple(_label(name, labels.table(name)) for name in tuple(labels.values))
    matrix = Matrix(
        torch_floor=torch.take("floor", str),
        stable_floor=torch.parsed("stable_floor", Release.parse),
        headers=torch.take("headers", str),
        torch_index=torch.take("index", str),
        classic_built=classic.all_parsed("built", parse_torch_abi),
        classic_not_built=classic.take("not_built", str),
        without_label={key: without_label.parsed(key, Label.parse) for key in tuple(without_label.values)},
        releases=read_releases(torch, pythons, tuple(machine.name for machine in specs)),
        pythons=pythons,
        policy=wheel.take("policy", str),
        glibc=wheel.parsed("glibc", Release.parse),
        glibcxx=wheel.parsed("glibcxx", dotted),
        max_bytes=wheel.take("max_bytes", int),
        readers=device.texts("readers"),
        machine_specs=specs,
        gpu_runner=gpu.take("runner", str),
        labels=label_specs,
        events=tuple(_event(name, events.table(name), label_specs) for name in tuple(events.values)),
    )
    for table in (classic, without_label, python, wheel, device, torch, gpu, machines, labels, events, root):
        table.finish()
    for problem in _contradictions(matrix):
        raise MatrixError(f"matrix.toml: {problem}")
    return matrix


def _contradictions(matrix: Matrix) -> Iterator[str]:
    """Contradictions between tables."""
    if matrix.policy != f"manylinux_{matrix.glibc.major}_{matrix.glibc.minor}":
        yield f"wheel.policy {matrix.policy} is not that of glibc {matrix.glibc}"
    known = {spec.label.text for spec in matrix.labels}
    for cuda, label in matrix.without_label.items():
        if label.text not in known or cuda in known:
            yield f"torch.without_label.{cuda}: {label} must be in labels, and {cuda} must not"
    for release in matrix.releases:
        for machine, builds in release.builds.items():
            for build in builds:
                if build.name not in known and build.name not in matrix.without_label:
                    yield f"torch {release.version} on {machine}: no label fits its build {build.name}"
    for spec in matrix.labels:
        for source, targets in spec.take:
            missing = [str(target) for target in targets if target not in matrix.label(source).targets]
            if missing:
                yield f"labels.{spec.name}.take: {source} has no {', '.join(missing)}"
        if spec.max_bytes is not None and spec.max_bytes > matrix.max_bytes:
            yield f"labels.{spec.name}.max_bytes: {spec.max_bytes} is above the {matrix.max_bytes} of any wheel"


def _machine(name: str, table: Table) -> Machine:
    machine = Machine(name, table.take("runner", str), table.take("image", str), table.maybe("not_built", str))
    table.finish()
    digest = machine.image.partition("@sha256:")[2]
    if len(digest) != 64 or not machine.image.partition("@")[0].endswith(f"_{name}"):
        raise MatrixError(f"{table.where}.image: needed an image for {name} by its sha256, found {machine.image}")
    return machine


def _label(name: str, table: Table) -> LabelSpec:
    label = Label("") if name == DEFAULT else table.parse("label", name, Label.parse)
    max_bytes, not_built = table.maybe("max_bytes", int), table.maybe("not_built", str)
    if label.cuda is not None:
        return _cuda_label(label, label.cuda, table, max_bytes, not_built)
    take: list[tuple[Label, tuple[GpuTarget, ...]]] = []
    if not label.text:
        source = table.table("take")
        for key in tuple(source.values):
            take.append((source.parse(key, key, Label.parse), source.all_parsed(key, GpuTarget.parse)))
    table.finish()
    targets = tuple(target for _, some in take for target in some)
    return LabelSpec(label, None, None, _unique(targets, table), max_bytes, not_built, tuple(take))


def _cuda_label(
    label: Label, cuda: CudaVersion, table: Table, max_bytes: int | None, not_built: str | None
) -> LabelSpec:
    nvrtc, package = table.take("nvrtc", str), table.take("package", str)
    reports, isa = table.all_parsed("reports", ComputeCapability.parse), table.take("isa", str)
    sass = [GpuTarget(TargetKind.SASS, gpu) for gpu in table.all_parsed("sass", ComputeCapability.parse)]
    ptx = [GpuTarget(TargetKind.PTX, gpu) for gpu in table.all_parsed("ptx", ComputeCapability.parse)]
    driver = table.table("driver")
    drivers = [driver.parsed(kind, CudaVersion.parse) for kind in ("sass", "ptx")]
    driver.finish()
    table.finish()
    if table.parse("nvrtc", nvrtc, CudaVersion.parse) != cuda:
        raise MatrixError(f"{table.where}.nvrtc: needed an NVRTC of CUDA {cuda}, found {nvrtc}")
    if not reports:
        raise MatrixError(f"{table.where}.reports is empty; copy another label's, then run python -m tools nvrtc")
    floor = max(MINIMUM_CAPABILITY, min(reports))
    too_old = [str(target) for target in (*sass, *ptx) if target.capability < floor]
    if too_old or not sass or not ptx:
        found = ", ".join(too_old) or "an empty list"
        raise MatrixError(f"{table.where}: needed GPUs from {floor} on in sass and in ptx, found {found}")
    unknown = [str(target) for target in (*sass, *ptx) if target.capability not in reports]
    if unknown:
        raise MatrixError(f"{table.where}: NVRTC {nvrtc} does not report {', '.join(unknown)}")
    by_rule = [min_driver(targets[0], cuda) for targets in (sass, ptx)]
    if drivers != by_rule:
        needed, found = (f"sass {pair[0]} and ptx {pair[1]}" for pair in (by_rule, drivers))
        raise MatrixError(f"{driver.where}: needed {needed} by the rules of CUDA, found {found}")
    targets = _unique((*sass, *ptx), table)
    return LabelSpec(label, nvrtc, package, targets, max_bytes, not_built, reports=reports, isa=isa)


def _unique(targets: tuple[GpuTarget, ...], table: Table) -> tuple[GpuTarget, ...]:
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise MatrixError(f"{table.where}: the target {twice} is listed twice")
    return targets


def _event(name: str, table: Table, specs: tuple[LabelSpec, ...]) -> EventSpec:
    known = {spec.name: spec.label for spec in specs}
    named = table.texts("labels") if "labels" in table.values else tuple(known)
    unknown = [text for text in named if text not in known]
    event = EventSpec(
        name=name,
        labels=tuple(known[text] for text in named if text in known),
        tests=table.take("tests", str),
        nightly=table.maybe("nightly", bool) or False,
    )
    table.finish()
    if unknown:
        raise MatrixError(f"{table.where}.labels: no such label: {', '.join(unknown)}; there are {', '.join(known)}")
    if event.tests not in ("torch", "torch, python", "torch, label"):
        raise MatrixError(
            f"{table.where}.tests: needed 'torch', 'torch, python' or 'torch, label', found {event.tests!r}"
        )
    return event
