"""Loading ahead of a call: the loader, with the ops that belong above its kernels.

A job need not call :func:`prebuild`, because ranks that start cold take turns (``_builder/lock.py``). :func:`prebuild`
builds before the first step, and raises one error instead of one for each rank. No rank holds a lock while it waits
for others, and a rank whose build fails still answers, so every rank gets the error and none hangs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING

from precast._builder import catalogue
from precast._load import loader
from precast._load.loader import TorchDevice
from precast._load.source import Loaded
from precast.errors import BuildFailed, BuildTimeout, KernelError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def load(op: str, device: str | TorchDevice | None = None) -> Loaded:
    """Load the kernels of a function before its first call. On a GPU, a CUDA graph can then capture their launches.

    Args:
        op: a public name such as ``"silu_and_mul"`` or ``"FusedAdamW"``, or an op such as ``"precast::rms_norm"``. For
            a public name that is not an op, the kernels of its gradient are loaded too.
        device: ``"cpu"`` (the default where there are CPU kernels), ``"cuda"`` (the current GPU), ``"cuda:1"`` or a
            ``torch.device``.

    Returns:
        The source of the kernels; for several families, the source of the first.

    Raises:
        precast.errors.KernelError: no kernel can be loaded or built here; the message lists every reason.

    Example::

        precast.load("rms_norm", "cpu")
    """
    return loader.load(op, device, _define)


def ensure(family: str, device: str) -> Loaded:
    """Loads a family for a device type, as its first call would."""
    return loader.ensure(family, device, _define)


def _define(family: str) -> None:
    from precast import ops  # which imports torch: the loader has found one by now

    ops.define(family)


def prebuild(
    group: ProcessGroup | None = None, *, ops: Iterable[str] | None = None, device: str | TorchDevice | None = None
) -> tuple[Loaded, ...]:
    """Load kernels in every rank of ``group``, after one rank of each node has built the missing files.

    All ranks of the group must call this function with the same arguments. ``group`` is a group of
    ``torch.distributed``; None: the default group. If there is no group, this function calls :func:`precast.load` for
    each op. ``ops`` are names as for ``load``; by default all kernels of the device are loaded. ``device`` is as for
    ``load``. A build must end within the time-out of the group. If a node cannot build, every rank raises an error that
    names the failed rank.
    """
    names = _families(ops, str(device or "cpu").partition(":")[0])
    rank, nodes = _meet(group)
    if len(nodes) > 1:
        failure = _load_all(names, device)[1] if nodes.index(nodes[rank]) == rank else None
        _raise_first(_exchange(failure, group))
    loaded, failure = _load_all(names, device)
    if failure is not None:
        raise failure
    return loaded


def _families(ops: Iterable[str] | None, kind: str) -> list[str]:
    if ops is None:
        return [family.name for family in catalogue.FAMILIES if kind in family.devices]
    asked = [loader.families_of(op) for op in ops]
    able = [[family for family in families if kind in family.devices] or families[:1] for families in asked]
    return list(dict.fromkeys(family.name for families in able for family in families))


def _load_all(names: list[str], device: str | TorchDevice | None) -> tuple[tuple[Loaded, ...], KernelError | None]:
    try:
        return tuple(load(name, device) for name in names), None
    except KernelError as error:
        return (), error


def _meet(group: ProcessGroup | None) -> tuple[int, list[object]]:
    """This rank, and the node of every rank; a group of one where there is no distributed job."""
    if importlib.util.find_spec("torch") is None:
        return 0, [None]
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return 0, [None]
    from precast._builder.lock import this_machine

    return dist.get_rank(group), _exchange(this_machine(), group)


def _exchange(mine: object, group: ProcessGroup | None) -> list[object]:
    """What every rank has, by rank: a barrier that carries a value."""
    import torch.distributed as dist

    everybody: list[object] = [None] * dist.get_world_size(group)
    try:
        dist.all_gather_object(everybody, None if mine is None else str(mine), group=group)
    except RuntimeError as error:  # what every backend raises for a rank that is late or gone
        raise BuildTimeout(
            "precast.prebuild: not every rank has answered",
            found=str(error),
            needed=f"all {len(everybody)} ranks in precast.prebuild, within the time-out of their group",
            fix="if no rank has ended, start the job again with init_process_group(..., timeout=timedelta(hours=1))",
        ) from error
    return everybody


def _raise_first(failures: list[object]) -> None:
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise BuildFailed(f"rank {rank} could not prepare the kernels of its node\n{failure}")
