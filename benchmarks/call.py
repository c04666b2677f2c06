"""What one call of a small rms_norm costs, from the inside outwards, beside torch's own."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.report import Report, Row, interleaved_medians, timed

CALLS, ROUNDS = 2000, 15


def steps(device: str) -> dict[str, Callable[[], object]]:
    """Name every layer of one call on a tensor too small to cost anything itself."""
    import torch

    import precast

    precast.load("rms_norm", device)
    ops = torch.ops.precast
    x = torch.randn(4, 64, device=device)
    weight = torch.nn.Parameter(torch.ones(64, device=device))
    plain = weight.detach()
    eps, casting = 1e-6, 0

    def without_gradients(function: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return function()

        return run

    return {
        "torch.ops, no gradient formula": lambda: ops.rms_norm_forward(x, plain, eps, casting),
        "torch.ops, with gradient formula": lambda: ops.rms_norm(x, plain, eps, casting),
        "public function, no input requires grad": lambda: precast.ops.rms_norm(x, plain),
        "public function, weight requires grad, no_grad": without_gradients(lambda: precast.ops.rms_norm(x, weight)),
        "public function, gradient recorded": lambda: precast.ops.rms_norm(x, weight),
        "peer: plain": lambda: torch.nn.functional.rms_norm(x, (64,), plain, eps),
        "peer: no_grad": without_gradients(lambda: torch.nn.functional.rms_norm(x, (64,), weight, eps)),
        "peer: recorded": lambda: torch.nn.functional.rms_norm(x, (64,), weight, eps),
    }


def measure(device: str) -> list[Row]:
    """Take turns over all layers; on a GPU the host's time counts, so the queue is emptied between rounds."""
    import torch

    def emptied(function: Callable[[], object]) -> Callable[[], float]:
        calls = 500 if device == "cuda" else CALLS  # fewer than fit the launch queue

        def run() -> float:
            seconds = timed(function, calls)()
            if device == "cuda":
                torch.cuda.synchronize()
            return seconds

        return run

    layers = steps(device)
    medians = interleaved_medians({name: emptied(function) for name, function in layers.items()}, ROUNDS)
    us = {name: seconds * 1e6 for name, seconds in medians.items()}
    peers = {
        "torch.ops, no gradient formula": "peer: plain",
        "torch.ops, with gradient formula": "peer: plain",
        "public function, no input requires grad": "peer: plain",
        "public function, weight requires grad, no_grad": "peer: no_grad",
        "public function, gradient recorded": "peer: recorded",
    }
    return [Row(f"{device}: {name}", us[name], "us", "F.rms_norm", us[peer]) for name, peer in peers.items()]


def main() -> Report:
    """Measure on the CPU, and on a GPU where there is one."""
    import torch

    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() and torch.version.hip is None else [])]
    rows = [row for device in devices for row in measure(device)]
    notes = () if devices[1:] else ("On a GPU: skipped, torch sees none.",)
    return Report("call", "One call of rms_norm on 4 x 64 fp32, step by step (us)", tuple(rows), notes=notes)
