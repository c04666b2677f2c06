"""One AdamW step on 134 million parameters on the CPU, compared with torch's fused optimizer."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Report, Row, interleaved, timed

TENSORS, ELEMENTS = 32, 1 << 22  # 134 M parameters: 2.1 GB of fp32 parameters, gradients and state
ROUNDS = 31
OPTIONS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds per step, and our speedup: the median over rounds that time both."""

    ours: float
    theirs: float
    ratio: float


def measure(half: bool) -> Outcome:
    """Alternate our step and torch's. With ``half``, gradients are bf16 and bf16 copies are written.

    Both update the same tensors. Separate tensors would have separate physical pages, whose placement moves the ratio
    of two processes by 5 %, several times the effect to measure.
    """
    import torch

    from precast.optim import CPUAdam

    torch.manual_seed(0)
    masters = [torch.nn.Parameter(torch.randn(ELEMENTS)) for _ in range(TENSORS)]
    for master in masters:
        master.grad = torch.randn(ELEMENTS)
    peer = torch.optim.AdamW(masters, fused=True, **OPTIONS)
    peer.step()
    optimizer = CPUAdam(masters, **OPTIONS)
    for master in masters:
        state = peer.state[master]
        optimizer.state[master] = {**state, "step": state["step"].clone()}

    ours: Callable[[], object] = optimizer.step
    theirs: Callable[[], object] = peer.step
    if half:
        wide = [master.grad for master in masters if master.grad is not None]
        grads = [gradient.bfloat16() for gradient in wide]
        copies = [torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in masters]

        def one_pass() -> None:
            optimizer.step(grads=grads, copies=copies)

        def three_passes() -> None:
            with torch.no_grad():
                torch._foreach_copy_(wide, grads)
                peer.step()
                torch._foreach_copy_(copies, [master.detach() for master in masters])

        ours, theirs = one_pass, three_passes

    ours()  # loads the kernels
    times = interleaved({"ours": timed(ours), "theirs": timed(theirs)}, ROUNDS)
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["theirs"], strict=True))
    return Outcome(statistics.median(times["ours"]), statistics.median(times["theirs"]), ratio)


def main() -> Report:
    """Measure both. Memory bandwidth is the limit, so bytes moved per second are reported too."""
    rows = []
    for half, what, peer, target, moved in (
        (False, "fp32", "torch AdamW(fused=True)", ">= 1.0", 28),
        (True, "fp32, bf16 gradients and copies", "cast, fused step, cast", ">= 1.3", 28),
    ):
        found = measure(half)
        rows.append(Row(what, found.ours * 1e3, "ms", peer, found.theirs * 1e3, target=target, paired=found.ratio))
        rate = moved * TENSORS * ELEMENTS / found.ours * 1e-9
        rows.append(Row(f"  {what}: memory traffic of ours", rate, "GB/s"))
    return Report("cpu_adam", f"AdamW step on {TENSORS * ELEMENTS / 1e6:.0f} M parameters, CPU", tuple(rows))
