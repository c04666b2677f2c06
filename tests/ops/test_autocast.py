"""``torch.autocast`` leaves the ops as they are, as docs/reference/autocast.md says of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import nn, ops  # noqa: E402
from precast._builder import descriptions  # noqa: E402
from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast.ops import _folders, convolution, decode_attention, image, kv_cache, losses, moe, rotary, state_space  # noqa: E402, F401 - register late
from precast.optim import CPUAdam, FusedAdam  # noqa: E402
from tests.ops.tensors import ON_ROWS, made  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "autocast.md"
LOW = torch.bfloat16
LATE = [family for family in FAMILIES if family.late and len(family.devices) > 1]
ON_HEADS = tuple(op for family in LATE for op in family.op_names)
EVERY_TYPE = pytest.mark.parametrize("dtype", [torch.float32, LOW])


# Arguments that are always float32, by their places: numbers for each expert, and weights of rows.
WIDE = {"topk_gating": 1, "topk_gating_backward": 0, "moe_combine_rows": 2, "moe_combine_rows_backward": 3}


def given(op: str, device: str, dtype: Any) -> tuple[Any, ...]:
    kept = 1 if op == "paged_decode_attention" else 0  # its numbers for each head are float32
    first_alone = op.startswith("cross_entropy")  # so are the losses' numbers for each row and class

    def moved(place: int, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            narrow = value.is_floating_point() and value.dim() > kept and WIDE.get(op) != place
            narrow &= place == 0 or not first_alone
            return value.to(device, dtype if narrow else value.dtype)
        return value

    return tuple(moved(place, value) for place, value in enumerate(_folders.arguments(op)))


def tensors(values: Any) -> list[Any]:
    return [value for value in (values if isinstance(values, (tuple, list)) else (values,)) if hasattr(value, "dtype")]


@EVERY_TYPE
@pytest.mark.parametrize("op", [*ON_ROWS, *ON_HEADS])
def test_an_op_gives_the_same_bits_under_autocast(op: str, dtype: Any, device: str) -> None:
    call = getattr(torch.ops.precast, op)
    plain, cast = given(op, device, dtype), given(op, device, dtype)
    expected = tensors(call(*plain)) or tensors(plain)  # an op in place has no result
    with torch.autocast(device, dtype=LOW):
        found = tensors(call(*cast)) or tensors(cast)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@EVERY_TYPE
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "gated_activation", "scaled_softmax"])
def test_gradients_and_tangents_have_the_dtype_of_the_input(op: str, dtype: Any, device: str) -> None:
    call = getattr(torch.ops.precast, op)
    found = []
    for enabled in (False, True):
        x, *rest = given(op, device, dtype)
        leaf = x.requires_grad_()
        with torch.autocast(device, dtype=LOW, enabled=enabled):
            y = call(leaf, *rest)
            (grad,) = torch.autograd.grad(y.square().sum(), leaf)
            _, tangent = torch.func.jvp(lambda t, rest=rest: call(t, *rest), (x.detach(),), (torch.ones_like(x),))
        assert y.dtype == grad.dtype == dtype
        found.append((grad, tangent.to(dtype)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def under_autocast(device: str, compute: Any) -> None:
    """What is computed has the same bits and dtypes under autocast."""
    expected = compute()
    with torch.autocast(device, dtype=LOW):
        found = compute()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_gradients_of_plain_torch_are_not_rounded(device: str) -> None:
    def compute() -> list[Any]:
        q, k, v = (made(1, 70, 2, 8, device=device, seed=seed) / 3 for seed in range(3))
        return list(torch.func.grad(lambda *given: ops.gated_delta_rule(*given)[0].sum(), (0, 1, 2))(q, k, v)) + list(
            torch.autograd.grad(ops.gated_delta_rule(q.requires_grad_(), k, v)[0].sum(), q)
        )

    # fails if a matrix product of the gradient takes 16-bit operands
    under_autocast(device, compute)


def test_transforms_are_not_rounded(device: str) -> None:
    def compute() -> list[Any]:
        x, taps = made(2, 3, 9, 7, device=device), ops.setup_filter([1, 3, 3, 1], device=device)
        query = made(2, 2, 4, 64, device=device)
        keys, values = made(2, 5, 16, 2, 64, device=device, seed=1)
        tables, lengths = (torch.tensor(t, device=device, dtype=torch.int32) for t in ([[3, 1], [0, 2]], [20, 7]))
        return [
            torch.vmap(lambda x: ops.upsample2d(x, taps))(x[None]),
            torch.func.jvp(lambda x: ops.downsample2d(x, taps), (x,), (x.square(),))[1],
            torch.vmap(lambda q: ops.paged_decode_attention(q, keys, values, tables, lengths))(query.transpose(0, 1)),
        ]

    # fails if a convolution or a matrix product takes 16-bit operands
    under_autocast(device, compute)


@pytest.mark.gpu
@EVERY_TYPE
def test_ops_over_lists_keep_the_dtype_of_each_tensor(dtype: Any) -> None:
    def compute() -> list[Any]:
        xs = [made(33, dtype=dtype, device="cuda"), made(5, 7, device="cuda", seed=1)]
        outs = [torch.empty_like(x) for x in xs]
        ops.multi_tensor_scale_(outs, xs, 0.5)
        ops.multi_tensor_axpby_(outs, outs, xs, 0.5, -2.0)
        return [*outs, *ops.multi_tensor_l2norm(outs)]

    # fails if a result differs from that without autocast, in its dtype or its bits
    under_autocast("cuda", compute)


@EVERY_TYPE
def test_a_step_of_an_optimizer_keeps_the_dtype_of_each_tensor(dtype: Any, device: str) -> None:
    def compute() -> list[Any]:
        param = made(33, dtype=dtype, device=device).requires_grad_()
        optimizer = (CPUAdam if device == "cpu" else FusedAdam)([param], lr=0.1)
        for seed in (1, 2):
            param.grad = made(33, dtype=dtype, device=device, seed=seed)
            optimizer.step()
        return [param.detach(), *optimizer.state[param].values()]

    # fails if a result differs from that without autocast, in its dtype or its bits
    under_autocast(device, compute)


@pytest.mark.parametrize("module", [nn.RMSNorm, nn.LayerNorm])
def test_a_module_with_wide_parameters_takes_what_a_linear_layer_gives(module: Any, device: str) -> None:
    linear, norm = torch.nn.Linear(8, 16, device=device), module(16, device=device)
    with torch.autocast(device, dtype=LOW):
        inner = linear(torch.randn(4, 8, device=device))
        y = norm(inner)
        y.float().sum().backward()
    assert inner.dtype == y.dtype == LOW
    assert norm.weight.grad.dtype == linear.weight.grad.dtype == torch.float32


def test_an_op_asks_for_one_dtype_under_autocast_too(device: str) -> None:
    x, weight = torch.randn(4, 8, device=device, dtype=LOW), torch.randn(8, device=device, dtype=torch.float16)
    wanted = "rms_norm: weight is float16 and x is bfloat16; needed one dtype"
    with torch.autocast(device, dtype=LOW), pytest.raises(RuntimeError, match=wanted):
        ops.rms_norm(x, weight)


def test_the_table_has_every_op(checkout: Path, pytestconfig: pytest.Config) -> None:
    rows = [
        f"| {', '.join(f'`{name}`' for name in names)} | {ours} | {torchs} |\n"
        for names, ours, torchs in descriptions.autocast(checkout / "csrc")
    ]
    text = PAGE.read_text(encoding="utf-8")
    head, rule, table = text.partition("on a GPU |\n| --- | --- | --- |\n")
    written, modules, tail = table.partition("| `RMSNorm`, `LayerNorm` of")
    if pytestconfig.getoption("--update-snapshots"):
        PAGE.write_text(head + rule + "".join(rows) + modules + tail, encoding="utf-8")
        return
    assert written == "".join(rows), f"{PAGE.name} differs from the descriptions: --update-snapshots writes it"
    listed = {name for names, *_ in descriptions.autocast(checkout / "csrc") for name in names}
    assert set(ops.__all__) - listed == {"setup_filter"}, "it makes a filter from numbers"
