"""The rotary embedding of an attention of transformers, with the norms of queries and keys.

The function that rotates is a global name of a Python module, which other models may use. So it stays, and the instance
of an attention calls a copy of its own forward, in which that name means the kernel.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt import flow, forwards, instances, source
from precast._adopt.loss import fingerprint_of
from precast._adopt.probe import Trial, decide, drawn, probe, twin_of
from precast._adopt.rules import RULES
from precast._adopt.seen import child_of, seen_forward, state_of
from precast._adopt.source import Unreadable, fingerprint, fingerprint_of_functions, with_attribute
from precast.ops.norm import CASTINGS
from precast.ops.rotary import rms_norm_rotary_embedding

# Functions that rotate halves of whole heads, whichever module has its copy of them.
_KNOWN = {
    "c209d4571cbbd437",  # transformers 5.0 and newer, Llama and 118 others
    "00bf94730d5b83ff",  # transformers 4.57, with an argument that it does not read
}
_EPS = next(rule.known for rule in RULES if rule.kind == "rms_norm")
_TOKENS, _HEADS, _KEYS = 16, 4, 2
_EACH, _ONCE = "each", "once"
_NAMES = (instances.ROTATE, "rotate_half")  # what an attention calls, and what that calls


Norms = tuple[tuple[str, str], ...]  # of queries and keys, each with the name of its eps


def known(module: Any) -> tuple[str, Norms | str]:
    """The fingerprint of an attention, and its norms, or why it must stay."""
    try:
        digest = fingerprint_of(type(module))
        names = flow.rotated(inspect.unwrap(type(module).forward), instances.ROTATE)
        if source.fingerprint_of_copies(*_functions(type(module))) not in _KNOWN:
            return digest, f"no rule knows what its {instances.ROTATE} does"
        if not isinstance(getattr(module, "head_dim", None), int):
            return digest, "it does not say how wide a head is"
        with_attribute(type(module).forward, instances.ROTATE)
        norms = [module._modules.get(name) for name in names]
        found = [_EPS.get(fingerprint(type(norm)), "") if isinstance(norm, Module) else "" for norm in norms]
    except Unreadable as error:
        return "", str(error)
    if "" in found:  # projections, or norms of another kind: only the rotation is replaced
        return digest, ()
    if any("forward" in norm.__dict__ and not instances.is_ours(norm.__dict__["forward"]) for norm in norms):
        return digest, "the forward of its norms was replaced before"
    if any(map(instances.has_hooks, norms)):
        return digest, "its norms have hooks, which would see no norm"
    if any(map(instances.computes_weights, norms)):
        return digest, "the weights of its norms are computed for each call"
    if len({instances.eps_of(norm, eps) for norm, eps in zip(norms, found, strict=True)}) > 1:
        return digest, "its norms have two values of eps"
    return digest, tuple(zip(names, found, strict=True))


def bind(module: Module, norms: Norms, casting: str, device: str) -> functools.partial[Any]:
    """The forward for an attention."""
    children = tuple((child_of(module, name, live=(eps, "weight")), eps) for name, eps in norms)
    proof = seen_forward(module)
    return functools.partial(forwards.attention, module, children, casting, device, _proof=proof)


def key(module: Any, norms: Norms) -> object:
    """What the proof of an attention reads, and nothing else of it."""
    functions = [source.codes(one) for one in _functions(type(module))]
    return (*map(tuple, functions), module.head_dim, *(state_of(module._modules[name]) for name, _ in norms))


def _functions(cls: type[Any]) -> tuple[Any, ...]:
    """What rotates, by the names that the forward of a class of attentions sees."""
    here = inspect.unwrap(cls.forward).__globals__
    return tuple(here[name] for name in _NAMES if name in here)


def sources(module: Any, norms: Norms) -> source.Sources:
    """What is read beside the forward of an attention."""
    here = inspect.unwrap(type(module).forward).__globals__["__name__"]
    functions = [
        (f"{here}.{name}", fingerprint_of_functions(function))
        for name, function in zip(_NAMES, _functions(type(module)), strict=True)
    ]
    classes = dict.fromkeys(type(module._modules[name]) for name, _ in norms)
    return (*functions, *map(source.source_of, classes))


def prove(module: Any, norms: Norms, device: str) -> tuple[str | None, str]:
    """The casting of the norms if the kernel rounds like the attention, or None; and a line for the report."""
    found, reason = decide(probe(functools.partial(_trial, module, norms, device), device), device)
    if found is None:
        return None, reason
    casting, _, rounding = found.partition(", ")
    if rounding != _EACH:
        return None, "it rounds the products of the rotation once"
    what = f'rms_norm_rotary_embedding, casting="{casting}"' if norms else "rms_norm_rotary_embedding without a norm"
    return casting, f"{what}: {reason}"


class _Rotation(Module):
    """Its forward is what an attention does between its projections and its cache."""

    def __init__(self, rotate: Any, norms: list[Module], cos: Tensor, sin: Tensor) -> None:
        super().__init__()
        self.rotate, self.norms, self.tables = rotate, norms, (cos[None], sin[None])

    def forward(self, x: Tensor) -> Tensor:
        """Rotated heads, ``(tokens, heads, width)`` as the given ones."""
        both = x.split((_HEADS, _KEYS), 1)
        if self.norms:
            both = tuple(type(norm).forward(norm, one) for norm, one in zip(self.norms, both, strict=True))
        turned = self.rotate(*(one.transpose(0, 1)[None] for one in both), *self.tables)
        return torch.cat([one[0].transpose(0, 1) for one in turned], 1)


def _trial(module: Any, norms: Norms, device: str, dtype: torch.dtype, generator: torch.Generator) -> Trial:
    width = int(module.head_dim)
    rotate = inspect.unwrap(type(module).forward).__globals__[instances.ROTATE]

    def random(*shape: int) -> Tensor:
        return drawn(shape, dtype, device, generator)

    x, cos, sin = random(_TOKENS, _HEADS + _KEYS, width) * 3, random(_TOKENS, width), random(_TOKENS, width)
    parts = [module._modules[name] for name, _ in norms]
    weights = [random(width) for _ in parts]
    twins = [twin_of(part, {"weight": weight}) for part, weight in zip(parts, weights, strict=True)]
    eps = instances.eps_of(parts[0], norms[0][1]) if norms else 0.0
    castings = tuple(CASTINGS) if norms else ("none",)

    def kernel(casting: Any, rounding: Any) -> Tensor:
        given: Any = (*x.split((_HEADS, _KEYS), 1), *(weights or (None, None)), cos, sin)
        both = rms_norm_rotary_embedding(*given, eps=eps, casting=casting, rounding=rounding)
        return torch.cat([one for one in both if one is not None], 1)

    def rounded(value: Tensor) -> Tensor:
        return value.to(dtype).double()

    def exact(error: float, casting: str, rounding: str) -> Tensor:
        heads = x.double()
        if norms:
            normal = heads / torch.sqrt(heads.square().mean(-1, keepdim=True) + eps) * error
            counts = (_HEADS, _KEYS)
            scale = torch.cat([w.double().expand(n, width) for w, n in zip(weights, counts, strict=True)])
            heads = rounded(
                {"none": normal * scale, "gemma": normal * (1 + scale)}.get(casting, rounded(normal) * scale)
            )
        first, second = heads.chunk(2, -1)
        step = rounded if rounding == _EACH else (lambda value: value)
        straight, across = heads * cos.double()[:, None], torch.cat([-second, first], -1) * sin.double()[:, None]
        return (step(straight) + step(across)) * error

    names = [(casting, rounding) for casting in castings for rounding in (_EACH, _ONCE)]
    return Trial(
        _Rotation(rotate, twins, cos, sin),
        x,
        {f"{casting}, {rounding}": kernel(casting, rounding) for casting, rounding in names},
        lambda error: {f"{casting}, {rounding}": exact(error, casting, rounding) for casting, rounding in names},
    )
