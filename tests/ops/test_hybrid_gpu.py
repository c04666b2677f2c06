"""HybridAdam with parameters on the CPU and on a real GPU: numbers, memory, moves, GradScaler."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import HybridAdam  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.gpu]

SHAPES = [(4096,), (1000, 33), (), (7,), (513,), (300_001,), (64, 3, 5, 5)]
LIMITS = [None, 1 << 20, 0]


def made(dtype: Any = torch.float32) -> list[Any]:
    """Every other one on the GPU."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES * 2]
    return [tensor.to("cuda" if index % 2 else "cpu") for index, tensor in enumerate(tensors)]


def give(params: list[Any], step: int, scale: float = 1.0) -> None:
    for index, param in enumerate(params):
        generator = torch.Generator().manual_seed(100 * step + index)
        param.grad = (scale * torch.randn(param.shape, generator=generator)).to(param.device, param.dtype)


def near(params: list[Any], exact: list[Any], allowed: float = 1e-5) -> None:
    for param, wide in zip(params, exact, strict=True):
        torch.testing.assert_close(param.double().cpu(), wide.cpu(), rtol=allowed, atol=allowed)


@pytest.mark.parametrize("limit", LIMITS)
def test_steps_on_both_are_torchs(limit: int | None) -> None:
    params = made()
    exact = [p.double().cpu() for p in params]
    ours, theirs = (
        HybridAdam(params, lr=1e-2, weight_decay=0.1, gpu_bytes=limit),
        torch.optim.AdamW(exact, lr=1e-2, weight_decay=0.1),
    )
    for step in range(1, 6):
        give(params, step)
        for param, wide in zip(params, exact, strict=True):
            wide.grad = param.grad.double().cpu()
        ours.step()
        theirs.step()
        if step == 3:  # one moves away, and one comes
            params[0].data, params[1].data = params[0].data.cuda(), params[1].data.cpu()
    near(params, exact)
    on_cpu = {id(p) for p in params if p.is_cpu} | {id(p) for p in ours.offloaded()}
    assert all(ours.state[p]["exp_avg"].is_cpu is (id(p) in on_cpu) for p in params)
    assert (len(ours.offloaded()) > 0) is (limit is not None)


def test_the_limit_bounds_the_memory() -> None:
    params = [torch.randn(1 << 20, device="cuda") for _ in range(8)]
    give(params, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    ours = HybridAdam(params, gpu_bytes=3 * 8 << 20)
    ours.step()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before <= (3 * 8 << 20) + (1 << 16)
    assert len(ours.offloaded()) == 5


@pytest.fixture
def waiting_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's GradScaler waits for its copies on the CPU; see ``warn_of_late_copies``."""
    replicator = torch.amp.grad_scaler._MultiDeviceReplicator
    get = replicator.get

    def waited(self: Any, device: Any) -> Any:
        copy = get(self, device)
        torch.cuda.synchronize()
        return copy

    monkeypatch.setattr(replicator, "get", waited)


def test_a_scale_on_the_gpu_and_gradients_on_the_cpu_are_warned_of() -> None:
    params = [p.requires_grad_() for p in made()]
    give(params, 1, 8.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    scaler.scale(torch.zeros((), device="cuda"))
    with pytest.warns(RuntimeWarning, match="HybridAdam.step: .* scale on cuda:0 and gradients on the CPU"):
        scaler.step(HybridAdam(params))
    for param in params:
        param.data, param.grad = param.data.cuda(), None
    give(params, 2, 8.0)
    scaler.update()
    scaler.step(HybridAdam(params, gpu_bytes=0))  # the states alone are on the CPU, which is safe


@pytest.mark.filterwarnings("ignore:HybridAdam.step. torch's GradScaler")
@pytest.mark.usefixtures("waiting_scaler")
@pytest.mark.parametrize("limit", LIMITS)
def test_with_a_gradscaler(limit: int | None) -> None:
    params = [p.requires_grad_() for p in made()]
    exact = [p.detach().double().cpu() for p in params]
    ours, theirs = HybridAdam(params, lr=1e-2, gpu_bytes=limit), torch.optim.AdamW(exact, lr=1e-2, weight_decay=0.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    for step in range(1, 4):
        scaler.scale(torch.zeros((), device="cuda"))
        give(params, step, 8.0)
        for param, wide in zip(params, exact, strict=True):
            wide.grad = param.grad.double().cpu() / 8
        scaler.step(ours)
        scaler.update()
        theirs.step()
    near([p.detach() for p in params], exact)
    before = [p.detach().clone() for p in params]
    give(params, 9)
    params[1].grad[0, 0] = float("inf")
    scaler.step(ours)
    scaler.update()
    assert all(torch.equal(p.detach(), q) for p, q in zip(params, before, strict=True))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # nothing was written before the refusal
def test_a_capture_is_refused() -> None:
    params = made()
    give(params, 1)
    ours = HybridAdam(params)
    ours.step()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="a graph is captured"), torch.cuda.graph(graph):
        ours.step()
