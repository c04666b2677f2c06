"""One scenario on one GPU, run in a child process by run.py; prints one JSON object of what was witnessed.

Usage: python scenario.py NAME. Every check is an assertion, so that the exit status is the verdict.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

# CUfunction_attribute of the CUDA driver API.
PTX_VERSION, BINARY_VERSION, LOCAL_BYTES = 5, 6, 3


def mapped(pattern: str) -> list[str]:
    """Files mapped into this process whose path matches: the kernel's word, not ours."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if re.search(pattern, path))


def host_libraries() -> list[str]:
    found = []
    for path in mapped(r"\.so$"):
        if "precast" in path and hasattr(ctypes.CDLL(path), "precast_families"):
            found.append(path)
    return found


def attributes(family: str, device: int = 0) -> dict[str, dict[str, int]]:
    """What the driver holds for each entry point of a family, asked through the mapped library itself."""
    (path,) = [p for p in host_libraries() if family in families(p)]
    library = ctypes.CDLL(path)
    buffer = ctypes.create_string_buffer(1 << 16)
    assert library.precast_entries(family.encode(), buffer, len(buffer)) == 0, buffer.value
    table = {}
    for entry in buffer.value.decode().split():
        row = {}
        for name, number in (("ptx", PTX_VERSION), ("binary", BINARY_VERSION), ("local_bytes", LOCAL_BYTES)):
            value, error = ctypes.c_int(), ctypes.create_string_buffer(2048)
            status = library.precast_kernel_attribute(
                family.encode(), device, entry.encode(), number, ctypes.byref(value), error, len(error)
            )
            assert status == 0, error.value.decode()
            row[name] = value.value
        table[entry] = row
    return table


def families(path: str) -> list[str]:
    library = ctypes.CDLL(path)
    library.precast_families.restype = ctypes.c_char_p
    return library.precast_families().decode().split()


def oracle(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMSNorm in fp64 from the rounded inputs."""
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def inputs(device: str = "cuda", rows: int = 512, hidden: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    x = torch.randn(rows, hidden, device=device, dtype=torch.bfloat16)
    return x, torch.randn(hidden, device=device, dtype=torch.bfloat16)


def assert_close(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Within half a unit in the last place of bf16 and a hair, element by element; NaN never passes."""
    expected = oracle(x, weight)
    spacing = torch.exp2(torch.floor(torch.log2(expected.abs().clamp_min(1e-30))) - 7)
    worst = ((y.double() - expected).abs() / spacing).max().item()
    assert worst <= 0.51, f"{worst} ulp of bf16"


def first_call() -> dict[str, object]:
    """The first call of the process: what was mapped for it, what the driver holds, how long it took."""
    import precast.ops

    x, weight = inputs()
    torch.cuda.synchronize()
    start = time.perf_counter()
    y = precast.ops.rms_norm(x, weight)
    torch.cuda.synchronize()
    elapsed_ms = (time.perf_counter() - start) * 1e3
    assert_close(y, x, weight)
    table = attributes("rms_norm")
    return {
        "first_call_ms": round(elapsed_ms, 2),
        "libraries": host_libraries(),
        "binary": sorted({row["binary"] for row in table.values()}),
        "ptx": sorted({row["ptx"] for row in table.values()}),
        "local_bytes": max(row["local_bytes"] for row in table.values()),
        "entries": len(table),
    }


def cold_capture() -> dict[str, object]:
    """The first call ever happens while a CUDA graph is being captured."""
    import precast.ops

    x, weight = inputs()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = precast.ops.rms_norm(x, weight)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(y, x, weight)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert_close(y, x, weight)
    return {"replays": 2}


def fresh_thread() -> dict[str, object]:
    """An in-place op is the first CUDA work of a new thread, which has no current context."""
    import precast.ops

    x, weight = inputs()
    residual = torch.zeros_like(x)
    before, failures = x.clone(), []

    def work() -> None:
        try:
            precast.ops.fused_add_rms_norm_(x, residual, weight)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which asserts on it
            failures.append(repr(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures, failures
    assert torch.equal(residual, before)
    assert_close(x, before, weight)
    return {"threads": 1}


def autograd_thread() -> dict[str, object]:
    """Backward runs in autograd's own device thread; gradients against fp64."""
    import precast.ops

    x, weight = inputs()
    grad = torch.randn_like(x)
    leaf, scale = x.clone().requires_grad_(), weight.clone().requires_grad_()
    precast.ops.rms_norm(leaf, scale).backward(grad)
    wide, wide_scale = x.double().requires_grad_(), weight.double().requires_grad_()
    oracle(wide, wide_scale).backward(grad.double())
    report = {}
    for name, ours, theirs in (("x", leaf.grad, wide.grad), ("weight", scale.grad, wide_scale.grad)):
        assert ours is not None and theirs is not None
        report[name] = ((ours.double() - theirs).norm() / theirs.norm()).item()
        assert report[name] < 3e-3, report
    return {"relative_error": report}


def side_stream() -> dict[str, object]:
    """Work is ordered on the stream that is current: a slow producer on a side stream feeds the op there."""
    import precast.ops

    x, weight = inputs(rows=8192)
    precast.ops.rms_norm(x * 1, weight)  # both kernels are loaded before the wait, which is shorter than a load can be
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        fed = x * 1
        y = precast.ops.rms_norm(fed, weight)
        busy = not stream.query()
    default_idle = torch.cuda.default_stream().query()
    stream.synchronize()
    assert_close(y, x, weight)
    assert busy and default_idle, (busy, default_idle)
    return {"side_stream_was_busy": busy, "default_stream_was_idle": default_idle}


def second_device() -> dict[str, object]:
    """Tensors on cuda:1 while cuda:0 is current, first call included; then both."""
    import precast.ops

    assert torch.cuda.device_count() > 1, "two GPUs are needed"
    torch.cuda.set_device(0)
    x, weight = inputs("cuda:1")
    y = precast.ops.rms_norm(x, weight)
    assert y.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    assert_close(y, x, weight)
    x0, weight0 = inputs("cuda:0")
    assert_close(precast.ops.rms_norm(x0, weight0), x0, weight0)
    try:
        precast.ops.rms_norm(x, weight0)
    except (RuntimeError, ValueError) as error:
        refusal = str(error).splitlines()[0]
    else:
        raise AssertionError("tensors of two devices were accepted")
    return {"binary": [attributes("rms_norm", i)["rms_norm_bf16_v4"]["binary"] for i in (0, 1)], "mixed": refusal}


def two_graphs() -> dict[str, object]:
    """A captured norm and a captured optimizer step on each GPU, replayed in turns while the other one is current."""
    import precast.ops
    from precast.optim import FusedAdamW

    graphs = []
    for index in (0, 1):
        x, weight = inputs(f"cuda:{index}")
        torch.manual_seed(index)
        start = torch.randn(300, 33, device=x.device)
        params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
        for param in params:
            param.grad = torch.randn_like(param)
        optimizer = FusedAdamW(params, lr=0.1, weight_decay=0.1)
        torch.cuda.set_device(index)
        optimizer.step()
        # torch's own stream for captures stays on the GPU that was current when it was made.
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(index)):
            y = precast.ops.rms_norm(x, weight)
            optimizer.step()
        graphs.append((graph, x, weight, y, optimizer, start))
    for turn in range(3):
        for index, (graph, x, weight, y, _, _) in enumerate(graphs):
            torch.cuda.set_device(1 - index)
            x.mul_(2 if turn else 1)
            graph.replay()
            torch.cuda.synchronize(index)
            assert_close(y, x, weight)
    for _, _, _, _, optimizer, start in graphs:
        for param in optimizer.param_groups[0]["params"]:
            twin = torch.nn.Parameter(start.clone())
            twin.grad = param.grad
            torch_step = torch.optim.AdamW([twin], lr=0.1, weight_decay=0.1).step
            for _ in range(4):
                torch_step()
            torch.testing.assert_close(param, twin, rtol=1e-5, atol=1e-6)
    return {"replays": 6, "steps": 4}


def one_refused() -> dict[str, object]:
    """One GPU of two is refused before its first launch: its calls say why, and the other one serves."""
    import precast.ops

    pairs = [inputs("cuda:0"), inputs("cuda:1")]
    precast.ops.layer_norm(*pairs[0])  # the family is loaded, with an image for each GPU
    (path,) = [path for path in host_libraries() if "layer_norm" in families(path)]
    ctypes.CDLL(path).precast_refuse(b"layer_norm", 1, b"layer_norm cannot run on cuda:1: refused by this scenario")
    said = []
    for index in (1, 0, 1):
        x, weight = pairs[index]
        try:
            y = precast.ops.layer_norm(x, weight)
        except RuntimeError as error:
            if index == 0:
                raise
            said.append(str(error).splitlines()[0])
            continue
        assert index == 0, "a refused GPU was used"
        torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, x.shape[-1:], weight), rtol=2e-2, atol=2e-2)
    assert len(said) == 2 and all("cuda:1" in text for text in said), said
    return {"said": said[0]}


def huge() -> dict[str, object]:
    """More than 2^31 elements: the last rows are checked, where a 32-bit offset would have wrapped."""
    import precast.ops

    rows, hidden = 525_000, 4_096
    assert rows * hidden > 2**31
    x = torch.empty(rows, hidden, device="cuda", dtype=torch.bfloat16).normal_()
    weight = torch.randn(hidden, device="cuda", dtype=torch.bfloat16)
    y = precast.ops.rms_norm(x, weight)
    for part in (slice(0, 64), slice(rows - 64, rows)):
        assert_close(y[part], x[part], weight)
    return {"elements": rows * hidden}


SCENARIOS: dict[str, Callable[[], dict[str, object]]] = {
    f.__name__: f
    for f in (
        first_call,
        cold_capture,
        fresh_thread,
        autograd_thread,
        side_stream,
        second_device,
        two_graphs,
        one_refused,
        huge,
    )
}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]]()))
