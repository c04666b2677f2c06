"""What replaces a ``forward``: functions that are bound to an instance by ``functools.partial``.

A partial is pickled and copied with its module, and ``torch.compile`` traces through it. Each function calls the kernel
for the calls that the probe has proved, and the module's own forward for all others: another device or dtype than the
parameters have, autocast to 16 bits, tensor subclasses, views that are not contiguous. While ``torch.compile`` or
``torch.export`` traces, the own forward is traced, because Inductor fuses it with its neighbours.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from precast._adopt.instances import (
    GATE,
    LOSS,
    eps_of,
    has_hooks,
    is_ours,
    ours,
    own,
    plain,
    served,
)
from precast._adopt.probe import StandIn, twin_of
from precast._adopt.seen import Child, Seen, is_changed, is_traced, unproved
from precast.ops.activations import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from precast.ops.losses import cross_entropy, linear_cross_entropy
from precast.ops.norm import Casting
from precast.ops.norm import layer_norm as _layer_norm
from precast.ops.norm import rms_norm as _rms_norm
from precast.ops.norm import rms_norm_gated as _rms_norm_gated
from precast.ops.softmax import scaled_softmax

Proof = Seen | None  # None: a certificate of an older version of this package, or a layer for `kernels`
GATES: dict[str, Callable[..., Tensor]] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_tanh": gelu_tanh_and_mul,
}


@ours
def rms_norm(
    module: Any,
    casting: Casting,
    eps: str,
    scaled: bool,
    device: str,
    /,
    *given: Any,
    _proof: Proof = None,
    **named: Any,
) -> Any:
    """An RMS norm, with a weight if it is ``scaled``; ``eps`` is the name of the attribute."""
    if unproved(module, _proof):
        return own(module, *given, **named)
    weight = module._parameters.get("weight")
    if weight is None and scaled:
        weight = module.weight  # computed for each call
    if len(given) == 1 and not named and served(given[0], weight, device):
        x = given[0]
        fits = scaled or (weight is None and getattr(module, "normalized_shape", None) in (None, x.shape[-1:]))
        if fits and x.is_contiguous():
            return _rms_norm(x, weight, eps_of(module, eps), casting=casting)
    return own(module, *given, **named)


@ours
def rms_norm_gated(
    module: Any,
    casting: Casting,
    norm_first: bool,
    activation: str,
    group: int | None,
    device: str,
    /,
    *given: Any,
    _proof: Proof = None,
    **named: Any,
) -> Any:
    """An RMS norm with a gate, which is the second argument or has its name."""
    if unproved(module, _proof) or not given or len(given) + len(named) != 2 or not set(named) <= {"gate"}:
        return own(module, *given, **named)
    x, gate, weight = given[0], (*given[1:], *named.values())[0], module._parameters.get("weight")
    fits = weight is not None and served(x, weight, device) and served(gate, weight, device)
    if not fits or not x.is_contiguous() or gate.shape != x.shape:
        return own(module, *given, **named)
    options: Any = {"casting": casting, "norm_first": norm_first, "activation": activation, "group_size": group}
    return _rms_norm_gated(x, gate, weight, module.variance_epsilon, **options)


@ours
def layer_norm(module: Any, device: str, channels: bool, /, *given: Any, _proof: Proof = None, **named: Any) -> Any:
    """A layer norm over the last dimension or, with ``channels``, over the second of four."""
    if unproved(module, _proof):
        return own(module, *given, **named)
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or bias is None:
        weight, bias = module.weight, module.bias  # computed for each call, or none
    if len(given) == 1 and not named and served(given[0], weight, device):
        x = given[0].permute(0, 2, 3, 1) if channels else given[0]
        if weight is not None or x.shape[-1:] == module.normalized_shape:
            y = _layer_norm(x, weight, bias, module.eps)
            return y.permute(0, 3, 1, 2) if channels else y
    return own(module, *given, **named)


@ours
def softmax(module: Any, device: str, /, *given: Any, _proof: Proof = None, **named: Any) -> Any:
    """A softmax over the last dimension."""
    if unproved(module, _proof) or len(given) != 1 or named or not served(given[0], None, device):
        return own(module, *given, **named)
    x = given[0]
    return scaled_softmax(x, 1.0) if x.is_contiguous() and x.dim() else own(module, x)


@ours
def gated(
    module: Any,
    gate: str,
    act: Child,
    names: tuple[str, str, str],
    device: str,
    /,
    *given: Any,
    _proof: Proof = None,
    **named: Any,
) -> Any:
    """A gated MLP; ``names`` are those of the projections of gates, factors and result."""
    if len(given) != 1 or named or unproved(module, _proof) or is_changed(module, act):
        return own(module, *given, **named)
    of_gates, of_factors, of_result = (module._modules[name] for name in names)
    gates, factors = of_gates(given[0]), of_factors(given[0])
    # No autocast casts an activation or a product.
    if plain(gates, device) and plain(factors, device) and gates.dtype == factors.dtype:
        return of_result(GATES[gate](gates, factors))
    return of_result(getattr(module, act[0])(gates) * factors)


@ours
def packed_gated(
    module: Any,
    gate: str,
    act: Child,
    names: tuple[str, str],
    device: str,
    /,
    *given: Any,
    _proof: Proof = None,
    **named: Any,
) -> Any:
    """A gated MLP with one projection of gates and factors."""
    if len(given) != 1 or named or unproved(module, _proof) or is_changed(module, act):
        return own(module, *given, **named)
    projection, of_result = (module._modules[name] for name in names)
    both = projection(given[0])
    if plain(both, device):
        return of_result(GATES[gate](both))
    gates, factors = both.chunk(2, dim=-1)
    return of_result(factors * getattr(module, act[0])(gates))


@ours
def swapped_gated(
    module: Any,
    gate: str,
    act: Child,
    names: tuple[str],
    device: str,
    /,
    *given: Any,
    _proof: Proof = None,
    **named: Any,
) -> Any:
    """A projection that gives factors before gates. The activation is a child, or a method."""
    if len(given) != 1 or named or unproved(module, _proof) or is_changed(module, act):
        return own(module, *given, **named)
    both: Tensor = module._modules[names[0]](given[0])
    factors, gates = both.chunk(2, dim=-1)
    return GATES[gate](gates, factors) if plain(both, device) else factors * getattr(module, act[0])(gates)


@ours
def gate_of_experts(
    module: Module, gate: str, act: Child, device: str, /, both: Tensor, *, _proof: Proof = None
) -> Any:
    """The gate of all experts' rows."""
    if unproved(module, _proof) or not plain(both, device) or is_changed(module, act):
        return getattr(type(module), GATE)(module, both)
    return GATES[gate](both)


@ours
def causal_loss(
    own_loss: Callable[..., Tensor],
    device: str,
    head: Module | None,
    /,
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """The loss of the next tokens; like the own one, it reads no ``others``. It can be differentiated once.

    With a ``head``, ``logits`` are still the rows before it.
    """
    items: Any = num_items_in_batch
    single = items is None or type(items) is int or (type(items) is Tensor and items.dim() == 0)
    if not single or (head is None and (is_traced() or not plain(logits, device))):
        others |= {"num_items_in_batch": items, "ignore_index": ignore_index, "shift_labels": shift_labels}
        return own_loss(logits if head is None else head(logits), labels, vocab_size, **others)
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]  # type: ignore[arg-type]
    options: dict[str, Any] = {
        "target": shift_labels.reshape(-1).to(logits.device),
        "ignore_index": ignore_index,
        "num_items_in_batch": items.to(logits.device) if isinstance(items, Tensor) else items,
    }
    return cross_entropy(logits.view(-1, vocab_size), **options) if head is None else head(logits, **options)


def changed_logits(model: Any, options: tuple[str, ...], scales: tuple[str, ...]) -> str:
    """How logits are changed so that they are needed: capped by an option, or by a scale that rounds. Or nothing.

    A power of two does not round, so it may be multiplied with the rows before the head, unless float16 underflows.
    """
    for name in options:
        value = getattr(model.config, name, None)
        if value is not None:
            return f"its logits are changed, as config.{name} is {value}"
    for path in scales:
        value = operator.attrgetter(path)(model)
        if type(value) not in (int, float) or abs(math.frexp(value)[0]) != 0.5:
            return f"its logits are scaled, and {path} is {value}, no power of two"
        if model.lm_head.weight.dtype == torch.float16 or model.lm_head.bias is not None:
            return f"its logits are scaled by {path}, and float16 may underflow or a bias is scaled too"
    return ""


@ours
def without_logits(
    model: Any, device: str, options: tuple[Any, Any], /, *given: Any, _proof: Proof = None, **named: Any
) -> Any:
    """A causal language model that gives the loss of labels without logits; its own forward calls a twin's head.

    ``options`` of its config change logits unless they are None; its scales are now multiplied with the rows.
    """
    kept, loss, head = named.get("logits_to_keep", 0), model.__dict__.get(LOSS), model.lm_head
    tuples = named.get("return_dict") is False or not model.config.return_dict
    replaced = not (is_ours(loss) and is_ours(head.__dict__.get("forward"))) or has_hooks(head)
    replaced = replaced or bool(changed_logits(model, *options))
    called = named.get("labels") is None or len(given) > 1 or tuples or type(kept) is not int or kept
    if called or replaced or unproved(model, _proof) or torch._C._are_functorch_transforms_active():
        return own(model, *given, **named)
    twin: Any = twin_of(model, {"lm_head": StandIn(None)})
    twin.__dict__[LOSS] = functools.partial(causal_loss, loss, device, head)
    result = type(model).forward(twin, *given, **named)
    return type(result)(**{name: value for name, value in result.items() if name != "logits"})


@ours
def head_with_loss(head: Any, device: str, /, x: Tensor, *, target: Tensor | None = None, **options: Any) -> Any:
    """A last linear layer, which with a ``target`` gives its loss. Its parameters are read here and nowhere else."""
    if target is None:
        return own(head, x)
    rows = x.reshape(-1, x.shape[-1])
    if plain(rows, device) and type(head.weight) in (Tensor, torch.nn.Parameter):
        return linear_cross_entropy(rows, head.weight, target, linear_bias=head.bias, **options)
    return cross_entropy(own(head, rows), target, **options)
