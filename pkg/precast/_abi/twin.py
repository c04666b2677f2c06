"""Choose what stands in for a family that is refused on a GPU: its twin, in Triton or plain torch. Pure.

A twin is no candidate of :func:`precast._abi.decide.decide`: it needs no host library and no device code, and never
wins over a family's own kernels. It is considered only after a refusal; the answer is the twin or the reasons against.
"""

from __future__ import annotations

from typing import Literal

from precast._abi.decision import Refuse
from precast._abi.settings import JitMode, Settings
from precast.core.capability import ComputeCapability
from precast.core.host import Host
from precast.core.reasons import EVERYTHING, TRITON_CANDIDATE, Need, Pick, Reason, Rejection
from precast.core.value import value

# https://github.com/triton-lang/triton, README: "NVIDIA GPUs (Compute Capability 8.0+)". 7.x also works in all Triton
# releases that a supported torch brings.
OLDEST_NVIDIA = ComputeCapability(7, 0)

# Triton cannot help here: something other than a kernel is missing, or the user has forbidden it.
_BEYOND_A_TWIN = {
    *(Reason.SYSTEM, Reason.JIT_OFF, Reason.TORCH_MISSING, Reason.TORCH_CPU, Reason.NO_GPU, Reason.AOT_ONLY),
    Reason.CPU_LEVEL,
}


@value(frozen=True)
class Twin:
    """What stands in for a family: Triton kernels, with the version that compiles them, or None for plain torch."""

    triton: str | None

    @property
    def kind(self) -> Literal["triton", "torch"]:
        """The kind of a :class:`precast._load.source.Source`."""
        return "torch" if self.triton is None else "triton"

    def __str__(self) -> str:
        return "plain torch" if self.triton is None else f"Triton {self.triton}"


def stand_in(host: Host, settings: Settings, need: Need, refused: Refuse, *, plain: bool) -> Pick[Twin]:
    """The twin of a family that has one, or every reason against it; neither if no twin could help.

    ``plain``: its twin is in plain torch, which compiles nothing and runs on every GPU.

    Like :func:`decide`, it answers ``builders-unknown`` if the builders have not been probed yet.
    """
    reasons = {rejection.reason for rejection in refused.rejections}
    no_driver = any((r.reason, r.candidate) == (Reason.DRIVER, EVERYTHING) for r in refused.rejections)
    if need.device == "cpu" or host.torch is None or reasons & _BEYOND_A_TWIN or no_driver:
        return Pick(None, ())

    def no(reason: Reason, wanted: str, found: str) -> Pick[Twin]:
        candidate = "torch" if plain else TRITON_CANDIDATE
        return Pick(None, (Rejection(need.device, candidate, reason, wanted, found),))

    if need.device == "xpu" and host.torch.xpu is None:
        return no(Reason.XPU, "an XPU build of torch", f"torch {host.torch.version}")
    if plain:
        return Pick(Twin(None), ())
    if settings.jit is JitMode.AOT:
        wanted = "PRECAST_JIT to be auto or jit: Triton compiles at the first launch"
        return no(Reason.AOT_ONLY, wanted, "PRECAST_JIT=aot")
    too_old = [gpu for gpu in host.gpus if gpu.capability < OLDEST_NVIDIA]
    if need.device == "cuda" and too_old:
        found = ", ".join(f"compute capability {gpu.capability} ({gpu.name})" for gpu in too_old)
        return no(Reason.ARCH, f"compute capability {OLDEST_NVIDIA} or newer", found)
    if host.builders is None:
        return no(Reason.BUILDERS_UNKNOWN, "Triton", "not searched yet")
    if host.builders.triton is None:
        return no(Reason.NO_TRITON, "Triton", host.builders.search("triton"))
    return Pick(Twin(host.builders.triton), ())
