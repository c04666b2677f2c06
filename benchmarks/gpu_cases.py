"""The cases of ``python -m benchmarks.gpu``: each op at one shape, with all contestants.

The contestants are those of the modules norm, layer_norm, activations, softmax, rotary, moe, image and fused_adam, plus
Liger-Kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks import activations, fused_adam, image, layer_norm, liger, moe, norm, rotary, softmax
from benchmarks.norm import Compile

if TYPE_CHECKING:
    import torch

Run = Callable[[], Any]
Shape = tuple[int, ...]

OURS, STATIC, SECOND = "precast", "torch.compile", "torch.compile, second shape"
EAGER, FUSED = "torch eager", "torch fused"
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """One op at one shape: the bytes it must move, and its contestants. ``absent`` names the others and the reasons."""

    op: str
    shape: Shape
    moved_bytes: int
    runs: dict[str, Run]
    absent: dict[str, str] = field(default_factory=dict)
    dtype: str = "bfloat16"
    reference: str = EAGER  # the contestant whose result is the reference


@dataclass(frozen=True, slots=True)
class Family:
    """How to make the cases of a benchmark at a shape, and its shapes."""

    make: Callable[[Shape, Compile], Iterator[Case]]
    shapes: tuple[Shape, ...]
    first_shape: Shape  # seen by torch.compile before its second shape


def _random(*shape: int) -> torch.Tensor:
    import torch

    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def _peers(op: str, way: str, *args: torch.Tensor) -> tuple[dict[str, Run], dict[str, str]]:
    """Liger-Kernel's run of an op, or the reason why there is none."""
    import torch

    if liger.installed() is None:
        return {}, {liger.NAME: liger.ABSENT}
    function = liger.functions().get(op)
    if function is None or (way and op not in ("rms_norm", "layer_norm")):
        return {}, {liger.NAME: liger.NO_SUCH_OP}
    if not way:
        return {liger.NAME: functools.partial(function, *args)}, {}
    leaves = [t.detach().requires_grad_() for t in args]
    y, grad = function(*leaves), torch.randn_like(args[0])
    return {liger.NAME: lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True)}, {}


def norms(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """RMSNorm, alone and with an addition, and its gradients."""
    rows, width = shape
    x, residual, weight = _random(rows, width), _random(rows, width), _random(width)
    for name, runs in norm.contestants(x, residual, weight, compiled).items():
        op, _, way = name.partition(" ")
        args = (x, residual, weight) if op == "fused_add_rms_norm" else (x, weight)
        peers, absent = _peers(op, way, *args)
        yield Case(name, shape, norm.STREAMS[name] * x.nbytes, {**runs, **peers}, absent)


def layer_norms(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """LayerNorm and its gradients."""
    rows, width = shape
    x, grad, weight, bias = _random(rows, width), _random(rows, width), _random(width), _random(width)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    plain = [t.detach() for t in leaves]
    runs: dict[str, dict[str, Run]] = {op: {} for op in layer_norm.STREAMS}
    for name, function in layer_norm.contestants(width, compiled).items():
        for op, run in layer_norm.runs(function, leaves, grad).items():
            runs[op][name] = run
    for name, found in runs.items():
        peers, absent = _peers("layer_norm", name.partition(" ")[2], *plain)
        moved = layer_norm.STREAMS[name] * grad.nbytes
        yield Case(name, shape, moved, {**found, **peers}, absent)


def gated(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """The gated activation of SwiGLU, and its gradient."""
    import torch
    from torch._functorch import config

    import precast

    def backward(function: Callable[..., Any]) -> Run:
        torch.manual_seed(0)  # the same random gradient for all contestants
        return activations.backward_of(function, x)

    rows, width = shape
    x, op = _random(rows, 2 * width), "silu_and_mul"
    theirs = activations.formulas()[op]
    functions = {OURS: precast.ops.silu_and_mul, "torch eager": theirs, STATIC: compiled(theirs)}
    halves = [half.contiguous() for half in x.chunk(2, -1)]
    for way, moved in (("", x.nbytes * 3 // 2), (" backward", x.nbytes * 5 // 2)):
        with config.patch(donated_buffer=False):  # otherwise a compiled backward runs only once
            runs: dict[str, Run] = {
                name: backward(function) if way else functools.partial(function, x)
                for name, function in functions.items()
            }
        peers, absent = _peers(op, way.strip(), *halves)
        yield Case(op + way, shape, moved, {**runs, **peers}, absent)


def alone(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """Activations without a factor, and their gradients."""
    from torch._functorch import config

    import precast

    x = _random(*shape)
    absent = {liger.NAME: liger.NO_SUCH_OP if liger.installed() else liger.ABSENT}
    for op, theirs in activations.alone().items():
        functions = {OURS: getattr(precast.ops, op), EAGER: theirs, STATIC: compiled(theirs)}
        for way, moved in (("", 2 * x.nbytes), (" backward", 3 * x.nbytes)):
            with config.patch(donated_buffer=False):  # otherwise a compiled backward runs only once
                runs: dict[str, Run] = {
                    name: activations.backward_of(function, x) if way else functools.partial(function, x)
                    for name, function in functions.items()
                }
            yield Case(op + way, shape, moved, runs, absent)


def softmaxes(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """Masked and causal softmax, and their gradients."""
    import torch

    batch, _, queries, columns = shape
    x, grad = _random(*shape), _random(*shape)
    mask = torch.rand(batch, 1, queries, columns, device="cuda") < 0.3
    mask[..., 0] = False
    behind = torch.ones(queries, columns, dtype=torch.bool, device="cuda").triu(1)
    for op, functions in softmax.contestants(mask, behind, compiled).items():
        part = 0.5 if op == "causal" else 1.0
        for way, moved in (("forward", x.nbytes * (1 + part)), ("backward", x.nbytes * (1 + 2 * part))):
            runs: dict[str, Run] = {
                name: softmax.backward_of(function, x, grad) if way == "backward" else functools.partial(function, x)
                for name, function in functions.items()
            }
            absent = {liger.NAME: liger.NO_SUCH_OP if liger.installed() else liger.ABSENT}
            yield Case(f"{op} softmax {way}", shape, int(moved), runs, absent)


def rotaries(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """Rotary embedding of query and key, and its gradient."""
    tokens, heads, key_heads, width = shape
    absent = {liger.NAME: "no peer: its kernel writes over its inputs" if liger.installed() else liger.ABSENT}
    for op, moved, runs in rotary.cases((tokens, heads, key_heads, width), compiled, _random):
        yield Case(op, shape, moved, runs, absent)


def experts(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """Rows of a mixture of experts to their experts and back."""
    tokens, width, k = shape
    absent = {liger.NAME: liger.NO_SUCH_OP if liger.installed() else liger.ABSENT}
    for op, moved, runs in moe.movement((tokens, width, k), compiled):
        yield Case(op, shape, moved, runs, absent)


def images(shape: Shape, compiled: Compile) -> Iterator[Case]:
    """Bias with activation, and filters with up and down 1 or 2; each forward and backward."""
    absent = {liger.NAME: liger.NO_SUCH_OP if liger.installed() else liger.ABSENT}
    for op, moved, runs, dtype in image.cases(shape, compiled, STATIC):
        yield Case(op, shape, moved, runs, absent, dtype)


def optimizers(shape: Shape, _: Compile) -> Iterator[Case]:
    """A step of AdamW over the given number and size of parameters: float32, then bfloat16 with float32 masters."""
    import torch

    from precast.optim import FusedAdamW

    (count, elements), options = shape, fused_adam.OPTIONS
    for low in (False, True):
        dtype = torch.bfloat16 if low else torch.float32
        makers: dict[str, Callable[[list[torch.Tensor]], Any]] = {
            OURS: functools.partial(FusedAdamW, master_weights=low, **options),
            FUSED: fused_adam.MastersOfTorch if low else functools.partial(torch.optim.AdamW, fused=True, **options),
        }
        if not low:
            makers[STATIC] = fused_adam.Compiled
        runs: dict[str, Run] = {}
        for name, make in makers.items():
            torch.manual_seed(0)  # the same parameters and gradients for all contestants
            params = fused_adam.parameters(count, elements, dtype)
            runs[name] = functools.partial(_step, make(params), params[-1])
        op = "AdamW with masters" if low else "AdamW"
        moved, dtype_name = fused_adam.BYTES * count * elements, str(dtype).removeprefix("torch.")
        yield Case(op, shape, moved, runs, dtype=dtype_name, reference=FUSED)


def _step(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> torch.Tensor:
    optimizer.step()
    return param.detach()


FAMILIES: dict[str, Family] = {
    "norm": Family(norms, norm.SHAPES, (8192, 2048)),
    "layer_norm": Family(layer_norms, norm.SHAPES, (8192, 2048)),
    "activations": Family(gated, activations.SHAPES, (8192, 2048)),
    "alone": Family(alone, activations.ALONE_SHAPES, (2048, 1024)),
    "softmax": Family(softmaxes, softmax.SHAPES, (2, 16, 1024, 1024)),
    "rotary": Family(rotaries, (rotary.PREFILL[0], rotary.PREFILL[-1], rotary.DECODE[0]), (2048, 32, 8, 128)),
    "moe": Family(experts, moe.SHAPES, (2048, 2048, 2)),
    "image": Family(images, image.SHAPES, image.FIRST_SHAPE),
    "optimizers": Family(optimizers, ((fused_adam.LARGE, fused_adam.LARGE_ELEMENTS),), (1, 4096)),
}
