"""The twins: the ops on rows once more, in Triton, for GPUs that the kernels of ``csrc`` do not reach.

Triton compiles for what is there (NVIDIA GPUs without a cubin and without NVRTC, AMD's, Intel's) at the first call of
each kind of shape. The loader puts a twin in the place of a family that it has to refuse, and says so; see
``_abi/twin.py``. A twin has the arguments of its op's schema, and works on rows: a program of Triton has one row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# By op: the module here, and its function of that name.
TWINS: dict[str, str] = {
    "rms_norm": "rms_norm",
    "fused_add_rms_norm": "rms_norm",
    "fused_add_rms_norm_": "rms_norm",
    "rms_norm_backward": "rms_norm",
    "fused_add_rms_norm_backward": "rms_norm",
    "layer_norm": "layer_norm",
    "layer_norm_backward": "layer_norm",
    "gated_activation": "activations",
    "gated_activation_backward": "activations",
    "scaled_softmax": "softmax",
    "scaled_masked_softmax": "softmax",
    "scaled_upper_triang_masked_softmax": "softmax",
    "scaled_aligned_causal_softmax": "softmax",
    "scaled_softmax_backward": "softmax",
}


def twin(op: str) -> Callable[..., Any]:
    """The Triton kernel of one op, with the checks that the op has everywhere; imports Triton."""
    from precast.ops._dispatch import CHECKS

    function: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{TWINS[op]}"), op)
    check = CHECKS[op]

    def checked(*args: Any) -> Any:
        check(*args)
        return function(*args)

    return checked
