"""Helps ops that run on local shards of DTensors: finds the shards, and adds up over a device mesh.

A DTensor is recognized by its attributes. Importing ``torch.distributed.tensor`` takes about a second, and only a
program that has a DTensor has already imported it.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether this is a DTensor."""
    return getattr(tensor, "_local_tensor", None) is not None


def is_partial(tensor: Tensor) -> bool:
    """Whether this is a DTensor whose elements are sums over ranks."""
    return any(placement.is_partial() for placement in getattr(tensor, "placements", ()))


def local_of(tensor: Tensor) -> Tensor:
    """The tensor itself, or the local shard of a DTensor, once its collective has finished.

    ``to_local`` returns a new tensor at each call if the DTensor is a Parameter.
    """
    shard: Any = getattr(tensor, "_local_tensor", None)
    if shard is None:
        return tensor
    if type(shard).__name__ == "AsyncCollectiveTensor":
        shard.trigger_wait()
        shard = shard.elem
    return cast("Tensor", shard)


def shards_of(tensors: Iterable[Any]) -> list[tuple[Any, Tensor]]:
    """The DTensors among these, each with its local tensor. FSDP2 and ``swap_tensors`` replace local tensors."""
    return [(tensor, tensor._local_tensor) for tensor in tensors if is_dtensor(tensor)]


def still_have(shards: Iterable[tuple[Any, Tensor]]) -> bool:
    """Whether each DTensor has the same local tensor as it had in ``shards_of``."""
    return all(tensor._local_tensor is shard for tensor, shard in shards)


def local_like(tensor: Tensor, param: Tensor, what: str, moved: MutableMapping[Tensor, Tensor] | None = None) -> Tensor:
    """The local part of ``tensor`` that belongs to the local shard of ``param``; ``tensor`` if that is no DTensor.

    A tensor with other placements is redistributed, and the result kept in ``moved``, so that every rank redistributes
    it once. If ``moved`` is None, that is a RuntimeError, as is a tensor that is no DTensor.
    """
    if not is_dtensor(param):
        return tensor
    if not is_dtensor(tensor):
        raise RuntimeError(f"a parameter is a DTensor, and {what} is not; needed a DTensor; nothing was updated")
    given, wanted = cast("Any", tensor), cast("Any", param)
    if given._spec is wanted._spec:  # so it is in FSDP2; the comparisons below take 3 us
        return local_of(given)
    placements = wanted.placements
    if given.device_mesh != wanted.device_mesh:
        raise RuntimeError(
            f"a parameter is on {wanted.device_mesh}, and {what} on {given.device_mesh}; needed one mesh for both; "
            "nothing was updated"
        )
    if given.placements != placements:
        if moved is None:
            raise RuntimeError(
                f"a parameter has placements {placements}, and {what} has {given.placements}; needed the same for "
                "both; nothing was updated"
            )
        if param not in moved:
            with torch.no_grad():
                found = given.redistribute(placements=placements)
                # On a mesh of one rank, it has the memory of the gradient, and an optimizer may write it.
                moved[param] = found.clone() if _memory(found) == _memory(given) else found
        given = moved[param]
    return local_of(given)


def _memory(tensor: Tensor) -> int:
    return local_of(tensor).untyped_storage().data_ptr()


def local_param(param: Tensor) -> Tensor:
    """The local shard of a parameter. RuntimeError if its elements are sums over ranks."""
    if not is_dtensor(param):
        return param
    if is_partial(param):
        placements = cast("Any", param).placements
        raise RuntimeError(f"a parameter has placements {placements}; needed Shard or Replicate; nothing was updated")
    return local_of(param)


def summed(values: Tensor, owners: Sequence[Tensor]) -> Tensor:
    """Add each row of ``values`` over the ranks that hold other shards of the owner with the same index.

    Owners that are sharded over the same dimension of a mesh share one collective. Every rank must call this.
    """
    rows: dict[tuple[Any, int], list[int]] = {}
    for index, owner in enumerate(owners):
        if is_dtensor(owner):
            mesh, placements = cast("Any", owner).device_mesh, cast("Any", owner).placements
            for dim, placement in enumerate(placements):
                if not placement.is_replicate():
                    rows.setdefault((mesh, dim), []).append(index)
    result = values.clone()
    for (mesh, dim), indices in rows.items():
        part = result if len(indices) == len(owners) else result[indices]
        torch.distributed.all_reduce(part, group=mesh.get_group(dim))
        if part is not result:
            result[indices] = part
    return result
