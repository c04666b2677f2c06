"""Every optimizer at every CPU level: the numbers of float64, whatever the alignment, the length and the bits.

``test_adam.py`` has what is particular to Adam; here all rules go through the op that the optimizers use.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.unit.csrc_cpu.conftest import LEVELS
from tests.unit.csrc_cpu.tensors import Lists, assert_same_bits, copied

torch = pytest.importorskip("torch")

from precast.ops._updates import ADAGRAD, ADAM, DECOUPLED, LION, NESTEROV, SGD, UNCORRECTED  # noqa: E402
from precast.ops.cpu_optim import reference as formulas  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# The number that the op knows a rule by, and which of the three states it has.
RULES = {
    "adam": (ADAM, (0, 1)),
    "amsgrad": (ADAM, (0, 1, 2)),
    "sgd": (SGD, ()),
    "momentum": (SGD, (0,)),
    "adagrad": (ADAGRAD, (0,)),
    "lion": (LION, (0,)),
}
# The flags of a rule, without and with the options that the tests turn on.
FLAGS = {
    ADAM: (0, DECOUPLED | UNCORRECTED),
    SGD: (0, NESTEROV),
    ADAGRAD: (0, 0),
    LION: (DECOUPLED, DECOUPLED),
}
PARAM, GRAD, STATE, COPY = 0, 1, 2, 5


def made(rule: str, sizes: tuple[int, ...], *, param: Any = F32, grad: Any = F32, copy: Any = BF16) -> Lists:
    """Parameters, gradients, three lists of states (those the rule has not are empty) and copies."""
    generator = torch.Generator().manual_seed(0)
    lists = [[torch.randn(n, generator=generator).to(dtype) for n in sizes] for dtype in (param, grad, F32, F32, F32)]
    squares = 2 if rule == "adagrad" else 3
    lists[squares:5] = [[t.abs() for t in tensors] for tensors in lists[squares:5]]
    for state in {0, 1, 2} - set(RULES[rule][1]):
        lists[STATE + state] = []
    return [*lists, [torch.zeros(n, dtype=copy) for n in sizes]]


def row(number: int, *, on: bool = True, **changes: float) -> list[float]:
    dampening = number == SGD  # its column is that of beta1, and the momentum's the last one
    numbers = {
        "lr": 1e-2,
        "beta1": 0.1 if dampening else 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
        "decay": 0.1,
        "extra": 0.9 if dampening else 0.1,
        "flags": FLAGS[number][on],
    }
    return list({**numbers, **changes}.values())


def step(rule: str, lists: Lists, *, count: float = 4.0, scale: float = 0.5, op: Any = None, **changes: Any) -> Lists:
    number = RULES[rule][0]
    steps = [torch.tensor(count) for _ in lists[0]] if number in (ADAM, ADAGRAD) else []
    numbers = torch.tensor([[*row(number, **changes), float(len(lists[0]))]], dtype=torch.float64)
    call = op or torch.ops.precast.optimize_
    call(*lists[:COPY], steps, lists[COPY], torch.empty(0, dtype=torch.int64), numbers, scale, number)
    assert all(float(t) == count + 1 for t in steps)
    return lists


@pytest.mark.parametrize("rule", RULES)
def test_each_of_50_steps_is_within_1e_6_of_float64(optim_levels: Any, level: str, rule: str) -> None:
    """Of the size of what is added: the parameter, and lr times the direction. Lion's sign may turn where it is 0."""
    optim_levels.choose(level)
    lists, squares = made(rule, (997, 0, 5)), STATE + (rule != "adagrad")
    for number in range(50):
        for grad in lists[GRAD]:
            grad.copy_(torch.randn(grad.shape, generator=torch.Generator().manual_seed(number)))
        exact = [[t.double() for t in tensors] for tensors in lists]
        step(rule, exact, count=float(number), op=formulas.optimize_)
        before = copied(lists)
        step(rule, lists, count=float(number))
        for which in (PARAM, *(STATE + state for state in RULES[rule][1])):
            for ours, right, was, grad in zip(*(x[which] for x in (lists, exact, before)), lists[GRAD], strict=True):
                near = 1e-6 * (was.abs() + right.abs() + 0.1 * grad.abs() + (2 * grad).square() * (which == squares))
                far = (ours.double() - right).abs() > near
                assert int(far.sum()) <= (2 if rule == "lion" and which == PARAM else 0), f"step {number}, list {which}"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("on", [False, True])
def test_levels_agree(optim_levels: Any, rule: str, on: bool) -> None:
    """Bitwise with fused multiply-add; without, by a few units in the last place where nothing cancels."""

    def compute() -> Lists:
        lists = made(rule, (1003,))
        lists[PARAM], lists[GRAD] = ([t.abs() + 0.5 for t in tensors] for tensors in lists[:2])
        lists[STATE] = [t.abs() + 0.5 for t in lists[STATE]]
        return step(rule, lists, on=on)

    results = optim_levels.each(compute)
    reference = results.pop(LEVELS[0])
    for first, second in itertools.pairwise(results.values()):
        assert_same_bits(first, second)
    for result in results.values():
        for which in range(STATE + 3):
            for ours, plain in zip(result[which], reference[which], strict=True):
                assert int((ours.view(torch.int32) - plain.view(torch.int32)).abs().max()) <= 4


@pytest.mark.parametrize("rule", RULES)
def test_any_length_from_any_place_and_nothing_beside_it(optim_levels: Any, level: str, rule: str) -> None:
    """Starts that are aligned to nothing: the bits of one long tensor, and the rest untouched."""
    optim_levels.choose(level)
    whole = made(rule, (200,), grad=BF16, copy=F16)
    wanted = step(rule, copied(whole))
    for length in (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100):
        for start in (1, 3, 16):
            backing = copied(whole)
            step(rule, [[tensor[start : start + length] for tensor in tensors] for tensors in backing])
            for which, tensors in enumerate(backing):
                for tensor, before, after in zip(tensors, whole[which], wanted[which], strict=True):
                    parts = [before[:start], after[start : start + length], before[start + length :]]
                    assert_same_bits([[tensor]], [[torch.cat(parts)]])


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_finite_reaches_its_own_element_alone(optim_levels: Any, level: str, rule: str) -> None:
    optim_levels.choose(level)
    lists = made(rule, (37,))
    lists[GRAD][0][5], lists[GRAD][0][36], lists[GRAD][0][7] = float("nan"), float("inf"), 1e-45
    step(rule, lists)
    reached = {5} if rule == "lion" else {5, 36}  # the sign of infinity is 1
    for tensors in (lists[PARAM], lists[COPY]):
        assert set((~tensors[0].isfinite()).nonzero().flatten().tolist()) == reached
        assert tensors[0][5].isnan()
    for state in RULES[rule][1]:
        assert lists[STATE + state][0][5].isnan() and lists[STATE + state][0][36].isinf()
        assert int((~lists[STATE + state][0].isfinite()).sum()) == 2


@pytest.mark.parametrize("rule", RULES)
def test_denormal_gradients_are_not_flushed(optim_levels: Any, level: str, rule: str) -> None:
    optim_levels.choose(level)
    lists = [
        [torch.full_like(t, 2e-39) if i == GRAD else torch.zeros_like(t) for t in tensors]
        for i, tensors in enumerate(made(rule, (20,)))
    ]
    exact = step(rule, [[t.double() for t in tensors] for tensors in lists], scale=1.0, op=formulas.optimize_)
    step(rule, lists, scale=1.0)
    for which in (PARAM, *(STATE + state for state in RULES[rule][1] if state == 0 and rule != "adagrad")):
        torch.testing.assert_close(lists[which][0].double(), exact[which][0], rtol=1e-5, atol=2e-45)
        assert bool((lists[which][0] != 0).all())


@pytest.mark.parametrize("rule", RULES)
def test_a_learning_rate_of_zero_changes_no_parameter(optim_levels: Any, level: str, rule: str) -> None:
    optim_levels.choose(level)
    lists = made(rule, (37,))
    before = copied(lists)
    step(rule, lists, lr=0.0)
    assert torch.equal(lists[PARAM][0], before[PARAM][0])
    for state in RULES[rule][1]:
        assert not torch.equal(lists[STATE + state][0], before[STATE + state][0])


@pytest.mark.parametrize("rule", ["adam", "amsgrad", "adagrad"])
def test_eps_zero_with_nothing_under_the_root(optim_levels: Any, level: str, rule: str) -> None:
    """0 / 0 is NaN, as in torch; it is not hidden, and it does not spread."""
    optim_levels.choose(level)
    lists = [[torch.zeros_like(t) for t in tensors] for tensors in made(rule, (18,))]
    lists[GRAD][0][1::2] = 1.0
    step(rule, lists, eps=0.0, decay=0.0)
    assert lists[PARAM][0].isnan().tolist() == [True, False] * 9


def test_the_greatest_second_moment_keeps_a_nan(optim_levels: Any, level: str) -> None:
    optim_levels.choose(level)
    lists = made("amsgrad", (20,))
    lists[GRAD][0][3] = lists[STATE + 2][0][11] = float("nan")  # from a gradient, and from a checkpoint
    step("amsgrad", lists)
    step("amsgrad", lists)
    assert lists[STATE + 2][0].isnan().nonzero().flatten().tolist() == [3, 11]


def test_an_empty_tensor_stands_for_what_one_parameter_has_not(optim_levels: Any) -> None:
    optim_levels.choose("")
    nothing = torch.empty(0)
    mixed, plain = made("momentum", (20, 33, 7)), made("momentum", (20, 33, 7))
    mixed[STATE][1] = mixed[COPY][0] = nothing
    step("momentum", mixed)
    with_state = step("momentum", [[t for i, t in enumerate(tensors) if i != 1] for tensors in copied(plain)])
    alone = step("sgd", [[tensors[1]] if which in (PARAM, GRAD, COPY) else [] for which, tensors in enumerate(plain)])
    assert torch.equal(mixed[PARAM][0], with_state[PARAM][0]) and torch.equal(mixed[PARAM][2], with_state[PARAM][1])
    assert torch.equal(mixed[PARAM][1], alone[PARAM][0]) and torch.equal(mixed[COPY][1], alone[COPY][0])


def spoiled(rule: str, which: int, tensors: Any) -> Lists:
    lists = made(rule, (24,))
    lists[which] = tensors
    return lists


REFUSED = {
    "no second moment": (lambda: ("adam", spoiled("adam", 3, [])), {}, "1 params, but 0 second with rule 0; one for"),
    "a moment too many": (lambda: ("lion", spoiled("lion", 3, [torch.ones(24)])), {}, "but 1 second with rule 3; none"),
    "an empty moment": (lambda: ("lion", spoiled("lion", 2, [torch.ones(0)])), {}, r"first\[0\] has shape \(0,\)"),
    "a half moment": (
        lambda: ("lion", spoiled("lion", 2, [torch.ones(24).half()])),
        {},
        r"first\[0\] is float16 and first\[0\] is float16 with a float32 param",
    ),
    "a step before the first": (lambda: ("adagrad", made("adagrad", (24,))), {"count": -1.0}, r"steps\[0\] is -1; a"),
    "half a step": (lambda: ("adam", made("adam", (24,))), {"count": 0.5}, r"steps\[0\] is 0.5; a whole number"),
    "an endless step": (
        lambda: ("adam", made("adam", (24,))),
        {"count": float("inf")},
        r"steps\[0\] is inf; a whole number",
    ),
    "a gradient of another shape": (
        lambda: ("sgd", spoiled("sgd", 1, [torch.ones(4, 6)])),
        {},
        r"grads\[0\] has shape \(4, 6\), params\[0\] has \(24,\); the same shape is needed",
    ),
    "a gradient elsewhere": (lambda: ("sgd", spoiled("sgd", 1, [torch.ones(24, device="meta")])), {}, "is on meta"),
    "a shared state": (
        lambda: ("momentum", [[t := torch.ones(24)], [torch.ones(24)], [t], [], [], []]),
        {},
        "two of params, states and copies share memory",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_updated_is_refused_before_any_write(optim_levels: Any, case: str) -> None:
    optim_levels.choose("")
    make, options, message = REFUSED[case]
    rule, lists = make()
    plain = [t for tensors in lists for t in tensors if t.device.type == "cpu"]
    before = [t.clone() for t in plain]
    with pytest.raises(RuntimeError, match=message):
        step(rule, lists, **options)
    assert all(map(torch.equal, plain, before))


@pytest.mark.parametrize("param", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("rule", [rule for rule, (_, states) in RULES.items() if states])
def test_states_are_all_float32_or_all_of_the_params_dtype(optim_levels: Any, rule: str, param: Any) -> None:
    optim_levels.choose("")
    states = RULES[rule][1]
    for dtypes in itertools.product([F32, F16, BF16], repeat=len(states)):
        lists = made(rule, (24,), param=param)
        for state, dtype in zip(states, dtypes, strict=True):
            lists[STATE + state] = [t.to(dtype) for t in lists[STATE + state]]
        before = copied(lists)
        if set(dtypes) in ({F32}, {param}):
            step(rule, lists)
            continue
        with pytest.raises(RuntimeError, match="all must be float32, or all of the param's dtype"):
            step(rule, lists)
        assert_same_bits(lists, before)


@pytest.mark.parametrize("rule", RULES)
def test_a_storage_that_was_cut_is_refused_whichever_it_is(optim_levels: Any, rule: str) -> None:
    optim_levels.choose("")
    number = RULES[rule][0]
    names = ["params", "grads", "first", "second", "third", "steps", "copies"]
    for which in range(len(names)):
        lists = made(rule, (24,))
        lists.insert(COPY, [torch.tensor(3.0)] if number in (ADAM, ADAGRAD) else [])
        if not lists[which]:
            continue
        storage = lists[which][0].untyped_storage()
        storage.resize_(storage.nbytes() - 2)
        numbers = torch.tensor([[*row(number), 1.0]], dtype=torch.float64)
        with pytest.raises(RuntimeError, match=rf"{names[which]}\[0\] has .*a storage of only \d+ bytes"):
            torch.ops.precast.optimize_(*lists, torch.empty(0, dtype=torch.int64), numbers, 1.0, number)


def test_numbers_rules_and_plans_that_are_none(optim_levels: Any) -> None:
    optim_levels.choose("")
    op, none = torch.ops.precast.optimize_, torch.empty(0, dtype=torch.int64)
    lists = made("sgd", (24,))

    def call(plan: Any = none, numbers: Any = None, rule: int = SGD) -> None:
        given = torch.tensor([[*row(SGD), 1.0]], dtype=torch.float64) if numbers is None else numbers
        op(*lists[:COPY], [], lists[COPY], plan, given, 1.0, rule)

    before, one = copied(lists), row(SGD)
    for wrong, message in (
        ({"rule": 4}, "there is no rule 4"),
        ({"numbers": torch.ones(9)}, "numbers is float32 of shape"),
        ({"numbers": torch.ones(10, dtype=torch.float64)}, r"numbers is float64 of shape \(10,\); rows of 8"),
        ({"numbers": torch.full((8,), 2.0).double()}, "numbers are for 2 params; there are 1"),
        ({"numbers": torch.zeros(8).double()}, "numbers are for 0 params; there are 1"),
        ({"numbers": torch.tensor([*one, 1.0, *one, -1.0, *one, 1.0]).double()}, "numbers are for 0 params; th"),
        ({"plan": torch.zeros(2, dtype=torch.int64)}, r"plan is int64 of shape \(2,\)"),
        ({"plan": torch.zeros(1)}, "plan is float32"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call(**wrong)
    counted = made("adagrad", (24,))
    for steps in (torch.zeros(2), torch.zeros(0), torch.zeros((), dtype=torch.float64)):
        given = torch.tensor([[*row(ADAGRAD), 1.0]], dtype=torch.float64)
        with pytest.raises(RuntimeError, match=r"steps\[0\] is no single float32 on the cpu"):
            op(*counted[:COPY], [steps], counted[COPY], none, given, 1.0, ADAGRAD)
    assert_same_bits(counted, made("adagrad", (24,)))
    with pytest.raises(RuntimeError, match="there is no plan 999999; it was forgotten"):
        op([], lists[1], [], [], [], [], [], torch.tensor([999999]), torch.zeros(0).double(), 1.0, 1)
    assert_same_bits(lists, before)
