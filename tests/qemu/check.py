"""What ``python -m tools qemu`` runs on each processor, by whatever Python is there: needs torch and precast alone.

    check.py EXTENSION RESULTS

Loads the extension, runs every CPU family from the prebuilt file, compares each result with torch, prints one line of
JSON and writes the results themselves, bit by bit (kernel_results.py of tools/shared), for a comparison with others.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import precast
from precast import kernel_loader, ops
from precast.errors import KernelUnavailable
from precast.optim import CPUSGD, CPUAdagrad, CPUAdam, CPULion

FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# How far a result may be from torch's in float64, against the largest number of its row: a few roundings.
ALLOWED = {torch.float32: 2e-6, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
ROWS, WIDTH = 7, 1029  # sixteen lanes at a time, and five elements more

Call = Callable[..., Any]


def numbers(seed: int, *shape: int, dtype: Any = torch.float32) -> Any:
    """Between -4 and 4, the same everywhere: torch's own generators differ between architectures."""
    count = torch.Size(shape).numel()
    bits = (torch.arange(count, dtype=torch.int64) + 1) * 2654435761 + seed * 40503
    bits = (bits ^ (bits >> 13)) * 1274126177 % (1 << 24)
    return (bits.float() / (1 << 21) - 4).reshape(shape).to(dtype)


def rms_norm(x: Any, weight: Any) -> Any:
    """The norm in plain torch."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def gated(activation: Call) -> Call:
    """A gated activation in plain torch."""
    return lambda x: activation(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]


def causal(x: Any) -> Any:
    """The causal softmax in plain torch."""
    return (x * 0.5).masked_fill(torch.ones(x.shape[-2:], dtype=torch.bool).triu(1), float("-inf")).softmax(-1)


TOKENS, PAIRS = 33, 9
COS, SIN = numbers(11, TOKENS, PAIRS) / 4, numbers(12, TOKENS, PAIRS) / 4


def turned(x: Any) -> Any:
    """The rotary embedding of the leading elements of each head in plain torch."""
    cos, sin = (table[:, None].to(x.dtype) for table in (COS, SIN))
    a, b, rest = x.split((PAIRS, PAIRS, x.shape[-1] - 2 * PAIRS), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def paired(x: Any) -> Any:
    """The same where neighbours are a pair."""
    order = torch.cat(
        (torch.arange(0, 2 * PAIRS, 2), torch.arange(1, 2 * PAIRS, 2), torch.arange(2 * PAIRS, x.shape[-1]))
    )
    return turned(x[..., order])[..., order.argsort()]


CLASSES = torch.arange(ROWS) * 97 % WIDTH
MASK = (numbers(9, 2, 1, 33, 65) > 2).to(torch.uint8)

# What is computed, by what, the shapes of its inputs, and the same in plain torch.
CASES: dict[str, tuple[Call, tuple[tuple[int, ...], ...], Call]] = {
    "rms_norm": (ops.rms_norm, ((ROWS, WIDTH), (WIDTH,)), rms_norm),
    "fused_add_rms_norm": (
        lambda x, residual, weight: ops.fused_add_rms_norm(x, residual, weight)[0],
        ((ROWS, WIDTH), (ROWS, WIDTH), (WIDTH,)),
        lambda x, residual, weight: rms_norm(x + residual, weight),
    ),
    "layer_norm": (
        ops.layer_norm,
        ((ROWS, WIDTH), (WIDTH,), (WIDTH,)),
        lambda x, weight, bias: functional.layer_norm(x, (WIDTH,), weight, bias),
    ),
    "silu_and_mul": (ops.silu_and_mul, ((ROWS, 2 * WIDTH),), gated(functional.silu)),
    "gelu_and_mul": (ops.gelu_and_mul, ((ROWS, 2 * WIDTH),), gated(functional.gelu)),
    "gelu_tanh_and_mul": (
        ops.gelu_tanh_and_mul,
        ((ROWS, 2 * WIDTH),),
        gated(lambda x: functional.gelu(x, approximate="tanh")),
    ),
    "scaled_softmax": (lambda x: ops.scaled_softmax(x, 0.5), ((2, 3, 33, 65),), lambda x: (x * 0.5).softmax(-1)),
    "scaled_masked_softmax": (
        lambda x: ops.scaled_masked_softmax(x, MASK, 0.5),
        ((2, 3, 33, 65),),
        lambda x: (x * 0.5).masked_fill(MASK.bool(), -10000.0).softmax(-1),
    ),
    "scaled_upper_triang_masked_softmax": (
        lambda x: ops.scaled_upper_triang_masked_softmax(x, 0.5),
        ((3, 65, 65),),
        causal,
    ),
    "cross_entropy": (
        lambda x: ops.cross_entropy(x, CLASSES, label_smoothing=0.1, reduction="none").to(x.dtype),
        ((ROWS, WIDTH),),
        lambda x: functional.cross_entropy(x, CLASSES, label_smoothing=0.1, reduction="none"),
    ),
    "rotary_embedding": (
        lambda x: ops.rotary_embedding(x, None, COS, SIN)[0],
        ((2, TOKENS, 3, 37),),
        turned,
    ),
    "rotary_embedding.interleaved": (
        lambda x: ops.rotary_embedding(x, None, COS, SIN, interleaved=True)[0],
        ((2, TOKENS, 3, 37),),
        paired,
    ),
}


class Check:
    """Results as they come: written, and held against torch's."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.errors: dict[str, float] = {}

    def keep(self, name: str, ours: Any, exact: Any) -> None:
        """Write one result, once it is near enough to ``exact``."""
        ours = ours.detach().contiguous()
        self._file.write(f"{name} {FORMATS[ours.dtype]} {ours.numel()}\n".encode())
        self._file.write(bytes(ours.view(torch.uint8).flatten().tolist()))
        error = float((ours.double() - exact).abs().max() / exact.abs().max())
        assert error <= ALLOWED[ours.dtype], f"{name}: {error:.2e} from torch's result in float64"
        self.errors[name] = error

    def close(self) -> None:
        """There are no more."""
        self._file.close()


def check_ops(check: Check) -> None:
    """Every op and every gradient of it, in every format."""
    for name, (op, shapes, plain) in CASES.items():
        for dtype in FORMATS:
            inputs = [numbers(seed, *shape, dtype=dtype).requires_grad_() for seed, shape in enumerate(shapes)]
            exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
            y, right = op(*inputs), plain(*exact)
            grad = numbers(7, *y.shape, dtype=dtype)
            y.backward(grad)
            right.backward(grad.double())
            label = f"{name}.{str(dtype).removeprefix('torch.')}"
            check.keep(label, y, right.detach())
            for index, (tensor, wanted) in enumerate(zip(inputs, exact, strict=True)):
                # A fused sum is rounded before its norm, and so the gradient is taken at another point.
                if name != "fused_add_rms_norm" or dtype == torch.float32:
                    check.keep(f"{label}.grad{index}", tensor.grad, wanted.grad)


def check_caches(check: Check) -> None:
    """Keys and values in a paged cache, the keys rotated on their way."""
    slots = torch.arange(TOKENS - 1, -1, -1)
    for dtype in FORMATS:
        query, key, value = (numbers(seed, TOKENS, heads, 37, dtype=dtype) for seed, heads in ((1, 4), (2, 2), (3, 2)))
        caches = [torch.zeros(5, 7, 2, 37, dtype=dtype) for _ in range(2)]
        wanted = (turned(key.double()), value.double())
        ops.rotary_embedding_and_cache(query, key, value, COS, SIN, *caches, slots)
        for name, cache, exact in zip(("keys", "values"), caches, wanted, strict=True):
            label = f"cached_{name}.{str(dtype).removeprefix('torch.')}"
            check.keep(label, cache.view(35, 2, 37)[slots], exact)


def check_adam(check: Check, member: Call) -> None:
    """AdamW as an optimizer against torch's, and as the extension's own class, one step."""
    for dtype in FORMATS:
        ours, exact = (torch.nn.Parameter(numbers(1, 5003).to(kind)) for kind in (torch.float32, torch.float64))
        mine = CPUAdam([ours], lr=1e-2, weight_decay=0.1)
        torchs = torch.optim.AdamW([exact], lr=1e-2, weight_decay=0.1, foreach=False)
        for step in range(5):
            grad = numbers(step + 2, 5003, dtype=dtype)
            ours.grad, exact.grad = grad.float(), grad.double()
            mine.step()
            torchs.step()
        check.keep(f"adamw.{str(dtype).removeprefix('torch.')}", ours, exact.detach())
    param, grad, m, v = (numbers(seed, 1003) for seed in range(4))
    right = param.double() * (1 - 1e-3 * 0.1)
    m, v = m * 0, v * 0
    right -= 1e-3 * grad.double() / (grad.double().abs() + 1e-8)
    member(1e-3, 0.9, 0.999, 1e-8, 0.1, True).step(1, 1e-3, 0.9, 0.999, 1e-8, 0.1, True, param, grad, m, v)
    check.keep("CPUAdamOptimizer", param, right)


# Ours, torch's of the same rule, and what both are made with; torch has no Lion.
OPTIMIZERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "amsgrad": (CPUAdam, torch.optim.AdamW, {"lr": 1e-2, "betas": (0.5, 0.6), "weight_decay": 0.1, "amsgrad": True}),
    "sgd": (CPUSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "nesterov": (CPUSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (CPUAdagrad, torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "lion": (CPULion, None, {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}),
}


def lion(param: Any, moment: Any, grad: Any) -> None:
    """One step of Lion in plain torch, with the numbers above."""
    param.mul_(1 - 1e-3).add_((0.9 * moment + 0.1 * grad).sign(), alpha=-1e-2)
    moment.mul_(0.99).add_(grad, alpha=0.01)


def check_optimizers(check: Check) -> None:
    """Five steps of every other optimizer, with gradients and copies of every format."""
    for name, (kind, torchs_kind, options) in OPTIMIZERS.items():
        for dtype in FORMATS:
            ours, exact, moment = (
                numbers(1, 5003),
                torch.nn.Parameter(numbers(1, 5003).double()),
                torch.zeros(5003).double(),
            )
            copy = torch.zeros(5003, dtype=torch.float16 if dtype is torch.float16 else torch.bfloat16)
            mine = kind([ours], **options)
            torchs = None if torchs_kind is None else torchs_kind([exact], **options, foreach=False)
            for step in range(5):
                grad = numbers(step + 2, 5003, dtype=dtype)
                mine.step(grads=[grad], copies=[copy])
                exact.grad = grad.double()
                if torchs is None:
                    lion(exact.data, moment, exact.grad)
                else:
                    torchs.step()
            label = f"{name}.{str(dtype).removeprefix('torch.')}"
            check.keep(label, ours, exact.detach())
            check.keep(f"{label}.copy", copy, exact.detach())


def refused(name: str) -> str:
    """The first line of the refusal to load an extension, which there must be."""
    try:
        kernel_loader.CPUAdamLoader().load(ext_name=name)
    except KernelUnavailable as error:
        return str(error).splitlines()[0]
    raise AssertionError(f"{name} was loaded on {platform.machine()}")


def main(extension: str, path: str) -> None:
    """Run everything and say where it ran."""
    others = {"cpu_adam_x86": "cpu_adam_arm", "cpu_adam_arm": "cpu_adam_x86"}
    module = kernel_loader.CPUAdamLoader().load(ext_name=extension)
    check = Check(Path(path))
    check_adam(check, module.CPUAdamOptimizer)
    check_optimizers(check)
    check_ops(check)
    check_caches(check)
    check.close()
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "host": str(precast.load("rms_norm").host),
        "library": str(precast.load("rms_norm").host.path),
        "refused": refused(others[extension]),
        "results": len(check.errors),
        "furthest": max(check.errors, key=lambda name: check.errors[name]),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
