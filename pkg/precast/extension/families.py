"""The built-in extensions: each serves kernel families of the catalogue on one kind of device.

``over`` returns the extensions of a loader: the families' own kernels, and plain torch as the last choice.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from precast import _loading
from precast._builder import catalogue, flags, sources
from precast._load import verdict
from precast.extension import backends
from precast.extension.base import Extension
from precast.extension.cpp import CppExtension
from precast.extension.device import DeviceExtension
from precast.extension.module import KernelModule
from precast.extension.torch_reference import LOWEST, TorchExtension

if TYPE_CHECKING:
    from setuptools import Extension as SetuptoolsExtension

Members: TypeAlias = Mapping[str, Any]
Give: TypeAlias = Callable[[bool], Members]  # the members of a loader: with kernels, or if True in plain torch


class FamilyExtension(Extension):
    """Families on a device type. ``load`` loads the first; a call loads the others."""

    extension_name: ClassVar[str]
    families: ClassVar[tuple[catalogue.Family, ...]] = ()
    device: ClassVar[str] = "cpu"
    machine: ClassVar[str | None] = None  # from platform.machine(); None for any
    members: ClassVar[Mapping[str, Any]] = {}
    place: ClassVar[int] = 1  # the priority

    def __init__(self) -> None:
        # The other base class of each subclass supplies the remaining arguments.
        super().__init__(self.extension_name, priority=self.place)  # type: ignore[call-arg]

    def is_available(self) -> bool:
        """Whether machine and GPU match; False for CPU kernels if there is another maker's accelerator."""
        if self.machine not in (None, platform.machine()):
            return False
        if self.device != "cpu":
            return verdict.sees_cuda_gpu()
        for_gpus = any("cuda" in family.devices for family in self.families)
        return not (for_gpus and backends.has_other_accelerator())

    def assert_compatible(self) -> None:
        """Raise KernelUnavailable with every candidate and why it was rejected; loads and builds nothing."""
        if self.machine not in (None, platform.machine()):
            raise verdict.wrong_machine(self.name, self.machine, platform.machine())
        for family in self.families:
            verdict.assert_served(family, self.device)

    def assert_build_compatible(self) -> None:
        """The same as ``assert_compatible``: the builder of missing pieces finds its own tools."""
        self.assert_compatible()

    def build_aot(self) -> SetuptoolsExtension:
        """A ``setuptools.Extension`` with objects compiled now: host code and CPU kernels of the families."""
        from precast.extension import aot

        return aot.build_extension(f"precast._C.{self.name}", self.families)

    def build_jit(self) -> KernelModule:
        """The same as ``load``, which builds only the missing pieces."""
        return self.load()

    def load(self) -> KernelModule:
        """Load the first family for the device type and return its functions under their established names."""
        self.assert_compatible()
        loaded = _loading.ensure(self.families[0].name, self.device)
        return KernelModule(self.name, self.members, loaded.host, loaded.images)

    def include_dirs(self) -> list[str]:
        """The folder of the sources."""
        return [str(sources.csrc_dir())]


class HostExtension(FamilyExtension, CppExtension):
    """Families on the CPU."""

    absent: ClassVar[str] = "it is for another CPU, or torch has an accelerator that is not NVIDIA's"

    def sources_files(self) -> list[str]:
        """The C++ of the families: host code, and CPU kernels, which are compiled once per CPU level."""
        names = (name for family in self.families for name in (*family.host, *family.cpu))
        return [str(sources.csrc_dir() / name) for name in dict.fromkeys(names)]

    def cxx_flags(self) -> list[str]:
        """The g++ options of every source."""
        return list(flags.host_options("g++", debug=False))


class GpuExtension(FamilyExtension, DeviceExtension):
    """Families on NVIDIA GPUs: device code as data, launched by the host library."""

    device: ClassVar[str] = "cuda"

    def sources_files(self) -> list[str]:
        """The device code of the families."""
        return [str(sources.csrc_dir() / family.device) for family in self.families if family.device is not None]


class ReferenceExtension(TorchExtension):
    """The same functions in plain torch."""

    extension_name: ClassVar[str]
    families: ClassVar[tuple[catalogue.Family, ...]] = ()
    device: ClassVar[str] = "any"
    machine: ClassVar[str | None] = None

    def __init__(self) -> None:
        super().__init__(self.extension_name)


Made: TypeAlias = type[HostExtension] | type[GpuExtension] | type[ReferenceExtension]
_AFTER_OTHERS = -1  # an author's extension of priority 0 comes before the CPU kernels of what has GPU kernels too


def over(
    stem: str, families: Iterable[str], give: Give = lambda plain: {}, machines: Mapping[str, str] | None = None
) -> list[Made]:
    """The extensions for the kernels of families, as far as there are kernels, and the extension in plain torch.

    Their names begin with ``stem``. ``machines`` has a suffix for each machine that has CPU kernels of its own name.
    """
    served = tuple(map(catalogue.get, families))
    make = functools.partial(_make, stem, served, give)
    found = []
    if all("cuda" in family.devices for family in served):
        found.append(make("cuda", GpuExtension))
    if all("cpu" in family.devices for family in served):
        if machines is None:
            found.append(make("cpu", HostExtension, place=_AFTER_OTHERS))
        else:
            found += [make(suffix, HostExtension, machine=machine) for suffix, machine in machines.items()]
    return [*found, make("torch", ReferenceExtension, place=LOWEST)]


def _make(
    stem: str,
    families: tuple[catalogue.Family, ...],
    give: Give,
    suffix: str,
    kind: Made,
    *,
    machine: str | None = None,
    place: int = 1,
) -> Made:
    members = functools.cache(lambda: give(kind is ReferenceExtension))  # imported only on load: they need torch
    attributes = {
        "__module__": __name__,
        "__doc__": f"The extension {stem}_{suffix}.",
        "extension_name": f"{stem}_{suffix}",
        "families": families,
        "machine": machine,
        "place": place,
        "members": property(lambda _: members()),
    }
    words = "".join(part.title() for part in f"{stem}_{suffix}".split("_"))
    new: Made = type(f"{words}Extension", (kind,), attributes)
    return new
