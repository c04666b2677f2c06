"""One AdamW step on 134 million parameters on the CPU, beside torch's fused optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.report import Report, Row, interleaved_medians, timed

TENSORS, ELEMENTS = 32, 1 << 22  # 134 M parameters: 2.1 GB of fp32 parameters, gradients and state
ROUNDS = 15
OPTIONS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def measure(half: bool) -> dict[str, float]:
    """Time our step and torch's in turns; with ``half``, gradients come in bf16 and bf16 copies go out."""
    import torch

    from precast.optim import CPUAdam

    torch.manual_seed(0)
    start = torch.randn(ELEMENTS)
    gradients = [torch.randn(ELEMENTS) for _ in range(TENSORS)]

    def parameters() -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(start.clone()) for _ in range(TENSORS)]

    def ours() -> Callable[[], object]:
        mine = parameters()
        if not half:
            for parameter, gradient in zip(mine, gradients, strict=True):
                parameter.grad = gradient
            return CPUAdam(mine, **OPTIONS).step
        optimizer = CPUAdam(mine, **OPTIONS)
        grads = [gradient.bfloat16() for gradient in gradients]
        copies = [torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in range(TENSORS)]
        return lambda: optimizer.step(grads=grads, copies=copies)

    def theirs() -> Callable[[], object]:
        mine = parameters()
        for parameter, gradient in zip(mine, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer = torch.optim.AdamW(mine, fused=True, **OPTIONS)
        if not half:
            return optimizer.step
        grads = [gradient.bfloat16() for gradient in gradients]
        wide = [parameter.grad for parameter in mine if parameter.grad is not None]
        masters = [parameter.detach() for parameter in mine]
        copies = [torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in range(TENSORS)]

        def three_passes() -> None:
            with torch.no_grad():
                torch._foreach_copy_(wide, grads)
                optimizer.step()
                torch._foreach_copy_(copies, masters)

        return three_passes

    functions = {"ours": ours(), "theirs": theirs()}
    for function in functions.values():
        function()  # state is allocated, kernels are loaded
    return interleaved_medians({name: timed(function) for name, function in functions.items()}, ROUNDS)


def main() -> Report:
    """Measure both; memory bandwidth decides, so bytes moved per second are given as well."""
    rows = []
    for half, what, peer, target, moved in (
        (False, "fp32", "torch AdamW(fused=True)", ">= 1.0", 28),
        (True, "fp32, bf16 gradients and copies", "cast, fused step, cast", ">= 1.3", 28),
    ):
        medians = measure(half)
        rows.append(Row(what, medians["ours"] * 1e3, "ms", peer, medians["theirs"] * 1e3, target=target))
        rate = moved * TENSORS * ELEMENTS / medians["ours"] * 1e-9
        rows.append(Row(f"  {what}: memory traffic of ours", rate, "GB/s"))
    return Report("cpu_adam", f"AdamW step on {TENSORS * ELEMENTS / 1e6:.0f} M parameters, CPU", tuple(rows))
