"""``clip_grad_norm_`` is called in every way in which torch's is, and does the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = ((5, 7), (33,), (), (2, 3, 4, 4), (1029,), (0,))
NORMS = [2, 2.0, 1, 0.5, 3, 0, float("inf"), "inf", float("-inf")]


def made(device: str, dtypes: tuple[Any, ...] = (torch.float32,)) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    params = []
    for index, shape in enumerate(SHAPES):
        param = torch.nn.Parameter(torch.zeros(shape, dtype=dtypes[index % len(dtypes)], device=device))
        param.grad = torch.randn(shape, generator=generator).to(param)
        params.append(param)
    return [*params, torch.nn.Parameter(torch.zeros(3, device=device))]  # the last one has no gradient


def assert_same(ours: list[Any], theirs: list[Any], *args: Any, handed: Callable[[Any], Any] = list, **kw: Any) -> None:
    """One call of each: the norm, its dtype and device, and the gradients."""
    norm = ops.clip_grad_norm_(handed(ours), *args, **kw)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(handed(theirs), *args, **kw), equal_nan=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, equal_nan=True)


@pytest.mark.parametrize("most", [0.5, 1e6])
@pytest.mark.parametrize("norm_type", NORMS, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_any_norm(device: str, norm_type: Any, most: float) -> None:
    ours, theirs = ([p for p in made(device) if p.numel()] for _ in range(2))  # no infinity norm of nothing
    assert_same(ours, theirs, most, norm_type)


@pytest.mark.parametrize(
    "dtypes",
    [(torch.float64,), (torch.float16,), (torch.bfloat16,), (torch.float32, torch.bfloat16, torch.float64)],
    ids=str,
)
@pytest.mark.parametrize("device", DEVICES)
def test_any_dtype(device: str, dtypes: tuple[Any, ...]) -> None:
    for most in (0.5, 1e4):
        assert_same(made(device, dtypes), made(device, dtypes), most)


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize(
    "handed",
    [list, tuple, iter, lambda params: (p for p in params), dict.fromkeys],
    ids=["list", "tuple", "iterator", "generator", "keys"],
)
@pytest.mark.parametrize("device", DEVICES)
def test_any_iterable(device: str, handed: Callable[[Any], Any], foreach: bool | None) -> None:
    assert_same(made(device), made(device), 0.5, foreach=foreach, handed=handed)


@pytest.mark.parametrize("device", DEVICES)
def test_one_tensor_and_nothing(device: str) -> None:
    assert_same(made(device)[:1], made(device)[:1], 0.5, handed=lambda params: params[0])
    assert_same([], [], 0.5)
    assert_same(made(device)[-1:], made(device)[-1:], 0.5)
    said = []
    for clip in (ops.clip_grad_norm_, torch.nn.utils.clip_grad_norm_):
        with warnings.catch_warnings(record=True) as caught:  # newer versions warn
            warnings.simplefilter("always")
            assert clip((p for p in ()), 0.5) == 0.0
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, "inf"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("device", DEVICES)
def test_a_norm_that_is_not_finite(device: str, value: float, norm_type: Any) -> None:
    ours, theirs = ([p for p in made(device) if p.numel()] for _ in range(2))
    for params in (ours, theirs):
        params[1].grad[3] = value
    before = [p.grad.clone() for p in ours if p.grad is not None]
    for clip in (ops.clip_grad_norm_, torch.nn.utils.clip_grad_norm_):
        with pytest.raises(RuntimeError, match="error_if_nonfinite=False"):
            clip(ours, 0.5, norm_type, error_if_nonfinite=True)
    after = [p.grad for p in ours if p.grad is not None]
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    assert_same(ours, theirs, 0.5, norm_type)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "turned": lambda grad: grad.t().contiguous().t(),
    "gaps": lambda grad: torch.stack((grad, grad), dim=-1)[..., 0],
    "channels last": lambda grad: grad.view(1, 1, *grad.shape).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_in_any_layout(device: str, layout: str) -> None:
    sides = []
    for _ in range(2):
        param = torch.nn.Parameter(LAYOUTS[layout](torch.zeros(4, 6, device=device)))
        param.grad = LAYOUTS[layout](torch.arange(24.0, device=device).view(4, 6))
        sides.append([param])
    assert_same(*sides, 0.5)


@pytest.mark.gpu
def test_gradients_on_two_kinds_of_devices() -> None:
    ours, theirs = ([*made("cpu"), *made("cuda")] for _ in range(2))
    assert_same(ours, theirs, 0.5)
    assert_same(ours[::-1], theirs[::-1], 0.1)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_the_two_norm_on_a_gpu_does_not_wait() -> None:
    params = made("cuda")
    ops.clip_grad_norm_(params, 0.5)
    # fails if the second call waits for the GPU
    torch.cuda.set_sync_debug_mode("error")
    try:
        ops.clip_grad_norm_(params, 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
