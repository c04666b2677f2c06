"""The functions of ``precast.ops`` as members of a module, and the same in plain torch."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from precast.compat.modules import Find, Members, kernel, reference

if TYPE_CHECKING:
    from torch import Tensor

_GATED = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu")  # in the order of the schema's kinds
_SOFTMAX = ("scaled_softmax", "scaled_upper_triang_masked_softmax", "scaled_aligned_causal_softmax")


def layer_norm(find: Find) -> Members:
    """``layer_norm``."""
    if find is kernel:
        return _ours("layer_norm")

    def plain(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
        """``precast.ops.layer_norm`` in plain torch."""
        y: Tensor = reference("layer_norm")(x, weight, bias, eps)
        return y

    return {"layer_norm": plain}


def activations(find: Find) -> Members:
    """The gated activations."""
    if find is kernel:
        return _ours(*_GATED)

    def plain(kind: int, x: Tensor) -> Tensor:
        y: Tensor = reference("gated_activation")(x, kind)
        return y

    return {name: functools.partial(plain, kind) for kind, name in enumerate(_GATED)}


def softmax(find: Find) -> Members:
    """The softmaxes of scaled scores."""
    if find is kernel:
        return _ours("scaled_masked_softmax", *_SOFTMAX)

    def plain(name: str, x: Tensor, scale: float) -> Tensor:
        y: Tensor = reference(name)(x, scale)
        return y

    def masked(
        x: Tensor, mask: Tensor, scale: float, *, masked_value: float | str = "-inf", fully_masked: str = "zero"
    ) -> Tensor:
        """``precast.ops.scaled_masked_softmax`` in plain torch."""
        uniform = {"zero": False, "uniform": True}[fully_masked]
        y: Tensor = reference("scaled_masked_softmax")(x, mask, scale, float(masked_value), uniform)
        return y

    return {"scaled_masked_softmax": masked, **{name: functools.partial(plain, name) for name in _SOFTMAX}}


def rotary(find: Find) -> Members:
    """Rotary embedding, and the rows of its tables."""
    names = ("rotary_embedding", "rotary_embedding_", "get_cos_and_sin")
    if find is kernel:
        return _ours(*names)

    def plain(
        query: Tensor,
        key: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        *,
        positions: Tensor | None = None,
        interleaved: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """``precast.ops.rotary_embedding`` in plain torch."""
        both = reference("rotary_embedding")(query, key, cos, sin, positions, interleaved, False)
        return both[0], None if key is None else both[1]

    def plain_(query: Tensor, key: Tensor | None, *args: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """The same in place."""
        turned = plain(query, key, *args, **kwargs)
        query.copy_(turned[0])
        if key is not None and turned[1] is not None:
            key.copy_(turned[1])
        return query, key

    return {**_ours(names[-1]), names[0]: plain, names[1]: plain_}


def kv_cache(find: Find) -> Members:
    """What writes keys and values into paged caches, and what attends to them."""
    names = ("reshape_and_cache", "rotary_embedding_and_cache", "paged_decode_attention")
    if find is kernel:
        return _ours(*names)

    def plain(
        query: Tensor, key: Tensor, *args: Tensor, positions: Tensor | None = None, interleaved: bool = False
    ) -> tuple[Tensor, Tensor]:
        """``precast.ops.rotary_embedding_and_cache`` in plain torch."""
        reference(names[1])(query, key, *args, positions, interleaved)
        return query, key

    def plain_copy(*args: Tensor) -> None:
        """``precast.ops.reshape_and_cache`` in plain torch."""
        reference(names[0])(*args)

    def plain_attention(
        query: Tensor,
        key_cache: Tensor,
        *args: Tensor,
        scale: float | None = None,
        window: int | None = None,
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        sinks: Tensor | None = None,
        key_scale: Tensor | None = None,
        value_scale: Tensor | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``precast.ops.paged_decode_attention`` in plain torch."""
        attend = importlib.import_module("precast.ops.decode_attention").attend
        optional = (alibi_slopes, sinks, key_scale, value_scale)
        found: Tensor | tuple[Tensor, Tensor] = attend(
            reference(names[2]), (query, key_cache, *args), scale, window, softcap, optional, return_lse
        )
        return found

    return {names[0]: plain_copy, names[1]: plain, names[2]: plain_attention}


def _ours(*names: str) -> Members:
    """Functions of a room above this one, so it is entered by name, when a function is called."""

    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module("precast.ops"), name)(*args, **kwargs)

    return {name: functools.partial(call, name) for name in names}
