"""Adam at every CPU level: the same numbers whatever the level, the cut between threads, the alignment, the formats."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.csrc_cpu.conftest import LEVELS
from tests.unit.csrc_cpu.tensors import Lists, assert_same_bits, copied

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def step(lists: Lists, number: int = 3, **changes: Any) -> Lists:
    """One update of params, grads, exp_avgs, exp_avg_sqs and copies, in place; returns them."""
    values = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, **changes}
    torch.ops.precast.adam_(
        *lists,
        *(values[name] for name in ("lr", "beta1", "beta2", "eps", "weight_decay")),
        1 - values["beta1"] ** number,
        1 - values["beta2"] ** number,
        values.get("grad_scale", 1.0),
        values.get("decoupled", True),
        values.get("maximize", False),
    )
    return lists


def made(sizes: tuple[int, ...], dtypes: tuple[Any, ...] = (F32, F32, F32, F32), seed: int = 0) -> Lists:
    generator = torch.Generator().manual_seed(seed)
    lists = [[torch.randn(size, generator=generator).to(dtype) for size in sizes] for dtype in dtypes]
    lists[3] = [tensor.abs() for tensor in lists[3]]
    return lists if len(lists) == 5 else [*lists, []]


@pytest.mark.parametrize("decoupled", [True, False])
def test_each_of_100_steps_is_within_1e_6_of_float64(adam_levels: Any, level: str, decoupled: bool) -> None:
    """Relative to the terms that are added: where they cancel, their own rounding is all that is left."""
    adam_levels.choose(level)
    generator = torch.Generator().manual_seed(1)
    lists = made((997,))
    lists[2][0].zero_()
    lists[3][0].zero_()
    lr, wd, eps = 1e-3, 0.01, 1e-8
    for number in range(1, 101):
        lists[1][0] = torch.randn(997, generator=generator)
        p, g, m, v = (tensors[0].double() for tensors in lists[:4])
        step(lists, number, decoupled=decoupled)
        g_terms, g = g.abs() + (0 if decoupled else wd * p.abs()), g if decoupled else g + wd * p
        m_terms, m = 0.9 * m.abs() + 0.1 * g_terms, 0.9 * m + 0.1 * g
        v_terms, v = 0.999 * v + 0.001 * g_terms**2, 0.999 * v + 0.001 * g * g
        denominator = (v / (1 - 0.999**number)).sqrt() + eps
        update = lr / (1 - 0.9**number) / denominator
        kept = p * (1 - lr * wd) if decoupled else p
        # A gradient that cancels under L2 is a small v that is off by much: let the update answer for it.
        v_slack = (v_terms / v.clamp_min(1e-30)).clamp_max(1e6)
        wanted = {0: (kept - update * m, kept.abs() + update * m_terms * v_slack), 2: (m, m_terms), 3: (v, v_terms)}
        for which, (right, terms) in wanted.items():
            error = (lists[which][0].double() - right).abs()
            assert bool((error <= 1e-6 * terms).all()), f"step {number}, list {which}: {(error / terms).max():.2e}"


def test_levels_agree(adam_levels: Any) -> None:
    """Bitwise with fused multiply-add; without, by 2 units in the last place where nothing cancels."""

    def compute() -> Lists:
        lists = made((1003,))
        lists[0], lists[1], lists[2] = ([tensor.abs() + 0.5 for tensor in tensors] for tensors in lists[:3])
        return step(lists, weight_decay=0.1)

    results = adam_levels.each(compute)
    reference = results.pop(LEVELS[0])
    for first, second in itertools.pairwise(results.values()):
        assert_same_bits(first, second)
    for result in results.values():
        for which in (0, 2, 3):
            ours, plain = result[which][0].view(torch.int32), reference[which][0].view(torch.int32)
            assert int((ours - plain).abs().max()) <= 2


@pytest.mark.parametrize("copy", [None, F16, BF16], ids=str)
@pytest.mark.parametrize(("param", "grad"), list(itertools.product([F32, F16, BF16], repeat=2)), ids=str)
def test_a_mix_of_formats_is_the_float32_step_with_rounded_ends(
    adam_levels: Any, level: str, param: Any, grad: Any, copy: Any
) -> None:
    adam_levels.choose(level)
    for state in {F32, param}:
        lists = made((1003, 5), (param, grad, state, state, *([] if copy is None else [copy])))
        wide = [[tensor.float().clone() for tensor in tensors] for tensors in lists[:4]]
        step([*wide, []])
        ends = zip(wide, (param, grad, state, state), strict=True)
        wanted = [[tensor.to(dtype) for tensor in tensors] for tensors, dtype in ends]
        wanted.append([] if copy is None else [tensor.to(copy) for tensor in wide[0]])
        assert_same_bits(step(lists), wanted)


def test_the_last_elements_are_computed_as_all_others(adam_levels: Any, level: str) -> None:
    """Every length to 130, from a start that is aligned to nothing: a long tensor's bits, and nothing beside them."""
    adam_levels.choose(level)
    dtypes = (F32, BF16, F32, F32, F16)
    whole = made((200,), dtypes)
    wanted = step(copied(whole))
    for length in range(1, 131):
        backing = copied(whole)
        step([[tensors[0][1 : 1 + length]] for tensors in backing])
        for which, tensors in enumerate(backing):
            before, after = whole[which][0], wanted[which][0]
            expected = torch.cat([before[:1], after[1 : 1 + length], before[1 + length :]])
            assert_same_bits([tensors], [[expected]])


def test_the_number_of_threads_changes_no_bit(adam_levels: Any, level: str, threads: Callable[[int], None]) -> None:
    adam_levels.choose(level)
    sizes = (70_001, 3, 16_384, 1, 0, 40_000)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(step(made(sizes, (F32, BF16, F32, F32, BF16))))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
def test_copies_that_go_past_the_caches_are_the_same(adam_levels: Any, level: str, offset: int) -> None:
    """From 32 MiB of copies on they are streamed; the same step in small pieces is not."""
    adam_levels.choose(level)
    count = (1 << 24) + 33
    lists = [[torch.rand(count)] for _ in range(4)]
    lists[1] = [lists[1][0].to(BF16)]
    lists.append([torch.zeros(count + offset, dtype=BF16)[offset:]])
    pieces = [list(tensor.clone().split(1 << 20)) for (tensor,) in lists]
    step(lists)
    for part in zip(*pieces, strict=True):
        step([[tensor] for tensor in part])
    for (tensor,), small in zip(lists, pieces, strict=True):
        assert torch.equal(tensor, torch.cat(small))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_every_16_bit_pattern_survives(adam_levels: Any, level: str, dtype: Any) -> None:
    """Read, widened, rounded and written back: a step of length zero changes no number, and a NaN stays one."""
    adam_levels.choose(level)
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    params, zeros = patterns.view(dtype).clone(), torch.zeros(1 << 16)
    step([[params], [zeros], [zeros.clone()], [zeros.clone()], []], lr=0.0)
    numbers = ~patterns.view(dtype).isnan()
    assert torch.equal(params.view(torch.int16)[numbers], patterns[numbers])
    assert bool(params[~numbers].isnan().all())


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_copies_round_to_nearest_even(adam_levels: Any, level: str, dtype: Any) -> None:
    """Against torch's conversion: halves, subnormals, the largest finite number and what lies beyond it."""
    adam_levels.choose(level)
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    patterns = patterns[patterns.isfinite()].sort().values
    middles = (patterns[1:].double() + patterns[:-1].double()).div(2).float()
    edge = torch.tensor([65519.996, 65520.0, 3.3895314e38, 3.4028235e38, float("inf"), 1e-8, 2.9802322e-8, 1e-45])
    near = [torch.nextafter(middles, torch.full_like(middles, sign)) for sign in (-torch.inf, torch.inf)]
    params = torch.cat([middles, *near, edge, -edge])
    zeros, copies = torch.zeros_like(params), torch.empty_like(params, dtype=dtype)
    step([[params.clone()], [zeros], [zeros.clone()], [zeros.clone()], [copies]], lr=0.0, weight_decay=0.0)
    assert_same_bits([[copies]], [[params.to(dtype)]])


def test_nan_and_infinity_reach_what_they_touch_and_nothing_else(adam_levels: Any, level: str) -> None:
    adam_levels.choose(level)
    lists = made((37,), (F32, F32, F32, F32, BF16))
    lists[1][0][5], lists[1][0][36] = float("nan"), float("inf")
    step(lists)
    for which in (0, 2, 3, 4):
        assert (~lists[which][0].isfinite()).nonzero().flatten().tolist() == [5, 36]
    assert lists[2][0][36] == float("inf") and lists[3][0][36] == float("inf")


def test_an_infinite_parameter_stays_infinite(adam_levels: Any, level: str) -> None:
    """A parameter of -inf is a mask that somebody set; no decay must make it NaN, whichever way a float rounds it."""
    adam_levels.choose(level)
    for decay in (0.0, *torch.logspace(-6, 1, 20).tolist()):
        lists = made((20,))
        lists[0][0][3] = -torch.inf
        step(lists, weight_decay=decay, decoupled=True)
        assert lists[0][0][3] == -torch.inf
        assert int((~lists[0][0].isfinite()).sum()) == 1


def test_an_infinite_moment_stays_infinite(adam_levels: Any, level: str) -> None:
    adam_levels.choose(level)
    for beta in torch.linspace(0.05, 0.9999, 20).tolist():
        lists = made((20,))
        lists[2][0][3] = lists[3][0][4] = torch.inf
        step(lists, beta1=beta, beta2=beta)
        assert (lists[2][0] == torch.inf).nonzero().tolist() == [[3]]
        assert (lists[3][0] == torch.inf).nonzero().tolist() == [[4]]


def test_many_steps_do_not_drift_with_the_rounding_of_beta(adam_levels: Any, level: str) -> None:
    """0.999 as one float settles a constant gradient's second moment 1.3e-5 too high."""
    adam_levels.choose(level)
    lists = [[torch.ones(16)], [torch.ones(16)], [torch.zeros(16)], [torch.zeros(16)], []]
    for number in range(1, 8001):
        step(lists, number, lr=0.0)
    right = 1 - 0.999**8000
    assert abs(float(lists[3][0][0]) / right - 1) < 2e-6


def channels_last(tensor: Any) -> Any:
    return tensor.view(2, 3, 2, 2).to(memory_format=torch.channels_last)


def test_a_gradient_of_another_layout_is_brought_into_the_parameters(adam_levels: Any) -> None:
    """Transposed, expanded, or contiguous beside a channels_last parameter; the gradient itself stays as it is."""
    adam_levels.choose("")
    lists = [[tensor.view(4, 6) for tensor in tensors] for tensors in made((24,))[:4]]
    for strange in (lists[1][0].t().contiguous().t(), torch.ones(1, 6).expand(4, 6)):
        kept = strange.clone()
        wanted = step([*copied([lists[0], [strange], *lists[2:]]), []])
        ours = step([*copied(lists[:1]), [strange], *copied(lists[2:]), []])
        for which in (0, 2, 3):
            assert torch.equal(ours[which][0], wanted[which][0])
        assert torch.equal(strange, kept)
    shaped = [[channels_last(tensor) for tensor in tensors] for tensors in made((24,))[:4]]
    wanted = step([*(list(map(torch.clone, tensors)) for tensors in shaped), []])
    shaped[1] = [shaped[1][0].contiguous()]
    assert torch.equal(step([*shaped, []])[0][0], wanted[0][0])


def spoiled(which: int, tensor: Any) -> Lists:
    lists = made((24,), (F32, F32, F32, F32, BF16))
    lists[which] = [tensor(lists) if callable(tensor) else tensor]
    return lists


REFUSED = {
    "a second moment with gaps": (lambda: spoiled(3, torch.ones(48)[::2]), "exp_avg_sqs.0. and params.0. differ in"),
    "a copy with gaps": (lambda: spoiled(4, torch.ones(48, dtype=BF16)[::2]), "copies.0. and params.0. differ in"),
    "a copy of another length": (lambda: spoiled(4, torch.ones(23, dtype=BF16)), r"copies\[0\] has shape \(23,\)"),
    "a gradient inside its parameter": (lambda: spoiled(1, lambda lists: lists[0][0]), "a gradient shares memory"),
    "moments in one tensor": (lambda: spoiled(3, lambda lists: lists[2][0]), "share memory; each must have its own"),
    "parameters that overlap": (
        lambda: (
            [[t[:20], t[4:]] if i == 0 else [t[:20].clone(), t[4:].clone()] for i, (t,) in enumerate(made((24,))[:4])]
            + [[]]
        ),
        "share memory; each must have its own",
    ),
    "a flat gradient of a channels_last parameter": (
        lambda: [[channels_last(t) if i != 1 else t] for i, (t,) in enumerate(made((24,))[:4])] + [[]],
        r"grads\[0\] has shape \(24,\), params\[0\] has \(2, 3, 2, 2\) and is not contiguous; the same shape is needed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_updated_is_refused_before_any_write(adam_levels: Any, case: str) -> None:
    adam_levels.choose("")
    make, message = REFUSED[case]
    lists = make()
    before = copied(lists)
    with pytest.raises(RuntimeError, match=message):
        step(lists)
    for tensors, kept in zip(lists, before, strict=True):
        assert all(map(torch.equal, tensors, kept))
