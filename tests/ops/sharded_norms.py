"""Norms over the shards of DTensors, as cases that each rank runs: LAMB, ``max_grad_norm`` and ``clip_grad_norm_``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from precast import ops, optim
from tests.ops import sharded_cases
from tests.ops.sharded_cases import ADAM, HERE, SHAPES, give, loss_of, prepare, sharded_model, train, twins, whole

__all__ = ["prepare"]


def meshes() -> list[tuple[Any, tuple[Any, ...]]]:
    """Meshes of one and of two dimensions, each with placements."""
    ranks = dist.get_world_size()
    tall, wide = (init_device_mesh(HERE["device"], shape) for shape in ((ranks, 1), (1, ranks)))
    return [
        (HERE["mesh"], (Shard(0),)),
        (HERE["mesh"], (Shard(1),)),
        (HERE["mesh"], (Replicate(),)),
        (tall, (Replicate(), Shard(0))),
        (wide, (Replicate(), Shard(0))),
        (wide, (Shard(0), Shard(1))),
    ]


def lamb_adapts_to_the_whole_parameter() -> None:
    """The trust ratios and the clipping are those of one device."""
    for mesh, placements in meshes():
        shapes = [(5, 7), (3, 3), (1, 1), (40, 31)]
        sharded, plain = twins(shapes, *placements, mesh=mesh)
        ours, one = optim.FusedLAMB(sharded, **ADAM), optim.FusedLAMB(plain, **ADAM)
        for step in range(6):
            give(sharded, plain, step)
            if step == 2:
                sharded[1].grad = plain[1].grad = None
            if step > 3 and dist.get_rank() == 0:  # this rank alone plans again, the second time after the norm
                if step == 4:
                    sharded[0]._local_tensor = sharded[0]._local_tensor.clone()
                sharded[0]._local_tensor.data = sharded[0]._local_tensor.clone()
            ours.step()
            one.step()
            for a, b in zip(sharded, plain, strict=True):
                torch.testing.assert_close(whole(a), b.detach(), rtol=1e-5, atol=1e-6, msg=f"{placements} {step}")
        assert float(ours.state[sharded[0]]["step"]) == 6


def lamb_with_masters_and_without_clipping() -> None:
    """In bfloat16, on shards beside parameters that are not sharded."""
    sharded, plain = twins(SHAPES, Shard(0))
    low, low_plain = ([torch.nn.Parameter(p.detach().bfloat16()) for p in params] for params in (sharded, plain))
    low[0] = torch.nn.Parameter(low_plain[0].detach().clone())
    options: dict[str, Any] = {**ADAM, "master_weights": True, "max_grad_norm": None}
    ours, one = optim.FusedLAMB(low, **options), optim.FusedLAMB(low_plain, **options)
    for step in range(3):
        give(sharded, plain, step)
        for p, q, from_p, from_q in zip(low, low_plain, sharded, plain, strict=True):
            q.grad = from_q.grad.bfloat16()
            p.grad = from_p.grad.bfloat16() if isinstance(p, DTensor) else q.grad.clone()
        ours.step()
        one.step()
    for a, b in zip(low, low_plain, strict=True):
        torch.testing.assert_close(
            whole(ours.state[a]["master_param"]), one.state[b]["master_param"], rtol=1e-5, atol=1e-6
        )


def adamw_clips_by_the_norm_of_all_shards() -> None:
    """``max_grad_norm`` with placements of every kind, and with partial gradients."""
    for mesh, placements in meshes():
        sharded, plain = twins([(5, 7), (3, 3), (40, 31)], *placements, mesh=mesh)
        ours = optim.FusedAdamW(sharded, max_grad_norm=0.1, **ADAM)
        one = torch.optim.AdamW(plain, **ADAM)
        for step in range(3):
            give(sharded, plain, step)
            if placements == (Shard(0),):
                part = plain[0].grad / dist.get_world_size()
                sharded[0].grad = DTensor.from_local(part, mesh, [Partial()])
            torch.nn.utils.clip_grad_norm_(plain, 0.1)
            ours.step()
            one.step()
        for a, b in zip(sharded, plain, strict=True):
            torch.testing.assert_close(whole(a), b.detach(), rtol=1e-5, atol=1e-6, msg=str(placements))


def clip_grad_norm_is_torchs() -> None:
    """The same norm as a DTensor, and the same gradients, clipped or not."""
    for most, kind in ((0.1, 2.0), (1e4, 2.0), (0.1, float("inf"))):
        for mesh, placements in meshes():
            sides = []
            for clip in (ops.clip_grad_norm_, torch.nn.utils.clip_grad_norm_):
                # torch has no infinity norm of an empty shard.
                shapes = [(5, 7), (3, 3), *([(1, 1)] if kind == 2.0 else [])]
                params, plain = twins(shapes, *placements, mesh=mesh)
                give(params, plain, 1)
                sides.append((clip(params, most, kind), params))
            (norm, ours), (other, theirs) = sides
            assert isinstance(norm, DTensor) and norm.device_mesh == mesh
            torch.testing.assert_close(norm.full_tensor(), other.full_tensor())
            for a, b in zip(ours, theirs, strict=True):
                assert a.grad.placements == b.grad.placements
                torch.testing.assert_close(whole(a.grad), whole(b.grad))


def partial_gradients_are_added_before_they_are_squared() -> None:
    """And stay partial; a plain gradient beside them counts once."""
    (param, other), (plain, _) = twins([(5, 7), (3,)], Replicate())
    grad = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).to(HERE["device"])
    local = grad + (grad if dist.get_rank() == 0 else -grad) * (dist.get_world_size() > 1)
    param.grad = DTensor.from_local(local / dist.get_world_size(), HERE["mesh"], [Partial()])
    plain.grad, other.grad = torch.ones(5, 7, device=HERE["device"]), None
    norm = ops.clip_grad_norm_([param, plain, other], 1.0)
    expected = (grad.square().sum() + 35).sqrt()
    torch.testing.assert_close(whole(norm), expected)
    assert param.grad.placements == (Partial(),)
    torch.testing.assert_close(whole(param.grad), grad / (expected + 1e-6))
    torch.testing.assert_close(plain.grad, torch.ones_like(plain) / (expected + 1e-6))


def clipped_training_is_torchs() -> None:
    """FSDP2, 20 steps with each one's clipping."""
    sides = []
    for make, clip in (
        (HERE["adamw"], ops.clip_grad_norm_),
        (sharded_cases.torchs_adamw, torch.nn.utils.clip_grad_norm_),
    ):
        model = sharded_model()
        sides.append((model, make(model.parameters(), **ADAM)))
        assert train(*sides[-1], clip=clip) < loss_of(sharded_model(), 0)
    sharded_cases.assert_same_training(*sides, tolerance=1e-5)
