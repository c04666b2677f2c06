"""The cases of ``python -m benchmarks.shapes``: the list in shapes.toml, random ones, and who computes them."""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import activations, liger, quack, softmax
from benchmarks.families import FAMILIES
from benchmarks.norm import compiled_for_one_shape

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import torch

Function = Callable[..., Any]

FAMILY_LIST = "families"  # of GPUs
LISTS = {
    name: Path(__file__).with_name(file)
    for name, file in (("cuda", "shapes.toml"), ("cpu", "cpu_shapes.toml"), (FAMILY_LIST, "family_shapes.toml"))
}
DTYPES = {"cuda": "bfloat16", "cpu": "float32", FAMILY_LIST: "bfloat16"}  # of an entry that names none
OURS, EAGER, COMPILED = "precast", "torch eager", "torch.compile"
FORWARD, TRAINING = "forward", "training"
EPS = 1e-6
MOST_ELEMENTS = {"cuda": 1 << 28, "cpu": 1 << 22}  # of a random case
MOST_ROWS = {"cuda": 18, "cpu": 14}  # as powers of two
GATED = ("silu_and_mul", "gelu_tanh_and_mul")
ROW_OPS = ("rms_norm", "fused_add_rms_norm", "layer_norm", "scaled_softmax", *GATED)
RANDOM_DTYPES = {
    "cuda": ("bfloat16",) * 6 + ("float16", "float32"),
    "cpu": ("float32",) * 4 + ("bfloat16",) * 3 + ("float16",),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One op at one shape. ``way``: forward alone, or training, which is forward and backward."""

    op: str
    way: str
    shape: tuple[int, ...]
    dtype: str
    model: str

    @property
    def text(self) -> str:
        """The case in a line of a table."""
        return f"{self.op} {self.way} {'x'.join(map(str, self.shape))} {self.dtype}"


def listed(device: str) -> list[Case]:
    """The cases of a device's list, or of the families'; an entry without a way is two, if there are gradients."""
    entries = tomllib.loads(LISTS[device].read_text(encoding="utf-8"))
    return [
        Case(op, way, tuple(entry["shape"]), entry.get("dtype", DTYPES[device]), entry["model"])
        for op, some in entries.items()
        for entry in some
        for way in ([entry["way"]] if "way" in entry else [FORWARD, TRAINING])
        if way == FORWARD or op not in FAMILIES or FAMILIES[op].learns
    ]


def listed_of(families: Sequence[str]) -> list[Case]:
    """The listed cases of some families; of all of them, those of row ops too."""
    return [case for case in listed(FAMILY_LIST) if case.op in families or len(families) == len(FAMILIES)]


def drawn(seed: int, count: int, device: str, families: Sequence[str] = ()) -> list[Case]:
    """Random cases of the row ops, or as many of each family. Those of a seed are the first of a larger count.

    Rows and widths are as likely to be small as large, and a third of the widths is any number.
    """
    if families:
        return [
            case for family in families for case in _of_family(family, random.Random(f"{seed} {family}"), count, device)
        ]
    numbers = random.Random(seed)
    cases = []
    for _ in range(count):
        op, way = numbers.choice(ROW_OPS), numbers.choice((FORWARD, TRAINING))
        vectors = numbers.random() < 2 / 3
        width = 8 * round(2 ** numbers.uniform(2, 14)) if vectors else round(2 ** numbers.uniform(5, 14))
        rows = max(1, min(round(2 ** numbers.uniform(0, MOST_ROWS[device])), MOST_ELEMENTS[device] // width))
        cases.append(Case(op, way, (rows, width), numbers.choice(RANDOM_DTYPES[device]), "random"))
    return cases


def _of_family(op: str, numbers: random.Random, count: int, device: str) -> Iterator[Case]:
    family = FAMILIES[op]
    for _ in range(count):
        way = numbers.choice((FORWARD, TRAINING)) if family.learns else FORWARD
        yield Case(
            op, way, family.draw(numbers, MOST_ELEMENTS[device]), numbers.choice(RANDOM_DTYPES[device]), "random"
        )


def part_of(cases: list[Case], part: int, parts: int) -> list[Case]:
    """The ``part``-th of ``parts``, counted from one, of the cases in an order that mixes ops and ways."""
    mixed = random.Random(0).sample(cases, len(cases))
    return mixed[part - 1 :: parts]


def functions(case: Case, device: str) -> tuple[dict[str, Function], dict[str, str]]:
    """Everybody who computes the op, by name, and why others do not."""
    ours, theirs = _ours_and_theirs(case, device)
    found, absent = {OURS: ours, EAGER: theirs}, {}
    for peer in (liger, quack):
        if device == "cpu":
            absent[peer.NAME] = "no peer: it runs on GPUs"
            continue
        function = peer.functions().get(case.op) if peer.installed() else None
        if case.op == "linear_cross_entropy" and peer is liger and peer.installed():
            (function,) = liger.loss(case.op).values()
        if function is None:
            absent[peer.NAME] = peer.NO_SUCH_OP if peer.installed() else peer.ABSENT
        elif peer is quack and case.op == "layer_norm" and case.way == TRAINING:
            absent[peer.NAME] = quack.NO_GRADIENT
        elif peer is liger and case.op in GATED:
            absent[peer.NAME] = "no peer: it takes the two halves as tensors of their own"
        else:
            found[peer.NAME] = function
    return found, absent


def _ours_and_theirs(case: Case, device: str) -> tuple[Function, Function]:
    """Our op, and the code that a torch user writes for it."""
    import torch

    import precast

    op, width = case.op, case.shape[-1]
    if op in FAMILIES:
        return FAMILIES[op].functions(case.shape)
    if op in ("scaled_masked_softmax", "scaled_upper_triang_masked_softmax"):
        batch, _, queries, keys = case.shape
        mask = torch.rand(batch, 1, queries, keys, device=device) < 0.3
        mask[..., 0] = False
        behind = torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1)
        pairs = softmax.contestants(mask, behind, lambda function: function)
        pair = pairs["masked" if op == "scaled_masked_softmax" else "causal"]
        return pair[OURS], pair[EAGER]

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (width,), weight, EPS)

    def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + residual
        return rms_norm(total, weight), total

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (width,), weight, bias)

    def scaled_softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    ours = getattr(precast.ops, op)
    theirs: dict[str, Function] = {f.__name__: f for f in (rms_norm, fused_add_rms_norm, layer_norm, scaled_softmax)}
    if op == "scaled_softmax":
        ours = functools.partial(ours, scale=1.0)
    return ours, {**theirs, **activations.formulas(), **activations.alone()}[op]


def compiled(function: Function) -> Function:
    """torch.compile for this shape alone. It forgets all others before, as it keeps only so many for each function."""
    import torch

    torch.compiler.reset()
    return compiled_for_one_shape(function)


@dataclass(frozen=True, slots=True)
class Buffers:
    """What calls read: the tensors of each set, the gradients of its results, and what all sets share.

    That is weights, which have gradients too, and what is fixed.
    """

    inputs: list[list[torch.Tensor]]
    gradients: list[list[torch.Tensor]]
    weights: list[torch.Tensor]
    fixed: list[torch.Tensor] = field(default_factory=list)


def call_bytes(case: Case) -> int:
    """About what a call reads and writes, without weights: enough to say how many sets exceed a cache."""
    import torch

    size: int = getattr(torch, case.dtype).itemsize
    if case.op in FAMILIES:
        return FAMILIES[case.op].moved(case.shape) * size * (1 if case.way == FORWARD else 2)
    streams = 2 * _inputs(case.op) + (case.op in GATED)
    return math.prod(case.shape) * size * streams * (1 if case.way == FORWARD else 2)


def _inputs(op: str) -> int:
    return 2 if op == "fused_add_rms_norm" else 1


def buffers(case: Case, sets: int, device: str) -> Buffers:
    """Random numbers for each set."""
    import torch

    if case.op in FAMILIES:
        return _of_sets(case, sets, device)
    gated, training = case.op in GATED, case.way == TRAINING
    dtype = getattr(torch, case.dtype)
    shape = (*case.shape[:-1], 2 * case.shape[-1]) if gated else case.shape
    random_of = functools.partial(torch.randn, device=device, dtype=dtype)
    columns = {"rms_norm": 1, "fused_add_rms_norm": 1, "layer_norm": 2}.get(case.op, 0)
    weights = [random_of(case.shape[-1]) for _ in range(columns)]
    count = _inputs(case.op)
    inputs = [[random_of(shape) for _ in range(count)] for _ in range(sets)]
    gradients = [[random_of(case.shape) for _ in range(count)] if training else [] for _ in range(sets)]
    return Buffers(inputs, gradients, weights)


def _of_sets(case: Case, sets: int, device: str) -> Buffers:
    """The same for a family, whose gradients have the shapes of its results."""
    import torch

    family, dtype = FAMILIES[case.op], getattr(torch, case.dtype)
    make = functools.partial(torch.randn, device=device, dtype=dtype)
    inputs = [family.inputs(case.shape, make) for _ in range(sets)]
    weights, fixed = family.weights(case.shape, make), family.fixed(case.shape, make)
    gradients: list[list[torch.Tensor]] = [[] for _ in range(sets)]
    if case.way == TRAINING:
        found = family.functions(case.shape)[1](*inputs[0], *weights, *fixed)
        results = found if isinstance(found, tuple) else (found,)
        gradients = [[torch.randn_like(one) for one in results] for _ in range(sets)]
    return Buffers(inputs, gradients, weights, fixed)


def in_float32(given: Buffers) -> Buffers:
    """The first set, for results to compare with."""
    inputs, gradients, weights, fixed = (
        [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]
        for tensors in (given.inputs[0], given.gradients[0], given.weights, given.fixed)
    )
    return Buffers([inputs], [gradients], weights, fixed)


def call_of(function: Function, given: Buffers, index: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    """The call on one set: the results, followed by the gradients in training.

    Each call has leaves of its own, and its autograd graph ends with it: a node that an earlier call left on another
    stream would break a capture.
    """
    import torch

    tensors, gradients = [*given.inputs[index], *given.weights], given.gradients[index]

    def run() -> tuple[torch.Tensor, ...]:
        leaves = [tensor.detach().requires_grad_(bool(gradients)) for tensor in tensors]
        result = function(*leaves, *given.fixed)
        results = result if isinstance(result, tuple) else (result,)
        found = torch.autograd.grad(results, leaves, gradients) if gradients else ()
        return tuple(tensor.detach() for tensor in (*results, *found))

    return run
