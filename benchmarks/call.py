"""The host's cost of one call of a small op, compared with torch's: rms_norm layer by layer, then other ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

from benchmarks.call_cases import backward, cases, least_recorded
from benchmarks.report import Report, Row, interleaved_medians, timed

CALLS, ROUNDS = 2000, 15
GPU_CALLS = 500  # few enough for the queue of launches

# The function to call, and the context in which to call it.
Layer: TypeAlias = "tuple[Callable[[], object], Callable[[], AbstractContextManager[object]]]"


@contextmanager
def autograd_passed_by() -> Iterator[None]:
    """Skip the dispatcher's autograd kernel, as the public function does if no gradient can be requested."""
    import torch

    from precast._dispatch.formulas import AUTOGRAD_KEY

    torch._C._dispatch_tls_set_dispatch_key_excluded(AUTOGRAD_KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(AUTOGRAD_KEY, False)


def layers(device: str) -> tuple[dict[str, Layer], dict[str, str]]:
    """Name every layer of a call of rms_norm, with the peer of each, on a tensor too small to cost anything itself."""
    import torch

    import precast
    from precast.ops.norm import RMS_NORM, rms_norm

    precast.load("rms_norm", device)
    x = torch.randn(4, 64, device=device)
    weight = torch.nn.Parameter(torch.ones(64, device=device))
    plain = weight.detach()
    eps = 1e-6

    def theirs(scale: torch.Tensor) -> Callable[[], object]:
        return lambda: torch.nn.functional.rms_norm(x, (64,), scale, eps)

    found: dict[str, Layer] = {
        "dispatcher, checks, kernel": (lambda: RMS_NORM(x, plain, eps, 0), autograd_passed_by),
        "torch.ops.precast.rms_norm": (lambda: torch.ops.precast.rms_norm(x, plain, eps, 0), nullcontext),
        "public, no input requires grad": (lambda: rms_norm(x, plain), nullcontext),
        "public, weight requires grad, no_grad": (lambda: rms_norm(x, weight), torch.no_grad),
        "public, gradient recorded": (lambda: rms_norm(x, weight), nullcontext),
        "F.rms_norm": (theirs(plain), nullcontext),
        "F.rms_norm, no_grad": (theirs(weight), torch.no_grad),
        "F.rms_norm, recorded": (theirs(weight), nullcontext),
    }
    peers = dict.fromkeys(found, "F.rms_norm")
    peers["public, weight requires grad, no_grad"] = "F.rms_norm, no_grad"
    peers["public, gradient recorded"] = "F.rms_norm, recorded"
    return found, {name: peer for name, peer in peers.items() if not name.startswith("F.")}


def measure(device: str) -> list[Row]:
    """Alternate over all layers and ops. On a GPU the host's time counts, so the queue is emptied between rounds."""
    import torch

    def sample(layer: Layer) -> Callable[[], float]:
        function, context = layer

        def run() -> float:
            with context():
                seconds = timed(function, GPU_CALLS if device == "cuda" else CALLS)()
            if device == "cuda":
                torch.cuda.synchronize()
            return seconds

        return run

    found, peers = layers(device)
    # What no autograd.Function can go below.
    found["torch.autograd.Function, empty"] = least_recorded(device), nullcontext
    targets = {"public, weight requires grad, no_grad": ">= 1.0", "public, gradient recorded": ">= 1.0"}
    for op, case in cases(device).items():
        found[op], found[f"torch's {op}"] = (case.ours, nullcontext), (case.theirs, nullcontext)
        peers[op], targets[op] = f"torch's {op}", ">= 1.0"
        for what, ours, theirs in (
            ("recorded", case.ours_recorded, case.theirs_recorded),
            ("forward and backward", backward(case.ours_recorded), backward(case.theirs_recorded)),
        ):
            name = f"{op}, {what}"
            found[name], found[f"torch's {name}"] = (ours, nullcontext), (theirs, nullcontext)
            peers[name], targets[name] = f"torch's {name}", ">= 1.0"
    medians = interleaved_medians({name: sample(layer) for name, layer in found.items()}, ROUNDS)
    target = targets if device == "cuda" else {}
    rows = [
        Row(f"{device}: {name}", medians[name] * 1e6, "us", peer, medians[peer] * 1e6, target=target.get(name, ""))
        for name, peer in peers.items()
    ]
    least = "torch.autograd.Function, empty"
    return [*rows, Row(f"{device}: {least}", medians[least] * 1e6, "us")]


def main() -> Report:
    """Measure on the CPU, and on a GPU if there is one."""
    import torch

    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() and torch.version.hip is None else [])]
    rows = [row for device in devices for row in measure(device)]
    notes = () if devices[1:] else ("On a GPU: skipped, torch sees none.",)
    return Report(
        "call",
        "One call of a small op, 4 x 64 fp32: rms_norm from the inside outwards, then other ops",
        tuple(rows),
        notes=notes,
    )
