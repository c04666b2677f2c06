"""The gated delta rule on the GPU: states moved by a decoding step as a share of the copy rate, and prefill beside FLA.

The calls of a graph take turns in a large pool, so no state is in the cache. FLA is the peer where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.kv_cache import gpu_us
from benchmarks.norm import FLUSH_BYTES, copy_rate
from benchmarks.report import Report, Row

if TYPE_CHECKING:
    import torch

KEY_HEADS, WIDTH = 16, 128
POOL_BYTES = 200 << 20  # at least, of all states that a graph takes turns in
FLA = "FLA"
Functions = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Step:
    """A decoding step, and our target: a share of the copy rate, or microseconds."""

    sequences: int
    value_heads: int
    kind: str = "float32"
    tokens: int = 1
    target: str = ""

    def __str__(self) -> str:
        return f"step of {self.sequences}x{self.tokens}, {self.value_heads} heads, {self.kind} states"


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompts of one length."""

    sequences: int
    length: int
    value_heads: int
    target: str = ""

    def __str__(self) -> str:
        return f"prefill of {self.sequences}x{self.length}, {self.value_heads} heads"


STEPS = (
    Step(512, 16, target=">= 0.80"),
    Step(512, 32, target=">= 0.80"),
    Step(512, 32, "bfloat16", target=">= 0.80"),
    Step(64, 32),
    Step(64, 32, tokens=4),
    Step(1, 16, target="<= 4 us"),
    Step(1, 32, target="<= 4 us"),
)
PREFILLS = (Prefill(1, 8192, 32, ">= 0.7"), Prefill(4, 2048, 32), Prefill(1, 512, 32))


def tokens_of(sequences: int, length: int, value_heads: int, device: str) -> list[torch.Tensor]:
    """Queries, keys, values, gates and betas as a model of 16 key heads has them."""
    import torch

    made = [
        torch.randn(sequences, length, heads, WIDTH, device=device) for heads in (KEY_HEADS, KEY_HEADS, value_heads)
    ]
    gates = [torch.rand(sequences, length, value_heads, device=device) for _ in range(2)]
    return [*(one.bfloat16() for one in made), -0.1 * gates[0], gates[1]]


def step(case: Step, device: str = "cuda") -> Callable[[], object]:
    """A call, each time on other slots."""
    import torch

    from precast.ops import gated_delta_rule_update_

    dtype = getattr(torch, case.kind)
    state = case.value_heads * WIDTH * WIDTH * dtype.itemsize
    turns = max(2, POOL_BYTES // (case.sequences * state))
    pool = torch.zeros(turns * case.sequences, case.value_heads, WIDTH, WIDTH, device=device, dtype=dtype)
    tokens = tokens_of(case.sequences, case.tokens, case.value_heads, device)
    slots = itertools.cycle(torch.randperm(len(pool), device=device).int().split(case.sequences))
    return lambda: gated_delta_rule_update_(*tokens, pool, next(slots), l2_norm=True)


def prefill(case: Prefill, device: str = "cuda") -> Functions:
    """Ours, and FLA's where it is installed."""
    from precast.ops import gated_delta_rule

    tokens = tokens_of(case.sequences, case.length, case.value_heads, device)
    functions: Functions = {"precast": lambda: gated_delta_rule(*tokens, l2_norm=True)}
    if device == "cuda" and importlib.util.find_spec("fla") is not None:
        theirs = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
        options = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
        functions[FLA] = lambda: theirs(*tokens, **options)
    return functions


def rows(copy: float) -> Iterator[Row]:
    """Every case."""
    import torch

    for case in STEPS:
        us = gpu_us(step(case))
        size = 2 * case.sequences * case.value_heads * WIDTH * WIDTH * getattr(torch, case.kind).itemsize
        in_time = case.target.endswith("us")
        value, unit = (us, "us") if in_time else (size / us / 1e3 / copy, "of copy")
        yield Row(str(case), value, unit, higher_is_better=not in_time, target=case.target)
    for prompt in PREFILLS:
        found = {name: gpu_us(function) for name, function in prefill(prompt).items()}
        yield Row(str(prompt), found["precast"], "us", FLA, found.get(FLA), target=prompt.target)


def main() -> Report:
    """Measure every shape."""
    import torch

    title = "The gated delta rule on the GPU, bf16 tokens"
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return Report("delta_rule", title, skipped="torch sees no NVIDIA GPU")
    copy = copy_rate(torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")) * 1e-9
    with torch.no_grad():
        found = tuple(rows(copy))
    notes = (f"{KEY_HEADS} key heads of {WIDTH}; the copy moves {copy:.0f} GB/s. Bytes are those of states.",)
    return Report("delta_rule", title, found, notes=notes)
