"""The cases of tests/ops on DTensors, with the emulated ops over lists in each rank."""

from __future__ import annotations

from pathlib import Path

from tests.ops import sharded_cases, sharded_checkpoints, sharded_norms


def prepare(kind: str, folder: Path) -> None:
    """Let tensors in CPU memory count as on a GPU, and call the emulated ops."""
    from precast.ops import multi_tensor
    from precast.optim import _gathered
    from tests.unit.csrc.conftest import EmulatedLists

    sharded_cases.prepare(kind, folder)
    sharded_cases.HERE["library"] = library = EmulatedLists(Path((folder / "library").read_text()))
    emulated = library.ops
    _gathered.on_gpu = multi_tensor.on_gpu = lambda tensor: tensor.is_cpu
    for name in ("plan", "step_", "forget"):
        setattr(multi_tensor, name, getattr(emulated, f"multi_tensor_{name}").default._op)
    multi_tensor.L2NORM = emulated.multi_tensor_l2norm.default
    multi_tensor.AXPBY_ = emulated.multi_tensor_axpby_.default


def __getattr__(name: str) -> object:
    modules = (sharded_norms, sharded_cases, sharded_checkpoints)
    return next(getattr(module, name) for module in modules if hasattr(module, name))
