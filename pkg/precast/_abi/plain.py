"""Decide whether a family's ops in plain torch stand in for its kernels, which were refused on a GPU. Pure.

Plain torch is no candidate of :func:`precast._abi.decide.decide`: it needs no library and no device code, compiles
nothing, and never wins over a kernel.
"""

from __future__ import annotations

from precast._abi.decision import Refuse
from precast.core.host import Host
from precast.core.reasons import EVERYTHING, Need, Reason

# Plain torch cannot help here: something other than a kernel is missing, or the user has forbidden it.
_BEYOND_HELP = {
    *(Reason.SYSTEM, Reason.JIT_OFF, Reason.TORCH_MISSING, Reason.TORCH_CPU, Reason.NO_GPU, Reason.AOT_ONLY),
    Reason.CPU_LEVEL,
}


def stands_in(host: Host, need: Need, refused: Refuse) -> bool:
    """Whether plain torch serves a family whose description allows it. The reasons against are those of the refusal."""
    torch = host.torch
    if need.device == "cpu" or torch is None or (need.device == "xpu" and torch.xpu is None):
        return False
    no_driver = any((r.reason, r.candidate) == (Reason.DRIVER, EVERYTHING) for r in refused.rejections)
    return not no_driver and not any(r.reason in _BEYOND_HELP for r in refused.rejections)
