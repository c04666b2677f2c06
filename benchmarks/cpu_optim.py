"""The CPU optimizers compared with torch's, with DeepSpeed's, and with the rate at which the host rewrites memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from benchmarks.processes import OURS, Found, compare, medians, rows
from benchmarks.report import Report, Row

MODULE = "benchmarks.cpu_optim"
ELEMENTS, TENSORS = 1 << 22, 32  # 134 M parameters: 2.1 GB of fp32 parameters, gradients and moments
ROUNDS, SMALL_ROUNDS = 7, 200
OPTIONS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
BIG, HALF = "AdamW fp32, 134 M parameters", "AdamW fp32, bf16 gradients and copies"
MANY, ONE = "AdamW, 1000 tensors of 4096", "AdamW, one tensor of 64"
FUSED, FOREACH, DEEPSPEED, REWRITE = "torch fused", "torch foreach", "DeepSpeed", "x.mul_(), of as many bytes"
PASSES = "cast, torch fused, cast"
TARGETS = {
    (BIG, REWRITE): ">= 0.92",
    (BIG, FUSED): ">= 1.0",
    (BIG, FOREACH): ">= 4",
    (BIG, DEEPSPEED): ">= 1.0",
    (HALF, PASSES): ">= 1.4",
    (HALF, DEEPSPEED): ">= 1.3",
    (MANY, FUSED): ">= 8",
    (ONE, FUSED): ">= 1.0",
}

Contestants = dict[str, Callable[[], object]]


def parameters(count: int, size: int) -> list[Any]:
    """Parameters with gradients."""
    import torch

    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(size)) for _ in range(count)]
    for param in params:
        param.grad = torch.randn(size)
    return params


def sharing(optimizer: Any, other: Any) -> Any:
    """The optimizer with the state tensors of another, so that both have the same placement in memory."""
    for param, values in other.state.items():
        optimizer.state[param] = {**values, "step": values["step"].clone()}
    return optimizer


def adamw(params: list[Any]) -> Contestants:
    """Our step and torch's, on the same tensors."""
    import torch

    from precast.optim import CPUAdam

    fused = torch.optim.AdamW(params, fused=True, **OPTIONS)
    fused.step()
    foreach = sharing(torch.optim.AdamW(params, foreach=True, **OPTIONS), fused)
    return {OURS: sharing(CPUAdam(params, **OPTIONS), fused).step, FUSED: fused.step, FOREACH: foreach.step}


def big() -> Contestants:
    """Both of torch's steps, DeepSpeed's if it is installed, and the time to rewrite as many bytes."""
    import torch

    params = parameters(TENSORS, ELEMENTS)
    contestants = adamw(params)
    block = torch.ones(TENSORS * ELEMENTS)
    halves = block.chunk(2)

    def rewrite() -> None:
        for part in range(7):  # four bytes in and four out for half of the elements: seven times make 28 bytes each
            halves[part % 2].mul_(1.0000001)

    contestants[REWRITE] = rewrite
    if importlib.util.find_spec("deepspeed") is not None:
        from deepspeed.ops.adam import DeepSpeedCPUAdam  # type: ignore[import-not-found]

        theirs = DeepSpeedCPUAdam(params, adamw_mode=True, **OPTIONS)
        theirs.step()
        contestants[DEEPSPEED] = theirs.step
    return contestants


def many() -> Contestants:
    """Small tensors, compared with rewriting as many bytes in one piece, which is the lower bound."""
    import torch

    count, size = 1000, 4096
    block = torch.ones(7 * count * size // 2)  # four bytes in and four out, while a step moves 28
    return {**adamw(parameters(count, size)), REWRITE: lambda: block.mul_(1.0000001)}


def half() -> Contestants:
    """Gradients and copies are bf16. The peers need a separate pass for each."""
    import torch

    masters = parameters(TENSORS, ELEMENTS)
    step, fused = (adamw(masters)[name] for name in (OURS, FUSED))
    wide = [master.grad for master in masters]
    grads = [gradient.bfloat16() for gradient in wide]
    copies = [torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in masters]

    def between(update: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                torch._foreach_copy_(wide, grads)
                update()
                torch._foreach_copy_(copies, [master.detach() for master in masters])

        return run

    contestants = {OURS: lambda: step(grads=grads, copies=copies), PASSES: between(fused)}  # type: ignore[call-arg]
    if importlib.util.find_spec("deepspeed") is not None:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        contestants[DEEPSPEED] = between(DeepSpeedCPUAdam(masters, adamw_mode=True, **OPTIONS).step)
    return contestants


def others(size: int) -> dict[str, Contestants]:
    """SGD and Adagrad compared with torch's fused ones; torch has no Lion."""
    import torch

    from precast.optim import CPUSGD, CPUAdagrad, CPULion

    found: dict[str, Contestants] = {}
    cases: tuple[tuple[str, Any, Any, dict[str, float]], ...] = (
        ("SGD, momentum", CPUSGD, torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
        ("Adagrad", CPUAdagrad, torch.optim.Adagrad, {"lr": 1e-3}),
        ("Lion", CPULion, None, {"lr": 1e-4}),
    )
    for name, ours, theirs, options in cases:
        params = parameters(8, size)
        found[f"{name}, 8 tensors of {size}"] = {OURS: ours(params, **options).step}
        if theirs is not None:
            found[f"{name}, 8 tensors of {size}"][FUSED] = theirs(params, fused=True, **options).step
    return found


def measure() -> Found:
    """Everything once, in this process. The large cases run one at a time, because memory holds only one."""
    found = {
        BIG: compare(big(), ROUNDS),
        HALF: compare(half(), ROUNDS),
        MANY: compare(many(), SMALL_ROUNDS),
        ONE: compare(adamw(parameters(1, 64)), SMALL_ROUNDS, calls=20),
    }
    return {**found, **{what: compare(contestants, ROUNDS) for what, contestants in others(ELEMENTS).items()}}


def main() -> Report:
    """The medians of three processes."""
    found = medians(MODULE)
    listed: list[Row] = rows(found, "ms", TARGETS)
    moved = 28 * TENSORS * ELEMENTS * 1e-9
    ours, rewriting = found[BIG][OURS][0], found[BIG][REWRITE][0]
    notes = [f"{BIG}: {moved / ours:.1f} GB/s; this host rewrites memory at {moved / rewriting:.1f} GB/s."]
    lion = next(contestants[OURS][0] for what, contestants in found.items() if what.startswith("Lion"))
    notes.append(f"Lion, 8 tensors of {ELEMENTS}: {lion * 1e3:.1f} ms; torch has none.")
    if DEEPSPEED not in found[BIG]:
        notes.append("DeepSpeed is not installed beside torch here, so it is not in the table.")
    return Report("cpu_optim", "Optimizers on the CPU, medians of three processes", tuple(listed), notes=tuple(notes))
