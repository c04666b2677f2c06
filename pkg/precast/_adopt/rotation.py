"""The rotary embedding of an attention of transformers, with the norms of queries and keys.

The function that rotates is a global name of a Python module, which other models may use. So it stays, and the instance
of an attention calls a copy of its own forward, in which that name means the kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt import flow, instances, rotating, source
from precast._adopt.loss import fingerprint_of
from precast._adopt.probe import Trial, decide, drawn, probe, twin_of
from precast._adopt.rotating import Form
from precast._adopt.rules import RULES
from precast._adopt.seen import child_of, seen_forward, state_of
from precast._adopt.source import Unreadable, fingerprint, fingerprint_of_functions, with_attribute
from precast.ops.norm import CASTINGS, Casting

_EPS = next(rule.known for rule in RULES if rule.kind == "rms_norm")
_TOKENS, _HEADS, _KEYS, _WIDTH = 16, 4, 2, 64
_EACH, _ONCE = "each", "once"
ROTARY = re.compile(r"^_?apply_rotary")  # the names of functions that rotate
_PAIRS = ("halves", "neighbours")

Norms = tuple[tuple[str, str], ...]  # of queries and keys, each with the name of its eps


def known(module: Any) -> tuple[str, Norms | str]:
    """The fingerprint of an attention, and its norms, or why it must stay."""
    cls: Any = type(module)  # classes of modules are not hashable to mypy
    try:
        digest = fingerprint_of(cls)
        others = [one for one in inspect.unwrap(cls.forward).__code__.co_names if ROTARY.match(one)]
        if others != [instances.ROTATE]:
            return digest, f"its forward calls {' and '.join(others)}, and {instances.ROTATE} alone is known"
        _functions(cls)
        names = _read(cls, source.codes(cls.forward))
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


@functools.lru_cache(maxsize=256)
def _read(cls: Any, _: tuple[Any, ...]) -> tuple[str, ...]:
    """The norms whose results the forward of a class rotates. It is read again for another code of it."""
    forward = inspect.unwrap(cls.forward)
    flow.called(forward, instances.ROTATE)
    with_attribute(cls.forward, instances.ROTATE)
    return flow.rotated(forward, instances.ROTATE)


def bind(module: Module, norms: Norms, form: Form, device: str) -> functools.partial[Any]:
    """The forward for an attention."""
    children = tuple((child_of(module, name, live=(eps, "weight")), eps) for name, eps in norms)
    proof = seen_forward(module)
    return functools.partial(rotating.attention, module, children, form, device, _proof=proof)


def key(module: Any, norms: Norms) -> object:
    """What the proof of an attention reads, and nothing else of it."""
    cls: Any = type(module)
    functions = [source.codes(one) for one in _functions(cls)]
    return (*map(tuple, functions), source.codes(cls.forward), *(state_of(module._modules[name]) for name, _ in norms))


def _functions(cls: type[Any]) -> tuple[Any, ...]:
    """What rotates, as the forward of a class of attentions sees it, and what that calls."""
    return flow.straight(inspect.unwrap(cls.forward).__globals__.get(instances.ROTATE), instances.ROTATE)


def sources(module: Any, norms: Norms) -> source.Sources:
    """What is read beside the forward of an attention."""
    here = inspect.unwrap(type(module).forward).__globals__["__name__"]
    rotate, *helpers = _functions(type(module))
    names = [f"{here}.{instances.ROTATE}", *(f"{one.__module__}.{one.__qualname__}" for one in helpers)]
    functions = zip(names, map(fingerprint_of_functions, (rotate, *helpers)), strict=True)
    classes = dict.fromkeys(type(module._modules[name]) for name, _ in norms)
    return (*functions, *map(source.source_of, classes))


def prove(module: Any, norms: Norms, device: str) -> tuple[Form | None, str]:
    """How the kernel rotates like the attention, or None; and a line for the report."""
    forward = inspect.unwrap(type(module).forward)
    tensors, axis = flow.called(forward, instances.ROTATE)
    how = _Case(forward.__globals__[instances.ROTATE], tensors, axis, half=False, part=False, wide=False)
    if not how.is_taken():
        how = dataclasses.replace(how, half=True)
    if not how.is_taken():
        return None, f"its {instances.ROTATE} takes no tables as wide as heads or half of that"

    def decided(case: _Case, norms: Norms) -> tuple[str, ...]:
        found, reason = decide(probe(functools.partial(_trial, case, module, norms, device), device), device)
        return ("", "", "", reason) if found is None else (*found.split(", "), reason)

    casting, narrow, pairs, reason = decided(how, norms)
    if not narrow:
        return None, reason
    wide = decided(dataclasses.replace(how, wide=True), norms)
    part = dataclasses.replace(how, part=True)
    partly = not how.half and part.is_taken() and decided(part, ())[1:3] == (narrow, pairs)
    form = Form(
        *(tensors, axis, cast(Casting, casting), pairs == _PAIRS[1], how.half, partly),
        *(narrow, wide[1] if (casting, pairs) == (wide[0], wide[2]) else ""),
    )
    what = f'rms_norm_rotary_embedding, casting="{casting}"' if norms else "rms_norm_rotary_embedding without a norm"
    return form, f"{what}: {reason}"


@dataclass(frozen=True)
class _Case:
    """How a function that rotates is called: tables with half of the columns, for a part of the heads, in float32."""

    rotate: Any
    tensors: int
    axis: int
    half: bool
    part: bool
    wide: bool

    @property
    def columns(self) -> int:
        return _WIDTH // 2 if self.half or self.part else _WIDTH

    def __call__(self, heads: Sequence[Tensor], cos: Tensor, sin: Tensor) -> list[Tensor]:
        """Rotated heads, ``(tokens, heads, width)`` as the given ones."""
        swapped = [one[None].transpose(1, 2) if self.axis == 1 else one[None] for one in heads]
        words = {} if self.axis == 1 else {"unsqueeze_dim": self.axis}
        turned = self.rotate(*swapped, cos[None], sin[None], **words)
        turned = turned if self.tensors == 2 else [turned]
        return [(one.transpose(1, 2) if self.axis == 1 else one)[0] for one in turned]

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split((_HEADS, _KEYS), 1) if self.tensors == 2 else (x,)

    def is_taken(self) -> bool:
        """Whether the function takes such tables and returns as many columns as it gets."""
        x, table = torch.zeros(_TOKENS, _HEADS + _KEYS, _WIDTH), torch.zeros(_TOKENS, self.columns)
        try:
            return [y.shape for y in self(self.split(x), table, table)] == [one.shape for one in self.split(x)]
        except (RuntimeError, TypeError):
            return False


class _Rotation(Module):
    """Its forward is what an attention does between its projections and its cache."""

    def __init__(self, case: _Case, norms: list[Module], cos: Tensor, sin: Tensor) -> None:
        super().__init__()
        self.case, self.norms, self.tables = case, norms, (cos, sin)

    def forward(self, x: Tensor) -> Tensor:
        """Rotated heads, ``(tokens, heads, width)`` as the given ones."""
        both = self.case.split(x)
        if self.norms:
            both = tuple(type(norm).forward(norm, one) for norm, one in zip(self.norms, both, strict=True))
        return torch.cat(self.case(both, *self.tables), 1)


def _trial(
    case: _Case, module: Any, norms: Norms, device: str, dtype: torch.dtype, generator: torch.Generator
) -> Trial:
    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return drawn(shape, dtype, device, generator)

    parts = [module._modules[name] for name, _ in norms]
    width = parts[0].weight.shape[0] if parts else _WIDTH
    columns = case.columns * width // _WIDTH
    kind = torch.float32 if case.wide else dtype
    x = random(_TOKENS, _HEADS + _KEYS, width) * 3
    cos, sin = (random(_TOKENS, columns, dtype=kind) for _ in range(2))
    weights = [random(width) for _ in parts]
    twins = [twin_of(part, {"weight": weight}) for part, weight in zip(parts, weights, strict=True)]
    eps = instances.eps_of(parts[0], norms[0][1]) if norms else 0.0
    castings: Sequence[Any] = tuple(CASTINGS) if norms else ("none",)

    def kernel(casting: Casting, rounding: str, pairs: str) -> Tensor:
        narrow = wide = rounding
        form = Form(case.tensors, case.axis, casting, pairs == _PAIRS[1], case.half, case.part, narrow, wide)
        heads = [one[None] for one in case.split(x)]
        return torch.cat(form.turned(twins, [eps] * len(twins), heads, cos[None], sin[None]), 2)[0]

    def rounded(value: Tensor) -> Tensor:
        return value.to(dtype).double()

    def exact(error: float, casting: str, rounding: str, pairs: str) -> Tensor:
        heads = x.double()
        if norms:
            normal = heads / torch.sqrt(heads.square().mean(-1, keepdim=True) + eps) * error
            counts = (_HEADS, _KEYS)
            scale = torch.cat([w.double().expand(n, width) for w, n in zip(weights, counts, strict=True)])
            heads = rounded(
                {"none": normal * scale, "gemma": normal * (1 + scale)}.get(casting, rounded(normal) * scale)
            )
        turning = columns * 2 if case.half else columns
        heads, rest = heads[..., :turning], heads[..., turning:]
        c, s = cos.double()[:, None], sin.double()[:, None]
        if pairs == _PAIRS[1]:
            across = torch.stack([-heads[..., 1::2], heads[..., ::2]], -1).flatten(-2)
            c, s = (table[..., : turning // 2].repeat_interleave(2, -1) for table in (c, s))
        else:
            first, second = heads.chunk(2, -1)
            across = torch.cat([-second, first], -1)
            c, s = (torch.cat([table, table], -1) if case.half else table for table in (c, s))
        straight, across = heads * c, across * s
        if rounding == _EACH:
            return torch.cat([(rounded(straight) + rounded(across)) * error, rest], -1)
        # A difference cancels digits: the error is relative to what went into it.
        return torch.cat([straight + across + (straight.abs() + across.abs()) * (error - 1), rest], -1)

    names = list(itertools.product(castings, (_EACH, _ONCE), _PAIRS))
    return Trial(
        _Rotation(case, twins, cos, sin),
        x,
        {", ".join(name): kernel(*name) for name in names},
        lambda error: {", ".join(name): exact(error, *name) for name in names},
    )
