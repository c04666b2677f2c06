"""What a program does with precast, step by step, with the time of each: the part of the demo that users would write.

``demo.py`` runs this file in a fresh process for each installation that it compares. It prints one JSON object.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

STEPS = 60

seconds: dict[str, float] = {}
checks: dict[str, tuple[bool, str]] = {}


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Keep how long a step took."""
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start


def check(name: str, held: bool, fact: str) -> None:
    """Keep whether a claim held, and the number that says so."""
    checks[name] = (bool(held), fact)


def train(
    make_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
) -> tuple[list[float], torch.Tensor]:
    """Fit a small network to a fixed function; return the losses and all final weights."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    inputs = torch.randn(512, 16)
    wanted = torch.sin(inputs.sum(dim=1, keepdim=True))
    optimizer = make_optimizer(list(net.parameters()))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def adamw() -> None:
    """Train with torch's AdamW and with ours from the same start, and compare."""
    import torch

    from precast.optim import CPUAdam

    options: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.01}
    finals = {}
    for name, optimizer in (("torch", torch.optim.AdamW), ("precast", CPUAdam)):
        weight = torch.nn.Parameter(torch.ones(1000))
        weight.grad = torch.ones(1000)
        with timed(f"AdamW of {name}: first step, loading included"):
            optimizer([weight], **options).step()
        with timed(f"AdamW of {name}: {STEPS} steps of training"):
            finals[name] = train(functools.partial(optimizer, **options))
    losses, ours = finals["precast"]
    torch_losses, theirs = finals["torch"]
    apart = (ours - theirs).abs().max().item()
    fall = f"{losses[0]:.3f} -> {losses[-1]:.3f} (torch {torch_losses[-1]:.3f})"
    check("AdamW: the loss falls", losses[-1] < losses[0] / 2, fall)
    check("AdamW: the weights are torch.optim.AdamW's", apart < 1e-4, f"largest difference {apart:.1e}")


def rms_norm(device: str) -> None:
    """Normalise one batch and compare values and gradients with torch in double precision."""
    import torch

    from precast.ops.norm import rms_norm

    def run(norm: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(1)
        x = torch.randn(64, 1024, dtype=torch.float64).to(dtype=dtype, device=device).requires_grad_()
        weight = torch.rand(1024, dtype=torch.float64).to(dtype=dtype, device=device).requires_grad_()
        y = norm(x, weight)
        y.backward(torch.cos(y.detach()))
        return [y.detach(), x.grad, weight.grad]  # type: ignore[list-item]

    with timed(f"RMSNorm on {device}: first call, loading included"):
        rms_norm(torch.ones(1, 8, device=device), torch.ones(8, device=device))
    with timed(f"RMSNorm on {device}: forward and backward"):
        ours = run(lambda x, weight: rms_norm(x, weight, eps=1e-6), torch.float32)
    theirs = run(lambda x, weight: torch.nn.functional.rms_norm(x, (1024,), weight, 1e-6), torch.float64)
    apart = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True))
    check(
        f"RMSNorm on {device}: values and gradients are torch's",
        apart < 1e-5,
        f"largest relative difference {apart:.1e}",
    )


def main() -> int:
    """Run every step, then say where each kernel came from."""
    with timed("import precast"):
        import precast
    check("import precast leaves torch alone", "torch" not in sys.modules, f"{seconds['import precast'] * 1e3:.1f} ms")
    with timed("import torch"):
        import torch
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() and torch.version.hip is None else [])]
    if devices[1:]:
        torch.zeros(1, device="cuda")  # The CUDA context is torch's cost, not a kernel's.
    with timed("import precast.ops"):
        import precast.ops
    for device in devices:
        rms_norm(device)
    adamw()
    kernels = []
    used = [("rms_norm", devices), ("rms_norm_backward", devices), ("adam_", ["cpu"])]
    for loaded in (precast.load(op, device) for op, places in used for device in places):
        sources = {"host library": loaded.host, **{f"image for cuda:{index}": image for index, image in loaded.images}}
        for part, source in sources.items():
            kernels.append([loaded.family, loaded.device, part, source.kind, str(source.path)])
    facts = {"precast": precast.__file__, "torch": torch.__version__}
    print(json.dumps({"seconds": seconds, "checks": checks, "kernels": kernels, "facts": facts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
