"""Run precast's CPU kernels from one prebuilt library, compare them with this interpreter's torch, and report it.

A separate program: it runs in an environment with torch and one host library, but without the rest of the checkout.
It prints one JSON object: the torch, the checks, the speedup by two threads, and the OpenMP runtimes of the process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["PRECAST_JIT"] = "aot"

import torch
from torch import Tensor
from torch.nn import functional

import precast
from precast import ops
from precast._builder import flags
from precast._load import loader
from precast.core import probe
from precast.ops.norm import layer_norm as our_layer_norm
from precast.ops.norm import rms_norm as our_rms_norm

_SECONDS = 60.0  # limit for repeated measurements of the ratio, because the machine may be shared


def close(found: Tensor, wanted: Tensor) -> None:
    """Assert that two tensors are equal within the tolerance of the dtype."""
    loose = found.dtype != torch.float32
    torch.testing.assert_close(found, wanted, rtol=2e-2 if loose else 1e-4, atol=2e-2 if loose else 1e-5)


def both(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Compare values and gradients of two functions on the same inputs."""
    results, gradients = [], []
    for function in (ours, theirs):
        leaves = [t.detach().clone().requires_grad_() for t in inputs]
        y = function(*leaves)
        results.append(y.detach())
        gradients.append(torch.autograd.grad((y.float() * torch.arange(y.shape[-1])).sum(), leaves))
    close(*results)
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=3e-2 if found.dtype != torch.float32 else 1e-3, atol=3e-1)


def rms_norm(dtype: torch.dtype) -> None:
    """Check RMS norm alone, fused and in place."""
    x, weight = torch.randn(37, 96, dtype=dtype), torch.rand(96, dtype=dtype) + 0.5

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)

    both(our_rms_norm, plain, x, weight)
    close(our_rms_norm(x.t().contiguous().t(), weight), plain(x, weight))
    residual = torch.randn_like(x)
    y, total = ops.fused_add_rms_norm(x, residual, weight)
    close(total, x + residual)
    close(y, plain(x + residual, weight))
    before = x._version
    ops.fused_add_rms_norm_(x, residual, weight)
    close(x, y)
    close(residual, total)
    if x._version == before:
        raise AssertionError("an update in place did not bump the version counter")


def layer_norm(dtype: torch.dtype) -> None:
    """Check with and without weight and bias, against float32: torch sums half-precision gradients less exactly."""

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x.float(), (64,), weight.float(), bias.float()).to(x.dtype)

    x, weight, bias = (torch.randn(*shape, dtype=dtype) for shape in ((5, 7, 64), (64,), (64,)))
    both(our_layer_norm, plain, x, weight, bias)
    close(our_layer_norm(x), functional.layer_norm(x, (64,)))


def softmax(dtype: torch.dtype) -> None:
    """Check the scaled, masked and causal softmax."""
    x = torch.randn(2, 3, 24, 24, dtype=dtype)
    both(lambda x: ops.scaled_softmax(x, 0.5), lambda x: torch.softmax(x.float() * 0.5, -1).to(dtype), x)
    mask = torch.rand(2, 1, 24, 24) < 0.3
    hidden = (x.float() * 0.5).masked_fill(mask, float("-inf"))
    close(ops.scaled_masked_softmax(x, mask, 0.5), torch.softmax(hidden, -1).nan_to_num().to(dtype))
    later = torch.ones(24, 24, dtype=torch.bool).triu(1)
    causal = torch.softmax((x.float() * 0.5).masked_fill(later, float("-inf")), -1).to(dtype)
    close(ops.scaled_aligned_causal_softmax(x, 0.5), causal)


def activations(dtype: torch.dtype) -> None:
    """Check the gated activations."""
    x = torch.randn(11, 64, dtype=dtype)
    both(ops.silu_and_mul, lambda x: functional.silu(x[..., :32]) * x[..., 32:], x)
    both(ops.gelu_and_mul, lambda x: functional.gelu(x[..., :32]) * x[..., 32:], x)
    both(ops.mul_and_silu, lambda x: x[..., :32] * functional.silu(x[..., 32:]), x)


def adam(_: torch.dtype) -> None:
    """Compare twenty Adam steps with torch's."""
    from precast.optim import CPUAdam

    start = [torch.randn(33, 17), torch.randn(5)]
    ours, theirs = ([t.clone().requires_grad_() for t in start] for _ in range(2))
    mine = CPUAdam(ours, lr=1e-2, weight_decay=0.1)
    torchs = torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1)
    for _step in range(20):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        mine.step()
        torchs.step()
    for a, b in zip(ours, theirs, strict=True):
        close(a.detach(), b.detach())


def refusal(_: torch.dtype) -> None:
    """Check that a bad input raises one clear error, and that a trace records plain operators."""
    try:
        our_rms_norm(torch.randn(3, 4), torch.randn(5))
    except RuntimeError as error:
        if "rms_norm" not in str(error):
            raise
    else:
        raise AssertionError("a weight of another size was taken")


def ratio(enough: float) -> float:
    """The speedup by two threads, from the best interleaved runs, until it is ``enough`` or a minute is over."""
    x = torch.randn(4096, 512)
    out: dict[int, list[float]] = {1: [], 2: []}
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        for threads, seconds in out.items():
            torch.set_num_threads(threads)
            for _ in range(20):
                started = time.perf_counter()
                ops.scaled_softmax(x, 0.5)
                seconds.append(time.perf_counter() - started)
        if len(out[1]) >= 100 and min(out[1]) / min(out[2]) > enough:
            break
    return min(out[1]) / min(out[2])


def level() -> str:
    """The CPU level of the kernels, and how much faster it makes a norm than the lowest level does."""
    names = [level.name for level in flags.cpu_levels(platform.machine())]
    best = flags.best_level(platform.machine(), probe.cpu_features()).name
    x, weight = torch.randn(64, 512), torch.ones(512)
    torch.set_num_threads(1)
    library = loader._state.serving["rms_norm", "cpu"]
    seconds: dict[str, list[float]] = {best: [], names[0]: []}
    for _ in range(300):
        for name, times in seconds.items():
            library.use_level(name)
            started = time.perf_counter()
            our_rms_norm(x, weight)
            times.append(time.perf_counter() - started)
    library.use_level("")
    return f"{best}: rms_norm {min(seconds[names[0]]) / min(seconds[best]):.1f} times as fast as {names[0]}"


def main() -> int:
    """Run every check; the first failure ends the program with its error."""
    torch.manual_seed(0)
    done = []
    for check in (rms_norm, layer_norm, softmax, activations):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            check(dtype)
        done.append(f"{check.__name__} against torch, with gradients, in float32, bfloat16 and float16")
    adam(torch.float32)
    done.append("adam_ by CPUAdam against torch.optim.AdamW, 20 steps")
    refusal(torch.float32)
    done.append("a bad input refused by name")
    host = precast.load("rms_norm").host
    bound = precast.load("rms_norm").torch
    if host.kind != "prebuilt" or bound is None or bound.kind not in ("prebuilt", "torch"):
        raise AssertionError(f"not from the prebuilt files: {host}, {bound}")
    gain = ratio(float(sys.argv[1]))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    runtimes = sorted(set(re.findall(r"/\S*/(lib(?:gomp|omp|iomp5)[^/\s]*)$", maps, re.MULTILINE)))
    facts = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cxx11": torch.compiled_with_cxx11_abi(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "checks": done,
        "ratio": round(gain, 2),
        "level": level(),
        "openmp": runtimes,
        "library": host.path.name,
    }
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
