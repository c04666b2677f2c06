"""Cases for two ranks on the CPU: an adopted model under DDP and FSDP2. ``tests.ops.ranks`` runs them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast._adopt import samples
from precast.errors import KernelError
from tests.adopt import zoo


def prepare(kind: str, folder: Path) -> None:
    """One thread for each rank."""
    torch.set_num_threads(1)


def _pair() -> tuple[Any, Any, dict[str, Any]]:
    untouched = zoo.make("qwen3")
    batch = samples.sample(untouched)
    assert batch is not None
    return untouched, copy.deepcopy(untouched), dict(batch)


def _losses(model: Any, batch: dict[str, Any]) -> list[float]:
    """Of some steps; each rank has a row of the batch of its own."""
    rank = torch.distributed.get_rank()
    own = {name: value[rank : rank + 1] for name, value in batch.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(5):
        loss = model(**own).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


def _assert_close(one: list[float], other: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-5)


def data_parallel() -> None:
    """Adopted inside of DDP, which sees the same parameters and gradients."""
    untouched, adopted, batch = _pair()
    wrapped = torch.nn.parallel.DistributedDataParallel(adopted)
    report = precast.adopt(wrapped)
    assert report.ok, report
    assert any(one.output.startswith("gradient") for one in report.compared)
    _assert_close(_losses(wrapped, batch), _losses(torch.nn.parallel.DistributedDataParallel(untouched), batch))


def _sharded(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def adopted_before_sharding() -> None:
    """FSDP2 around an adopted model: a norm's weight is a plain tensor in its forward."""
    untouched, adopted, batch = _pair()
    assert precast.adopt(adopted).ok
    _assert_close(_losses(_sharded(adopted), batch), _losses(_sharded(untouched), batch))


def adopted_after_sharding() -> None:
    """The same, adopted on both ranks when the parameters are sharded; outputs are compared, gradients are not."""
    untouched, adopted, batch = _pair()
    report = precast.adopt(_sharded(adopted))
    assert report.ok, report
    assert {group.kind for group in report.replaced} == {"rms_norm", "rotary", "gated_mlp", "loss"}
    assert "gradients, and outputs with hidden parameters: the model is sharded" in report.not_compared
    _assert_close(_losses(adopted, batch), _losses(_sharded(untouched), batch))


def sharded_without_logits() -> None:
    """A head whose loss needs no logits, sharded later; adopted later, the sharded head keeps its logits."""
    untouched, adopted, batch = _pair()
    assert precast.adopt(adopted, logits=False).ok
    sharded = _sharded(adopted)
    _assert_close(_losses(sharded, batch), _losses(_sharded(untouched), batch))
    assert sharded(**batch).logits is None
    with pytest.raises(KernelError, match="weight of its lm_head is a DTensor"):
        precast.adopt(untouched, logits=False)


def flat_parameters() -> None:
    """FSDP of the first version writes back what it finds in a module's parameters, so none is hidden from it."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    x, found = torch.randn(4, 64), []
    for adopts in (False, True):
        one = FullyShardedDataParallel(copy.deepcopy(model), use_orig_params=True, device_id=torch.device("cpu"))
        if adopts:
            report = precast.adopt(one, x)
            assert report.ok and report.replaced, report
        optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
        for _ in range(3):
            y = one(x)
            y.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(one(x).detach())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def sequence_parallel_is_refused() -> None:
    """A norm whose weight is a DTensor of no FSDP unit is left alone, by name."""
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    parallelize_module(model, mesh, {"1": SequenceParallel()})
    report = precast.adopt(model)
    (group,) = report.left
    assert group.note == "its parameters are DTensors of no FSDP unit (tensor or sequence parallelism)"
    assert not report.replaced
