"""Functions that a layer of transformers calls by a global name where packages for them are missing.

transformers takes causal-conv1d and FLA if they are installed, and else functions in plain torch. As with a rotary
embedding, the functions stay for other models: the instance of a layer calls a copy of its own forward, in which the
names mean kernels.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt import source, stand_ins
from precast._adopt.probe import Trial, decide, drawn, probe
from precast._adopt.seen import seen_forward
from precast._adopt.source import Unreadable, with_attribute
from precast.ops.delta_rule.reference import by_chunks

_BATCH, _CHANNELS, _TAPS, _TOKENS, _HEADS, _WIDTH = 2, 64, 4, 70, 2, 128


@dataclass(frozen=True)
class Called:
    """A global name in the forward of a layer, and which function it means."""

    name: str
    meaning: str


def called(cls: Any) -> tuple[Called, ...]:
    """The functions of ``_KNOWN`` that the forward of a class calls."""
    forward = inspect.unwrap(cls.forward)
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    found = ((name, _meaning(forward.__globals__.get(name))) for name in names)
    return tuple(Called(name, meaning) for name, meaning in found if meaning)


def _meaning(function: Any) -> str:
    """The name in ``_KNOWN`` of what a function does; empty if it is none of them, or calls a package."""
    if not isinstance(function, types.FunctionType):
        return ""
    inside: Any = inspect.unwrap(function)
    wrapped = [cell.cell_contents for cell in function.__closure__ or () if callable(cell.cell_contents)]
    if "transformers" not in inside.__module__ or any(one is not inside for one in wrapped):
        return ""
    try:
        return _KNOWN.get(_digest(function), "")
    except Unreadable:
        return ""


def _digest(function: Any) -> str:
    """Of what a decorator calls, with the function that normalises queries and keys."""
    inside: Any = inspect.unwrap(function)
    helpers = (inside.__globals__[name] for name in ("l2norm",) if name in inside.__code__.co_names)
    return source.fingerprint_of_copies(inside, *helpers)


def key(module: Any, names: tuple[Called, ...]) -> object:
    """What the proof reads."""
    return names, *(source.codes(_function(module, one)) for one in names)


def sources(module: Any, names: tuple[Called, ...]) -> source.Sources:
    """What is read beside the forward of a layer."""
    here = inspect.unwrap(type(module).forward).__globals__["__name__"]
    return tuple((f"{here}.{one.name}", source.fingerprint_of_name(f"{here}.{one.name}")) for one in names)


def bind(module: Module, proved: tuple[tuple[str, str], ...], device: str) -> functools.partial[Any]:
    """The forward for a layer; of each name, which function of ``stand_ins.STAND_INS`` it means."""
    return functools.partial(stand_ins.with_functions, module, proved, device, _proof=seen_forward(module))


def prove(module: Any, names: tuple[Called, ...], device: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """The names that kernels round like, each with its stand-in, and a line for the report."""
    try:
        with_attribute(type(module).forward, *(one.name for one in names))
    except Unreadable as error:
        return (), str(error)
    proved, notes = list[tuple[str, str]](), list[str]()
    for one in names:
        if one.meaning not in _TRIALS:
            notes.append(f"{one.name} stays: no kernel rounds as often as it does")
            continue
        trials = functools.partial(_TRIALS[one.meaning], _function(module, one), one.meaning, device)
        winner, reason = decide(probe(trials, device), device)
        if winner is not None:
            proved.append((one.name, winner))
        notes.append(f"{one.name}: {reason}")
    return tuple(proved), "; ".join(notes)


def _function(module: Any, one: Called) -> Any:
    return inspect.unwrap(type(module).forward).__globals__[one.name]


class _Calls(Module):
    """Its forward is a function of its input alone."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """The result."""
        return self.function(x)


def _trial(own: Callable[..., Any], names: tuple[str, ...], call: Any, x: Tensor, exact: Any, device: str) -> Trial:
    """``call`` calls a function with all that it needs beside ``x``."""
    stands = {name: functools.partial(stand_ins.STAND_INS[name], own, device) for name in names}
    kernels = {name: call(function, x) for name, function in stands.items()}
    return Trial(_Calls(functools.partial(call, own)), x, kernels, exact)


def _convolution(
    own: Callable[..., Any], meaning: str, device: str, dtype: torch.dtype, generator: torch.Generator
) -> Trial:
    updates = meaning == "causal_conv1d_update"
    shape = (_BATCH * _TOKENS, _CHANNELS, 1) if updates else (_BATCH, _CHANNELS, _TOKENS)
    x, weight = drawn(shape, dtype, device, generator), drawn((_CHANNELS, _TAPS), dtype, device, generator)
    bias, state = drawn((_CHANNELS,), dtype, device, generator), drawn((*shape[:2], _TAPS), dtype, device, generator)

    def call(function: Any, x: Tensor) -> Any:
        states = (state.clone(),) if updates else ()
        return function(x, *states, weight, bias, activation="silu")

    before = state[..., 1:] if updates else torch.zeros_like(state[..., 1:])
    wide = torch.cat([before, x], -1).double()

    def summed(wide: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (wide.unfold(-1, _TAPS, 1) * weight.double()[:, None]).sum(-1) + bias.double()[:, None]

    value, size = summed(wide, weight, bias), summed(wide.abs(), weight.abs(), bias.abs())

    def exact(error: float) -> dict[str, Tensor]:
        near = value + size * (error - 1)
        silu = torch.nn.functional.silu
        return {meaning: silu(near.to(dtype).double()) * error, f"{meaning}, rounded once": silu(near) * error}

    return _trial(own, (meaning, f"{meaning}, rounded once"), call, x, exact, device)


def _delta_rule(
    own: Callable[..., Any], meaning: str, device: str, dtype: torch.dtype, generator: torch.Generator
) -> Trial:
    one_token, by_key = meaning.startswith("fused_recurrent"), meaning.endswith("kda")
    lead = (_BATCH * 16, 1) if one_token else (_BATCH, _TOKENS)
    q, k, v = (drawn((*lead, _HEADS, _WIDTH), dtype, device, generator) for _ in range(3))
    gates = drawn((*lead, _HEADS, _WIDTH) if by_key else (*lead, _HEADS), torch.float32, device, generator)
    g, beta = -gates.abs() * 0.2, drawn((*lead, _HEADS), dtype, device, generator).sigmoid()
    state = drawn((lead[0], _HEADS, _WIDTH, _WIDTH), torch.float32, device, generator) if one_token else None

    def call(function: Any, v: Tensor) -> Any:
        given = {"g": g, "beta": beta, "initial_state": state, "output_final_state": True}
        return function(q, k, v, **given, use_qk_l2norm_in_kernel=True)[0]

    wide = None if state is None else state.double()
    doubles = (q.double(), k.double(), v.double(), g.double(), beta.double())
    value, _ = by_chunks(*doubles, wide, None, _WIDTH**-0.5, True)
    # Products cancel: the error is relative to the largest of a head's numbers.
    size = value.abs().amax(-1, keepdim=True)
    return _trial(own, (meaning,), call, v, lambda error: {meaning: value + size * (error - 1)}, device)


_Trials = Callable[[Callable[..., Any], str, str, torch.dtype, torch.Generator], Trial]
_TRIALS: dict[str, _Trials] = {
    "causal_conv1d_fn": _convolution,
    "causal_conv1d_update": _convolution,
    "chunk_gated_delta_rule": _delta_rule,
    "chunk_kda": _delta_rule,
    "fused_recurrent_gated_delta_rule": _delta_rule,
    "fused_recurrent_kda": _delta_rule,
}
# By fingerprint. In transformers 5.24, 25 files have copies of the convolutions, 9 of the delta rules, 6 of the others.
_KNOWN = {
    "4cd5dc19bc242fb2": "causal_conv1d_fn",
    "42bb64f3326711aa": "causal_conv1d_update",
    "f1f55e14237a855c": "chunk_gated_delta_rule",
    "a15f346da5f342f9": "fused_recurrent_gated_delta_rule",
    "2be8c726887647a5": "chunk_gated_delta_rule",  # of 5.17
    "b6669271cddcb660": "fused_recurrent_gated_delta_rule",  # of 5.17
    "bdc98a18275264a6": "chunk_kda",
    "859981c6f4ea678b": "fused_recurrent_kda",
    "60633a3bfc641db0": "mamba_chunk_scan_combined",
    "41782d58c69fde3c": "mamba_chunk_scan_combined",  # of 5.17
    "ed01495151b1ebca": "selective_state_update",
}
