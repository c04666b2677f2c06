"""What the optimizers do with DTensors, as cases that each rank runs: on the CPU, emulated, or with NCCL."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from precast import ops, optim

HERE: dict[str, Any] = {}  # kind, folder, device, mesh, the optimizers by name
ADAM = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}


def prepare(kind: str, folder: Path) -> None:
    """Choose the device and its optimizers."""
    torch.set_num_threads(1)
    device = "cuda" if kind == "cuda" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(dist.get_rank())
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("all",))
    HERE.update(kind=kind, folder=folder, device=device, mesh=mesh)
    HERE["adamw"] = optim.CPUAdam if kind == "cpu" else optim.FusedAdamW
    HERE["sgd"] = optim.CPUSGD if kind == "cpu" else optim.FusedSGD
    HERE["adagrad"] = optim.CPUAdagrad if kind == "cpu" else optim.FusedAdagrad
    HERE["lion"] = optim.CPULion if kind == "cpu" else optim.FusedLion


class Block(torch.nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 3 * width), torch.nn.Linear(3 * width, width)
        self.gate = torch.nn.Parameter(torch.ones(1))  # one element: all ranks but one have an empty shard

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        q, k, v = (
            f(y).unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.gate * self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    """Two blocks. 11 tokens and a width of 12 do not divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(11, 12)
        self.blocks = torch.nn.ModuleList(Block(12, 2) for _ in range(2))
        self.head = torch.nn.Linear(12, 11)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded_model(**options: Any) -> Any:
    """A transformer under FSDP2."""
    model = Transformer().to(HERE["device"])
    for block in model.blocks:
        fully_shard(block, mesh=HERE["mesh"], **options)
    return fully_shard(model, mesh=HERE["mesh"], **options)


def loss_of(model: Any, step: int) -> Any:
    """The loss of this rank's batch."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    tokens = torch.randint(11, (3, 7), generator=generator).to(HERE["device"])
    return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model: Any, optimizer: Any, steps: int = 20, first: int = 0, clip: Callable[..., Any] | None = None) -> Any:
    """Some steps; returns the last loss."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        if clip is not None:
            clip(model.parameters(), 0.5)
        optimizer.step()
    return loss.detach()


def whole(tensor: Any) -> Any:
    """All elements."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same_training(ours: Any, theirs: Any, tolerance: float = 2e-6) -> None:
    """Parameters and states of two (model, optimizer) agree, and the states are DTensors where torch's are."""
    for (name, a), b in zip(ours[0].named_parameters(), theirs[0].parameters(), strict=True):
        torch.testing.assert_close(whole(a), whole(b), rtol=20 * tolerance, atol=tolerance, msg=name)
        mine, others = ours[1].state[a], theirs[1].state[b]
        for key, value in others.items():
            assert type(mine[key]) is type(value), (name, key)
            assert getattr(mine[key], "placements", None) == getattr(value, "placements", None)
            torch.testing.assert_close(whole(mine[key]), whole(value), rtol=1e-4, atol=tolerance)


def torchs_adamw(params: Any, **options: Any) -> Any:
    """The fused one."""
    return torch.optim.AdamW(params, fused=True, **options)


def fsdp2_trains_as_torch() -> None:
    """20 steps; a shard of one parameter is empty on all ranks but one."""
    sides = []
    for make in (HERE["adamw"], torchs_adamw):
        model = sharded_model()
        sides.append((model, make(model.parameters(), **ADAM)))
        start = loss_of(model, 0).detach()
        assert train(*sides[-1]) < start
    assert_same_training(*sides)
    if dist.get_world_size() > 1:
        empty = torch.tensor([float(any(p.to_local().numel() == 0 for p in sides[0][0].parameters()))])
        dist.all_reduce(empty)
        assert empty > 0


def placed(tensor: Any, *placements: Any, mesh: Any = None) -> Any:
    """A DTensor of equal values on each rank."""
    return distribute_tensor(tensor.clone(), mesh or HERE["mesh"], placements)


def twins(shapes: Any, *placements: Any, mesh: Any = None, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """The same parameters as DTensors, and whole."""
    generator = torch.Generator().manual_seed(seed)
    plain = [torch.randn(shape, generator=generator).to(HERE["device"]) for shape in shapes]
    return [torch.nn.Parameter(placed(p, *placements, mesh=mesh)) for p in plain], list(map(torch.nn.Parameter, plain))


def give(sharded: Any, plain: Any, seed: int) -> None:
    """The same gradients for both."""
    generator = torch.Generator().manual_seed(seed)
    for a, b in zip(sharded, plain, strict=True):
        b.grad = torch.randn(b.shape, generator=generator).to(b.device)
        a.grad = distribute_tensor(b.grad.clone(), a.device_mesh, a.placements)


SHAPES = [(5, 7), (3,), (1,), (40, 31), (2, 3, 4)]


def elementwise_steps_are_those_of_the_whole() -> None:
    """The same bits as on one device, from every rule, in one launch."""
    rules = {"adamw": ADAM, "sgd": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "lion": {"weight_decay": 0.1}}
    for name, options in {**rules, "adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.2}}.items():
        sharded, plain = twins(SHAPES, Shard(0))
        ours, one = HERE[name](sharded, **options), HERE[name](plain, **options)
        for step in range(4):
            give(sharded, plain, step)
            if step == 2:
                sharded[0].grad = plain[0].grad = None
            ours.step()
            one.step()
            assert all(map(torch.equal, map(whole, sharded), plain)), (name, step)


def a_new_shard_is_noticed() -> None:
    """FSDP2 replaces local tensors. Rank 0 alone makes a new plan, and no collective is lost."""
    sharded, plain = twins(SHAPES, Shard(0))
    ours, one = HERE["adamw"](sharded, **ADAM), HERE["adamw"](plain, **ADAM)
    for step in range(4):
        give(sharded, plain, step)
        if step == 2 and dist.get_rank() == 0:
            sharded[0]._local_tensor = sharded[0]._local_tensor.clone()
        if step > 1:  # a collective in the middle of each step
            sharded[3].grad = DTensor.from_local(plain[3].grad / dist.get_world_size(), HERE["mesh"], [Partial()])
        ours.step()
        one.step()
    for a, b in zip(sharded, plain, strict=True):
        torch.testing.assert_close(whole(a), b.detach())


def other_gradients_are_redistributed() -> None:
    """Partial and replicated gradients of sharded parameters, as torch does, once per step."""
    ranks, mesh = dist.get_world_size(), HERE["mesh"]
    sides = []
    for make in (HERE["adamw"], torchs_adamw):
        (param, *_), _ = twins(SHAPES, Shard(0))
        optimizer = make([param], **ADAM)
        for step in range(3):
            local = torch.full((5, 7), 1.0 + step + dist.get_rank(), device=HERE["device"])
            param.grad = DTensor.from_local(local, mesh, [Partial()])
            optimizer.step()
            assert param.grad.placements == (Partial(),)
        param.grad = DTensor.from_local(torch.ones(5, 7, device=HERE["device"]), mesh, [Replicate()])
        optimizer.step()
        sides.append(whole(param))
    torch.testing.assert_close(*sides)
    assert ranks == mesh.size()


def a_gradient_that_is_still_underway() -> None:
    """The local tensor of the gradient is an AsyncCollectiveTensor."""
    (param, *_), (plain, *_) = twins([(5, 7)], Replicate())
    grad = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).to(HERE["device"])
    parts = DTensor.from_local(grad / dist.get_world_size(), HERE["mesh"], [Partial()])
    param.grad = parts.redistribute(placements=[Replicate()], async_op=True)
    assert dist.get_world_size() == 1 or type(param.grad._local_tensor).__name__ == "AsyncCollectiveTensor"
    plain.grad = grad
    for optimizer in (HERE["adamw"]([param], **ADAM), HERE["adamw"]([plain], **ADAM)):
        optimizer.step()
    assert getattr(param.grad._local_tensor, "completed", True)
    torch.testing.assert_close(whole(param), plain.detach())


def tensor_parallel_steps() -> None:
    """Colwise and rowwise linear layers, biases too, against torch and against the whole."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def made() -> Any:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6)]
        return torch.nn.Sequential(*layers).to(HERE["device"])

    sides = []
    for make in (HERE["adamw"], torchs_adamw, None):
        model = made()
        if make is not None:
            parallelize_module(model, HERE["mesh"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        optimizer = (make or HERE["adamw"])(model.parameters(), **ADAM)
        for step in range(5):
            optimizer.zero_grad()
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(HERE["device"])
            model(x).square().sum().backward()
            optimizer.step()
        sides.append((model, optimizer))
    assert_same_training(sides[0], sides[1], 1e-5)
    for a, b in zip(sides[0][0].parameters(), sides[2][0].parameters(), strict=True):
        torch.testing.assert_close(whole(a), b)


def fsdp1_trains_as_torch() -> None:
    """Flat parameters, and views of them, some of which are empty."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    for views in (False, True):
        sides = []
        for make in (HERE["adamw"], torchs_adamw):
            model: Any = FullyShardedDataParallel(
                Transformer(), device_id=torch.device(HERE["device"]), use_orig_params=views
            )
            sides.append((model, make(model.parameters(), **ADAM)))
            train(*sides[-1], steps=5)
        for a, b in zip(sides[0][0].parameters(), sides[1][0].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=4e-5, atol=2e-6)


def a_scaled_loss() -> None:
    """GradScaler on DTensors: an overflow on one rank skips the step on all; other steps unscale the gradients."""
    sharded, plain = twins([(5, 7), (3,)], Shard(0))
    scaler = torch.amp.GradScaler(HERE["device"], init_scale=4.0)
    ours = HERE["adamw"](sharded, **ADAM)
    one = torchs_adamw(plain, **ADAM)
    for step in range(4):
        give(sharded, plain, step)
        if step == 2 and dist.get_rank() == 0:
            sharded[0].grad._local_tensor.fill_(torch.inf)
        before = [whole(p).clone() for p in sharded]
        scaler.scale(torch.zeros((), device=HERE["device"]))
        for p in sharded:
            p.grad.mul_(scaler.get_scale())
        if step != 2:  # gradients with other placements
            local = plain[1].grad * scaler.get_scale() / (dist.get_world_size() if step else 1)
            sharded[1].grad = DTensor.from_local(local, HERE["mesh"], [Partial() if step else Replicate()])
        scaler.step(ours)
        scaler.update()
        if step == 2:
            assert all(map(torch.equal, map(whole, sharded), before))
            continue
        one.step()
        for a, b in zip(sharded, plain, strict=True):
            torch.testing.assert_close(whole(a.grad), b.grad)
    for a, b in zip(sharded, plain, strict=True):
        torch.testing.assert_close(whole(a), b.detach())


def tensors_are_swapped() -> None:
    """A plan refers to no tensor in a way that torch.utils.swap_tensors refuses, and the new shards are updated."""
    sharded, plain = twins([(5, 7), (3,)], Shard(0))
    ours, one = HERE["adamw"](sharded, **ADAM), HERE["adamw"](plain, **ADAM)
    for step in range(4):
        give(sharded, plain, step)
        ours.step()
        one.step()
        tensor = sharded[0] if step == 0 else ours.state[sharded[1]]["exp_avg"]
        other = torch.nn.Parameter(tensor.clone()) if tensor.requires_grad else tensor.clone()
        torch.utils.swap_tensors(tensor, other)
        with torch.no_grad():
            other.to_local().fill_(torch.nan)
    for a, b in zip(sharded, plain, strict=True):
        torch.testing.assert_close(whole(a), b.detach())
        torch.testing.assert_close(whole(ours.state[a]["exp_avg"]), one.state[b]["exp_avg"])


def masters_of_a_sharded_model() -> None:
    """Float32 masters and a bfloat16 model, both DTensors."""
    sharded, plain = twins([(5, 7), (3,)], Shard(0))
    low, low_plain = ([p.detach().bfloat16() for p in params] for params in (sharded, plain))
    if HERE["kind"] == "cpu":
        ours, one = HERE["adamw"](sharded, **ADAM), HERE["adamw"](plain, **ADAM)
    else:
        ours, one = (HERE["adamw"](params, master_weights=True, **ADAM) for params in (low, low_plain))
    for step in range(3):
        give(sharded, plain, step)
        if HERE["kind"] == "cpu":
            ours.step(grads=[p.grad for p in sharded], copies=low)
            one.step(grads={p: p.grad for p in plain}, copies=low_plain)
            continue
        for a, b in ((sharded, low), (plain, low_plain)):
            for p, q in zip(a, b, strict=True):
                q.grad = p.grad.bfloat16()
        ours.step()
        one.step()
    assert all(map(torch.equal, map(whole, low), low_plain))
    if HERE["kind"] != "cpu":
        assert isinstance(ours.state[low[0]]["master_param"], DTensor)


def refused(text: str, action: Callable[[], Any]) -> None:
    """Assert that this raises a RuntimeError with this text."""
    found = "no error"
    try:
        action()
    except RuntimeError as error:
        found = str(error)
    assert text in found, found


def what_does_not_fit_is_refused() -> None:
    """Before anything is written."""
    (param, other), _ = twins([(5, 7), (4,)], Shard(0))
    param.grad = placed(torch.ones(5, 7).to(HERE["device"]), Shard(0))
    optimizer = HERE["adamw"]([param], **ADAM)
    optimizer.step()
    before = whole(param).clone()
    kept = optimizer.state[param]["exp_avg"]
    optimizer.state[param]["exp_avg"] = torch.zeros(5, 7, device=HERE["device"])
    refused("a parameter is a DTensor, and its exp_avg is not", optimizer.step)
    optimizer.state[param]["exp_avg"] = placed(torch.zeros(5, 7).to(HERE["device"]), Replicate())
    refused("and its exp_avg has (Replicate(),); needed the same for both", optimizer.step)
    again = init_device_mesh(HERE["device"], (dist.get_world_size(), 1))
    optimizer.state[param]["exp_avg"] = placed(torch.zeros(5, 7).to(HERE["device"]), Shard(0), Replicate(), mesh=again)
    refused("needed one mesh for both", optimizer.step)
    optimizer.state[param]["exp_avg"] = kept
    optimizer.step()
    assert not torch.equal(whole(param), before)
    sums = torch.nn.Parameter(DTensor.from_local(other.to_local().detach(), HERE["mesh"], [Partial()]))
    sums.grad = DTensor.from_local(other.to_local().detach(), HERE["mesh"], [Partial()])
    refused("needed Shard or Replicate", HERE["adamw"]([sums]).step)


def copies_and_pickles() -> None:
    """Deep copies of an optimizer work on with their own parameters."""
    sharded, plain = twins([(5, 7)], Shard(0))
    ours = HERE["adamw"](sharded, **ADAM)
    give(sharded, plain, 1)
    ours.step()
    loaded = HERE["adamw"](sharded, **ADAM)
    loaded.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert isinstance(loaded.state[sharded[0]]["exp_avg"], DTensor)
    loaded.step()
    assert float(loaded.state[sharded[0]]["step"]) == 2 and float(ours.state[sharded[0]]["step"]) == 1


def clipped_by_ours(params: Any, most: float) -> Any:
    """For ``train``."""
    return ops.clip_grad_norm_(params, most)


def an_offloaded_model_trains_as_torch() -> None:
    """FSDP2 keeps parameters, gradients and states in CPU memory; for meshes of GPUs."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    sides = []
    for make in (optim.CPUAdam, torchs_adamw):
        model = sharded_model(offload_policy=CPUOffloadPolicy())
        sides.append((model, make(model.parameters(), **ADAM)))
        train(*sides[-1], steps=5)
        assert all(param.is_cpu for param in model.parameters())
    assert_same_training(*sides)
