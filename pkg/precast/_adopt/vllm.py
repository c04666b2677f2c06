"""A plugin of vLLM: layers of this package in place of vLLM's own, where both round alike.

vLLM calls the entry point in the group ``vllm.general_plugins`` in each of its processes. Nothing happens unless the
variable ``VLLM_PLUGINS`` names ``precast``. A layer takes the place of vLLM's class of the same name by
``CustomOp.register_oot``, and computes what that class defines in ``forward_native``: the sources of the versions in
``VERSIONS`` have been read. Other calls run vLLM's own layer: another dtype of the weight, a partial variance, batch
invariance, and a norm with a residual, which vLLM computes from the sum before it is rounded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from precast._adopt.recognise import release_of, version_of
from precast.core.version import Release
from precast.ops._checks import FLOAT_TYPES
from precast.ops.activations import fatrelu_and_mul, gelu_and_mul, gelu_tanh_and_mul, mul_and_silu, silu_and_mul
from precast.ops.norm import Casting, rms_norm

VERSIONS = (Release(0, 22), Release(0, 34))  # the oldest version that counts, and the first that does not
_GELUS = {"none": gelu_and_mul, "tanh": gelu_tanh_and_mul}
_ACTIVATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "FatreluAndMul": lambda layer, x: fatrelu_and_mul(x, threshold=layer.threshold),
    "GeluAndMul": lambda layer, x: _GELUS[layer.approximate](x),
    "MulAndSilu": lambda _, x: mul_and_silu(x),
    "SiluAndMul": lambda _, x: silu_and_mul(x),
}
_NORMS: dict[str, Casting] = {"RMSNorm": "llama", "GemmaRMSNorm": "gemma"}
_log = logging.getLogger("precast")


def register() -> None:
    """Register the layers in this process of vLLM, once, if ``VLLM_PLUGINS`` names ``precast``.

    An unknown version of vLLM, a platform that is neither CUDA nor a CPU, and a class that another plugin replaces stay
    as they are; the log says so.
    """
    from vllm import envs
    from vllm.platforms import current_platform

    if "precast" not in (envs.VLLM_PLUGINS or ()):
        return
    version = version_of("vllm")
    if not VERSIONS[0] <= release_of(version) < VERSIONS[1]:
        _log.warning("vLLM %s is not known; needed %s or newer, and below %s. Its layers stay", version, *VERSIONS)
        return
    if not (current_platform.is_cuda() or current_platform.is_cpu()):
        _log.warning("vLLM runs on %s; needed cuda or cpu. Its layers stay", current_platform.device_type)
        return
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers import activation, layernorm

    layers = [(getattr(activation, name), _activation) for name in _ACTIVATIONS]
    layers += [(getattr(layernorm, name), _norm) for name in _NORMS]
    for own, make in layers:
        other = op_registry_oot.get(own.__name__)
        if other is None:
            called = own.name
            own.register_oot(_replaced(own, make(own)))
            op_registry_oot[own.__name__].name = called  # by which `custom_ops` turns it on and off
        elif other.__module__ != __name__:
            _log.warning("vLLM's %s is replaced by %s already and stays", own.__name__, other.__module__)


def _activation(own: Any) -> Callable[..., Any]:
    """What a gated activation of vLLM computes; None for calls that are not known."""
    function = _ACTIVATIONS[own.__name__]
    return lambda layer, x: function(layer, x) if x.dtype in FLOAT_TYPES else None


def _norm(own: Any) -> Callable[..., Any]:
    """What an RMS norm of vLLM computes; None for calls that are not known."""
    from vllm import envs

    casting = _NORMS[own.__name__]

    def norm(layer: Any, x: Tensor, residual: Tensor | None = None) -> Tensor | None:
        weight = layer.weight.data
        partial = getattr(layer, "variance_size_override", None) is not None
        if residual is not None or partial or weight.dtype != x.dtype or envs.VLLM_BATCH_INVARIANT:
            return None
        return rms_norm(x, weight, layer.variance_epsilon, casting=casting) if x.dtype in FLOAT_TYPES else None

    return norm


def _replaced(own: Any, function: Callable[..., Any]) -> type[Any]:
    """A subclass that computes by ``function`` on GPUs and CPUs, and as vLLM does where that gives None."""

    def method(name: str) -> Callable[..., Any]:
        def forward(self: Any, *given: Any, **named: Any) -> Any:
            found = function(self, *given, **named)
            return getattr(own, name)(self, *given, **named) if found is None else found

        return forward

    members = {name: method(name) for name in ("forward_cuda", "forward_cpu")}
    return type(f"Precast{own.__name__}", (own,), {**members, "__module__": __name__})
