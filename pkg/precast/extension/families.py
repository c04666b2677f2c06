"""The built-in extensions: each serves kernel families of the catalogue on one kind of device.

``over`` gives those of a loader: the families' own kernels, their Triton twins, and plain torch as the last choice.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from precast import _loading
from precast._builder import catalogue, flags, sources
from precast._load import probe, verdict
from precast._load.choose import Choice, choose, need_of
from precast.errors import KernelUnavailable
from precast.extension import backends
from precast.extension.base import Extension
from precast.extension.cpp import CppExtension
from precast.extension.cubin import CubinExtension
from precast.extension.module import KernelModule
from precast.extension.torch_reference import LOWEST, TorchExtension
from precast.extension.triton import TritonExtension

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
        """Whether the machine matches and torch can use the GPU; CPU kernels yield to another maker's accelerator."""
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


class DeviceExtension(FamilyExtension, CubinExtension):
    """Families on NVIDIA GPUs: device code as data, launched by the host library."""

    device: ClassVar[str] = "cuda"

    def sources_files(self) -> list[str]:
        """The device code of the families."""
        return [str(sources.csrc_dir() / family.device) for family in self.families if family.device is not None]


class TwinExtension(TritonExtension):
    """Families whose own kernels are refused on every GPU here; it can be loaded only then, even by name.

    A device type has only one set of kernels, so a twin would replace the kernels of a family that is served. The
    members call the ops through the dispatcher, which then finds the twin's kernels.
    """

    extension_name: ClassVar[str]
    families: ClassVar[tuple[catalogue.Family, ...]] = ()
    members: ClassVar[Mapping[str, Any]] = {}
    device: ClassVar[str] = "any"
    machine: ClassVar[str | None] = None
    place: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__(self.extension_name, priority=self.place)

    def is_available(self) -> bool:
        """Whether torch sees a GPU that Triton compiles for."""
        return bool(self._device())

    def assert_compatible(self) -> None:
        """Raise KernelUnavailable with the reasons against the twin, or because the family's own kernels are used."""
        device = self._device() or "cuda"
        for family in self.families:
            choice = _choice(family, device)
            if choice.twin is not None:
                continue
            if verdict.is_refusal(choice):
                raise verdict.twin_refusal(choice)
            raise KernelUnavailable(
                f"{self.name} is not needed here",
                found=f"kernels of {family.name} that serve this GPU",
                needed="a GPU for which there are none",
                fix="leave the choice to the loader: .load() without ext_name",
            )

    def build_jit(self) -> KernelModule:
        """Register the Triton kernels, which Triton compiles at their first launch."""
        device = self._device() or "cuda"
        loaded = [_loading.ensure(family.name, device) for family in self.families]
        return KernelModule(self.name, self.members, loaded[0].host)

    def _device(self) -> str:
        """The device type of the GPUs here as torch names it: "cuda", also for AMD, or "xpu"; empty without a GPU."""
        from precast.extension import backends

        kinds = backends.gpu_kinds()
        return "cuda" if kinds & {"cuda", "rocm"} else "xpu" if "xpu" in kinds else ""


class ReferenceExtension(TorchExtension):
    """The same functions in plain torch."""

    extension_name: ClassVar[str]
    families: ClassVar[tuple[catalogue.Family, ...]] = ()
    device: ClassVar[str] = "any"
    machine: ClassVar[str | None] = None

    def __init__(self) -> None:
        super().__init__(self.extension_name)


def _choice(family: catalogue.Family, device: str) -> Choice:
    return choose(need_of(family.name, device), probe.read_settings(), {}, certain=False)


Made: TypeAlias = type[HostExtension] | type[DeviceExtension] | type[TwinExtension] | type[ReferenceExtension]
_AFTER_A_TWIN = -1  # on GPUs with only Triton kernels, those come before the CPU kernels


def over(
    stem: str, families: Iterable[str], give: Give = lambda plain: {}, machines: Mapping[str, str] | None = None
) -> list[Made]:
    """The extensions over the kernels of families, as far as there are any, and the one in plain torch.

    Their names begin with ``stem``. ``machines`` has a suffix for each machine that has CPU kernels of its own name.
    """
    served = tuple(map(catalogue.get, families))
    make = functools.partial(_make, stem, served, give)
    found = []
    if all("cuda" in family.devices for family in served):
        found.append(make("cuda", DeviceExtension))
    if all(family.twins for family in served):
        found.append(make("triton", TwinExtension, place=0))
    if all("cpu" in family.devices for family in served):
        if machines is None:
            found.append(make("cpu", HostExtension, place=_AFTER_A_TWIN))
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
