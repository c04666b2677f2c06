"""The twins as extensions: the Triton kernels of a family, between its own kernels and those for the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from precast import _loading
from precast._builder import catalogue
from precast._load import probe, verdict
from precast._load.choose import Choice, choose, need_of
from precast.errors import KernelUnavailable
from precast.extension.module import KernelModule
from precast.extension.triton import TritonExtension


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
                f"{self.name} is not needed here\n"
                f"  found   kernels of {family.name} that serve this GPU\n"
                f"  needed  a GPU for which there are none\n"
                f"  fix     1) leave the choice to the loader: .load() without ext_name"
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


def _choice(family: catalogue.Family, device: str) -> Choice:
    return choose(need_of(family.name, device), probe.read_settings(), {}, certain=False)
