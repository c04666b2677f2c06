"""How the ops are split over a device mesh when their tensors are DTensors: rules, handed to torch when first asked.

A rule says, for one dimension of the mesh, which placements of the results go with which placements of the arguments;
torch chooses among them, and redistributes what is placed otherwise. Norms, activations and softmax work on rows, so
every dimension but the last may be sharded; what is the same for all rows is replicated, and its gradient is a partial
sum. Ops that write into their arguments are refused: torch could give them a redistributed copy to write into.

torch asks the fake kernel of an op for the shape of its result before it looks for a rule, and that is where its rule
is registered (``formulas.register``): at the first call on a DTensor, at no cost to anybody else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from precast._dispatch import formulas, namespace

Placements = list[Any]
Choices = list[tuple[Placements, Placements]]  # of results and arguments
Rule = Callable[..., Choices]


@functools.cache
def register_once(name: str) -> bool:
    """Registers the rule of an op; False where there is none, or this torch takes none: its own error names the op."""
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:  # torch 2.4 and 2.5
        return False
    rule = formulas.RULES.get(name)
    if rule is None:
        return False
    register_sharding(namespace.overload(name))(_refusal(name) if rule is formulas.refused else rule)
    return True


def over_rows(x: Any, kept: int, args: Sequence[Any], results: int, sums: int) -> Choices:
    """Everything replicated, or one dimension of ``x`` but the last ``kept`` sharded.

    ``args`` are the other arguments: one with ``x``'s shape follows it, as far as it is not broadcast; other tensors
    are replicated. The first ``results`` results follow ``x``, the next ``sums`` are sums over what is sharded.
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
    """Whether torch has put the description of a tensor here; those have a shape, and numbers have none."""
    return hasattr(arg, "shape")


def _refusal(name: str) -> Rule:
    def refuse(*_: Any) -> Any:
        new = name.removesuffix("_")
        another = new != name and new in formulas.RULES
        wanted = f"precast.ops.{new}, which returns new tensors, or " if another else ""
        raise RuntimeError(
            f"{name}: a DTensor was given, and there is no rule for sharding this op; needed {wanted}local tensors: "
            "x.to_local()"
        )

    return refuse
