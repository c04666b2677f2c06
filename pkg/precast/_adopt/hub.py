"""Makes a mapping for ``kernelize`` of Hugging Face's ``kernels`` package, with layers of precast."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from precast._adopt import recognise
from precast._adopt.forwards import rms_norm_gated
from precast._adopt.recognise import Exact
from precast._adopt.rules import RULES


@dataclass(frozen=True)
class Layer:
    """A layer repository of ``kernels``, whose ``load`` returns a class with the forward of the layer."""

    layer_name: str
    function: Callable[..., Any]
    given: tuple[Any, ...]

    def load(self) -> type[Module]:
        """A class without state, with the signature that ``kernels`` compares with that of the replaced class."""
        function, given = self.function, self.given

        def forward(self: Module, hidden_states: Any) -> Any:
            return function(self, *given, hidden_states)

        def gated(self: Module, hidden_states: Any, gate: Any = None) -> Any:
            return function(self, *given, hidden_states, gate)

        one = gated if function is rms_norm_gated else forward
        members = {"forward": one, "has_backward": True, "can_torch_compile": True}
        return type(self.layer_name, (Module,), members)


# Functions by the names of packages that models ask for, and where they are. They round once, as these packages do.
FUNCTIONS = {
    "causal_conv1d_fn": "causal_conv1d",
    "causal_conv1d_update": "causal_conv1d",
    "chunk_gated_delta_rule": "fla",
    "chunk_kda": "fla",
    "fused_recurrent_gated_delta_rule": "fla",
    "fused_recurrent_kda": "fla",
    "selective_state_update": "mamba_ssm",
}


@dataclass(frozen=True)
class Function:
    """A repository of a function that a layer calls; ``load`` returns a class whose forward is the function."""

    name: str
    signature: inspect.Signature

    def load(self) -> type[Module]:
        """A class without state; of keyword arguments, what the function does not know is left out."""
        function = getattr(importlib.import_module(f"precast.compat.{FUNCTIONS[self.name]}"), self.name)
        known = inspect.signature(function).parameters

        def forward(_: Module, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **{name: value for name, value in kwargs.items() if name in known})

        forward.__signature__ = self.signature  # type: ignore[attr-defined]
        return type(self.name, (Module,), {"forward": forward, "has_backward": True, "can_torch_compile": True})


def kernel_mapping(model: Module, *, functions: bool = False) -> dict[str, dict[str, Layer | Function]]:
    """Return the mapping from layer names to layers of precast, for ``kernels.use_kernel_mapping``.

    A name of the ``kernels`` package says nothing about rounding: ``RMSNorm`` is that of Llama, which rounds before the
    weight, and that of gpt-oss, which rounds after it. So a name is in the mapping only if one kernel is exact for all
    modules of ``model`` that have it, by the proof of :func:`precast.adopt`. Nothing is downloaded.

    Args:
        model: the model to kernelize, with its weights, on a CPU or an NVIDIA GPU.
        functions: also replace the functions of ``causal-conv1d``, ``fla`` and ``mamba-ssm`` that layers call. The
            replacements round once, as these packages do, not after each op, as the fallbacks in torch do.

    Returns:
        For each layer name, the layer by type of device. It is valid for this model.

    Raises:
        TypeError: ``model`` is not a module.

    Example::

        mapping = precast.kernel_mapping(torch.nn.Sequential(torch.nn.LayerNorm(64)))
        assert mapping == {}  # no module here has a layer name
    """
    recognise.require_module("kernel_mapping", model)
    exact = {
        id(one.module): one.fate
        for one in recognise.examine(model, RULES)
        if isinstance(one.fate, Exact) and one.fate.attribute == "forward"
    }
    found: dict[str, set[tuple[str, Layer] | None]] = {}
    for module in model.modules():
        name = getattr(type(module), "kernel_layer_name", None)
        if name is not None:
            fate = exact.get(id(module))
            bound = None if fate is None else fate.bind(module)
            layer = None if bound is None or fate is None else (fate.device, Layer(name, bound.func, bound.args[1:]))
            found.setdefault(name, set()).add(layer)
    alone = {name: next(iter(layers)) for name, layers in found.items() if len(layers) == 1}
    mapping: dict[str, dict[str, Layer | Function]] = {
        name: {layer[0]: layer[1]} for name, layer in alone.items() if layer is not None
    }
    for one in (kept for module in model.modules() for kept in getattr(module, "_kernel_funcs", {}).values()):
        name = getattr(type(one), "kernel_layer_name", None)
        if functions and name in FUNCTIONS:
            device = next((p.device.type for p in model.parameters()), "cpu")
            mapping[name] = {device: Function(name, inspect.signature(type(one).forward))}
    return mapping
