"""The image ops: contestants and the bytes that they must move, for ``python -m benchmarks.gpu image``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Run = Callable[[], Any]
OURS, EAGER = "precast", "torch eager"

SHAPES = ((16, 128, 256, 256),)
FIRST_SHAPE = (4, 64, 128, 128)
DTYPES = ("float32", "bfloat16")
# Name -> up, down and padding of the 4 x 4 filter.
FILTERS = {
    "upfirdn2d": (1, 1, (2, 1, 2, 1)),
    "upfirdn2d up 2": (2, 1, (2, 1, 2, 1)),
    "upfirdn2d down 2": (1, 2, (1, 1, 1, 1)),
}


def both_ways(
    functions: dict[str, Callable[..., Any]], leaves: list[torch.Tensor]
) -> tuple[dict[str, Run], dict[str, Run]]:
    """Runs of the forward, and of the backward over one recorded forward."""
    import torch

    forward: dict[str, Run] = {name: functools.partial(function, *leaves) for name, function in functions.items()}
    wanted = [leaf.detach().requires_grad_() for leaf in leaves]
    backward: dict[str, Run] = {}
    grad = None
    for name, function in functions.items():
        y = function(*wanted)
        grad = torch.randn_like(y) if grad is None else grad
        backward[name] = functools.partial(torch.autograd.grad, y, wanted, grad, retain_graph=True)
    return forward, backward


def _second_first(function: Callable[..., Any], rest: tuple[Any, ...], x: torch.Tensor) -> Any:
    return function(x, *rest)


def cases(
    shape: tuple[int, ...], compiled: Callable[..., Any], static: str
) -> Iterator[tuple[str, int, dict[str, Run], str]]:
    """Name, bytes to move, contestants and dtype. Plain torch filters with ``conv2d``, each plane by itself."""
    import torch

    from precast import ops
    from precast.ops.image import reference

    def eager_act(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.leaky_relu(x + b[:, None, None], 0.2) * 2**0.5

    for dtype in DTYPES:
        of = f" {dtype}" if dtype != "float32" else ""
        x = torch.randn(*shape, device="cuda").to(getattr(torch, dtype))
        b = torch.randn(shape[1], device="cuda").to(x.dtype)
        ours = functools.partial(ops.bias_act, act="lrelu")
        for last in (False, True):
            given = x.contiguous(memory_format=torch.channels_last) if last else x
            functions: dict[str, Callable[..., Any]] = {OURS: ours, EAGER: eager_act, static: compiled(eager_act)}
            forward, backward = both_ways(functions, [given, b])
            name = "bias_act" + (" channels_last" if last else "") + of
            yield name, 2 * x.nbytes, forward, dtype
            yield f"{name} backward", 3 * x.nbytes, backward, dtype
        f = ops.setup_filter([1, 3, 3, 1], device="cuda")
        for name, (up, down, pads) in FILTERS.items():
            small = x[:, :, : shape[2] // up, : shape[3] // up].contiguous()
            options = {"up": up, "down": down, "padding": pads}
            args = (f, up, up, down, down, *pads, False, 1.0)
            functions = {
                OURS: functools.partial(ops.upfirdn2d, f=f, **options),
                EAGER: functools.partial(_second_first, reference.upfirdn2d, args),
            }
            forward, backward = both_ways(functions, [small])
            moved = small.nbytes + small.nbytes * up * up // (down * down)
            yield name + of, moved, forward, dtype
            yield f"{name}{of} backward", moved, backward, dtype
