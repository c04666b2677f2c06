"""The loss of a language model with its gradients, in milliseconds: from logits, and from the last hidden states.

Also under a loss scale, in float16 and in bfloat16: the time, the memory, and how far the gradient is from float64.
Without a GPU, that part alone, with small shapes on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import liger
from benchmarks.norm import COPY, FLUSH_BYTES, Compile, compiled_for_one_shape, copy_of, medians_ms
from benchmarks.report import Report, Row, interleaved_medians, timed

if TYPE_CHECKING:
    import torch

Run = Callable[[], Any]

LOGITS = ((8192, 128256), (8192, 151936), (4096, 32000), (2048, 262144), (513, 50257), (16, 128256))
HIDDEN = ((8192, 4096, 128256),)  # tokens, width, vocabulary
NARROW_SUM = "precast, bf16 sum"
PRODUCTS = "three matrix products"
SCALE = 65536.0  # where a GradScaler of torch begins
FORMS = ("cross_entropy", "cross_entropy in place", "linear_cross_entropy")
# By device: tokens, width and vocabulary, and those whose gradients are computed in float64 too.
SCALED = {"cuda": ((8192, 4096, 128256), (2048, 512, 32000)), "cpu": ((256, 64, 4000), (256, 64, 4000))}


def from_logits(
    rows: int,
    classes: int,
    device: str = "cuda",
    compiled: Compile = compiled_for_one_shape,
    *,
    dtype: str = "bfloat16",
    scale: float = 1.0,
    in_place: bool = False,
) -> dict[str, Run]:
    """Loss and gradient of logits. Liger-Kernel writes the gradient over its logits.

    In place, all get a copy of the logits in each run, which ours may overwrite. Of float16 logits torch computes in
    float32, as under autocast: its own float16 loss has no room for a scale.
    """
    import torch

    from precast import ops

    logits = torch.randn(rows, classes, device=device, dtype=getattr(torch, dtype))
    target = torch.randint(classes, (rows,), device=device)

    def run(loss: Callable[..., Any], **options: Any) -> Run:
        leaf = logits.detach().requires_grad_()

        def both() -> Any:
            value = loss(leaf * 1 if in_place else leaf, target, **options)
            return torch.autograd.grad(value if scale == 1 else value * scale, leaf)

        return both

    def eager(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.float() if dtype == "float16" else logits, target)

    runs = {
        "precast": run(ops.cross_entropy, in_place=in_place),
        "torch eager": run(eager),
        "torch.compile": run(compiled(eager)),
    }
    return runs | {name: run(loss) for name, loss in liger.loss("cross_entropy").items()}


def from_hidden_states(
    tokens: int, width: int, classes: int, device: str = "cuda", *, dtype: str = "bfloat16", scale: float = 1.0
) -> dict[str, Run]:
    """Loss and both gradients of the linear layer in front of it."""
    import torch

    from precast import ops

    kind = getattr(torch, dtype)
    x, weight = (torch.randn(n, width, device=device, dtype=kind) * 0.02 for n in (tokens, classes))
    target = torch.randint(classes, (tokens,), device=device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]

    def eager(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((x @ weight.t()).float(), target)

    def run(loss: Callable[..., Any], **options: Any) -> Run:
        def both() -> Any:
            value = loss(*leaves, target, **options)
            return torch.autograd.grad(value if scale == 1 else value * scale, leaves)

        return both

    def products() -> None:
        with torch.no_grad():
            logits = x @ weight.t()
            logits @ weight
            logits.t() @ x

    return {
        "precast": run(ops.linear_cross_entropy),
        NARROW_SUM: run(ops.linear_cross_entropy, accumulate_in_float32=False),
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


def scaled(form: str, shape: tuple[int, int, int], device: str, dtype: str, scale: float) -> dict[str, Run]:
    """The contestants of a form, without those that no scale concerns."""
    options: dict[str, Any] = {"dtype": dtype, "scale": scale}
    if form == "linear_cross_entropy":
        runs = from_hidden_states(*shape, device, **options)
        return {name: run for name, run in runs.items() if name not in (NARROW_SUM, PRODUCTS)}
    return from_logits(shape[0], shape[2], device, in_place=form.endswith("in place"), **options)


def errors(shape: tuple[int, int, int], device: str, dtype: str, scale: float) -> dict[str, dict[str, float]]:
    """By form, how far ours and torch's gradient are from float64, as a share of its norm, the scale divided out."""
    import torch

    from precast import ops

    kind, (tokens, width, classes) = getattr(torch, dtype), shape
    x, weight = (torch.randn(n, width, device=device, dtype=kind) for n in (tokens, classes))
    weight *= width**-0.5
    target = torch.randint(classes, (tokens,), device=device)

    def eager(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.float() if logits.dtype == torch.float16 else logits, target)

    def error(leaf: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., float]:
        def gradient(loss: Callable[[torch.Tensor], torch.Tensor], kind: torch.dtype) -> torch.Tensor:
            given = leaf.to(kind).requires_grad_()
            return torch.autograd.grad(loss(given) * scale, given)[0].double() / scale

        exact = gradient(loss, torch.float64)
        return lambda loss: float((gradient(loss, kind) - exact).norm() / exact.norm())

    def linear(x: torch.Tensor) -> torch.Tensor:
        return eager(x @ weight.to(x.dtype).t())

    of_logits, of_rows = error(x @ weight.t(), eager), error(x, linear)
    theirs = of_logits(eager)
    return {
        FORMS[0]: {"precast": of_logits(lambda x: ops.cross_entropy(x, target)), "torch eager": theirs},
        FORMS[1]: {
            "precast": of_logits(lambda x: ops.cross_entropy(x * 1, target, in_place=True)),
            "torch eager": theirs,
        },
        FORMS[2]: {
            "precast": of_rows(lambda x: ops.linear_cross_entropy(x, weight, target)),
            "torch eager": of_rows(linear),
        },
    }


def under_a_scale(device: str, medians: Callable[[dict[str, Run]], dict[str, float]]) -> tuple[list[Row], list[str]]:
    """Each form in both narrow dtypes, with the factor of a loss scale and without."""
    import torch

    large, small = SCALED[device]
    rows, notes = [], []
    torch._dynamo.reset()  # a function is compiled for few dtypes and shapes
    for dtype in ("bfloat16", "float16"):
        for scale in (1.0, SCALE):
            off = errors(small, device, dtype, scale)
            for form in FORMS:
                what = f"{form}, {dtype}" + (f", scale {scale:.0f}" if scale != 1 else "")
                runs = scaled(form, large, device, dtype, scale)
                if device == "cuda":
                    used = ", ".join(f"{name} {memory_mb(run):,.0f}" for name, run in runs.items())
                    notes.append(f"{what}: MB at the peak, gradients included: {used}")
                found = medians(runs)
                rows += [Row(what, found["precast"], "ms", peer, found[peer]) for peer in runs if peer != "precast"]
                ours, theirs = off[form]["precast"], off[form]["torch eager"]
                rows.append(Row(f"{what}, error", 1e6 * ours, "of 1e6", "torch eager", 1e6 * theirs))
    notes.append("error: of the gradient of logits or rows beside float64, as a share of its norm; lower is better")
    return rows, notes


def main() -> Report:
    """Measure every shape, bf16, random data; and what a loss scale changes."""
    import torch

    title = "Cross entropy on the GPU with its gradients, bf16 where no dtype is named"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        rows, notes = under_a_scale("cpu", _medians_on_the_cpu)
        return Report("losses", "Cross entropy on the CPU with its gradients, small", tuple(rows), notes=tuple(notes))
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
    more, said = under_a_scale("cuda", lambda runs: medians_ms(runs, flush))
    rows, notes = rows + more, notes + said
    return Report("losses", title, tuple(rows), notes=tuple(notes))


def _medians_on_the_cpu(runs: dict[str, Run]) -> dict[str, float]:
    for run in runs.values():
        run()
    return {name: 1e3 * s for name, s in interleaved_medians({n: timed(run) for n, run in runs.items()}, 20).items()}
