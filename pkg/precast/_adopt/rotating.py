"""What replaces the forward of an attention that rotates queries and keys: a copy of it, in which a kernel rotates."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precast._adopt.forwards import Proof
from precast._adopt.instances import ROTATE, eps_of, ours, own, run_as, served
from precast._adopt.seen import Child, is_changed, unproved
from precast._adopt.source import codes, with_attribute
from precast.ops.norm import Casting
from precast.ops.rotary import rms_norm_rotary_embedding

_TOKENS = 1  # the axis of tokens, for the kernel


@dataclass(frozen=True)
class Form:
    """How a function rotates, as the probe found it, and how an attention calls it.

    ``tensors`` of heads in a call, whose tokens are before or, with ``axis`` 1, after their heads. ``narrow`` and
    ``wide`` say how the kernel rounds with tables of the heads' dtype or float32, empty if it must not.
    """

    tensors: int
    axis: int
    casting: Casting
    neighbours: bool  # are a pair, and the tables of pairs the first half of the columns
    half: bool  # tables have a column for each pair
    part: bool  # tables may be narrower than heads, of which the rest stays
    narrow: str
    wide: str

    def turned(self, norms: Sequence[Any], eps: Sequence[float], heads: Sequence[Tensor], *tables: Tensor) -> Any:
        """Normalised and rotated heads, ``(batch, tokens, heads, width)`` with tables ``(batch, tokens, columns)``.

        None if the call is not one that the probe has proved.
        """
        x, (cos, sin) = heads[0], tables
        columns = cos.shape[-1] * (2 if self.half else 1)
        rounding = self.narrow if cos.dtype == x.dtype else self.wide if cos.dtype == torch.float32 else ""
        batch, tokens, *_ = x.shape
        if not rounding or cos.dtype != sin.dtype or cos.requires_grad or sin.requires_grad or len({*eps}) > 1:
            return None
        if not cos.shape == sin.shape == (cos.shape[0], tokens, cos.shape[-1]) or cos.shape[0] not in (1, batch):
            return None
        rest = x.shape[-1] - columns
        if rest < 0 or columns % 2 or (rest and not (self.part and rounding == self.narrow)):
            return None
        if rest and norms:
            heads, norms = [norm(one) for norm, one in zip(norms, heads, strict=True)], ()
        if self.neighbours and not self.half:
            tables = tuple(table[..., : columns // 2] for table in tables)
        options: dict[str, Any] = {"eps": eps[0], "casting": self.casting} if norms else {}
        options |= {"interleaved": self.neighbours, "rounding": rounding}
        turning = [one[..., :columns] if rest else one for one in heads]
        shapes = [one.shape for one in turning]
        turning = [one if cos.shape[0] == 1 else one.flatten(0, 1) for one in turning]
        rows = [table[0] if cos.shape[0] == 1 else table.flatten(0, 1) for table in tables]
        weights = [norm.weight for norm in norms] or [None, None]
        key = turning[1] if len(turning) == 2 else None
        both = rms_norm_rotary_embedding(turning[0], key, weights[0], weights[-1], rows[0], rows[1], **options)
        found = [y.view(shape) for y, shape in zip(both, shapes, strict=False)]  # type: ignore[union-attr]
        if rest:
            found = [torch.cat([y, one[..., columns:]], -1) for y, one in zip(found, heads, strict=True)]
        return found


@ours
def attention(
    module: Any,
    norms: tuple[tuple[Child, str], ...],
    form: Form,
    device: str,
    /,
    *given: Any,
    _proof: Proof = None,
    **named: Any,
) -> Any:
    """An attention whose queries and keys are rotated, after norms; of each, which child it is and the name of its eps.

    The own forward runs with two changes: the norms do nothing, and what rotates normalises too.
    """
    if unproved(module, _proof) or any(is_changed(module, child) for child, _ in norms):
        return own(module, *given, **named)
    cls: Any = type(module)  # classes of modules are not hashable to mypy
    names = tuple((name, eps) for (name, _), eps in norms)
    return run_as(_rotating(cls, codes(cls.forward), names, form, device), module, *given, **named)


@functools.lru_cache(maxsize=256)
def _rotating(cls: Any, _: tuple[Any, ...], norms: tuple[tuple[str, str], ...], form: Form, device: str) -> Any:
    """The class of an attention with the two changes. Its forward sees the same globals as the own one.

    It is made again for another forward, or another code of it.
    """

    def rotate(twin: Any, *given: Any, **named: Any) -> Any:
        parts = [twin._modules[name] for name, _ in norms]
        if len(given) == form.tensors + 2 and named in ({}, {"unsqueeze_dim": form.axis}):
            eps = [eps_of(part, name) for part, (_, name) in zip(parts, norms, strict=True)]
            turned = _turned(form, parts, eps, device, given[:-2], given[-2:])
            if turned is not None:
                return turned
        heads = [part(x) for part, x in zip(parts, given, strict=False)]
        return inspect.unwrap(cls.forward).__globals__[ROTATE](*heads, *given[len(heads) :], **named)

    changes = {name: staticmethod(lambda x: x) for name, _ in norms}
    return type(cls)(cls.__name__, (cls,), {**changes, ROTATE: rotate, "forward": with_attribute(cls.forward, ROTATE)})


def _turned(
    form: Form, norms: list[Any], eps: list[float], device: str, heads: tuple[Any, ...], tables: tuple[Any, ...]
) -> Any:
    """What the function returns, or None for a call that it must make itself."""
    first = heads[0]
    plain = all(type(w) in (Tensor, torch.nn.Parameter) and w.dtype == first.dtype for w in (n.weight for n in norms))
    same = all(served(x, first, device) and x.dim() == 4 for x in heads) and len({x.shape[-1] for x in heads}) == 1
    if not (plain and same and all(served(table, None, device) for table in tables)):
        return None
    swap = form.axis == 1
    turned = form.turned(norms, eps, [x.transpose(1, 2) if swap else x for x in heads], *tables)
    if turned is None:
        return None
    found = tuple(y.transpose(1, 2) if swap else y for y in turned)
    return found if form.tensors == 2 else found[0]
