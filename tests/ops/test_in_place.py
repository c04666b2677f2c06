"""What is written in place counts as a change afterwards, and nothing is written that torch would not write."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd.graph import allow_mutation_on_saved_tensors  # noqa: E402

from precast import optim  # noqa: E402
from precast._builder.catalogue import FAMILIES  # noqa: E402
from precast._dispatch.in_place import written_arguments  # noqa: E402
from precast._dispatch.routes import Route  # noqa: E402
from precast.compat import adam, lists, members  # noqa: E402
from precast.ops import _folders  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def module_of(op: str) -> Any:
    return importlib.import_module(f"precast.ops.{_folders.catalogue.folder_of(op).name}")


def overload(op: str) -> Any:
    module_of(op)  # which defines it
    return getattr(torch.ops.precast, op).default


def route(op: str) -> Callable[..., Any] | None:
    """The public way to an op."""
    module = module_of(op)
    return next((v for v in vars(module).values() if isinstance(v, Route) and v.op._opname == op), None)


CASES = [
    pytest.param(op, call, device, id=f"{op}-{way}-{device}", marks=pytest.mark.gpu if device == "cuda" else ())
    for family in FAMILIES
    for op in family.op_names
    if written_arguments(overload(op)) and not _folders.is_planned(op)
    for device in family.devices
    for way, call in {"dispatcher": overload(op), "public": route(op)}.items()
    if call is not None
]


def inputs(op: str, device: str) -> tuple[list[Any], list[Any]]:
    """The example arguments of an op, and those of them that it writes, lists of tensors flattened."""
    place = lambda v: v.to(device) if isinstance(v, torch.Tensor) and v.dtype != torch.float64 else v  # noqa: E731
    args = [[place(v) for v in a] if isinstance(a, list) else place(a) for a in _folders.arguments(op)]
    args += [a.default_value for a in overload(op)._schema.arguments[len(args) :]]
    return args, list(flat(args[i] for i in written_arguments(overload(op))))


def flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        elif isinstance(value, torch.Tensor) and value.numel():
            yield value


def exchanged(args: list[Any], old: Any, new: Any) -> list[Any]:
    return [[new if v is old else v for v in a] if isinstance(a, list) else new if a is old else a for a in args]


def saved_products(targets: list[Any]) -> tuple[list[Any], Any]:
    """A graph that has saved each target, and its leaves, whose gradients must be the targets of now."""
    leaves = [torch.ones_like(t, requires_grad=True) for t in targets]
    return leaves, sum((leaf * t).sum() for leaf, t in zip(leaves, targets, strict=True))


@pytest.mark.parametrize(("op", "call", "device"), CASES)
def test_a_graph_keeps_what_it_saved_or_refuses(op: str, call: Callable[..., Any], device: str) -> None:
    with allow_mutation_on_saved_tensors():
        args, targets = inputs(op, device)
        before = [t.clone() for t in targets]
        leaves, loss = saved_products(targets)
        call(*args)
        loss.backward()
        assert not all(map(torch.equal, targets, before))
        assert all(torch.equal(leaf.grad, t) for leaf, t in zip(leaves, before, strict=True))
    args, targets = inputs(op, device)
    versions = [t._version for t in targets]
    call(*args)
    assert [t._version - v for t, v in zip(targets, versions, strict=True)] == [1] * len(targets)


@pytest.mark.parametrize("wrong", ["dtype", "negative", "inference"])
@pytest.mark.parametrize(("op", "call", "device"), CASES)
def test_a_refused_call_changes_nothing(op: str, call: Callable[..., Any], device: str, wrong: str) -> None:
    for which in range(len(inputs(op, device)[1])):
        args, targets = inputs(op, device)
        target = targets[which]
        with torch.inference_mode(wrong == "inference"):
            bad = {"dtype": torch.Tensor.double, "negative": torch._neg_view, "inference": torch.clone}[wrong](target)
        args = exchanged(args, target, bad)
        before, versions = [t.clone() for t in flat(args)], [t._version for t in targets]
        with pytest.raises(RuntimeError, match={"dtype": "float64|no single float32"}.get(wrong, wrong)):
            call(*args)
        assert all(map(torch.equal, flat(args), before))
        assert [t._version for t in targets] == versions
        if wrong == "inference":
            with torch.inference_mode():
                call(*args)
            assert not all(map(torch.equal, flat(args), before))


def in_one_memory(written: Any, other: Any, *, first: bool) -> tuple[Any, Any]:
    """Both anew: the other one shares its first or its last element with what is written, and nothing else."""
    begin = -(-other.nbytes // 64) * 64 + 64
    at = (begin + written.nbytes - 1) // other.itemsize if first else -(-(begin + 1 - other.nbytes) // other.itemsize)
    room = torch.zeros(begin + written.nbytes + other.nbytes, dtype=torch.uint8, device=written.device)
    starts = ((begin, written), (at * other.itemsize, other))
    one, two = (room[i : i + t.nbytes].view(t.dtype).view(t.shape).copy_(t) for i, t in starts)
    return one, two


def with_names(op: str, args: list[Any]) -> list[tuple[str, Any]]:
    arguments = zip(overload(op)._schema.arguments, args, strict=True)
    return [(argument.name, tensor) for argument, values in arguments for tensor in flat([values])]


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(("op", "call", "device"), CASES)
def test_nothing_else_may_lie_in_what_is_written(op: str, call: Callable[..., Any], device: str, first: bool) -> None:
    """Each pair alone, of which one element is shared. The counts of optimize_ are read before and written last."""
    targets = inputs(op, device)[1]
    names = [name for name, _ in with_names(op, inputs(op, device)[0])]
    for which, name in itertools.product(range(len(targets)), names):
        args, targets = inputs(op, device)
        target, other = targets[which], dict(with_names(op, args))[name]
        written = next(n for n, t in with_names(op, args) if t is target)
        if other is target or (op == "optimize_" and {"steps", "numbers"} & {written, name}):
            continue
        new, shared = in_one_memory(target, other, first=first)
        args = exchanged(exchanged(args, target, new), other, shared)
        before = [t.clone() for t in flat(args)]
        with pytest.raises(RuntimeError, match=r"overlaps? |shares? memory|at one place"):
            call(*args)
        torch.testing.assert_close(list(flat(args)), before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("op", "call", "device"), CASES)
def test_a_negative_view_that_is_only_read_is_what_it_means(op: str, call: Callable[..., Any], device: str) -> None:
    args, targets = inputs(op, device)
    for read in [t for t in flat(args) if t.is_floating_point() and not any(t is target for target in targets)]:
        args, targets = inputs(op, device)
        same = next(t for t in flat(args) if t.shape == read.shape and torch.equal(t, read))
        call(*args)
        expected = [t.clone() for t in targets]
        args, targets = inputs(op, device)
        same = next(t for t in flat(args) if t.shape == read.shape and torch.equal(t, read))
        call(*exchanged(args, same, torch._neg_view(-same)))
        assert all(map(torch.equal, targets, expected))


ROUTES = [case for case in CASES if isinstance(case.values[1], Route)]


@pytest.mark.parametrize(("op", "call", "device"), ROUTES)
def test_the_public_way_stays_direct(op: str, call: Any, device: str) -> None:
    call(*inputs(op, device)[0])
    assert type(call.call).__name__ == "builtin_function_or_method"  # of csrc/host/direct.cpp


OPTIMIZERS = [
    pytest.param(name, device, id=f"{name}-{device}", marks=pytest.mark.gpu if device == "cuda" else ())
    for name in (n for n in optim.__all__ if n != "CPUAdamOptimizer")
    for device in ("cpu", "cuda")
    if not name.startswith("CPU" if device == "cuda" else "Fused")
]


@pytest.mark.parametrize(("name", "device"), OPTIMIZERS)
def test_a_planned_step_lets_a_graph_keep_what_it_saved(name: str, device: str) -> None:
    params = [torch.randn(5, device=device, requires_grad=True) for _ in range(2)]
    optimizer = getattr(optim, name)(params, lr=0.1)
    with allow_mutation_on_saved_tensors():
        for _ in range(3):  # the first step makes the plan
            for param in params:
                param.grad = torch.ones_like(param)
            before = [p.detach().clone() for p in params]
            leaves, loss = saved_products([p.detach() for p in params])
            optimizer.step()
            loss.backward()
            assert all(torch.equal(leaf.grad, value) for leaf, value in zip(leaves, before, strict=True))
            assert not torch.equal(params[1].detach(), before[1])


@pytest.mark.parametrize(("name", "device"), OPTIMIZERS)
def test_a_step_refuses_inference_tensors_outside_inference_mode(name: str, device: str) -> None:
    with torch.inference_mode():
        param = torch.zeros(3, device=device)
        optimizer = getattr(optim, name)([param], lr=0.5)
        for _ in range(2):
            param.grad = torch.ones_like(param)
            optimizer.step()
    kept = param.tolist()
    with pytest.raises(RuntimeError, match="outside inference mode"):
        optimizer.step()
    assert param.tolist() == kept and kept[0] < 0


def bad_lists(lists: list[list[Any]]) -> dict[str, list[list[Any]]]:
    """Lists that are refused because of their last tensors, each a copy of the given ones."""

    def edited(which: int, change: Callable[[list[Any]], Any]) -> list[list[Any]]:
        made = [[t.clone() for t in tensors] for tensors in lists]
        change(made[which])
        return made

    def freed(tensors: list[Any]) -> None:
        tensors[-1].untyped_storage().resize_(0)

    last = len(lists) - 1
    shared = edited(0, lambda _: None)
    shared[last][-1] = shared[1][-1]
    return {
        "integers": edited(1, lambda tensors: tensors.__setitem__(-1, torch.ones(4, dtype=torch.int64))),
        "float64": edited(last, lambda tensors: tensors.__setitem__(-1, tensors[-1].double())),
        "one element": edited(0, lambda tensors: tensors.__setitem__(-1, torch.ones(1))),
        "uneven": edited(last, lambda tensors: tensors.pop()),
        "freed": edited(last, freed),
        "expanded": edited(last, lambda tensors: tensors.__setitem__(-1, torch.ones(1).expand(4))),
        "shared": shared,
    }


ADAM_NUMBERS = (0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
LIST_FUNCTIONS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "multi_tensor_adam": (4, ADAM_NUMBERS),
    "multi_tensor_sgd": (3, (0.0, 0.9, 0.0, 0.1, False, False, False, 1.0)),
    "multi_tensor_adagrad": (3, (0.1, 1e-8, 0, 0.0)),
    "multi_tensor_lamb": (4, (*ADAM_NUMBERS[:4], 1, 1, 0.0, 1, 1, torch.ones(1), 1.0)),
    "multi_tensor_scale": (2, (2.0,)),
    "multi_tensor_axpby": (3, (1.0, 1.0, -1)),
}


@pytest.mark.parametrize("name", LIST_FUNCTIONS)
def test_plain_torch_over_lists_checks_everything_before_it_writes(name: str) -> None:
    count, numbers = LIST_FUNCTIONS[name]
    function = members.plainly(getattr(lists, name))
    for kind, given in bad_lists([[torch.ones(4) for _ in range(2)] for _ in range(count)]).items():
        if kind == "shared" and name in ("multi_tensor_scale", "multi_tensor_axpby"):
            continue  # a result may be its own term
        before = [t.clone() if t.untyped_storage().nbytes() else None for t in flat(given)]
        flag = torch.zeros(1, dtype=torch.int32)
        with pytest.raises(RuntimeError, match=r"needed|nothing was|must have its own"):
            function(65536, flag, given, *numbers)
        assert all(old is None or torch.equal(t, old) for t, old in zip(flat(given), before, strict=True)), kind
        assert not flag.any()


def test_plain_adam_of_one_parameter_checks_everything_before_it_writes() -> None:
    optimizer = members.plainly(adam.CPUAdamOptimizer)()
    for which, bad in itertools.product(range(4), (torch.ones(1), torch.ones(4, dtype=torch.int64))):
        tensors = [torch.ones(4) for _ in range(4)]
        tensors[which] = bad.clone()
        before = [t.clone() for t in tensors]
        with pytest.raises(RuntimeError, match="needed"):
            optimizer.step(1, 0.1, 0.9, 0.99, 1e-8, 0.0, True, *tensors)
        assert all(map(torch.equal, tensors, before))
