"""The image ops at every CPU level: near float64 at odd widths and steps, NaN kept in its place, the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.csrc_cpu.conftest import LEVELS, _levels_of

torch = pytest.importorskip("torch")

from precast.ops.image import reference  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
UPFIRDN2D = torch.ops.precast.upfirdn2d
STEPS = [(1, 1), (2, 1), (1, 2), (3, 2), (1, 4)]


@pytest.fixture
def filter_levels() -> Iterator[Any]:
    yield from _levels_of("upfirdn2d")


@pytest.fixture
def act_levels() -> Iterator[Any]:
    yield from _levels_of("bias_act")


def made(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filters() -> Iterator[Any]:
    """A product with exact factors, one without, no product, a row, a column."""
    binomial = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
    yield torch.outer(binomial, binomial)
    yield torch.outer(made(5, seed=1), made(12, seed=2))
    yield made(3, 4, seed=3)
    yield made(1, 13, seed=4)
    yield made(13, 1, seed=5)


def calls(dtype: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Images of odd widths in both memory formats, each with a filter and the other arguments."""
    for shape in ((2, 3, 9, 15), (1, 70, 5, 7), (1, 2, 3, 133)):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            x = made(*shape).to(dtype).contiguous(memory_format=memory_format)
            for f, (up, down) in itertools.product(filters(), STEPS):
                yield x, (f, up, up, down, down, 7, 6, 8, 5, False, 1.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_near_float64(filter_levels: Any, level: str, dtype: Any) -> None:
    filter_levels.choose(level)
    unit = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    for x, (f, *rest) in calls(dtype):
        exact = reference.upfirdn2d(x.double(), f.double(), *rest)
        size = reference.upfirdn2d(x.double().abs(), f.double().abs(), *rest)
        error = (UPFIRDN2D(x, f, *rest).double() - exact).abs()
        assert bool((error <= unit * exact.abs() + 2e-6 * size).all()), (x.shape, f.shape, rest)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_levels_agree(filter_levels: Any, dtype: Any) -> None:
    """Bitwise with fused multiply-add; x86's baseline has none."""
    results = filter_levels.each(lambda: [UPFIRDN2D(x, *args) for x, args in calls(dtype)])
    fused = [results[name] for name in LEVELS if name != "baseline"]
    for first, second in itertools.pairwise(fused):
        assert all(map(torch.equal, first, second))


def test_nan_and_infinity_reach_what_their_taps_reach(filter_levels: Any, level: str) -> None:
    filter_levels.choose(level)
    for value, last in itertools.product((torch.nan, torch.inf), (False, True)):
        x = torch.ones(1, 9, 12, 40)
        x[0, 4, 5, 20] = value
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        for up, down in STEPS:
            args = (torch.outer(made(4).abs(), made(4).abs()), up, up, down, down, 2, 1, 2, 1, False, 1.0)
            found, right = (f(x, *args).isfinite() for f in (UPFIRDN2D, reference.upfirdn2d))
            # Torch multiplies the zeros between pixels too, so more of its results may be NaN.
            assert bool((found | ~right).all()) and not bool(found.all())
            spread = UPFIRDN2D((~x.isfinite()).float(), *args) != 0
            assert torch.equal(found, ~spread)


def test_any_number_of_threads_gives_the_same_bits(threads: Callable[[int], None]) -> None:
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append([UPFIRDN2D(x.repeat(8, 1, 8, 1), *args) for x, args in calls(torch.float32)])
    assert all(all(map(torch.equal, results[0], other)) for other in results[1:])


def acted(dtype: Any, width: int, last: bool) -> Iterator[tuple[Any, Any]]:
    """Each activation and its gradients, ours and in float64; with a clamp every other time."""
    x, bias, grad = (made(*size, seed=seed).to(dtype) for seed, size in enumerate(((3, 5, width), (5,), (3, 5, width))))
    if last:
        x, grad = (t.mT.contiguous() for t in (x, grad))
    for act, clamp in itertools.product(range(9), (-1.0, 0.9)):
        options = (2 if last else 1, act, 0.3, 1.5, clamp)
        wide = [t.double() for t in (grad, x, bias)]
        yield torch.ops.precast.bias_act(x, bias, *options), reference.bias_act(*wide[1:], *options)
        ours = torch.ops.precast.bias_act_backward(grad, x, bias, *options, False, True)
        yield from zip(ours, reference.bias_act_backward(*wide, *options, False, True), strict=True)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_are_near_float64(act_levels: Any, level: str, dtype: Any, last: bool) -> None:
    act_levels.choose(level)
    for width in (1, 15, 33, 513):
        for ours, exact in acted(dtype, width, last):
            unit = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
            assert bool(((ours.double() - exact).abs() <= unit * exact.abs() + 2e-6 * (1 + width)).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_of_all_levels_agree(act_levels: Any, dtype: Any) -> None:
    results = act_levels.each(lambda: [ours for last in (False, True) for ours, _ in acted(dtype, 517, last)])
    fused = [results[name] for name in LEVELS if name != "baseline"]
    for first, second in itertools.pairwise(fused):
        assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("act", range(3, 9))
def test_curves_keep_their_digits_near_zero_and_far_below(act_levels: Any, level: str, act: int) -> None:
    """Relative to the result, where 1 + e and e - 1 would lose them."""
    act_levels.choose(level)
    x = torch.cat([-torch.logspace(-6, 1.9, 2001), torch.logspace(-6, 1.9, 2001)])
    options = (0, act, 0.0, 1.0, -1.0)
    exact = reference.bias_act(x.double(), None, *options)
    if act == 7:
        exact = torch.log1p(torch.exp(-x.double().abs())) + x.double().clamp(min=0)
    error = (torch.ops.precast.bias_act(x, None, *options).double() - exact).abs()
    assert bool((error <= 1e-6 * exact.abs() + 1e-37).all()), float((error / exact.abs()).max())
