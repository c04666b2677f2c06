"""One hostile call, and what the law says of it."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from precast._builder import public
from precast._builder.catalogue import FAMILIES
from precast.compat import members
from precast.errors import KernelError
from precast.ops import _folders
from tests.hostile import changes
from tests.hostile.calls import Call, Path, calls, copied, mapped, tensors
from tests.hostile.memory import Before, Guarded

ERRORS = (RuntimeError, TypeError, ValueError)
FROM_TORCH = (*ERRORS, IndexError, NotImplementedError)  # what a function made of torch's own ops may pass on
INTERNAL = re.compile(
    "got None|INTERNAL ASSERT|report a bug|object has no attribute|not subscriptable|unhashable|must be real number|"
    "unsupported operand|not supported between|cannot unpack|has no len|^$"
)
# What torch itself says: its parser of an op's arguments, its views of a tensor without memory, and autograd of what it
# is given. None of ours has run.
TORCHS = re.compile(
    r"^\w+::\w+\(\) (Expected a value of type|is missing value for argument)|Overflow when unpacking long|"
    r"setStorage: sizes .* out of bounds|ZeroTensors are immutable|fallback doesn't currently support mutable|"
    r"Inference tensors cannot be saved for backward|Mismatch in (shape|dtype): grad_output|"
    r"Cannot copy out of meta tensor"  # the engine moves the gradient of a scalar
)
# What is said of all arguments together.
ASKED = re.compile("a (gradient|derivative) is wanted|an inference tensor would be written")
NO_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory|Storage size calculation overflowed")
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5  # float32; as ``precast doctor --deep``


@dataclass(frozen=True)
class Case:
    """One change of one argument of a call."""

    call: str
    path: Path
    change: str
    backward: bool = False

    def __str__(self) -> str:
        way = "backward of " if self.backward else ""
        return f"{way}{self.call}({'.'.join(map(str, self.path))}) {self.change}"


@dataclass(frozen=True)
class Leeway:
    """How far a right result may be from plain torch's."""

    rounding: float  # of the narrowest tensor
    size: float  # of the number that the result may be proportional to
    endless: bool  # the change brings in an infinity or NaN
    taps: bool  # of a filter
    endless_row: bool  # a softmax is taken over an infinity, for which torch.softmax gives NaN
    backward: bool  # the call is an op that computes a gradient

    @classmethod
    def of(cls, case: Case, given: Mapping[str, Any]) -> Leeway:
        rounding = max((torch.finfo(t.dtype).eps for t in tensors(given) if t.is_floating_point()), default=0.0)
        number = _at(given, case.path) if case.path != ("gradient",) else None
        plain = isinstance(number, int | float) and math.isfinite(number)
        endless = bool(re.search(r": (holds )?-?(inf|nan|3e\+38|1e\+308)$", case.change))
        taps = endless and case.path[0] in ("f", "filter")
        endless_row = endless and case.path[0] in ("sinks", "key_scale")
        size = max(1.0, abs(number)) if plain else 1.0
        return cls(rounding, size, endless, taps, endless_row, case.call.endswith("_backward"))


class Broken(AssertionError):
    """What a call did against the law."""


UNREADABLE = ("tensor: freed", "tensor: halved", "tensor: one short")
TORCHS_GRADIENT = ("multi_tensor_l2norm",)  # its gradient is that of its reference, by torch's own ops
# Where rows are written to: if two have one place, a GPU writes either of them last.
PLACES = ("slot_mapping", "positions")


class NoSuchForm(Exception):
    """The argument has no such form."""


def cases(device: str) -> Iterator[Case]:
    """Every case, in an order that only the examples decide."""
    for call in calls().values():
        if device not in call.devices or (device == "cuda" and not has_op(call.name)):
            continue  # torch checks an index on the GPU by an assertion, after which nothing works in the process
        for path, value in call.leaves():
            kind = call.kinds[str(path[0])]
            names = list(changes.of(value, kind))
            if isinstance(value, Tensor):
                others = [other for other, tensor in call.leaves() if isinstance(tensor, Tensor) and other != path]
                names += [f"overlap: {'.'.join(map(str, other))}" for other in others]
            for name in names:
                if name in UNREADABLE and not has_op(call.name):
                    continue  # torch's own ops read what is not there
                yield Case(call.name, path, name)
                if differentiable(call.name) and not name.startswith(("junk", "overlap")):
                    yield Case(call.name, path, name, backward=True)
        if differentiable(call.name):
            names = [f"tensor: {name}" for name in changes.TENSOR]
            read = has_op(call.name) and call.name not in TORCHS_GRADIENT
            yield from (Case(call.name, ("gradient",), name, True) for name in names if read or name not in UNREADABLE)


# ---- the same in plain torch ----


class Plain(TorchFunctionMode):
    """Computes every op of ours by its reference, in float64 or in the precision that a reference takes, and counts."""

    def __init__(self, *, wide: bool = True) -> None:
        super().__init__()
        self.wide, self.count = wide, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "name", lambda: "")() if isinstance(func, torch._ops.OpOverload) else ""
        if not name.startswith("precast::"):
            return func(*args, **(kwargs or {}))
        self.count += 1
        return by_reference(func, args, kwargs or {}, wide=self.wide)


_NUMBERS = {"float": float, "int": int, "bool": bool}  # as torch's parser takes a number of another type


def by_reference(op: Any, args: Any, kwargs: Any, *, wide: bool) -> Any:
    """An op by its reference; what it writes is written back."""
    named = dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)) | kwargs
    kinds = {argument.name: _NUMBERS.get(str(argument.type)) for argument in op._schema.arguments}
    named = {name: value if kinds[name] is None else kinds[name](value) for name, value in named.items()}  # type: ignore[misc]
    given = mapped(named, lambda t: t.double() if wide and t.is_floating_point() else t)
    result = _folders.reference(op._opname)(*given.values())
    for argument in op._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for old, new in zip(tensors(named[argument.name]), tensors(given[argument.name]), strict=True):
                if old is not new:
                    old.copy_(new)
    return result


# ---- one case ----


@functools.cache
def differentiable(name: str) -> tuple[Path, ...]:
    """The arguments of a public function that have a gradient."""
    call = calls()[name]
    if call.raw:
        return ()
    paths = [path for path, value in call.leaves() if isinstance(value, Tensor) and value.is_floating_point()]
    return tuple(path for path in paths if _has_gradient(call, path))


@functools.cache
def has_op(name: str) -> bool:
    """Whether a call reaches an op of ours. If not, it is made of torch's own ops, and its errors are torch's."""
    with Plain() as plain:
        calls()[name](copied(calls()[name].arguments))
    return plain.count > 0


def _has_gradient(call: Call, path: Path) -> bool:
    arguments = copied(call.arguments)
    _at(arguments, path).requires_grad_()
    try:
        with Plain():
            return any(t.requires_grad for t in tensors(call(arguments)))
    except ERRORS:
        return False  # it would be written over, or there is no formula


_GUARDED = Guarded()


def _wanted(name: str, arguments: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that a gradient is asked for; a change can leave one without."""
    found = [_at(arguments, path) for path in differentiable(name) if path[0] in arguments]
    leaves = [
        t for t in found if isinstance(t, Tensor) and t.is_floating_point() and t.is_leaf and not t.is_inference()
    ]
    return [t.requires_grad_() for t in leaves]


def _put(arguments: dict[str, Any], path: Path, value: Any) -> None:
    name = str(path[0])
    if len(path) == 1:
        arguments[name] = value
        return
    items = list(arguments[name])
    items[int(path[1])] = value
    arguments[name] = type(arguments[name])(items)


def _at(arguments: Mapping[str, Any], path: Path) -> Any:
    """An argument, or an item of a list; None behind the end of a list that became shorter."""
    value = arguments[str(path[0])]
    return value if len(path) == 1 else (list(value) + [None] * (int(path[1]) + 1))[int(path[1])]


def _collide(case: Case, given: Mapping[str, Any]) -> bool:
    """Whether two rows have one place."""
    places = given[str(case.path[0])] if case.path[0] in PLACES else None
    return isinstance(places, Tensor) and places.unique().numel() < places.numel()


def made(case: Case, device: str, *, guarded: bool) -> tuple[dict[str, Any], changes.Change]:
    """The arguments of a case."""
    arguments: dict[str, Any] = copied(calls()[case.call].arguments)
    if device != "cpu":
        arguments = copied(arguments, lambda storage: storage.to(device=torch.device(device)))
    change = changes.Change(lambda old: old)
    if case.path != ("gradient",):
        old = _at(arguments, case.path)
        kind, _, name = case.change.partition(": ")
        if kind == "overlap":
            other = tuple(int(part) if part.isdigit() else part for part in name.split("."))
            change = changes.Change(lambda old: changes.overlapping(old, _at(arguments, other)), aliases=True)
        else:
            change = changes.change(case.change)
        try:
            new = change.make(old)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            raise NoSuchForm(str(error)) from error
        if new is None and case.change != "junk: None":
            raise NoSuchForm
        _put(arguments, case.path, new)
    return (copied(arguments, _GUARDED.place) if guarded else arguments), change


def judged(case: Case, device: str) -> dict[str, str]:
    """How a case went, and what broke the law if it did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return {"how": judge(case, device)}
        except NoSuchForm:
            return {"how": "no such form"}
        except Broken as broken:
            return {"how": "broken", "broken": str(broken)}


def judge(case: Case, device: str, *, guarded: bool = True) -> str:
    """Makes the call, and says how it went. Raises Broken."""
    arguments, change = made(case, device, guarded=guarded and device == "cpu")
    before = {id(t): Before.of(t) for t in tensors(arguments)}
    try:
        result, gradients = _run(case, arguments)
        if device == "cuda":
            torch.cuda.synchronize()
    except NoSuchForm:
        raise
    except FROM_TORCH as error:
        return _judge_error(case, error, list(before.values()))
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    finally:
        _GUARDED.take_back()
    if change.must_fail or (case.path == ("gradient",) and changes.change(case.change).must_fail):
        raise Broken("works, with memory that is not there or of a kind that it has no kernel for")
    return _judge_result(case, device, (result, gradients, arguments), before)


def _run(case: Case, arguments: dict[str, Any], *, plain: bool = False) -> tuple[Any, list[Any]]:
    """The results of a call, and the gradients of its arguments."""
    call = calls()[case.call]
    if not case.backward:
        return call(arguments), []
    leaves = _wanted(case.call, arguments)
    result = call(arguments)
    outs = [t for t in tensors(result) if t.requires_grad]
    if not outs:
        return result, []
    generator = torch.Generator().manual_seed(20)
    slopes = [torch.randn(out.shape, generator=generator).to(out.device, out.dtype) for out in outs]
    if case.path == ("gradient",):
        try:
            changed = changes.change(case.change).make(slopes[0])
        except (RuntimeError, NotImplementedError) as error:
            raise NoSuchForm(str(error)) from error
        if changed is None and not plain:  # where it is float64 already
            raise NoSuchForm
        slopes[0] = slopes[0] if changed is None else changed
    return result, list(torch.autograd.grad(outs, leaves, slopes, allow_unused=True))


def _judge_error(case: Case, error: Exception, before: list[Before]) -> str:
    text = str(error)
    if "CUDA error" in text or "CUDA_ERROR" in text:
        raise Broken(f"the GPU failed: {text}")
    for one in before:
        if one.changed():
            raise Broken(f"wrote before it raised {text}")
        if one.moved():
            raise Broken(f"moved a version counter before it raised {text}")
    if TORCHS.search(text) or NO_MEMORY.search(text) or (not has_op(case.call) and "NoneType" not in text):
        return "torch refuses"
    if not isinstance(error, ERRORS):
        raise Broken(f"{type(error).__name__}: {error}") from error
    if isinstance(error, KernelError):
        return "no kernel"  # its lines say what was found, what is needed, and how to fix it
    if INTERNAL.search(text):
        raise Broken(f"an error from inside: {type(error).__name__}: {text}")
    if "\n" in text.strip():
        raise Broken(f"an error of several lines: {type(error).__name__}: {text}")
    if not re.search(rf"\b({'|'.join(map(re.escape, _names(case)))}|argument \d+)\b", text) and not ASKED.search(text):
        raise Broken(f"an error that names no argument: {type(error).__name__}: {text}")
    return "refused"


def _names(case: Case) -> list[str]:
    """What an error may call the arguments: by their names here, or in the ops."""
    families = {family.name for family in FAMILIES if family.name in _families(case.call)}
    ops = [members.kernel(op) for family in FAMILIES if family.name in families for op in family.op_names]
    public_names = [
        name for call in calls().values() if set(_families(call.name)) & families for name in call.arguments
    ]
    return [*public_names, *(a.name for op in ops for a in op._schema.arguments), "gradient", "keys", "values"]  # type: ignore[attr-defined]


@functools.cache
def _families(name: str) -> tuple[str, ...]:
    op = name.rpartition(".")[2]
    own = [family.name for family in FAMILIES if op in family.op_names]
    return tuple(own) if calls()[name].raw else public.families_of(name.partition("#")[0])


def _apart(given: Any) -> Any:
    """Arguments whose tensors share no memory; one that is given twice stays one, as its gradient does."""
    clones: dict[int, Tensor] = {}
    return mapped(given, lambda t: clones.setdefault(id(t), t.clone(memory_format=torch.contiguous_format)))


def _judge_result(case: Case, device: str, ours: tuple[Any, list[Any], dict[str, Any]], before: Any) -> str:
    """Compares results, gradients and arguments with those in plain torch, in float64 or else as torch would do it."""
    found: list[tuple[Broken, Any]] = []
    for wide in (True, False):
        try:
            given, change = made(case, "cpu", guarded=False)  # on a GPU, torch's own ops assert that an index is right
            if device == "cuda" and _collide(case, given):
                return "not compared"
            if change.aliases:
                given = _apart(given)
            watched = [Before.of(t) for t in tensors(given)]
            with Plain(wide=wide):
                right = _run(case, given, plain=True)
        except Exception as error:
            if NO_MEMORY.search(str(error)) or isinstance(error, MemoryError) or "holds" in case.change:
                return "not compared"
            if not wide:
                raise found[0][0] from error
            raise Broken(f"works, where plain torch raises {type(error).__name__}: {error}") from error
        leeway = Leeway.of(case, given)
        try:
            _compare("result", ours[0], right[0], leeway)
            _compare("gradient", ours[1], right[1], leeway)
            _judge_arguments(
                tensors(ours[2]), before, watched, leeway, aliases=change.aliases, raw=calls()[case.call].raw
            )
        except Broken as broken:
            found.append((broken, right))
        else:
            return "equal" if wide else "equal to float32"
    (first, exact), (_, rounded) = found
    try:
        _compare("float32", rounded, exact, leeway)
    except Broken:
        return "not compared"  # plain torch in float32 is as wrong
    raise first


def _judge_arguments(
    mine: list[Tensor], before: Any, watched: list[Before], leeway: Leeway, *, aliases: bool, raw: bool
) -> None:
    """What is written is what plain torch writes."""
    for index, (one, now) in enumerate(zip(mine, watched, strict=True)):
        was, wrote = before[id(one)], now.moved()
        if not aliases and wrote != was.moved() and one.numel() and not (raw and was.moved()):
            raise Broken(f"tensor {index}: its version counter {'stays' if wrote else 'moves'}")
        if wrote:
            _compare(f"tensor {index}, written", one, now.tensor, leeway)
        elif not aliases and was.changed():
            raise Broken(f"tensor {index} is written")


def _compare(what: str, ours: Any, right: Any, leeway: Leeway) -> None:
    mine, exact = _flat(ours), _flat(right)
    if len(mine) != len(exact):
        raise Broken(f"{what}: {len(mine)} of them, in plain torch {len(exact)}")
    for index, (one, other) in enumerate(zip(mine, exact, strict=True)):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            if type(one) is not type(other):
                raise Broken(f"{what} {index}: {one!r}, in plain torch {other!r}")
            continue
        if one.shape != other.shape or one.is_meta != other.is_meta:
            raise Broken(f"{what} {index}: {_like(one)}, in plain torch {_like(other)}")
        if not one.is_meta:
            _close(f"{what} {index}", one.detach().to_dense().cpu(), other.detach().to_dense().cpu(), leeway)


def _close(what: str, one: Tensor, other: Tensor, leeway: Leeway) -> None:
    kind = torch.finfo(one.dtype if one.is_floating_point() else torch.float64)
    rounding = kind.eps if one.is_floating_point() else 0.0
    wanted, ours = other.to(one.dtype).double(), one.double()
    gradient = what.startswith("gradient") or leeway.backward
    size = leeway.size if gradient else 1.0
    near = max(_RELATIVE, 2 * rounding, 2 * leeway.rounding)
    close = torch.isclose(ours, wanted, rtol=near, atol=(_ABSOLUTE + leeway.rounding) * size, equal_nan=True)
    # Where a number overflows, or nearly so, which infinity or NaN comes of it depends on the order of the arithmetic.
    large = ~wanted.isfinite() | (wanted.abs() > (1e30 if leeway.endless else 1e-3 * kind.max))
    close |= large & (~ours.isfinite() | (ours.abs() > 1e30))
    if gradient:
        # Plain torch multiplies the branch that torch.where leaves out by zero, which gives NaN.
        close |= wanted.isnan() | (ours.isnan() if leeway.endless else torch.zeros_like(close))
    if leeway.endless_row:
        close |= ours.isnan() | wanted.isnan()
    if leeway.taps:
        close |= wanted.isnan()  # a tap over padding is not multiplied by the zeros there
    if not bool(close.all()):
        where = int((~close).flatten().nonzero()[0])
        values = f"{one.flatten()[where].item()}, in plain torch {other.flatten()[where].item()}"
        raise Broken(f"{what}: {int((~close).sum())} of {close.numel()} are wrong; at {where} {values}")


def _like(t: Tensor) -> str:
    return f"{tuple(t.shape)} on {t.device}"


def _flat(value: Any) -> list[Any]:
    return [found for item in value for found in _flat(item)] if isinstance(value, list | tuple) else [value]
