"""matrix.toml as values. Read when a wheel is built and by the tools; an installed precast has no such file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from precast._abi.capability import ComputeCapability, GpuTarget, TargetKind
from precast._abi.label import Label, sass_floor
from precast._abi.version import CudaVersion, Release, dotted
from precast.errors import KernelError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1
T = TypeVar("T")


class MatrixError(KernelError):
    """matrix.toml says something that cannot be; the message names the place."""


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """What one label's wheels hold; without NVRTC there is no device code."""

    label: Label
    nvrtc: str | None
    package: str | None
    targets: tuple[GpuTarget, ...]

    @property
    def requirement(self) -> str | None:
        """The exact NVRTC package, as a build requirement."""
        return None if self.package is None else f"{self.package}=={self.nvrtc}"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The whole of matrix.toml."""

    torch_floor: str
    stable_floor: Release
    headers: str
    policy: str
    glibc: Release
    glibcxx: tuple[int, ...]
    max_bytes: int
    machines: tuple[str, ...]
    runners: Mapping[str, str]
    labels: tuple[LabelSpec, ...]

    def label(self, label: Label) -> LabelSpec:
        """The entry of a label, or MatrixError with the labels there are."""
        for spec in self.labels:
            if spec.label == label:
                return spec
        known = ", ".join(str(spec.label) for spec in self.labels)
        raise MatrixError(f"matrix.toml has no label {str(label)!r}; it has: {known}")


def load(path: Path) -> Matrix:
    """Read and check a matrix."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise MatrixError(f"{path}: {error}") from error
    return parse(document)


def parse(document: Mapping[str, Any]) -> Matrix:
    """Check a document; anything unknown, missing or contradictory is a MatrixError."""
    root = _Table(document, "matrix.toml")
    if root.take("schema", int) != SCHEMA:
        raise MatrixError(f"matrix.toml: schema must be {SCHEMA}")
    torch, wheel = root.table("torch"), root.table("wheel")
    runners, labels = root.table("runners"), root.table("labels")
    matrix = Matrix(
        torch_floor=torch.take("floor", str),
        stable_floor=torch.parsed("stable_floor", Release.parse),
        headers=torch.take("headers", str),
        policy=wheel.take("policy", str),
        glibc=wheel.parsed("glibc", Release.parse),
        glibcxx=wheel.parsed("glibcxx", dotted),
        max_bytes=wheel.take("max_bytes", int),
        machines=wheel.texts("machines"),
        runners={name: runners.take(name, str) for name in tuple(runners.values)},
        labels=tuple(_label(name, labels.table(name)) for name in tuple(labels.values)),
    )
    for table in (torch, wheel, runners, labels, root):
        table.finish()
    if matrix.policy != f"manylinux_{matrix.glibc.major}_{matrix.glibc.minor}":
        raise MatrixError(f"matrix.toml: wheel.policy {matrix.policy} is not that of glibc {matrix.glibc}")
    return matrix


def _label(name: str, table: _Table) -> LabelSpec:
    try:
        label = Label.parse(name)
    except ValueError as error:
        raise MatrixError(f"{table.where}: {error}") from error
    if label.cuda is None:
        table.finish()
        return LabelSpec(label, None, None, ())
    nvrtc, package = table.take("nvrtc", str), table.take("package", str)
    sass = [GpuTarget(TargetKind.SASS, ComputeCapability.parse(text)) for text in table.texts("sass")]
    ptx = [GpuTarget(TargetKind.PTX, ComputeCapability.parse(text)) for text in table.texts("ptx")]
    table.finish()
    if table.parse("nvrtc", nvrtc, CudaVersion.parse) != label.cuda:
        raise MatrixError(f"{table.where}.nvrtc: {nvrtc} is not the NVRTC of {name}")
    too_old = [str(target) for target in (*sass, *ptx) if target.capability < sass_floor(label.cuda)]
    if too_old or not sass or not ptx:
        raise MatrixError(
            f"{table.where}: sass and ptx must not be empty, nor below {sass_floor(label.cuda)}: {too_old}"
        )
    targets = (*sass, *ptx)
    if len(set(targets)) != len(targets):
        raise MatrixError(f"{table.where}: a target is listed twice")
    return LabelSpec(label, nvrtc, package, targets)


class _Table:
    """One table being read: every key is taken once, and what is left over is an error."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = dict(values)
        self.where = where

    def take(self, key: str, kind: type[T]) -> T:
        if key not in self.values:
            raise MatrixError(f"{self.where}: {key} is missing")
        value = self.values.pop(key)
        if type(value) is not kind:  # a bool is no int here
            raise MatrixError(f"{self.where}.{key}: wanted {kind.__name__}, found {value!r}")
        return value

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, dict), f"{self.where}.{key}" if "." in self.where else f"matrix.toml: {key}")

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.take(key, list)
        if not all(isinstance(value, str) for value in values):
            raise MatrixError(f"{self.where}.{key}: wanted a list of texts, found {values!r}")
        return tuple(values)

    def parsed(self, key: str, parser: Callable[[str], T]) -> T:
        return self.parse(key, self.take(key, str), parser)

    def parse(self, key: str, text: str, parser: Callable[[str], T]) -> T:
        try:
            return parser(text)
        except ValueError as error:
            raise MatrixError(f"{self.where}.{key}: {error}") from error

    def finish(self) -> None:
        if self.values:
            raise MatrixError(f"{self.where}: nobody reads {', '.join(sorted(self.values))}")
