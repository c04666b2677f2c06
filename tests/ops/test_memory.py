"""Tensors whose storage was freed or shrunk after they were made: every op refuses them before it writes anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils import _pytree as pytree  # noqa: E402

from precast import ops  # noqa: E402
from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast.ops import _folders  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DEVICES = {op: family.devices for family in FAMILIES for op in family.op_names if not _folders.is_planned(op)}


def fresh(op: str, device: str) -> tuple[list[Any], Any]:
    """The leaves of an example call; each tensor has a storage of its own, without a byte to spare."""
    leaves, tree = pytree.tree_flatten(_folders.arguments(op))
    own = torch.contiguous_format
    return [x.to(device).clone(memory_format=own) if isinstance(x, torch.Tensor) else x for x in leaves], tree


def memory(leaves: list[Any]) -> list[list[int]]:
    return [x.untyped_storage().tolist() for x in leaves if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize("op", sorted(DEVICES))
def test_every_tensor_argument_needs_its_memory(op: str, device: str) -> None:
    if device not in DEVICES[op]:
        return
    call = getattr(torch.ops.precast, op)
    leaves, _ = fresh(op, device)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.numel() > 0]
    assert places
    for place in places:
        for missing in (leaves[place].nbytes, leaves[place].element_size()):
            given, tree = fresh(op, device)
            given[place].untyped_storage().resize_(given[place].nbytes - missing)
            before = memory(given)
            with pytest.raises(RuntimeError, match="storage"):
                call(*pytree.tree_unflatten(given, tree))
            assert memory(given) == before, (op, place)


def freed(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "layer_norm": lambda x, w: ops.layer_norm(x, freed(w)),
    "rms_norm": lambda x, w: ops.rms_norm(x, freed(w)),
    "with a gradient": lambda x, w: ops.rms_norm(x.requires_grad_(), freed(w)),
    "bias_act": lambda x, w: ops.bias_act(x, freed(w)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_freed_weight_is_no_absent_one(name: str, device: str) -> None:
    x, weight = torch.randn(4, 8, device=device), torch.randn(8, device=device)
    with pytest.raises(
        RuntimeError, match=r"argument 2 has shape \(\d,\) and needs \d+ bytes of its storage, which has 0"
    ):
        CALLS[name](x, weight)


def test_a_storage_may_be_larger_or_smaller_than_the_sizes_say(device: str) -> None:
    row = torch.randn(9, device=device)
    rows, weight = row[1:].expand(5, 8), row[:8]
    torch.testing.assert_close(ops.rms_norm(rows, weight), ops.rms_norm(rows.clone(), weight.clone()))
    empty = freed(torch.empty(0, 8, device=device))
    assert ops.rms_norm(empty, weight).shape == (0, 8)


def test_plain_torch_that_stands_in_needs_it_too(device: str) -> None:
    from precast._dispatch import namespace

    ops.define("rms_norm")
    kernel = namespace._as_kernel("rms_norm", lambda x, *_: torch.zeros_like(x))
    x, weight = torch.randn(4, 16, device=device)[:, ::2], torch.randn(8, device=device)
    assert kernel(x, weight, 1e-6, 0).shape == (4, 8) and kernel(x[:0], weight, 1e-6, 0).shape == (0, 8)
    x.untyped_storage().resize_(4 * 62)
    with pytest.raises(
        RuntimeError, match=r"argument 1 has shape \(4, 8\) and needs 252 bytes of its storage, which has 248"
    ):
        kernel(x, weight, 1e-6, 0)
