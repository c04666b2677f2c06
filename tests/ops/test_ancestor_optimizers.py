"""The older package's optimizer classes run on the loaders, and step as torch's optimizers do in float64."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.errors import KernelError  # noqa: E402
from precast.kernel_loader import CPUAdamLoader, FusedOptimizerLoader  # noqa: E402
from tests.ops import ancestor_optimizers as older  # noqa: E402
from tests.ops import list_functions as must  # noqa: E402
from tests.ops.plain_optimizers import Lamb  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

ON = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
BETAS, STEPS = (0.8, 0.95), 5
ADAMS = {
    "adamw": (torch.optim.AdamW, {"adamw_mode": True}),
    "adam": (torch.optim.Adam, {"adamw_mode": False}),
}
SGDS: dict[str, dict[str, Any]] = {
    "plain": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


def functions(where: str) -> Any:
    """The kernels on a GPU; plain torch on the CPU, and where no kernel is found."""
    loaded = FusedOptimizerLoader().load(ext_name="fused_optim_torch" if where == "cpu" else None)
    assert (loaded.source.kind == "torch") is (where == "cpu" or "tests.ops.only_plain" in sys.modules)
    return loaded


def cpu_adam() -> Any:
    (name,) = [name for name in CPUAdamLoader.names() if CPUAdamLoader().load().__name__ == name]
    return CPUAdamLoader().load(ext_name=name)


def give(params: list[Any], seed: int) -> None:
    for index, param in enumerate(params):
        generator = torch.Generator().manual_seed(100 * seed + index)
        param.grad = torch.randn(param.shape, generator=generator).to(param.device, param.dtype)


def steps_are(ours: Any, params: list[Any], make_theirs: Callable[[list[Any]], Any], allowed: float = 2e-5) -> None:
    """Both take the same gradients."""
    exact = [p.detach().double().requires_grad_() for p in params]
    theirs = make_theirs(exact)
    for step in range(1, STEPS + 1):
        give(params, step)
        for param, wide in zip(params, exact, strict=True):
            wide.grad = param.grad.double()
        ours.step()
        theirs.step()
    for param, wide in zip(params, exact, strict=True):
        torch.testing.assert_close(param.detach().double(), wide.detach(), rtol=allowed, atol=allowed)


def leaves(dtype: Any, where: str, seed: int = 1) -> list[Any]:
    return [tensor.requires_grad_() for tensor in must.made(dtype, seed, where)]


@ON
@pytest.mark.parametrize("kind", ADAMS)
def test_fused_adam(where: str, kind: str) -> None:
    theirs, mode = ADAMS[kind]
    params = leaves(torch.float32, where)
    numbers = {"lr": 0.05, "betas": BETAS, "eps": 1e-6, "weight_decay": 0.1}
    ours = older.FusedAdam(params, functions(where), **numbers, **mode)
    # fails if a parameter differs from torch's in float64 by more than 2e-5
    steps_are(ours, params, lambda exact: theirs(exact, **numbers))


@ON
@pytest.mark.parametrize("kind", ADAMS)
def test_hybrid_adam_steps_some_on_the_cpu(where: str, kind: str) -> None:
    theirs, mode = ADAMS[kind]
    params = leaves(torch.float32, where)
    half = [p for i, p in enumerate(leaves(torch.float32, "cpu", 2)) if i % 2]
    numbers = {"lr": 0.05, "betas": BETAS, "eps": 1e-6, "weight_decay": 0.1}
    ours = older.HybridAdam([*params, *half], functions(where), cpu_adam(), **numbers, **mode)
    ours.on_cpu = lambda param: any(param is one for one in half)  # type: ignore[method-assign]
    # fails if a parameter differs from torch's in float64 by more than 2e-5
    steps_are(ours, [*params, *half], lambda exact: theirs(exact, **numbers))


@pytest.mark.parametrize("kind", ADAMS)
def test_cpu_adam(kind: str) -> None:
    theirs, mode = ADAMS[kind]
    params = leaves(torch.float32, "cpu")
    numbers = {"lr": 0.05, "betas": BETAS, "eps": 1e-6, "weight_decay": 0.1}
    # fails if a parameter differs from torch's in float64 by more than 2e-5
    steps_are(older.CPUAdam(params, cpu_adam(), **numbers, **mode), params, lambda exact: theirs(exact, **numbers))


@ON
@pytest.mark.parametrize("kind", SGDS)
def test_fused_sgd(where: str, kind: str) -> None:
    params = leaves(torch.float32, where)
    options = {"lr": 0.05, **SGDS[kind]}
    # fails if a parameter differs from torch's in float64 by more than 2e-5
    steps_are(
        older.FusedSGD(params, functions(where), **options), params, lambda exact: torch.optim.SGD(exact, **options)
    )


@ON
def test_fused_lamb(where: str) -> None:
    params = leaves(torch.float32, where)
    numbers = {"lr": 0.05, "betas": BETAS, "eps": 1e-6, "weight_decay": 0.1}
    ours = older.FusedLAMB(params, functions(where), **numbers, max_grad_norm=1e6)
    # fails if a parameter differs from torch's in float64 by more than 2e-5
    steps_are(ours, params, lambda exact: Lamb(exact, **numbers))


@ON
@pytest.mark.parametrize("make", [older.FusedAdam, older.FusedSGD, older.FusedLAMB])
def test_groups_of_two_dtypes(where: str, make: Any) -> None:
    """float16 parameters with float16 states beside float32 ones: each is as if it were alone."""
    params = leaves(torch.float32, where) + leaves(torch.float16, where, 2)
    options = {"max_grad_norm": 1e6} if make is older.FusedLAMB else {}
    ours = make([{"params": params[::2]}, {"params": params[1::2], "lr": 0.01}], functions(where), lr=0.05, **options)
    alone = [p.detach().clone().requires_grad_() for p in params]
    others = [make([p], functions(where), lr=0.01 if i % 2 else 0.05, **options) for i, p in enumerate(alone)]
    for step in (1, 2):
        give(params, step)
        give(alone, step)
        ours.step()
        for other in others:
            other.step()
    assert all(map(torch.equal, params, alone))


@ON
def test_the_functions_alone(where: str) -> None:
    # fails if a tensor differs from its formula in float64
    module = functions(where)
    for dtypes in must.LOW:
        for adam in must.ADAM:
            must.check_adam(module, dtypes, *adam, where)
        for momentum, sgd in must.SGD:
            must.check_sgd(module, dtypes, momentum, sgd, where)
        for mode, decay, lamb in must.LAMB:
            must.check_lamb(module, dtypes, mode, lamb, where, decay)
        for mode in (0, 1):
            must.check_adagrad(module, dtypes, mode, where)
    must.check_sums(module, where)
    must.check_more_sums(module, where)


def test_kernels_refuse_tensors_of_the_cpu() -> None:
    """The functions of plain torch take them; the kernels are for GPUs."""
    from precast.compat.lists import multi_tensor_adam as adam

    tensors = [must.made(torch.float32, seed) for seed in range(4)]
    before = [t.clone() for t in tensors[1]]
    with pytest.raises(KernelError, match="multi_tensor") as raised:
        adam(65536, must.flag(), tensors, 0.1, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)
    assert "tensor.to('cuda')" in str(raised.value)
    assert all(map(torch.equal, tensors[1], before))


@pytest.mark.gpu
def test_a_graph_replays_the_functions_after_their_call_has_ended() -> None:
    """Other pinned memory is allocated in between, which could take the place of the source of the lists."""
    module = functions("cuda")
    tensors = [[t.abs() for t in must.made(torch.float32, seed, "cuda")] for seed in range(4)]
    exact = [[t.clone() for t in some] for some in tensors]
    found = must.flag("cuda")
    numbers = (0.05, 0.9, 0.99, 1e-6, 3, 1, 1, 0.1, -1.0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # loads the kernels
        module.multi_tensor_adam(65536, found, [[t.clone() for t in some] for some in tensors], *numbers)
        module.multi_tensor_l2norm(65536, found, [tensors[1]])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.multi_tensor_adam(65536, found, tensors, *numbers)
        norm, _ = module.multi_tensor_l2norm(65536, found, [tensors[1]])
    torch.cuda.synchronize()
    noise = [torch.full((size,), 255, dtype=torch.uint8).pin_memory() for size in (64, 256, 512, 1024, 4096) * 20]
    for _ in range(3):
        graph.replay()
        module.multi_tensor_adam(65536, found, exact, *numbers)
    torch.cuda.synchronize()
    assert noise
    for some, others in zip(tensors, exact, strict=True):
        assert all(map(torch.equal, some, others))
    torch.testing.assert_close(norm.double(), torch.stack([t.double().norm() for t in exact[1]]).norm().reshape(1))
