"""The twins: the ops on rows and on lists once more, in Triton, for GPUs that the kernels of ``csrc`` do not reach.

Triton compiles for what is there (NVIDIA GPUs without a cubin and without NVRTC, AMD's, Intel's) at the first call of
each kind of shape. The loader puts a twin in the place of a family that it has to refuse, and says so; see
``_abi/twin.py``. A twin has the arguments of its op's schema. A program of Triton has one row, or a block of one tensor
of a list.
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
    "multi_tensor_plan": "multi_tensor",
    "multi_tensor_step_": "multi_tensor",
    "multi_tensor_forget": "multi_tensor",
    "multi_tensor_l2norm": "multi_tensor",
    "multi_tensor_axpby_": "multi_tensor",
}


def twin(op: str) -> Callable[..., Any]:
    """The Triton kernel of one op, with the checks that the op has everywhere; imports Triton."""
    from precast._dispatch.formulas import CHECKS
    from precast.ops._examples import PLANNED

    function: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.{TWINS[op]}"), op)
    if op in PLANNED:  # a plan checks what it is made of
        return function
    check = CHECKS[op]

    def checked(*args: Any) -> Any:
        check(*args)
        return function(*args)

    return checked
