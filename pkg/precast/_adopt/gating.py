"""Any forward that multiplies by an activation of its own: a copy of it runs, in which a kernel does both at once."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt.forwards import GATES, Proof
from precast._adopt.instances import in_rows, ours, own, run_as
from precast._adopt.probe import Trial, decide, probe
from precast._adopt.rules import gated_trial, gates_and_factors, unknown_activation
from precast._adopt.seen import Child, child_of, is_changed, seen_forward, unproved
from precast._adopt.source import Unreadable, attribute, codes, rewritten, syntax

_GATE = "_gate_of_precast"  # the attribute that stands for an activation and a product


def activation(module: Module) -> str:
    """The child whose result a module's forward multiplies by something.

    Raises:
        Unreadable: the forward cannot be read, or has no such child, or the child is no activation with a kernel.
    """
    body = syntax(inspect.unwrap(type(module).forward))
    named = {_child(body, one) for node in ast.walk(body) if isinstance(node, ast.BinOp) for one in _sides(node)}
    reasons = {name: unknown_activation(module._modules[name]) for name in sorted(named & module._modules.keys())}
    if all(reasons.values()):
        raise Unreadable(next(iter(reasons.values()), "its forward does not multiply by an activation"))
    return next(name for name, reason in reasons.items() if not reason)


def _sides(node: ast.BinOp) -> tuple[ast.expr, ...]:
    return (node.left, node.right) if isinstance(node.op, ast.Mult) else ()


def _child(body: ast.FunctionDef, node: ast.AST) -> str:
    """The attribute of the instance that a node calls with one argument."""
    match node:
        case ast.Call(ast.Attribute(ast.Name(owner), str(name)), [argument], []):
            return name if owner == body.args.args[0].arg and not isinstance(argument, ast.Starred) else ""
    return ""


def prove(module: Any, act: str, device: str) -> tuple[str | None, str]:
    """The gate whose kernel rounds like the child and the product, or None; and a line for the report."""

    def trial(dtype: torch.dtype, generator: torch.Generator) -> Trial:
        gates, factors = gates_and_factors(dtype, device, generator)
        return gated_trial(_Product(module._modules[act]), torch.cat([gates, factors], -1), gates, factors)

    gate, reason = decide(probe(trial, device), device)
    return gate, reason if gate is None else f"{gate}_and_mul: {reason}"


class _Product(Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def forward(self, both: Tensor) -> Tensor:
        """What a forward does with gates and factors."""
        gates, factors = both.chunk(2, -1)
        return self.act(gates) * factors  # type: ignore[no-any-return]


def bind(module: Module, act: str, gate: str, device: str) -> functools.partial[Any]:
    """The forward for a module."""
    return functools.partial(multiplying, module, gate, child_of(module, act), device, _proof=seen_forward(module))


@ours
def multiplying(
    module: Any, gate: str, act: Child, device: str, /, *given: Any, _proof: Proof = None, **named: Any
) -> Any:
    """A module whose forward multiplies by an activation, its child."""
    if unproved(module, _proof) or is_changed(module, act):
        return own(module, *given, **named)
    cls: Any = type(module)  # classes of modules are not hashable to mypy
    return run_as(_changed(cls, codes(cls.forward), act[0], gate, device), module, *given, **named)


@functools.lru_cache(maxsize=256)
def _changed(cls: Any, _: tuple[Any, ...], act: str, gate: str, device: str) -> Any:
    """The class with another forward, which is made again for another forward, or another code of it."""

    def both(twin: Any, gates: Any, factors: Any) -> Any:
        alike = in_rows(gates, device) and in_rows(factors, device)
        if alike and gates.dtype == factors.dtype and gates.shape == factors.shape:
            return GATES[gate](gates, factors)
        return twin._modules[act](gates) * factors

    def turned(twin: Any, factors: Any, gates: Any) -> Any:
        return both(twin, gates, factors)

    body = syntax(inspect.unwrap(cls.forward))

    class Fused(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            found = [_child(body, one) == act for one in _sides(node)]
            if not any(found):
                return node
            left, right = (one.args[0] if is_act else one for one, is_act in zip(_sides(node), found, strict=True))  # type: ignore[attr-defined]
            name = _GATE if found[0] else f"{_GATE}_turned"
            if all(found):
                right = node.right
            return ast.copy_location(ast.Call(attribute(cls.forward, name), [left, right], []), node)

    methods = {_GATE: both, f"{_GATE}_turned": turned, "forward": rewritten(cls.forward, Fused())}
    return type(cls)(cls.__name__, (cls,), methods)
