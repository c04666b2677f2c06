"""Causal convolutions: numbers and gradients, sequences in a row, pools of states, graphs, words of refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.compat.causal_conv1d import causal_conv1d_fn, causal_conv1d_update  # noqa: E402
from precast.ops.convolution import reference  # noqa: E402
from tests.ops.convolution_cases import assert_close, cuts, lines, made_call, step  # noqa: E402
from tests.ops.tensors import assert_captured, assert_same_with_any_number_of_threads, made  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAW = torch.ops.precast


def by_torch(x: Any, weight: Any, bias: Any, state: Any = None) -> Any:
    """Torch's own convolution in float64, with silu; a state is what comes before."""
    before = x.new_zeros(*x.shape[:2], weight.shape[1] - 1) if state is None else state
    y = torch.nn.functional.conv1d(
        torch.cat([before, x], -1).double(), weight[:, None].double(), bias, groups=len(weight)
    )
    return torch.nn.functional.silu(y)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cut", ["whole", "starts", "index"])
def test_numbers(dtype: Any, last: bool, cut: str, device: str) -> None:
    """All widths, odd sizes, more tokens than a piece holds; states may have the other order."""
    sizes = [(1, 1), (5, 3), (16, 33), (72, 8), (130, 40), (3, 1100)]
    for seed, (width, (channels, tokens)) in enumerate(itertools.product((2, 3, 4, 8), sizes)):
        index, starts = cuts(cut, tokens, seed, device)
        options = {"wide": seed % 2 > 0, "bias": seed % 3 > 0, "state": seed % 5 > 0}
        call = made_call(dtype, last, channels, tokens, width, index, starts, device=device, **options)
        silu = seed % 4 > 0
        y, state = RAW.causal_conv1d(*call, silu, True)
        right, last_tokens = reference.causal_conv1d(*call, silu, True)
        assert_close(y, right)
        assert torch.equal(state, last_tokens) and y.stride(1) == (1 if last else y.stride(1))
        assert torch.equal(y, RAW.causal_conv1d(*call, silu, False)[0])
        grads = torch.randn_like(y), torch.randn_like(state) if seed % 2 else None
        found = RAW.causal_conv1d_backward(*grads, *call, silu)
        for ours, theirs in zip(found, reference.causal_conv1d_backward(*grads, *call, silu), strict=True):
            assert_close(ours, theirs, sums=40 if tokens > 1000 else 8)


@pytest.mark.parametrize("last", [True, False])
def test_it_is_torchs_convolution(last: bool, device: str) -> None:
    x, weight, bias, state, *_ = made_call(torch.float32, last, 12, 30, 4, device=device)
    given = [one.detach().requires_grad_() for one in (x, weight, bias, state)]
    theirs = [one.detach().double().requires_grad_() for one in (x, weight, bias, state)]
    y, end = ops.causal_conv1d(*given[:3], activation="silu", initial_state=given[3], return_final_state=True)
    right = by_torch(*theirs)
    assert_close(y.double().float(), right.float())
    assert torch.equal(end, x[..., -3:])
    (y.square().sum() + end.sum()).backward()
    (right.square().sum() + theirs[0][..., -3:].sum()).backward()
    for ours, other in zip(given, theirs, strict=True):
        assert_close(ours.grad, other.grad.float(), sums=8)
    assert torch.equal(
        ops.causal_conv1d(x, weight, bias, activation="swish"), causal_conv1d_fn(x, weight, bias, activation="silu")
    )


def test_gradients_of_gradients_tangents_and_transforms() -> None:
    x, weight, bias, state, _, starts = (
        one.double() if one is not None and one.is_floating_point() else one
        for one in made_call(torch.float32, True, 3, 7, 3, *cuts("starts", 7, 2))
    )
    index, _ = cuts("index", 7, 3)

    def gradients(x: Any, weight: Any, bias: Any, state: Any) -> Any:
        return reference.causal_conv1d(x, weight, bias, state, None, starts, True, True)

    def backward(x: Any, weight: Any, bias: Any, state: Any, grad: Any, of_state: Any) -> Any:
        return reference.causal_conv1d_backward(grad, of_state, x, weight, bias, state, None, starts, True)

    given = [one.requires_grad_() for one in (x, weight, bias, state)]
    assert torch.autograd.gradcheck(gradients, given)
    y, end = gradients(*given)
    grads = [torch.randn_like(one) for one in (y, end)]
    both = zip(torch.autograd.grad((y, end), given, grads), _split(backward(*given, *grads), weight), strict=True)
    assert all(map(torch.allclose, *zip(*both, strict=True)))
    assert torch.autograd.gradgradcheck(gradients, given)
    plain = [one.detach().float() for one in given[:3]]
    call = lambda x: ops.causal_conv1d(x, *plain[1:], activation="silu", sequence_index=index[:1])  # noqa: E731
    _, tangent = torch.func.jvp(call, (plain[0],), (torch.ones_like(plain[0]),))
    nudged = (call(plain[0] + 1e-3) - call(plain[0] - 1e-3)) / 2e-3
    torch.testing.assert_close(tangent, nudged, rtol=1e-2, atol=1e-2)
    x = plain[0].requires_grad_()
    (first,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    assert torch.autograd.grad(first.sum(), x)[0].abs().sum() > 0


def _split(found: Any, weight: Any) -> tuple[Any, ...]:
    grad_x, parameters, grad_state = found
    return grad_x, parameters[: weight.numel()].view(weight.shape), parameters[weight.numel() :], grad_state


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_updates(dtype: Any, last: bool, device: str) -> None:
    for channels, width, more, tokens, picks, turns in itertools.product(
        (1, 16, 70), (2, 4, 8), (0, 1, 9), (0, 1, 5, 8, 40), (None, torch.int32, torch.int64), (None, torch.int64)
    ):
        call = step(dtype, last, channels, width, width - 1 + more, tokens, picks, turns, device)
        again = [one.clone() if i == 1 else one for i, one in enumerate(call)]
        assert_close(RAW.causal_conv1d_update_(*call, True), reference.causal_conv1d_update_(*again, True))
        assert torch.equal(call[1], again[1])


def test_steps_are_the_whole(device: str) -> None:
    """Token by token or some at a time, in a state that shifts or turns; tokens can be taken back from a ring."""
    x, weight, bias, *_ = made_call(torch.float32, True, 16, 20, 4, device=device)
    right, end = ops.causal_conv1d(x, weight, bias, activation="silu", return_final_state=True)
    slots = torch.tensor([3, 1], device=device)
    for length, turns in ((3, False), (7, False), (3, True), (8, True)):
        pool, at, found = torch.randn(5, 16, length, device=device), 0, []
        pool[slots] = 0.0
        for count in (1, 4, 1, 3, 5, 6):
            positions = torch.tensor([at, at], device=device) if turns else None
            options = {"activation": "silu", "state_indices": slots, "positions": positions}
            if turns and length == 8:  # five more tokens, none of which is accepted
                ops.causal_conv1d_update_(torch.randn(2, 16, 5, device=device), pool, weight, bias, **options)
            found.append(ops.causal_conv1d_update_(x[..., at : at + count], pool, weight, bias, **options))
            at += count
        assert_close(torch.cat(found, -1), right)
        last = [(20 - 3 + i) % length for i in range(3)] if turns else slice(-3, None)
        assert torch.equal(pool[slots][..., last], end)


def test_graphs(device: str) -> None:
    call = made_call(torch.float32, True, 8, 12, 4, device=device)
    given = [one.requires_grad_() for one in call[:4]]
    options = {"activation": "silu", "return_final_state": True}

    def run(x: Any, weight: Any, bias: Any, state: Any) -> Any:
        y, end = ops.causal_conv1d(x, weight, bias, initial_state=state, **options)
        return y.mul(2), end

    compiled = torch.compile(run, fullgraph=True)
    wanted, found = (torch.autograd.grad([one.sum() for one in f(*given)], given) for f in (run, compiled))
    assert all(map(torch.allclose, wanted, found))
    exported = torch.export.export(_Module(run), tuple(one.detach() for one in given)).module()
    assert torch.equal(exported(*given)[0], run(*given)[0])
    call = step(torch.float32, True, 8, 4, 5, 2, torch.int64, torch.int64, device)
    names = ("state_indices", "positions")
    after = []
    for f in (ops.causal_conv1d_update_, torch.compile(ops.causal_conv1d_update_, fullgraph=True)):
        pool = call[1].clone()
        y = f(call[0], pool, *call[2:4], **dict(zip(names, call[4:], strict=True)))
        after.append((y, pool))
    assert all(map(torch.equal, *after))


class _Module(torch.nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: Any) -> Any:
        return self.run(*args)


@pytest.mark.gpu
def test_cuda_graphs() -> None:
    call = made_call(torch.bfloat16, True, 64, 100, 4, device="cuda")
    assert_captured(lambda: RAW.causal_conv1d(*call, True, True))
    step_of = step(torch.bfloat16, True, 64, 4, 8, 2, torch.int64, torch.int64, "cuda")  # a ring: the same every time
    assert_captured(lambda: RAW.causal_conv1d_update_(*step_of, True))


@pytest.mark.parametrize("name", ["causal_conv1d", "causal_conv1d_backward", "causal_conv1d_update_"])
def test_opcheck(name: str) -> None:
    from precast.ops import _folders

    torch.library.opcheck(getattr(RAW, name).default, _folders.arguments(name))


def test_threads() -> None:
    call = made_call(torch.bfloat16, True, 500, 90, 4)
    grads = torch.randn_like(call[0]), None
    assert_same_with_any_number_of_threads(lambda: RAW.causal_conv1d_backward(*grads, *call, True))
    call = made_call(torch.float32, False, 50, 900, 4)
    assert_same_with_any_number_of_threads(lambda: RAW.causal_conv1d(*call, True, True))


def test_infinite_tokens_outside_of_a_filter(device: str) -> None:
    """A filter of fewer taps than its kernel does not see them, not even times zero."""
    x = torch.ones(1, 8, 9, device=device).transpose(1, 2).contiguous().transpose(1, 2)
    x[..., 0] = torch.inf
    y = ops.causal_conv1d(x, torch.ones(8, 2, device=device))
    assert torch.isinf(y[..., :2]).all() and (y[..., 2:] == 2).all()


def refusals(device: str) -> dict[str, tuple[Callable[[], Any], str]]:
    x, weight, bias = lines(2, 5, 9, True, torch.float32, device), made(5, 4, device=device), made(5, device=device)
    pool, conv, update = made(7, 5, 3, device=device), ops.causal_conv1d, ops.causal_conv1d_update_
    starts = torch.tensor([0, 9], device=device)
    return {
        "dtype": (lambda: conv(x.double(), weight), "x is float64; needed float32, float16 or bfloat16"),
        "shape": (lambda: conv(x[0], weight), "x has shape (5, 9); needed (batch, channels, tokens)"),
        "kind": (lambda: conv(x, weight.half()), "weight is float16 and x is float32; needed one dtype"),
        "width": (lambda: conv(x, made(5, 9, device=device)), "weight has shape (5, 9); needed (5, 2 to 8), of each"),
        "bias": (lambda: conv(x, weight, bias[:4]), "bias has shape (4,); needed (5,), the channels of x"),
        "state": (lambda: conv(x, weight, initial_state=pool), "initial_state has shape (7, 5, 3); needed (2, 5, 3)"),
        "starts": (
            lambda: conv(x, weight, starts=starts),
            "starts has shape (2,) and x has shape (2, 5, 9); needed (sequences + 1,) and a batch of one",
        ),
        "floats": (lambda: conv(x[:1], weight, starts=starts.float()), "starts is float32; needed int32 or int64"),
        "index": (
            lambda: conv(x, weight, sequence_index=starts[None].int()),
            "sequence_index has shape (1, 2); needed (2, 9)",
        ),
        "both": (
            lambda: conv(x, weight, sequence_index=starts[None], starts=starts),
            "there are sequence_index and starts; needed one of them",
        ),
        "pool": (lambda: update(x[..., 0], pool, weight), "state has shape (7, 5, 3); needed (the batch of x, 5, 3"),
        "short": (
            lambda: update(x, pool[..., 1:], weight, state_indices=starts),
            "state has shape (7, 5, 2); needed (slots, 5, 3 or more)",
        ),
        "indices": (
            lambda: update(x, pool, weight, state_indices=starts[:1]),
            "state_indices has shape (1,); needed (2,), a number for each sequence",
        ),
        "gradient": (lambda: update(x, pool, weight.requires_grad_()), "a gradient is wanted"),
    }  # fmt: skip


@pytest.mark.parametrize("what", list(refusals("cpu")))
def test_refusals(what: str, device: str) -> None:
    call, words = refusals(device)[what]
    with pytest.raises(RuntimeError) as error:
        call()
    assert str(error.value).startswith("causal_conv1d") and words in str(error.value)
    if what == "gradient":
        return
    with torch.device("meta"), pytest.raises(RuntimeError) as of_fake:
        refusals("meta")[what][0]()
    assert str(of_fake.value) == str(error.value)


def test_refusals_of_numbers_and_memory() -> None:
    x, weight, pool = lines(2, 5, 9, True, torch.float32), made(5, 4), made(7, 5, 3)
    with pytest.raises(
        RuntimeError, match=r"state_indices\[1\] is 7 and there are 7 states; needed one of these, or a"
    ):
        ops.causal_conv1d_update_(x, pool, weight, state_indices=torch.tensor([0, 7]))
    for wrong, words in (
        ([0, 5, 3], r"starts\[2\] is 3; needed 5 to 9"),
        ([0, 12], r"starts\[1\] is 12; needed 0 to 9"),
    ):
        with pytest.raises(RuntimeError, match=words):
            ops.causal_conv1d(x[:1], weight, starts=torch.tensor(wrong))
    with pytest.raises(RuntimeError, match="no two elements in one place"):
        ops.causal_conv1d_update_(x, pool[:1].expand(2, 5, 3), weight)
    with pytest.raises(RuntimeError, match="x overlaps state in memory"):
        ops.causal_conv1d_update_(pool[:2], pool[:2], weight)
    with pytest.raises(ValueError, match="activation is 'relu'; needed None, 'silu' or 'swish'"):
        ops.causal_conv1d(x, weight, activation="relu")


def test_names_of_causal_conv1d(device: str) -> None:
    x, weight, bias, state, *_ = made_call(torch.bfloat16, True, 16, 12, 4, device=device)
    index, out = cuts("index", 12, 1, device)[0], torch.empty(2, 16, 3, dtype=x.dtype, device=device)
    options = {"seq_idx": index, "activation": "silu"}
    assert torch.equal(
        causal_conv1d_fn(x, weight, bias, **options),
        ops.causal_conv1d(x, weight, bias, activation="silu", sequence_index=index),
    )
    y, end = causal_conv1d_fn(x, weight, bias, None, state, True, out)
    assert end is out and torch.equal(end, x[..., -3:]) and y.shape == x.shape
    pools = made(2, 5, 16, 9, dtype=x.dtype, device=device)
    lengths, slots = torch.tensor([[7, 30], [4, 0]], device=device, dtype=torch.int32)
    ours = ops.causal_conv1d_update_(x, pools[0], weight, positions=lengths, state_indices=slots)
    pools[1] = made(2, 5, 16, 9, dtype=x.dtype, device=device)[0]
    with torch.enable_grad():
        theirs = causal_conv1d_update(x, pools[1], weight.requires_grad_(), None, None, lengths, slots)
    assert torch.equal(ours, theirs) and torch.equal(*pools)
