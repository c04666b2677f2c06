"""The loss of a language model with its gradients, in milliseconds: from logits, and from the last hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import liger
from benchmarks.norm import COPY, FLUSH_BYTES, Compile, compiled_for_one_shape, copy_of, medians_ms
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

Run = Callable[[], Any]

LOGITS = ((8192, 128256), (8192, 151936), (4096, 32000), (2048, 262144), (513, 50257), (16, 128256))
HIDDEN = ((8192, 4096, 128256),)  # tokens, width, vocabulary
PRODUCTS = "three matrix products"


def from_logits(
    rows: int, classes: int, device: str = "cuda", compiled: Compile = compiled_for_one_shape
) -> dict[str, Run]:
    """Loss and gradient of bf16 logits. Liger-Kernel writes the gradient over its logits."""
    import torch

    from precast import ops

    logits = torch.randn(rows, classes, device=device, dtype=torch.bfloat16)
    target = torch.randint(classes, (rows,), device=device)

    def run(loss: Callable[..., Any]) -> Run:
        leaf = logits.detach().requires_grad_()
        return lambda: torch.autograd.grad(loss(leaf, target), leaf)

    eager = torch.nn.functional.cross_entropy
    runs = {"precast": run(ops.cross_entropy), "torch eager": run(eager), "torch.compile": run(compiled(eager))}
    return runs | {name: run(loss) for name, loss in liger.loss("cross_entropy").items()}


def from_hidden_states(tokens: int, width: int, classes: int, device: str = "cuda") -> dict[str, Run]:
    """Loss and both gradients of the linear layer in front of it."""
    import torch

    from precast import ops

    x, weight = (torch.randn(n, width, device=device, dtype=torch.bfloat16) * 0.02 for n in (tokens, classes))
    target = torch.randint(classes, (tokens,), device=device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]

    def eager(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((x @ weight.t()).float(), target)

    def run(loss: Callable[..., Any], **options: Any) -> Run:
        return lambda: torch.autograd.grad(loss(*leaves, target, **options), leaves)

    def products() -> None:
        with torch.no_grad():
            logits = x @ weight.t()
            logits @ weight
            logits.t() @ x

    return {
        "precast": run(ops.linear_cross_entropy),
        "precast, bf16 sum": run(ops.linear_cross_entropy, accumulate_in_float32=False),
        "torch eager": run(eager),
        PRODUCTS: products,
    } | {name: run(loss) for name, loss in liger.loss("linear_cross_entropy").items()}


def memory_mb(run: Run) -> float:
    """What a run allocates at its peak, in units of 1e6 bytes; its results are a part of it."""
    import torch

    run()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def main() -> Report:
    """Measure every shape, bf16, random data."""
    import torch

    title = "Cross entropy on the GPU with its gradients, bf16"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("losses", title, skipped="torch sees no NVIDIA GPU")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rows, notes = [], []
    for shape in LOGITS:
        runs = {**from_logits(*shape), COPY: copy_of(4 * shape[0] * shape[1])}
        found = medians_ms(runs, flush)
        rows += [Row(f"cross_entropy, {shape[0]}x{shape[1]}", found["precast"], "ms", p, found[p]) for p in runs][1:]
    for tokens, width, classes in HIDDEN:
        linear = from_hidden_states(tokens, width, classes)
        notes += [
            f"{name} allocates {memory_mb(run):,.0f} MB at its peak, gradients included" for name, run in linear.items()
        ]
        found = medians_ms(linear, flush)
        what = f"linear_cross_entropy, {tokens}x{width}, vocabulary {classes}"
        for ours in (name for name in linear if name.startswith("precast")):
            what_of = what + ours.removeprefix("precast")
            rows += [Row(what_of, found[ours], "ms", p, found[p]) for p in linear if not p.startswith("precast")]
    return Report("losses", title, tuple(rows), notes=tuple(notes))
