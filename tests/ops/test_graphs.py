"""The ops in graphs: ``opcheck``, ``torch.compile`` on a cold cache, ``torch.export`` into a fresh process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast import ops  # noqa: E402
from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast.ops import _folders  # noqa: E402
from precast.ops._updates import DECOUPLED, NESTEROV, ON_CPU, RULES  # noqa: E402
from tests.ops.tensors import assert_captured, made  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

RAW = torch.ops.precast
# Every op that has one on the CPU; whether it is, defines it.
EXAMPLES = sorted(
    op for family in FAMILIES if "cpu" in family.devices for op in family.op_names if not _folders.is_planned(op)
)
EPS = 1e-6


def samples(device: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    x, residual = (made(4, 6, 24, device=device, seed=seed) for seed in (0, 1))
    weight = made(24, device=device, seed=2)
    return {
        "rms_norm": (RAW.rms_norm, (x, weight, EPS, 0)),
        "rms_norm with gradients": (
            RAW.rms_norm,
            (x.clone().requires_grad_(), weight.clone().requires_grad_(), EPS, 1),
        ),
        "rms_norm of rows apart": (RAW.rms_norm, (made(4, 6, 50, device=device)[..., 1:25], weight, EPS, 2)),
        "rms_norm transposed": (RAW.rms_norm, (made(24, 6, 4, device=device).permute(2, 1, 0), weight, EPS, 0)),
        "rms_norm of nothing": (RAW.rms_norm, (x[:0], weight, EPS, 0)),
        "rms_norm_backward": (RAW.rms_norm_backward, (residual, x, weight, EPS, 0)),
        "fused_add_rms_norm": (RAW.fused_add_rms_norm, (x, residual, weight, EPS, 0)),
        "fused_add_rms_norm with gradients": (
            RAW.fused_add_rms_norm,
            (*(t.clone().requires_grad_() for t in (x, residual, weight)), EPS, 0),
        ),
        "fused_add_rms_norm_backward": (RAW.fused_add_rms_norm_backward, (x, residual, x + residual, weight, EPS, 0)),
        "gated_activation": (RAW.gated_activation, (x, 0)),
        "gated_activation with gradients": (RAW.gated_activation, (x.clone().requires_grad_(), 1)),
        "gated_activation of rows apart": (RAW.gated_activation, (made(4, 6, 50, device=device)[..., 1:25], 2)),
        "gated_activation of nothing": (RAW.gated_activation, (x[:0], 3)),
        "gated_activation_backward": (RAW.gated_activation_backward, (residual[..., :12], x, 3)),
        "gated_activation, alternating": (RAW.gated_activation, (x.clone().requires_grad_(), 5, 1.702, 7.0)),
        "activation": (RAW.activation, (x, residual, 0)),
        "activation with gradients": (
            RAW.activation,
            (x.clone().requires_grad_(), residual.clone().requires_grad_(), 5, 1.702, 7.0),
        ),
        "activation of gates alone": (RAW.activation, (x.clone().requires_grad_(), None, 6, 1.702)),
        "activation of nothing": (RAW.activation, (x[:0], residual[:0], 4)),
        "activation_backward": (RAW.activation_backward, (residual, x, residual, 3)),
        "activation_backward of gates alone": (RAW.activation_backward, (residual, x, None, 7)),
        "layer_norm": (RAW.layer_norm, (x, weight, weight + 1, EPS)),
        "layer_norm with gradients": (
            RAW.layer_norm,
            (x.clone().requires_grad_(), weight.clone().requires_grad_(), weight.clone().requires_grad_(), EPS),
        ),
        "layer_norm without parameters": (RAW.layer_norm, (x.clone().requires_grad_(), None, None, EPS)),
        "layer_norm of rows apart": (RAW.layer_norm, (made(4, 6, 50, device=device)[..., 1:25], weight, None, EPS)),
        "layer_norm_backward": (RAW.layer_norm_backward, (residual, x, weight, EPS, True, True)),
        "layer_norm_backward of x alone": (RAW.layer_norm_backward, (residual, x, None, EPS, False, False)),
        "fused_add_rms_norm_": (RAW.fused_add_rms_norm_, (x.clone(), residual.clone(), weight, EPS, 0)),
        **softmax_samples(x),
    }


def softmax_samples(x: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    mask, square = x[:, None, 0] > 0, x[..., :6]
    leaf = x.clone().requires_grad_()
    return {
        "scaled_softmax": (RAW.scaled_softmax, (leaf, 0.7)),
        "scaled_softmax of nothing": (RAW.scaled_softmax, (x[:0], 0.7)),
        "scaled_masked_softmax": (RAW.scaled_masked_softmax, (leaf, mask, 0.7, -float("inf"), False)),
        "scaled_masked_softmax of Megatron": (RAW.scaled_masked_softmax, (leaf, mask.byte(), 0.7, -1e4, True)),
        "scaled_upper_triang_masked_softmax": (
            RAW.scaled_upper_triang_masked_softmax,
            (square.clone().requires_grad_(), 0.7),
        ),
        "scaled_aligned_causal_softmax": (RAW.scaled_aligned_causal_softmax, (leaf, 0.7)),
        "scaled_softmax_backward": (RAW.scaled_softmax_backward, (x, x.softmax(-1), 0.7, True)),
    }


@pytest.mark.parametrize("name", samples("cpu"))
def test_opcheck(name: str, device: str) -> None:
    op, args = samples(device)[name]
    assert set(torch.library.opcheck(op.default, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("copies", [True, False])
def test_opcheck_of_adam(copies: bool) -> None:
    def tensors(*dtypes: Any) -> list[Any]:
        return [torch.rand(5, 3).to(dtypes[0]), torch.rand(7).to(dtypes[-1])]

    args = (
        tensors(torch.float32),
        tensors(torch.bfloat16, torch.float32),
        tensors(torch.float32),
        tensors(torch.float32),
        tensors(torch.bfloat16) if copies else [],
    )
    numbers = (1e-3, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 1.0, True, False)
    assert set(torch.library.opcheck(RAW.adam_.default, (*args, *numbers)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("rule", ON_CPU)
def test_opcheck_of_optimize(rule: int) -> None:
    from precast.ops import cpu_optim  # noqa: F401 - it registers the formulas, as precast.optim does

    def tensors(*dtypes: Any) -> list[Any]:
        return [torch.rand(5, 3).to(dtypes[0]), torch.rand(7).to(dtypes[-1])]

    facts = RULES[rule]
    first, second = (tensors(torch.float32) if wanted else [] for wanted in (True, facts.least > 1))
    steps = [torch.zeros(()) for _ in first] if facts.counts else []
    row = [[1e-3, 0.9, 0.99, 1e-8, 0.1, 0.1, DECOUPLED | NESTEROV, 1.0]] * 2
    lists = (tensors(torch.float32), tensors(torch.bfloat16), first, second, [], steps, tensors(torch.bfloat16))
    args = (*lists, torch.empty(0, dtype=torch.int64), torch.tensor(row, dtype=torch.float64), 0.5, rule)
    assert set(torch.library.opcheck(RAW.optimize_.default, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("op", EXAMPLES)
def test_opcheck_of_an_example(op: str) -> None:
    found = torch.library.opcheck(getattr(RAW, op).default, _folders.arguments(op))
    assert set(found.values()) == {"SUCCESS"}


def test_load_says_where_the_kernels_come_from(device: str) -> None:
    for family in FAMILIES:
        if device in family.devices:
            loaded = [precast.load(op, device) for op in family.op_names]
            assert {(one.family, one.device) for one in loaded} == {(family.name, device)}


def test_every_op_is_checked(device: str) -> None:
    names = {op: family for family in FAMILIES for op in family.op_names}
    checked = {op.__name__ for op, _ in samples(device).values()} | {*EXAMPLES}
    # test_fused_gpu.py checks the lists; a plan is a number, which no graph can hold: its ops are never traced.
    left = {op: family for op, family in names.items() if op not in checked}
    assert all(_folders.is_planned(op) or family.devices == ("cuda",) for op, family in left.items())


BLOCK = """
    import torch
    from precast import ops

    device = {device!r}
    torch.manual_seed(0)
    x, residual = (torch.randn(4, 6, 24, device=device) for _ in range(2))
    weight = torch.randn(24, device=device)

    def block(x, residual, weight):
        y, total = ops.fused_add_rms_norm(x.sin(), residual, weight, casting="gemma")
        z = ops.layer_norm(ops.layer_norm(y), weight, weight.sin())
        return ops.rms_norm(z + total.cos(), weight).square(), total

    def gradients(function):
        leaves = [t.clone().requires_grad_() for t in (x, residual, weight)]
        y, total = function(*leaves)
        return (y, total, *torch.autograd.grad(y.sum() + total.sin().sum(), leaves))
"""


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    [
        pytest.param("aot_eager", False, marks=pytest.mark.long),
        ("aot_eager", True),
        ("inductor", None),
    ],
)
def test_compile_in_a_fresh_process(
    backend: str, dynamic: bool | None, device: str, run_child: Callable[[str], str]
) -> None:
    """Nothing is loaded when the graph is made: it knows the ops by their schemas alone."""
    source = (
        BLOCK
        + """
    options = dict(backend={backend!r}, fullgraph=True, dynamic={dynamic})
    compiled = torch.compile(block, **options)
    for ours, eager in zip(gradients(compiled), gradients(block), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, residual, weight), block(x, residual, weight))

    @torch.compile(**options)
    def in_place(x, residual, weight):
        ops.fused_add_rms_norm_(x, residual, weight)
        return x + 1

    with torch.no_grad():
        a, b = x.clone(), residual.clone()
        saved = torch.ones_like(a).requires_grad_()
        with torch.enable_grad():
            product = saved * a
        result = in_place(a, b, weight)
        y, total = ops.fused_add_rms_norm(x, residual, weight)
        torch.testing.assert_close((a, b, result), (y, total, y + 1))
    try:
        product.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
        print("raised as it should")
    """
    )
    assert "raised as it should" in run_child(source.format(backend=backend, dynamic=dynamic, device=device))


def test_compile_of_a_graph_that_writes_to_what_requires_grad_is_refused(device: str) -> None:
    x, residual = made(4, 24, device=device), made(4, 24, device=device)
    weight = made(24, device=device).requires_grad_()
    compiled = torch.compile(ops.fused_add_rms_norm_, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="a gradient is wanted"):
        compiled(x, residual, weight)


def test_compiled_vmap_and_jvp(device: str) -> None:
    x, weight = made(4, 6, 24, device=device), made(24, device=device, seed=1)
    for function in (
        torch.vmap(ops.rms_norm, in_dims=(0, None)),
        lambda x, w: torch.func.jvp(lambda x: ops.rms_norm(x, w), (x,), (torch.ones_like(x),))[1],
        lambda x, w: torch.func.grad(lambda x: ops.rms_norm(x, w).sin().sum())(x),
    ):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, weight), function(x, weight))


def test_export_into_a_fresh_process(device: str, tmp_path: Path, run_child: Callable[[str], str]) -> None:
    path = tmp_path / "block.pt2"
    export = (
        BLOCK
        + """
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(weight)

        def forward(self, x, residual):
            return block(x, residual, self.weight)

    rows = torch.export.Dim("rows", min=2)
    for strict in (True, False):
        program = torch.export.export(
            Module(), (x, residual), dynamic_shapes=({{0: rows}}, {{0: rows}}), strict=strict
        )
        called = [str(node.target) for node in program.graph.nodes if "precast" in str(node.target)]
        names = ["fused_add_rms_norm", "layer_norm", "layer_norm", "rms_norm"]
        assert called == [f"precast.{{name}}.default" for name in names], called
    torch.export.save(program, {path!r})
    torch.save((x, residual, block(x, residual, weight)), {path!r} + ".expected")
    """
    )
    run_child(export.format(device=device, path=str(path)))
    load = """
    import torch
    import precast.ops  # the schemas: torch.export.load needs nothing else

    program = torch.export.load({path!r})
    x, residual, expected = torch.load({path!r} + ".expected")
    for rows in (4, 3):
        ours = program.module()(x[:rows], residual[:rows])
        torch.testing.assert_close(ours, tuple(e[:rows] for e in expected))
    print("loaded")
    """
    assert "loaded" in run_child(load.format(path=str(path)))


SOFTMAX_BLOCK = """
    import torch
    import precast

    device = {device!r}
    torch.manual_seed(0)
    x, mask = torch.randn(2, 3, 8, 8, device=device), torch.rand(2, 1, 8, 8, device=device) < 0.4

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.softmax = precast.nn.FusedScaleMaskSoftmax(0.7)
            self.causal = precast.nn.FusedScaleMaskSoftmax(0.7, causal=True)

        def forward(self, x, mask):
            y = self.softmax(x.sin(), mask) + self.softmax(x) + self.causal(x)
            return precast.ops.scaled_upper_triang_masked_softmax(y, 2.0).square()

    block = Block()
"""


@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", True), pytest.param("inductor", None, marks=pytest.mark.long)]
)
def test_compile_of_softmax(backend: str, dynamic: bool | None, device: str, run_child: Callable[[str], str]) -> None:
    source = (
        SOFTMAX_BLOCK
        + """
    def gradients(function):
        leaf = x.clone().requires_grad_()
        y = function(leaf, mask)
        return y, torch.autograd.grad(y.sin().sum(), leaf)[0]

    compiled = torch.compile(block, backend={backend!r}, fullgraph=True, dynamic={dynamic})
    torch.testing.assert_close(gradients(compiled), gradients(block), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, mask), block(x, mask))
    print("the same")
    """
    )
    assert "the same" in run_child(source.format(backend=backend, dynamic=dynamic, device=device))


def test_export_of_softmax(device: str, tmp_path: Path, run_child: Callable[[str], str]) -> None:
    path = str(tmp_path / "softmax.pt2")
    source = (
        SOFTMAX_BLOCK
        + """
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(block, (x, mask), dynamic_shapes=({{0: batch}}, {{0: batch}}))
    assert sum("precast" in str(node.target) for node in program.graph.nodes) == 4
    torch.export.save(program, {path!r})
    """
    )
    run_child(source.format(device=device, path=path))
    load = (
        SOFTMAX_BLOCK
        + """
    program = torch.export.load({path!r})
    torch.testing.assert_close(program.module()(x, mask), block(x, mask))
    print("loaded")
    """
    )
    assert "loaded" in run_child(load.format(device=device, path=path))


def test_make_fx_keeps_the_op(device: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = made(4, 24, device=device), made(24, device=device, seed=1)

    def norm(x: Any, weight: Any) -> Any:
        return ops.rms_norm(x, weight)

    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            graph = make_fx(norm)(x, weight)
        assert RAW.rms_norm.default in {node.target for node in graph.graph.nodes}


@pytest.mark.gpu
def test_capture_in_a_cuda_graph() -> None:
    x, residual, weight = (made(*shape, device="cuda") for shape in ((64, 1024), (64, 1024), (1024,)))
    assert_captured(lambda: ops.fused_add_rms_norm(x, residual, weight))


@pytest.mark.gpu
def test_capture_of_softmax_in_a_cuda_graph() -> None:
    x = made(4, 8, 64, 64, device="cuda")
    mask = x[:, :1] > 1
    assert_captured(lambda: (ops.scaled_masked_softmax(x, mask, 0.7), ops.scaled_aligned_causal_softmax(x, 0.7)))


NORMS = {
    "rms_norm": lambda x, eps: ops.rms_norm(x, torch.ones(8, device=x.device), eps),
    "layer_norm": lambda x, eps: ops.layer_norm(x, torch.ones(8, device=x.device), torch.ones(8, device=x.device), eps),
    "fused_add_rms_norm": lambda x, eps: ops.fused_add_rms_norm(x, x, torch.ones(8, device=x.device), eps)[0],
}


@pytest.mark.parametrize("name", NORMS)
def test_an_eps_of_zero_is_taken_and_a_negative_one_refused_with_and_without_data(name: str, device: str) -> None:
    norm, x = NORMS[name], torch.randn(3, 8, device=device)
    eager = norm(x, 0.0)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = norm(mode.from_tensor(x), 0.0)
        assert (fake.shape, fake.dtype) == (eager.shape, eager.dtype)
        with pytest.raises(RuntimeError, match=r"eps is -1e-0?6; needed a number that is not negative"):
            norm(mode.from_tensor(x), -1e-6)
    with pytest.raises(RuntimeError, match="eps is -1e-06"):
        norm(x, -1e-6)
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, 0.0), eager)
