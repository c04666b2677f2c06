"""How the ops are split over a device mesh when their tensors are DTensors: rules, handed to torch when first asked.

A rule says, for one dimension of the mesh, which placements of the results go with which placements of the arguments;
torch chooses among them, and redistributes what is placed otherwise. Norms, activations and softmax work on rows, so
every dimension but the last may be sharded; what is the same for all rows is replicated, and its gradient is a partial
sum. Ops that write into their arguments are refused: torch could give them a redistributed copy to write into.

torch asks the fake kernel of an op for the shape of its result before it looks for a rule, and that is where its rule
is registered (``_dispatch.register``): at the first call on a DTensor, at no cost to anybody else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from precast._dispatch import namespace

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
    if name.startswith("multi_tensor"):  # lists of GPU tensors keep torch's own error
        return False
    register_sharding(namespace.overload(name))(RULES.get(name) or _refusal(name))
    return True


def _over_rows(x: Any, kept: int, args: Sequence[Any], results: int, sums: int) -> Choices:
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


def _over_heads(query: Any, key: Any, cos: Any, sin: Any, positions: Any, *_: Any) -> Choices:
    """Everything replicated, or leading dimensions, tokens or heads sharded; tables of a row for each token follow."""
    from torch.distributed.tensor import Replicate, Shard

    def placed(place: Any, table: Any, position: Any) -> tuple[Placements, Placements]:
        beside = Replicate() if key is None else place  # the result for a key that is None has no elements
        given = [place, None if key is None else place, table, table, None if positions is None else position]
        return [place, beside], [*given, None, None]

    whole = Replicate()
    tokens = len(query.shape) - 3
    choices = [placed(whole, whole, whole)]
    for dim in range(len(query.shape) - 1):
        follows = Shard(0) if dim == tokens else whole
        choices.append(placed(Shard(dim), whole if positions is not None else follows, follows))
    return choices


def _is_tensor(arg: Any) -> bool:
    """Whether torch has put the description of a tensor here; those have a shape, and numbers have none."""
    return hasattr(arg, "shape")


def _rule(results: int, *, sums: int = 0, kept: int = 1) -> Rule:
    return lambda x, *args: _over_rows(x, kept, args, results, sums)


def _refusal(name: str) -> Rule:
    def refuse(*_: Any) -> Any:
        another = {"fused_add_rms_norm_", "rotary_embedding_"}
        wanted = f"precast.ops.{name[:-1]}, which returns new tensors, or " if name in another else ""
        raise RuntimeError(
            f"{name}: a DTensor was given, and there is no rule for sharding this op; needed {wanted}local tensors: "
            "x.to_local()"
        )

    return refuse


# A causal row must know its place, so its queries stay together. torch's cache of placements does not tell one value of
# `causal` from the other (it keeps integers and tensors apart), so the gradient of softmax has one rule for both.
RULES: dict[str, Rule] = {
    "rms_norm": _rule(1),
    "rms_norm_backward": _rule(1, sums=1),
    "fused_add_rms_norm": _rule(2),
    "fused_add_rms_norm_backward": _rule(1, sums=1),
    "rotary_embedding": _over_heads,
    "layer_norm": _rule(1),
    "layer_norm_backward": _rule(1, sums=2),
    "gated_activation": _rule(1),
    "gated_activation_backward": _rule(1),
    "scaled_softmax": _rule(1),
    "scaled_masked_softmax": _rule(1),
    "scaled_upper_triang_masked_softmax": _rule(1, kept=2),
    "scaled_aligned_causal_softmax": _rule(1, kept=2),
    "scaled_softmax_backward": _rule(1, kept=2),
}
