"""What is recognised, as data, and the trial of each kind of module.

A rule has the fingerprints of the forwards, or of another ``method``, that it knows, each with the names that it uses.
To add a source that does the same under other names is to add a line. A new kind of module is a new rule.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt import forwards
from precast._adopt.instances import GATE, eps_of, has_hooks
from precast._adopt.probe import StandIn, Trial, Trials, drawn, twin_of
from precast._adopt.seen import child_of, seen
from precast._adopt.source import Unreadable, fingerprint
from precast.ops.norm import CASTINGS, layer_norm, rms_norm, rms_norm_gated
from precast.ops.softmax import scaled_softmax

Bound = functools.partial[Any]


@dataclass(frozen=True)
class Rule:
    """One kind of module.

    ``known`` maps a fingerprint to the names that its forward uses. ``trials`` makes the probe's inputs for a module,
    or says why it cannot be replaced. ``bind`` makes the forward for the candidate that the probe found, and ``op``
    names it in the report. ``named`` matches the names of classes that a reader of the report expects to see, known or
    not. ``child`` names the child whose forward is read too, if there is one.
    """

    kind: str
    known: Mapping[str, Any]
    trials: Callable[[Module, Any, str], Trials | str]
    bind: Callable[[Module, Any, str, str], Bound]
    op: str
    named: str
    method: str = "forward"
    child: Callable[[Any], str] = lambda names: ""


# The activations of gated MLPs. The probe says which one it is; this says which sources it may be asked about.
_ACTIVATIONS = {
    "2965b2158fe00ac0",  # torch.nn.SiLU
    "67002e7b590e0c56",  # transformers SiLUActivation
    "365ddf5ae0e259bc",  # transformers GELUActivation, GELUTanh
}


def _rms_trials(module: Module, eps: str, device: str) -> Trials | str:
    weight = module._parameters.get("weight")
    if module._parameters.get("bias") is not None:
        return "it has a bias, and the kernel has none"
    if weight is None and getattr(module, "with_scale", False):
        return "its weight is no parameter"
    shape = getattr(module, "normalized_shape", (256,) if weight is None else weight.shape)
    if len(shape) != 1:
        return f"it normalises {len(shape)} dimensions; needed 1"
    small, width = eps_of(module, eps), shape[0]

    def trials(dtype: torch.dtype, generator: torch.Generator) -> Trial:
        x = drawn((max(4, 8192 // width), width), dtype, device, generator) * 3
        scale = None if weight is None else drawn((width,), dtype, device, generator)
        normal = x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + small)
        factor = torch.ones((), dtype=torch.float64, device=device) if scale is None else scale.double()
        return Trial(
            twin_of(module, {} if scale is None else {"weight": scale}),
            x,
            {name: rms_norm(x, scale, small, casting=name) for name in (CASTINGS if scale is not None else ("none",))},  # type: ignore[arg-type]
            lambda error: {
                "none": normal * error * factor,
                "llama": (normal * error).to(dtype).double() * factor,
                "gemma": normal * error * (1 + factor),
            },
        )

    return trials


@dataclass(frozen=True)
class _Gate:
    """Where modules keep what a norm with a gate needs: the names of attributes, and what holds without one."""

    norm_first: bool
    first: str = ""  # whether the norm comes first
    size: str = ""  # of a group
    count: str = ""  # of groups

    def of(self, module: Any) -> tuple[bool, str, int | None]:
        """Whether the norm comes first, the activation, and the size of a group."""
        first = bool(getattr(module, self.first)) if self.first else self.norm_first
        columns = module.weight.shape[0]
        group = getattr(module, self.size) if self.size else columns // getattr(module, self.count) if self.count else 0
        return first, str(getattr(module, "activation", "silu")), int(group) if 0 < group < columns else None


def _gated_norm_trials(module: Any, names: _Gate, device: str) -> Trials | str:
    norm_first, activation, group = names.of(module)
    if activation not in ("silu", "swish", "sigmoid"):
        return f"its activation is {activation!r}; needed 'silu' or 'sigmoid'"
    width, small = module.weight.shape[0], float(module.variance_epsilon)
    function = torch.sigmoid if activation == "sigmoid" else torch.nn.functional.silu

    def trials(dtype: torch.dtype, generator: torch.Generator) -> Trial:
        x, gate = (drawn((2, max(4, 4096 // width), width), dtype, device, generator) for _ in range(2))
        weight, act = drawn((width,), dtype, device, generator), function(gate.double())
        n = x.double() * (1 if norm_first else act)
        grouped = n.unflatten(-1, (-1, group or width))
        normal = (grouped / torch.sqrt(grouped.square().mean(-1, keepdim=True) + small)).flatten(-2)
        last = act if norm_first else torch.ones_like(act)
        options: Any = {"norm_first": norm_first, "activation": activation, "group_size": group}

        def exact(error: float) -> dict[str, Tensor]:
            rounded = ((normal * error).to(dtype).double() * weight.double()).to(dtype).double()
            return {
                "none": normal * error * weight.double() * last,
                "llama": rounded * last * (error if norm_first else 1),
            }

        return Trial(
            twin_of(module, {"weight": weight}),
            x,
            {name: rms_norm_gated(x, gate, weight, small, casting=name, **options) for name in ("none", "llama")},
            exact,
            more=(gate,),
        )

    return trials


def _layer_trials(module: Any, channels: bool, device: str) -> Trials | str:
    shape = tuple(module.normalized_shape)
    if len(shape) != 1:
        return f"it normalises {len(shape)} dimensions; needed 1"
    if getattr(module, "_fast_norm", False):
        return "its fast norm is on, which casts under autocast"
    here, eps = [name for name, one in module._parameters.items() if one is not None], float(module.eps)

    def trials(dtype: torch.dtype, generator: torch.Generator) -> Trial:
        rows = drawn((max(4, 8192 // shape[0]), *shape), dtype, device, generator) * 3 + 1
        given = {name: drawn(shape, dtype, device, generator) for name in here}
        weight, bias = given.get("weight"), given.get("bias")
        wide = rows.double()
        spread = torch.sqrt(wide.var(-1, keepdim=True, unbiased=False) + eps)
        scaled = (wide - wide.mean(-1, keepdim=True)) / spread * (1.0 if weight is None else weight.double())
        shift = torch.zeros((), dtype=torch.float64, device=device) if bias is None else bias.double()
        # A difference and a sum cancel digits: the error is relative to what went into them.
        size = scaled.abs() + shift.abs() + 1
        shown: Callable[[Tensor], Tensor] = _as_image if channels else lambda rows: rows
        return Trial(
            twin_of(module, given),
            shown(rows),
            {"layer_norm": shown(layer_norm(rows, weight, bias, eps))},
            lambda error: {"layer_norm": shown(scaled + shift + size * (error - 1))},
        )

    return trials


def _as_image(rows: Tensor) -> Tensor:
    return rows.T.reshape(1, rows.shape[1], 1, rows.shape[0])


def _softmax_trials(module: Any, _: object, device: str) -> Trials | str:
    if module.dim != -1:
        return f"its dimension is {module.dim}; needed -1"

    def trials(dtype: torch.dtype, generator: torch.Generator) -> Trial:
        x = drawn((64, 128), dtype, device, generator) * 3
        exact = torch.softmax(x.double(), -1)
        return Trial(
            twin_of(module, {}), x, {"softmax": scaled_softmax(x, 1.0)}, lambda error: {"softmax": exact * error}
        )

    return trials


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": _gelu_tanh,
}


def _gated_trials(module: Module, names: tuple[str, ...], device: str) -> Trials | str:
    method = getattr(type(module), names[0], None)  # then it belongs to the fingerprint
    reason = unknown_activation(module._modules.get(names[0])) if method is None else ""
    if reason:
        return reason

    def trials(dtype: torch.dtype, generator: torch.Generator) -> Trial:
        gates, factors = gates_and_factors(dtype, device, generator)
        return gated_trial(_gated_twin(module, names, gates, factors), gates, gates, factors)

    return trials


def gates_and_factors(dtype: torch.dtype, device: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Torch's GELUs on the CPU lose digits below -2."""
    gates = drawn((64, 256), dtype, device, generator).clamp(min=-2)
    return gates, drawn((64, 256), dtype, device, generator)


def _gated_twin(module: Module, names: tuple[str, ...], gates: Tensor, factors: Tensor) -> Module:
    """The module with projections that give these values."""
    values = {4: [gates, factors], 3: [torch.cat([gates, factors], -1)], 2: [torch.cat([factors, gates], -1)]}
    last = [StandIn(None)] if len(names) > 2 else []
    return twin_of(module, dict(zip(names[1:], [*map(StandIn, values[len(names)]), *last], strict=True)))


def gated_trial(twin: Module, x: Tensor, gates: Tensor, factors: Tensor) -> Trial:
    return Trial(
        twin,
        x,
        {name: op(gates, factors) for name, op in forwards.GATES.items()},
        lambda error: {
            name: (function(gates.double()) * error).to(gates.dtype).double() * factors.double()
            for name, function in _EXACT.items()
        },
    )


def _experts_trials(module: Any, _: object, device: str) -> Trials | str:
    reason = unknown_activation(module._modules.get("act_fn"))
    if not getattr(module, "has_gate", True):  # transformers 5.0 has no experts without one, and does not say so
        return "it has no gate"
    if reason:
        return reason

    def trials(dtype: torch.dtype, generator: torch.Generator) -> Trial:
        gates, factors = gates_and_factors(dtype, device, generator)
        trial = gated_trial(twin_of(module, {}), torch.cat([gates, factors], -1), gates, factors)
        return dataclasses.replace(trial, method=GATE)

    return trials


def unknown_activation(act: Module | None) -> str:
    """Why a child is no activation that a kernel may stand for, or nothing."""
    if act is not None and has_hooks(act):
        return "its activation has hooks, which a fused one would not call"
    if getattr(act, "inplace", False):
        return "its activation works in place"
    try:
        known = act is not None and "forward" not in act.__dict__ and fingerprint(type(act)) in _ACTIVATIONS
    except Unreadable:
        known = False
    return "" if known else f"its activation {type(act).__name__} is not known"


def _bind_gated(module: Module, names: tuple[str, ...], gate: str, device: str) -> Bound:
    functions: dict[int, Any] = {4: forwards.gated, 3: forwards.packed_gated, 2: forwards.swapped_gated}
    act = child_of(module, names[0])
    return functools.partial(functions[len(names)], module, gate, act, names[1:], device, _proof=seen(module))


def _bind_rms(module: Module, eps: str, casting: str, device: str) -> Bound:
    proof, scaled = seen(module, live=(eps, *_WEIGHTS)), module._parameters.get("weight") is not None
    return functools.partial(forwards.rms_norm, module, casting, eps, scaled, device, _proof=proof)


def _bind_gated_norm(module: Module, names: _Gate, casting: str, device: str) -> Bound:
    proof = seen(module, live=("variance_epsilon", "weight"))
    return functools.partial(forwards.rms_norm_gated, module, casting, *names.of(module), device, _proof=proof)


def _bind_layer(module: Module, channels: bool, _: str, device: str) -> Bound:
    proof = seen(module, live=("eps", *_WEIGHTS))
    return functools.partial(forwards.layer_norm, module, device, channels, _proof=proof)


def _bind_experts(module: Module, _: object, gate: str, device: str) -> Bound:
    proof, act = seen(module, GATE), child_of(module, "act_fn")
    return functools.partial(forwards.gate_of_experts, module, gate, act, device, _proof=proof)


_WEIGHTS = ("weight", "bias", "normalized_shape")  # attributes that the norms read in each call, besides eps


RULES = (
    Rule(
        "rms_norm",
        {  # the name of eps
            "3e93015547c42d78": "variance_epsilon",  # transformers Llama, Qwen3, Phi 3 and 139 others
            "47f6d854cc964015": "variance_epsilon",  # transformers gpt-oss and 11 others
            "3ea4ebe76d5f2571": "variance_epsilon",  # transformers Helium, Nemotron-H
            "6710578659c8f923": "eps",  # transformers Gemma, Gemma 2, Gemma 3 and 10 others
            "fff1385592236d8c": "eps",  # transformers Gemma 3n, Gemma 4
            "d14f89a5dec47c27": "eps",  # transformers Moshi
            "4ef4d2e73c3f674c": "eps",  # transformers Llama 4
            "3f95bfb133feadbd": "eps",  # transformers nanochat, which has no weight
            "203df5a7d1358212": "variance_epsilon",  # transformers T5
            "d836bb5e3be9772a": "eps",  # torch.nn.RMSNorm
            "8d26a207b8d56f83": "eps",  # timm RmsNorm
            "ea046c3679032190": "eps",  # diffusers RMSNorm
        },
        _rms_trials,
        _bind_rms,
        'rms_norm, casting="{}"',
        r"RMSNorm|RmsNorm|T5LayerNorm",
    ),
    Rule(
        "gated_norm",
        {
            "6d93287768c51ca6": _Gate(True),  # transformers Qwen 3 Next, Qwen 3.5 and others
            "d4a630bd3cb5d3bc": _Gate(True),  # transformers Kimi Linear, GLM 5 Next, Bailing
            "3253839d593576b2": _Gate(False, size="group_size"),  # transformers Mamba 2, Zamba 2, Nemotron-H, Bamba
            "90e64f90aa64b508": _Gate(True, first="norm_before_gate", count="n_groups"),  # transformers Falcon-H1
        },
        _gated_norm_trials,
        _bind_gated_norm,
        'rms_norm_gated, casting="{}"',
        r"RMSNormGated",
    ),
    Rule(
        "layer_norm",
        {  # whether it normalises the channels of images
            "38f4355525d94bc9": False,  # torch.nn.LayerNorm
            "124ed65586dc4fa1": False,  # timm LayerNorm
            "c2aca63ba79ac0be": True,  # timm LayerNorm2d
        },
        _layer_trials,
        _bind_layer,
        "{}",
        r"LayerNorm",
    ),
    Rule(
        "gated_mlp",
        {  # the activation, the projections; of two, the one projection gives factors first
            "ce0c7c8222d853c3": ("act_fn", "gate_proj", "up_proj", "down_proj"),  # transformers Llama and 130 others
            "4addcb194760d1cf": ("act_fn", "gate_proj", "up_proj", "down_proj"),  # transformers Idefics 2
            "1664e30a1efa3a11": ("activation_fn", "gate_up_proj", "down_proj"),  # transformers GLM, Phi 3
            "445dffc940ab1e5e": ("gelu", "proj"),  # diffusers GEGLU
            "998ef1c73c760cf0": ("activation", "proj"),  # diffusers SwiGLU
        },
        _gated_trials,
        _bind_gated,
        "{}_and_mul",
        r"MLP$|SwiGLU|GEGLU|GluMlp",
        child=lambda names: names[0],
    ),
    Rule(
        "experts",
        {"a9888c8d407b912c": None},  # transformers Qwen3-MoE, Mixtral and all others without a gate of their own
        _experts_trials,
        _bind_experts,
        "{}_and_mul",
        r"Experts$",
        GATE,
        lambda names: "act_fn",
    ),
    Rule(
        "softmax",
        {"fe0b7e85f35b1e59": None},  # torch.nn.Softmax
        _softmax_trials,
        lambda module, _, __, device: functools.partial(forwards.softmax, module, device, _proof=seen(module)),
        "scaled_{}",
        r"^Softmax$",
    ),
)
