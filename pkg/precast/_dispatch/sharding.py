"""Rules for splitting the ops over a device mesh when their tensors are DTensors; torch gets them on first use.

For one dimension of the mesh, a rule lists which placements of the results go with which placements of the arguments.
torch chooses among them and redistributes tensors that are placed otherwise. Norms, activations and softmax work on
rows, so every dimension but the last may be sharded; an argument shared by all rows is replicated, and its gradient is
a partial sum. Ops that write into their arguments are refused: torch could pass a redistributed copy to write into.

Before torch looks for an op's rule, it calls the fake kernel for the shape of the result. The rule is registered there
(``formulas.register``), at the first call on a DTensor, so other calls cost nothing extra.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from precast._dispatch import namespace
from precast._dispatch.namespace import Rule, refused

Placements = list[Any]
Choices = list[tuple[Placements, Placements]]  # pairs of the results' and the arguments' placements


@functools.cache
def register_once(name: str) -> bool:
    """Register the rule of an op. False if there is none or torch supports no rules; torch's error names the op."""
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:  # torch 2.4 and 2.5
        return False
    rule = namespace.RULES.get(name)
    if rule is None:
        return False
    register_sharding(namespace.overload(name))(_refusal(name) if rule is refused else rule)
    return True


def over_rows(x: Any, kept: int, args: Sequence[Any], results: int, sums: int) -> Choices:
    """All tensors replicated, or one dimension of ``x`` sharded, except the last ``kept``.

    ``args`` are the other arguments. An argument of ``x``'s shape is sharded like ``x`` where it is not broadcast;
    other tensors are replicated. The first ``results`` results are sharded like ``x``; the next ``sums`` results are
    sums over the sharded dimension.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    everything = (x, *args)
    whole = [Replicate() if _is_tensor(arg) else None for arg in everything]
    choices: Choices = [([Replicate()] * (results + sums), whole)]
    for dim in range(len(x.shape) - kept):
        from_end = len(x.shape) - dim
        inputs: Placements = []
        for arg in everything:
            if not _is_tensor(arg):
                inputs.append(None)
            elif len(arg.shape) >= from_end and arg.shape[-from_end] == x.shape[dim]:
                inputs.append(Shard(len(arg.shape) - from_end))
            else:
                inputs.append(Replicate())
        choices.append(([*[Shard(dim)] * results, *[Partial()] * sums], inputs))
    return choices


def _is_tensor(arg: Any) -> bool:
    """Whether this is torch's description of a tensor, which has a shape; numbers have none."""
    return hasattr(arg, "shape")


def _refusal(name: str) -> Rule:
    def refuse(*_: Any) -> Any:
        new = name.removesuffix("_")
        another = new != name and new in namespace.RULES
        wanted = f"precast.ops.{new}, which returns new tensors, or " if another else ""
        raise RuntimeError(
            f"{name}: a DTensor was given, and there is no rule for sharding this op; needed {wanted}local tensors: "
            "x.to_local()"
        )

    return refuse
