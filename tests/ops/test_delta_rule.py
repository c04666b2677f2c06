"""The gated delta rule: numbers against float64, states in a pool, gradients, graphs, and the words of refusals."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from precast import ops  # noqa: E402
from precast.compat import fla  # noqa: E402
from precast.ops.delta_rule import reference as plain  # noqa: E402
from tests.ops.tensors import assert_captured, assert_same_with_any_number_of_threads  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

reference: Any = plain  # its arguments are unpacked from lists
HALVES = (torch.bfloat16, torch.float16)
# Of the norm of the result: rounded factors of matrix products on a GPU, or float32 sums; then of states.
ALLOWED = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
OF_STATES = {torch.float32: 5e-6, torch.bfloat16: 6e-3}


def made(
    batch: int,
    length: int,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (32, 48),
    *,
    dtype: Any = torch.float32,
    by_key: bool = False,
    seed: int = 0,
    device: str = "cpu",
) -> list[Any]:
    """``q, k, v, g, beta``."""
    numbers = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Any:
        return torch.randn(batch, length, *shape, generator=numbers)

    q, k, v = some(heads[0], dims[0]), some(heads[0], dims[0]), some(heads[1], dims[1])
    g = -some(heads[1], dims[0]).abs() if by_key else -some(heads[1]).abs()
    return [*(one.to(device, dtype) for one in (q, k, v)), (g * 0.2).to(device), some(heads[1]).sigmoid().to(device)]


def double(tensors: Any) -> list[Any]:
    return [one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in tensors]


def off(found: Any, exact: Any) -> float:
    if exact.numel() == 0:
        return 0.0
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-30))


def check(tensors: list[Any], state: Any, starts: Any, *, l2_norm: bool) -> None:
    width = tensors[0].shape[3]
    options = {"initial_state": state, "starts": starts, "l2_norm": l2_norm}
    out, final = ops.gated_delta_rule(*tensors, **options)
    exact, last = reference.by_chunks(*double(tensors), *double([state]), starts, width**-0.5, l2_norm)
    assert out.dtype == tensors[0].dtype and final.dtype == (torch.float32 if state is None else state.dtype)
    assert out.shape == exact.shape and final.shape == last.shape
    allowed = ALLOWED[out.dtype]
    described = f"{[tuple(one.shape) for one in tensors if one is not None]}, {out.dtype}, {final.dtype}, {starts}"
    assert off(out, exact) < allowed, described
    # Where keys and values are rounded, states are too.
    by_tiles = out.is_cuda and out.dtype in HALVES
    assert off(final, last) < max(OF_STATES[final.dtype], allowed if by_tiles else 0), described


def check_generated(seed: int, device: str) -> None:
    draw = random.Random(seed)
    dtype = draw.choice((torch.float32, *HALVES))
    key_heads, group = draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 4))
    dims = draw.choice(((64, 64), (128, 128), (128, 32), (64, 128), (96, 128), (256, 256), (17, 33), (1, 1), (128, 40)))
    length, batch = draw.choice((1, 2, 7, 63, 64, 65, 128, 200)), draw.choice((1, 2, 3))
    starts = None
    if draw.random() < 0.4:
        batch = 1
        places = sorted(draw.randint(0, length) for _ in range(draw.choice((0, 1, 4))))
        starts = torch.tensor([0, *places, length], dtype=draw.choice((torch.int32, torch.int64)), device=device)
    tensors = made(
        *(batch, length, (key_heads, key_heads * group), dims),
        dtype=dtype,
        by_key=draw.random() < 0.25,
        seed=seed,
        device=device,
    )
    for place, other in ((3, None), (4, None)):
        if draw.random() < 0.2:
            tensors[place] = other
        elif draw.random() < 0.3:
            tensors[place] = tensors[place].to(dtype)
    unit_keys = tensors[4] is None or draw.random() < 0.2
    if unit_keys:
        tensors[1] = torch.nn.functional.normalize(tensors[1].float(), dim=-1).to(dtype)
    if draw.random() < 0.3:  # views
        tensors[2] = torch.cat([tensors[2], tensors[2]], -1)[..., : dims[1]]
        tensors[0] = tensors[0].transpose(0, 1).contiguous().transpose(0, 1)
    sequences = batch if starts is None else len(starts) - 1
    state = None
    if draw.random() < 0.6:
        shape = (sequences, key_heads * group, *dims)
        state = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)
        state = state.to(draw.choice((torch.float32, torch.bfloat16)))
    # Raw keys let the state grow without end.
    l2_norm = tensors[4] is None or draw.random() < 0.7 or dims[0] > 17 or not (unit_keys or length <= 7)
    check(tensors, state, starts, l2_norm=l2_norm)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_numbers(first: int, device: str) -> None:
    # fails if a result is too far from float64
    for seed in range(first, first + 10):
        check_generated(seed, device)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_numbers_of_1000_cases(first: int, device: str) -> None:
    # fails if a result is too far from float64
    for seed in range(first, first + 50):
        check_generated(seed, device)


@pytest.mark.parametrize("starts", [None, [0, 0, 5, 70, 70, 70]])
@pytest.mark.parametrize("by_key", [False, True])
def test_both_references_say_what_the_page_says(by_key: bool, starts: Any) -> None:
    tensors = double(made(1, 70, (1, 2), (4, 5), by_key=by_key))
    places = None if starts is None else torch.tensor(starts)
    spans = [(0, 70)] if starts is None else list(itertools.pairwise(starts))
    first = torch.randn(len(spans), 2, 4, 5, generator=torch.Generator().manual_seed(1)).double()
    for function in (reference.gated_delta_rule, reference.by_chunks):
        out, final = function(*tensors, first, places, 0.3, False)
        for number, (begin, end) in enumerate(spans):
            for head in range(2):
                state = first[number, head].clone()
                for t in range(begin, end):
                    q, k, v, g, beta = (one[0, t, 0 if one.shape[2] == 1 else head] for one in tensors)
                    state *= (g.exp()[:, None]) if by_key else g.exp()
                    state += torch.outer(k, beta * (v - state.mT @ k))
                    torch.testing.assert_close(out[0, t, head], 0.3 * state.mT @ q)
                torch.testing.assert_close(final[number, head], state)


def test_against_transformers() -> None:
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v, g, beta = made(2, 130)
    # Without the decorator, which calls FLA where it is installed.
    exact = inspect.unwrap(theirs.torch_chunk_gated_delta_rule)(
        q, k, v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    found = fla.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_kda_against_transformers() -> None:
    theirs = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    q, k, v, g, beta = made(2, 70, (3, 3), by_key=True)
    options: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    exact = inspect.unwrap(theirs.chunk_kimi_delta_attention)(q, k, v, g, beta, **options)
    for function in (fla.chunk_kda, fla.fused_recurrent_kda):
        torch.testing.assert_close(function(q, k, v, g, beta, **options), exact, rtol=1e-4, atol=1e-5)
    rate, bias = torch.rand(3), torch.rand(3 * 32)
    found, _ = fla.chunk_kda(q, k, v, g, beta, use_gate_in_kernel=True, A_log=rate, dt_bias=bias)
    right = -rate.exp()[:, None] * torch.nn.functional.softplus(g + bias.view(3, 32))
    torch.testing.assert_close(found, fla.fused_recurrent_kda(q, k, v, right, beta)[0])
    with pytest.raises(NotImplementedError, match=r"lower_bound is -5\.0; needed None"):
        fla.chunk_kda(q, k, v, g, beta, lower_bound=-5.0)


def test_names_of_fla() -> None:
    q, k, v, g, beta = made(2, 9)
    for function in (fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule):
        out, state = function(q, k, v, g=g, beta=beta)
        assert state is None
        torch.testing.assert_close(out, ops.gated_delta_rule(q, k, v, g, beta)[0])
    rate, bias = torch.rand(4), torch.rand(4)
    gated: dict[str, Any] = {
        "use_gate_in_kernel": True,
        "A_log": rate,
        "dt_bias": bias,
        "use_beta_sigmoid_in_kernel": True,
    }
    turned: dict[str, Any] = {"output_final_state": True, "state_v_first": True, "allow_neg_eigval": True}
    out, state = fla.chunk_gated_delta_rule(q, k, v, g, beta, **gated, **turned)
    right = -rate.exp() * torch.nn.functional.softplus(g + bias)
    exact, final = ops.gated_delta_rule(q, k, v, right, 2 * beta.sigmoid())
    assert state is not None
    torch.testing.assert_close((out, state.mT), (exact, final))
    again = fla.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, initial_state=state, state_v_first=True)[0]
    torch.testing.assert_close(again, ops.gated_delta_rule(q, k, v, g, beta, initial_state=final)[0])
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, transpose_state_layout=True)
    with pytest.raises(NotImplementedError, match="gv is a Tensor; needed None"):
        fla.fused_recurrent_gated_delta_rule(q, k, v, gv=v)
    with pytest.raises(TypeError, match="gates is no argument"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, gates=1)
    with pytest.raises(ValueError, match="A_log is None"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, use_gate_in_kernel=True)
    with pytest.raises(ValueError, match="two names"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, state_v_first=True, transpose_state_layout=True)


# ---- a pool of states ----


def pool(slots: int, heads: int = 4, dims: tuple[int, int] = (32, 48), device: str = "cpu", dtype: Any = None) -> Any:
    numbers = torch.Generator().manual_seed(3)
    return torch.randn(slots, heads, *dims, generator=numbers).to(device, dtype or torch.float32)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("dims", [(128, 128), (64, 64), (256, 64), (24, 20)], ids=str)
def test_states_are_updated_in_place(dims: Any, dtype: Any, state: Any, device: str) -> None:
    for tokens, table, kind in ((1, False, torch.int32), (3, False, torch.int64), (3, True, torch.int32)):
        tensors = made(4, tokens, dims=dims, dtype=dtype, device=device)
        states = pool(16, dims=dims, device=device, dtype=state)
        exact, before = states.double(), states.clone()
        rows = [[3, 0, 7], [1, -1, 2], [-1, -1, -1], [15, 9, 8]]
        indices = torch.tensor(rows if table else [row[0] for row in rows], dtype=kind, device=device)
        accepted = torch.tensor([2, 1, 3, 3], dtype=kind, device=device) if table else None
        out = ops.gated_delta_rule_update_(*tensors, states, indices, accepted=accepted, l2_norm=True)
        args = (*double(tensors), exact, indices, accepted, dims[0] ** -0.5, True)
        assert off(out, reference.gated_delta_rule_update_(*args)) < ALLOWED[dtype]
        assert off(states, exact) < OF_STATES[state]
        assert (out[2] == 0).all()
        chosen = {slot for row in rows for slot in (row if table else row[:1])}
        untouched = [slot for slot in range(16) if slot not in chosen]
        assert torch.equal(states[untouched], before[untouched])


def test_steps_go_on_where_a_prefill_has_ended(device: str) -> None:
    tensors = made(2, 20, device=device)
    exact, _ = ops.gated_delta_rule(*tensors)
    _, states = ops.gated_delta_rule(*(one[:, :17].contiguous() for one in tensors))
    wide = torch.zeros(5, 4, 2, 32, 48, device=device)
    view = wide[:, :, 1]  # a pool may be a view
    view[[4, 1]] = states
    slots = torch.tensor([4, 1], device=device)
    for t in range(17, 20):
        out = ops.gated_delta_rule_update_(*(one[:, t] for one in tensors), view, slots)
        torch.testing.assert_close(out, exact[:, t], rtol=1e-4, atol=1e-5)
    assert (wide[:, :, 0] == 0).all()


def test_nothing(device: str) -> None:
    out, state = ops.gated_delta_rule(*made(2, 0, device=device))
    assert out.shape == (2, 0, 4, 48) and (state == 0).all()
    out, state = ops.gated_delta_rule(*made(0, 5, device=device))
    assert out.shape == (0, 5, 4, 48) and state.shape == (0, 4, 32, 48)
    given = pool(2, device=device)
    starts = torch.tensor([0, 0, 3], device=device)
    _, state = ops.gated_delta_rule(*made(1, 3, device=device), initial_state=given, starts=starts)
    assert torch.equal(state[0], given[0]) and not torch.equal(state[1], given[1])


@pytest.mark.gpu
def test_a_gpu_leaves_out_what_is_not_there() -> None:
    tensors, states = made(2, 2, device="cuda"), pool(3, device="cuda")
    before = states.clone()
    out = ops.gated_delta_rule_update_(*tensors, states, torch.tensor([3, 2**40], device="cuda"))
    assert (out == 0).all() and torch.equal(states, before)
    tensors = made(1, 200, (1, 1), (64, 64), dtype=torch.bfloat16, device="cuda")
    for wrong in ([-5, 10**6, 200], [0, 150, 90], [64, 128, -(2**30)]):  # reads and writes nothing out of bounds
        ops.gated_delta_rule(*tensors, starts=torch.tensor(wrong, device="cuda"))
    torch.cuda.synchronize()


def test_special_values(device: str) -> None:
    """A decay to nothing forgets, also in the middle of a chunk; NaN stays in its sequence and head."""
    for dtype, dims in ((torch.float32, (32, 48)), (torch.bfloat16, (64, 64))):
        tensors = made(2, 80, dims=dims, dtype=dtype, device=device)
        tensors[3][:, 40] = -torch.inf
        whole, state = ops.gated_delta_rule(*tensors, l2_norm=True)
        rest, last = ops.gated_delta_rule(*(one[:, 40:].contiguous() for one in tensors), l2_norm=True)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close((whole[:, 40:], state), (rest, last), rtol=tolerance, atol=tolerance)
        tensors[2][1, 7, 2] = torch.nan
        spoiled, _ = ops.gated_delta_rule(*tensors, l2_norm=True)
        assert spoiled[1, 7:, 2].isnan().any()
        spoiled[1, :, 2] = whole[1, :, 2]
        assert torch.equal(spoiled, whole)


def test_the_same_with_any_number_of_threads() -> None:
    assert_same_with_any_number_of_threads(lambda: ops.gated_delta_rule(*made(2, 30), l2_norm=True))


# ---- gradients ----


def leaves(tensors: list[Any]) -> list[Any]:
    return [one.detach().clone().requires_grad_() for one in tensors]


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("starts", [None, [0, 66, 66, 70]])
def test_gradients(starts: Any, by_key: bool, device: str) -> None:
    tensors = made(1, 70, (1, 2), (8, 6), by_key=by_key, device=device)
    places = None if starts is None else torch.tensor(starts, device=device)
    tensors.append(pool(1 if starts is None else 3, 2, (8, 6), device))
    ours, exact = leaves(tensors), leaves(double(tensors))
    found = ops.gated_delta_rule(*ours[:5], initial_state=ours[5], starts=places, l2_norm=True)
    right = reference.gated_delta_rule(*exact, places, 8**-0.5, True)
    slopes = [torch.randn_like(one) for one in right]
    torch.autograd.backward(found, [one.float() for one in slopes])
    torch.autograd.backward(right, slopes)
    for one, other in zip(ours, exact, strict=True):
        assert off(one.grad, other.grad) < 1e-5


def test_only_some_gradients_and_a_tensor_that_is_given_twice(device: str) -> None:
    q, k, v, _, beta = made(1, 20, (2, 2), (8, 6), device=device)
    k.requires_grad_()
    (found,) = torch.autograd.grad(ops.gated_delta_rule(k, k, v, None, beta)[0].sum(), [k])
    copies = leaves([k, k])
    torch.autograd.backward(ops.gated_delta_rule(*copies, v, None, beta)[0].sum())
    torch.testing.assert_close(found, copies[0].grad + copies[1].grad)
    assert ops.gated_delta_rule(q, k, v)[1].requires_grad


@pytest.mark.parametrize("length", [0, 70])
@pytest.mark.parametrize("packed", [False, True])
def test_every_tensor_may_be_the_only_one_that_requires_grad(length: int, packed: bool, device: str) -> None:
    tensors = [*made(1, length, (1, 2), (8, 6), device=device), pool(2 if packed else 1, 2, (8, 6), device)]
    starts = torch.tensor([0, length // 2, length], device=device) if packed else None
    every = leaves(tensors)
    out, state = ops.gated_delta_rule(*every[:5], initial_state=every[5], starts=starts)
    expected = torch.autograd.grad(out.sum() + state.sum(), every, materialize_grads=True)
    for i, right in enumerate(expected):
        given = [one.requires_grad_(i == j) for j, one in enumerate(leaves(tensors))]
        out, state = ops.gated_delta_rule(*given[:5], initial_state=given[5], starts=starts)
        (found,) = torch.autograd.grad(out.sum() + state.sum(), given[i], materialize_grads=True)
        torch.testing.assert_close(found, right)


def test_gradients_can_be_differentiated_again(device: str) -> None:
    def second(function: Callable[..., Any], given: list[Any]) -> Any:
        (first,) = torch.autograd.grad(function(*given)[0].square().sum(), [given[1]], create_graph=True)
        return torch.autograd.grad(first.square().sum(), given)

    tensors = [one * 0.3 for one in made(1, 6, (1, 1), (4, 3), device=device)]
    found = second(lambda *given: ops.gated_delta_rule(*given, scale=1.0), leaves(tensors))
    right = second(lambda *given: reference.gated_delta_rule(*given, None, None, 1.0, False), leaves(double(tensors)))
    for one, other in zip(found, right, strict=True):
        assert off(one, other) < 1e-4


def test_transforms(device: str) -> None:
    """What has no kernel there is computed by plain torch."""
    args = (*made(1, 9, device=device), None, None, 0.2, True)
    op = torch.ops.precast.gated_delta_rule
    right = op(*args)
    with forward_ad.dual_level():
        torch.testing.assert_close(op(*args), right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.func.functionalize(op)(*args), right, rtol=1e-4, atol=1e-5)


# ---- bad input ----

Q, K, V, G, BETA = range(5)
Change = dict[int | str, Any]
SHAPES = r"q has shape .*, k .* and v .*; needed \(batch, length, key_heads, key_dim\) twice, and"
BAD: dict[str, tuple[Change, str]] = {
    "float64": ({Q: lambda t: t.double()}, "q is float64; needed float32, float16 or bfloat16"),
    "another dtype": ({K: lambda t: t.half()}, "k is float16 and q is float32; needed one dtype"),
    "elsewhere": ({V: lambda t: t.to("meta")}, "v is on meta and q on .*; needed one device"),
    "another length": ({K: lambda t: t[:, :2]}, SHAPES),
    "heads that do not divide": ({V: lambda t: t[:, :, :3]}, SHAPES),
    "wide keys": (
        {Q: lambda t: t[..., :1].expand(2, 3, 2, 257), K: lambda t: t[..., :1].expand(2, 3, 2, 257)},
        "heads have 257 elements in keys and 48 in values; needed 1 to 256",
    ),
    "gates of integers": ({G: lambda t: t.long()}, "g is int64 and q is float32; needed float32 or one dtype"),
    "gates of key heads": ({G: lambda t: t[:, :, :2]}, r"g has shape \(2, 3, 2\); needed \(batch, length, value_heads"),
    "beta by key": ({BETA: lambda t: t[..., None].expand(2, 3, 4, 32)}, r"beta has shape \(2, 3, 4, 32\); needed"),
    "infinite scale": ({"scale": lambda d: float("inf")}, "scale is inf; needed a finite number"),
}
BAD_RULE: dict[str, tuple[Change, str]] = {
    "starts of a batch": (
        {"starts": lambda d: torch.tensor([0, 3], device=d)},
        r"starts has shape \(2,\) and q \(2, 3, 2, 32\); needed \(sequences \+ 1,\), and a batch of one",
    ),
    "starts of floats": ({"starts": lambda d: torch.ones(2, device=d)}, "starts is float32; needed int32 or int64"),
    "halves of states": (
        {"initial_state": lambda d: torch.ones(2, 4, 32, 48, device=d).half()},
        "initial_state is float16; needed float32 or bfloat16",
    ),
    "few states": (
        {"initial_state": lambda d: torch.ones(1, 4, 32, 48, device=d)},
        r"initial_state has shape \(1, 4, 32, 48\); needed \(sequences, 4, 32, 48\)",
    ),
}
BAD_UPDATE: dict[str, tuple[Change, str]] = {
    "indices of floats": ({"indices": lambda d: torch.ones(2, device=d)}, "indices is float32; needed int32 or int64"),
    "few indices": (
        {"indices": lambda d: torch.zeros(1, dtype=torch.int32, device=d)},
        r"indices has shape \(1,\) and q \(2, 3, 2, 32\); needed \(batch,\) or \(batch, length\)",
    ),
    "accepted without a table": (
        {"accepted": lambda d: torch.ones(2, dtype=torch.int32, device=d)},
        r"accepted has shape \(2,\) and indices \(2,\); needed \(batch,\), and \(batch, length\)",
    ),
    "states of other heads": (
        {"states": lambda d: torch.ones(5, 3, 32, 48, device=d)},
        r"states has shape \(5, 3, 32, 48\); needed \(slots, 4, 32, 48\)",
    ),
}


def traced(function: Callable[..., Any], args: list[Any], options: dict[str, Any]) -> Any:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(one) for one in args]
        return function(*fake, **{k: mode.from_tensor(v) if torch.is_tensor(v) else v for k, v in options.items()})


EVERY = BAD | BAD_RULE
EVERY_UPDATE = BAD | BAD_UPDATE
WAYS: dict[str, Callable[..., Any]] = {
    "kernel": lambda function, args, options: function(*args, **options),
    "traced": traced,
    "transformed": lambda function, args, options: torch.func.functionalize(function)(*args, **options),
}


def refused(function: Any, given: Change, case: tuple[Change, str], way: str, device: str) -> None:
    changes, words = case
    args = [changes.get(place, lambda t: t)(tensor) for place, tensor in enumerate(made(2, 3, device=device))]
    options = given | {name: make(device) for name, make in changes.items() if isinstance(name, str)}
    elsewhere = any(torch.is_tensor(one) and one.is_meta for one in args)
    message = "meta|Meta|device" if way == "traced" and elsewhere else f"{function.__name__}: {words}"
    with pytest.raises(RuntimeError, match=message):
        WAYS[way](function, args, options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", EVERY)
def test_bad_input_is_one_clear_error(case: str, way: str, device: str) -> None:
    # fails if it is not refused in these words
    refused(ops.gated_delta_rule, {}, EVERY[case], way, device)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", EVERY_UPDATE)
def test_bad_input_of_an_update_is_one_clear_error(case: str, way: str, device: str) -> None:
    given: Change = {"states": pool(5, device=device), "indices": torch.tensor([1, 0], device=device)}
    # fails if it is not refused in these words
    refused(ops.gated_delta_rule_update_, given, EVERY_UPDATE[case], way, device)


@pytest.mark.parametrize("starts", [[1, 3], [0, 2], [0, 3, 2, 3], [0, 4, 3]])
def test_starts_are_checked_on_the_cpu(starts: list[int]) -> None:
    with pytest.raises(RuntimeError, match=r"starts\[\d\] is \d after \d, and there are 3 tokens; needed numbers that"):
        ops.gated_delta_rule(*made(1, 3), starts=torch.tensor(starts))


def test_slots_are_checked_on_the_cpu_before_anything_is_written() -> None:
    states = pool(5)
    before = states.clone()
    with pytest.raises(RuntimeError, match="indices has 5 for sequence 1 and there are 5 states; needed one of these"):
        ops.gated_delta_rule_update_(*made(2, 1), states, torch.tensor([0, 5]))
    table, accepted = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([1, 2])
    with pytest.raises(RuntimeError, match=r"accepted\[1\] is 2; needed 1 to 1"):
        ops.gated_delta_rule_update_(*made(2, 1), states, table, accepted=accepted)
    assert torch.equal(states, before)


def test_states_that_cannot_be_written_are_refused(device: str) -> None:
    tensors, slots = made(2, 1, device=device), torch.tensor([0, 1], device=device)
    for states in (pool(1, device=device).expand(5, -1, -1, -1), pool(5, 4, (48, 32), device).mT):
        with pytest.raises(RuntimeError, match=r"states is written in place and has shape .*; needed a contiguous"):
            ops.gated_delta_rule_update_(*tensors, states, slots)
    room = torch.zeros(2 * 4 * 32 * 48, device=device)
    states = room.view(2, 4, 32, 48)
    tensors[2] = room[: 2 * 4 * 48].view(2, 1, 4, 48)
    with pytest.raises(RuntimeError, match="v overlaps states in memory, which is written; needed its own"):
        ops.gated_delta_rule_update_(*tensors, states, slots)


def test_a_gradient_of_an_update_is_refused(device: str) -> None:
    tensors, slots = made(2, 1, device=device), torch.tensor([0, 1], device=device)
    tensors[0].requires_grad_()
    with pytest.raises(RuntimeError, match=r"gated_delta_rule_update_: a gradient is wanted .* needed torch\.no_grad"):
        ops.gated_delta_rule_update_(*tensors, pool(5, device=device), slots)


# ---- graphs ----


def test_opcheck(device: str) -> None:
    slots = torch.tensor([3, 0], device=device)
    for dtype in (torch.float32, torch.bfloat16):
        tensors = made(2, 5, dtype=dtype, device=device)
        found = torch.library.opcheck(torch.ops.precast.gated_delta_rule.default, (*tensors, None, None, 0.2, True))
        assert set(found.values()) == {"SUCCESS"}
        args = (*tensors, pool(5, device=device), slots, None, 0.2, True)
        found = torch.library.opcheck(torch.ops.precast.gated_delta_rule_update_.default, args)
        assert set(found.values()) == {"SUCCESS"}
    leaf = leaves(made(1, 5, device=device))
    args = (*leaf, None, torch.tensor([0, 2, 5], device=device), 0.2, True)
    assert set(torch.library.opcheck(torch.ops.precast.gated_delta_rule.default, args).values()) == {"SUCCESS"}


COMPILED = """
    import torch
    from precast import ops

    device = {device!r}

    def step(q, v, g, beta, states, slots):
        out, state = ops.gated_delta_rule(q * 2, q, v, g, beta, l2_norm=True)
        last = ops.gated_delta_rule_update_(q[:, -1], q[:, -1], v[:, -1], g[:, -1], beta[:, -1], states, slots)
        return out + 1, state, last

    def fresh(batch, length):
        q, v = (torch.randn(batch, length, 2, 64, device=device) for _ in range(2))
        g, beta = -torch.rand(batch, length, 2, device=device), torch.rand(batch, length, 2, device=device)
        return q, v, g, beta, torch.randn(6, 2, 64, 64, device=device), torch.randperm(6, device=device)[:batch]

    def same(function, args):
        ours, theirs = [[one.clone() for one in args] for _ in range(2)]
        torch.testing.assert_close(function(*ours), step(*theirs))
        torch.testing.assert_close(ours, theirs)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for batch, length in ((2, 70), (3, 9)):
        same(compiled, fresh(batch, length))

    class Step(torch.nn.Module):
        def forward(self, *args):
            return step(*args)

    args = fresh(2, 5)
    same(torch.export.export(Step(), tuple(one.clone() for one in args)).module(), args)

    def train(q, v, g, beta):
        return ops.gated_delta_rule(q, q, v, g, beta, l2_norm=True)[0]

    found = []
    for function in (train, torch.compile(train, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(0)
        leaves = [one.requires_grad_() for one in fresh(2, 70)[:4]]
        found.append(torch.autograd.grad(function(*leaves).square().sum(), leaves))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    print("the same")
"""


def test_compile_and_export_in_a_fresh_process(device: str, run_child: Callable[[str], str]) -> None:
    assert "the same" in run_child(COMPILED.format(device=device))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_graphs(dtype: Any) -> None:
    tensors = made(2, 130, dims=(128, 128), dtype=dtype, device="cuda")
    assert_captured(lambda: ops.gated_delta_rule(*tensors, l2_norm=True))
    states, slots = pool(5, dims=(128, 128), device="cuda"), torch.tensor([3, 0], device="cuda")
    graph, first = torch.cuda.CUDAGraph(), states.clone()
    last = [one[:, -1].contiguous() for one in tensors]
    with torch.cuda.graph(graph):
        out = ops.gated_delta_rule_update_(*last, states, slots)
    for _ in range(2):
        slots.copy_((slots + 1) % 5)
        graph.replay()
        exact = ops.gated_delta_rule_update_(*last, first, slots)
        assert torch.equal(out, exact) and torch.equal(states, first)
