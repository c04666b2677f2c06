"""Checks that several families share. They need only metadata, and use the kernels' error messages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from precast._builder import catalogue

FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16)

# Raises RuntimeError with the text. In a trace with unknown sizes it becomes a runtime check in the graph.
require: Callable[[object, Callable[[], str]], None] = torch._check


def in_one_line(value: object) -> str:
    """A value as an error shows it: an array of numpy is printed in several lines."""
    return " ".join(str(value).split())


def like(x: Tensor) -> Tensor:
    """An uninitialised result like ``x``, contiguous."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def rows(op: str, x: Tensor) -> None:
    require(
        x.dtype in FLOAT_TYPES,
        lambda: f"{op}: x is {dtype_name(x)}; needed float32, float16 or bfloat16",
    )
    require(x.dim() >= 1, lambda: f"{op}: x has shape (); needed at least one dimension")


def row_tensors(op: str, x: Tensor, eps: float, columns: Mapping[str, Tensor], like_x: Mapping[str, Tensor]) -> None:
    """Checks tensors of one element for each column, and tensors of ``x``'s shape."""
    require(eps >= 0, lambda: f"{op}: eps is {eps:g}; needed a number that is not negative")
    _column_kinds(op, x, columns)
    for name, other in like_x.items():
        same_kind(op, name, other, x)
    for name, other in columns.items():
        _column_vector(op, name, other, x)
    for name, other in like_x.items():
        same_shape(op, name, other, "x", x)


def _column_kinds(op: str, x: Tensor, columns: Mapping[str, Tensor]) -> None:
    """The first may be float32 with a narrower ``x``, and decides for others; a bias alone has the dtype of ``x``."""
    like, called = x, "x"
    for name, other in columns.items():
        if name == "weight" and other.dtype == torch.float32 and x.dtype in FLOAT_TYPES:
            same_device(op, name, other, x)
        else:
            same_kind(op, name, other, like, called)
        like, called = other, name


def _column_vector(op: str, name: str, tensor: Tensor, x: Tensor) -> None:
    require(
        tensor.dim() == 1 and tensor.shape[0] == x.shape[-1],
        lambda: f"{op}: {name} has shape {tuple(tensor.shape)}; needed ({x.shape[-1]},), the last dimension of x",
    )


def updated_lists(op: str, params: Sequence[Tensor], others: Mapping[str, Sequence[Tensor]]) -> None:
    for name, tensors in others.items():
        message = f"{op}: {len(params)} params, but {len(tensors)} {name}; one for each param is needed"
        require(len(tensors) == len(params), lambda: message)  # noqa: B023 - called at once or never
    for index, param in enumerate(params):
        for name, tensors in {"params": params, **others}.items():
            _updated(op, f"{name}[{index}]", tensors[index], f"params[{index}]", param, params[0])


def states(op: str, params: Sequence[Tensor], states: Mapping[str, Sequence[Tensor]]) -> None:
    """The states of a parameter must be all float32, or all of the parameter's dtype."""
    names = list(states)
    for index, param in enumerate(params):
        for other in (*names[1:], *names[-1:]):
            m, v = states[names[0]][index], states[other][index]
            message = (
                f"{op}: {names[0]}[{index}] is {dtype_name(m)} and {other}[{index}] is {dtype_name(v)} "
                f"with a {dtype_name(param)} param; all must be float32, or all of the param's dtype"
            )
            require(m.dtype == v.dtype and m.dtype in (torch.float32, param.dtype), lambda: message)  # noqa: B023


def copies_of(op: str, copies: Sequence[Tensor]) -> None:
    for index, copy in enumerate(copies):
        message = f"{op}: copies[{index}] is float32; float16 or bfloat16 is needed"
        require(copy.dtype != torch.float32 or copy.numel() == 0, lambda: message)  # noqa: B023


def _updated(op: str, name: str, tensor: Tensor, param_name: str, param: Tensor, first: Tensor) -> None:
    # Meta tensors pass as well if all tensors are on the meta device.
    require(
        tensor.device.type == first.device.type and tensor.device.type in ("cpu", "meta"),
        lambda: f"{op}: {name} is on {tensor.device}; all tensors must be on cpu",
    )
    require(
        tensor.dtype in FLOAT_TYPES,
        lambda: f"{op}: {name} is {dtype_name(tensor)}; float32, float16 or bfloat16 is needed",
    )
    require(
        tensor.numel() == param.numel(),
        lambda: (
            f"{op}: {name} has shape {tuple(tensor.shape)}, {param_name} has {tuple(param.shape)}; "
            "as many elements are needed"
        ),
    )


def same_kind(op: str, name: str, other: Tensor, x: Tensor, called: str = "x") -> None:
    require(
        other.dtype == x.dtype,
        lambda: f"{op}: {name} is {dtype_name(other)} and {called} is {dtype_name(x)}; needed one dtype",
    )
    same_device(op, name, other, x, called)


def same_device(op: str, name: str, other: Tensor, x: Tensor, called: str = "x") -> None:
    require(
        other.device == x.device,
        lambda: f"{op}: {name} is on {other.device} and {called} on {x.device}; needed one device",
    )


def same_kind_or_float32(op: str, name: str, other: Tensor, x: Tensor) -> None:
    if other.dtype == torch.float32:
        same_device(op, name, other, x)
    else:
        same_kind(op, name, other, x)


def integers(op: str, name: str, tensor: Tensor, x: Tensor, called: str = "x") -> None:
    """Checks a tensor of indices, counts or places."""
    require(
        tensor.dtype in (torch.int32, torch.int64),
        lambda: f"{op}: {name} is {dtype_name(tensor)}; needed int32 or int64",
    )
    same_device(op, name, tensor, x, called)


def no_gradient(op: str, why: str) -> Callable[..., NoReturn]:
    """The formula of an op for inference: it raises, with the reason and what is needed instead."""

    def refuse(*_: Any) -> NoReturn:
        raise RuntimeError(f"{op}: a gradient is wanted (grad mode is on and an input requires grad), but {why}")

    return refuse


def same_shape(op: str, name: str, tensor: Tensor, wanted_name: str, wanted: Tensor) -> None:
    require(
        tensor.shape == wanted.shape,
        lambda: f"{op}: {name} has shape {tuple(tensor.shape)}; needed {tuple(wanted.shape)}, as {wanted_name}",
    )


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ---- arguments of another type than a signature says ----

# What Python and torch raise when they meet one. A public function explains it then: looking before each call costs.
CONFUSED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_ALIASES = {"Steps": "int | Sequence[int]", "Casting": "str", "GroupScore": "str", "FullyMasked": "str"}
_KINDS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda value: isinstance(value, Tensor),
    "None": lambda value: value is None,
    "int": lambda value: isinstance(value, int | torch.SymInt),
    "float": lambda value: isinstance(value, float | int | torch.SymFloat | torch.SymInt),
    "bool": lambda value: isinstance(value, bool | torch.SymBool),
    "str": lambda value: isinstance(value, str),
    "torch.device": lambda value: isinstance(value, torch.device),
}


# How an error begins: with the name of an op or a family, as a schema has it or with torch's namespace before it.
_BEGINNING = re.compile(r"(?:precast::)?(\w+)(?=[:(]| cannot | has no )")

# What torch's dispatcher says of a wrong type, in several lines with the schema of the op.
_DISPATCHERS = re.compile(r"\w+::\w+\(\) Expected a value of type")


def explain(function: Callable[..., Any], given: Mapping[str, Any], *, takes_jagged: bool = False) -> NoReturn:
    """Raise the error that is being handled again, with the name of the public function for that of an op below it.

    It is a TypeError instead, which names the first argument of another type than the function's signature says, if any
    is, unless the error names it already.
    """
    import inspect  # for the error alone: calls do without it

    error = sys.exc_info()[1]
    assert error is not None, "called in an except clause alone"
    said = str(error)
    for name, value in given.items():
        if isinstance(value, Tensor) and value.is_nested:
            _explain_nested(function.__name__, name, value, takes_jagged)
    for name, parameter in inspect.signature(function).parameters.items():
        kind = str(parameter.annotation)
        for alias, meaning in _ALIASES.items():
            kind = kind.replace(alias, meaning)
        if name in given and not any(_is_a(one.strip(), given[name]) for one in kind.split(" | ")):
            if re.search(rf"\b{name}\b", said) and "\n" not in said:
                break
            value = given[name]
            found = (
                repr(value) if isinstance(value, int | float | complex | str | None) else f"a {type(value).__name__}"
            )
            raise TypeError(f"{function.__name__}: {name} is {found}; needed {kind}") from None
    begins = _BEGINNING.match(said)
    if begins is not None and _is_ours(begins[1]):
        rest = said[begins.end() :]
        error.args = (f"{function.__name__}{rest.splitlines()[0] if _DISPATCHERS.match(said) else rest}",)
    try:
        raise error
    finally:
        del error  # its traceback has this frame, and the two would keep each other and all arguments


def _explain_nested(function: str, name: str, value: Tensor, takes_jagged: bool) -> None:
    """Raise TypeError if the function does not take such a nested tensor, which torch's own errors do not say."""
    if not takes_jagged:
        needed = "a dense tensor, such as the values() of one in the layout torch.jagged"
        raise TypeError(f"{function}: {name} is a nested tensor; needed {needed}") from None
    if value.layout is torch.strided:
        raise TypeError(f"{function}: {name} is a nested tensor in the strided layout; needed torch.jagged") from None


def _is_ours(name: str) -> bool:
    try:
        catalogue.folder_of(name)
    except KeyError:
        return False
    return True


def _is_a(kind: str, value: Any) -> bool:
    """Whether a value has a type of an annotation; an unknown type passes."""
    outer, several, inner = kind.removesuffix("]").partition("[")
    if outer == "Literal":
        return isinstance(value, str)
    if several and isinstance(value, Sequence):
        return not isinstance(value, str) and all(_is_a(inner, one) for one in value)
    if several:
        return outer == "Iterable" and isinstance(value, Iterable)
    known = _KINDS.get(kind)
    return known is None or known(value)
