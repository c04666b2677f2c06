"""Where a value goes in a forward, read from its source: so one rule serves all releases and copies of a model."""

from __future__ import annotations

import ast
import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import torch

from precast._adopt.source import Unreadable, syntax


def logits_of(forward: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options of ``self.config`` that must be None if a causal model needs no logits but for its loss, and scales.

    In such a forward the result of ``self.lm_head`` is given to ``self.loss_function`` and returned as ``logits=``. It
    is used and changed nowhere else but under ``if self.config.<option> is not None``, and multiplied by, or divided
    by, scales: attributes of ``self`` or of ``self.config``.

    Raises:
        Unreadable: what else the forward does with them.
    """
    body = syntax(forward)
    own = functools.partial(_own, body.args.args[0].arg)
    made = [one for one in body.body if isinstance(one, ast.Assign) and _is_call(own, one.value, "lm_head")]
    named = len(made) == 1 and len(made[0].targets) == 1 and isinstance(made[0].targets[0], ast.Name)
    named = named and len(made[0].value.args) == 1 and not made[0].value.keywords  # type: ignore[attr-defined]
    if not named or _count(own, body, "lm_head") != 1:
        raise Unreadable("its forward does not have exactly one line like logits = self.lm_head(hidden_states)")
    logits = made[0].targets[0].id  # type: ignore[attr-defined]
    allowed, options, scales = {id(made[0].targets[0])}, list[str](), list[str]()
    for one in body.body:
        scale = _scale(own, one, logits)
        if scale:
            allowed |= {id(node) for node in ast.walk(one)}
            scales.append(scale)
        option = _condition(own, one)
        if option is not None and all(_assigns(inner, logits) for inner in one.body):  # type: ignore[attr-defined]
            allowed |= {id(node) for inner in one.body for node in ast.walk(inner)}  # type: ignore[attr-defined]
            options.append(option)
    for call in (node for node in ast.walk(body) if isinstance(node, ast.Call)):
        given = {word.arg: word.value for word in call.keywords}
        if _is_call(own, call, "loss_function"):
            allowed.add(id(call.args[0] if call.args else given.get("logits")))
    for returned in (node for node in ast.walk(body) if isinstance(node, ast.Return)):
        if isinstance(returned.value, ast.Call):
            allowed |= {id(word.value) for word in returned.value.keywords if word.arg == "logits"}
    used = [node for node in ast.walk(body) if isinstance(node, ast.Name) and node.id == logits]
    if _count(own, body, "loss_function") != 1 or any(id(node) not in allowed for node in used):
        raise Unreadable("its forward does more with its logits than to return them and to give them to its loss")
    return tuple(options), tuple(scales)


def _own(instance: str, node: ast.AST | None, name: str) -> bool:
    """Whether a node is the attribute of that name of the instance."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == instance
    )


_Own = Callable[[ast.AST | None, str], bool]


def _is_call(own: _Own, node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and own(node.func, name)


def _count(own: _Own, body: ast.AST, name: str) -> int:
    return sum(own(node, name) for node in ast.walk(body))


def _condition(own: _Own, node: ast.AST) -> str | None:
    """The option of ``if self.config.<option> is not None`` without an else."""
    match node:
        case ast.If(ast.Compare(ast.Attribute(config, str(option)), [ast.IsNot()], [ast.Constant(None)]), _, []):
            return option if own(config, "config") else None
    return None


def _scale(own: _Own, node: ast.AST, logits: str) -> str:
    """The attribute in ``logits = logits * self.<attribute>``, or that of ``self.config``, or of a division."""
    match node:
        case ast.Assign([ast.Name(target)], ast.BinOp(ast.Name(value), ast.Mult() | ast.Div(), ast.Attribute() as by)):
            path = ast.unparse(by).partition(".")[2]
            plain = own(by, by.attr) or (own(by.value, "config") and path == f"config.{by.attr}")
            return path if target == value == logits and plain else ""
    return ""


def _assigns(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == [name]


def called(forward: Any, function: str) -> tuple[int, int]:
    """How a forward calls a global function that rotates: with how many tensors of heads, and which axis they have.

    Raises:
        Unreadable: it does something else with it, or calls it in several ways.
    """
    body, found = syntax(forward), set[tuple[int, int]]()
    named = [node for node in ast.walk(body) if isinstance(node, ast.Name) and node.id == function]
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call) and node.func in named]
    for call in calls:
        words = {word.arg: word.value for word in call.keywords}
        axis = words.get("unsqueeze_dim", ast.Constant(1))
        plain = {*words} <= {"unsqueeze_dim"} and not any(isinstance(one, ast.Starred) for one in call.args)
        if plain and isinstance(axis, ast.Constant) and axis.value in (1, 2) and len(call.args) in (3, 4):
            found.add((len(call.args) - 2, 1 + (axis.value == 2)))
        else:
            found |= {(0, 0), (1, 1)}
    if len(found) != 1 or len(named) != len(calls):
        raise Unreadable(f"its forward does not call {function} in one way, as (q, k, cos, sin) or as (x, cos, sin)")
    return found.pop()


def rotated(forward: Any, function: str) -> tuple[str, ...]:
    """The children whose results, queries and keys, an attention gives to ``function`` alone; empty if there are none.

    Raises:
        Unreadable: its source cannot be read.
    """
    body = syntax(forward)
    own = functools.partial(_own, body.args.args[0].arg)
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call) and ast.unparse(node.func) == function]
    always = any(isinstance(one, ast.Assign) and one.value in calls for one in body.body)  # under no condition
    if len(calls) != 1 or len(calls[0].args) != 4 or not always:
        return ()
    norms = tuple(_norm_before(own, body, calls[0], given) for given in calls[0].args[:2])
    apart = all(_count(own, body, name) == 1 for name in norms) and len({*norms}) == 2
    return norms if all(norms) and apart else ()


_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.USub)
_PARTS = (ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Slice, ast.expr_context, ast.keyword)
_METHODS = {"chunk", "flatten", "float", "repeat_interleave", "squeeze", "to", "type_as", "unsqueeze"}
_JOIN = {"torch.cat", "torch.stack", "torch.chunk"}
_DTYPES = {"torch.float", "torch.float32"}


def straight(function: Any, name: str) -> tuple[Any, ...]:
    """A function of that name, and those that it calls, if it is arithmetic of elements for tensors of every shape.

    It has no branch or loop, and no number of it is a size: tensors are cut only by the sizes of others, or by twos.
    Such a function computes one formula for all calls, so a probe of some proves it.

    Raises:
        Unreadable: what else it does.
    """
    syntax(function, name)
    names = _names_in_formula(function, function.__code__)
    found = [straight(function.__globals__.get(one), one) for one in names if one != "torch"]
    if "torch" in names and function.__globals__.get("torch") is not torch:
        raise Unreadable(f"{name} does more than plain arithmetic: the name torch in its file is another module")
    return tuple(dict.fromkeys([function, *itertools.chain(*found)]))


@functools.lru_cache(maxsize=256)
def _names_in_formula(function: Any, _: types.CodeType) -> tuple[str, ...]:
    """The globals of a formula, for each code that a function has."""
    body, found = syntax(function), dict[str, None]()
    for one in body.body:
        text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        if not text and not isinstance(one, (ast.Assign, ast.Return)):
            raise Unreadable(f"{function.__name__} does more than plain arithmetic: {ast.unparse(one).splitlines()[0]}")
        for node in () if text else list(ast.walk(one))[1:]:
            if not _is_formula(node):
                raise Unreadable(f"{function.__name__} does more than plain arithmetic: {ast.unparse(node)}")
            if isinstance(node, ast.Name) and node.id not in function.__code__.co_varnames:
                found[node.id] = None
    return tuple(found)


def _is_formula(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
            return False
        case ast.Subscript(ast.Attribute(_, "shape"), _):
            return True
        case ast.Subscript(_, ast.Tuple([ast.Constant(value), ast.Slice() as cut])):
            ends = (cut.lower, cut.upper)
            numbers = [end for end in ends if isinstance(end, ast.Constant)]
            twos = isinstance(cut.step, ast.Constant) and cut.step.value == 2 and cut.upper is None
            return value is ... and (twos or (cut.step is None and not numbers))
        case ast.Subscript():
            return False
        case ast.Call(ast.Attribute(ast.Name("torch"), _) as joined):
            return ast.unparse(joined) in _JOIN
        case ast.Call(ast.Name()):  # its name is looked at too
            return True
        case ast.Call(ast.Attribute(_, method)):
            return method in _METHODS
        case ast.Attribute(_, name):
            return name in {"shape", "dtype", *_METHODS} or ast.unparse(node) in _JOIN | _DTYPES
        case ast.BinOp(_, operator, _) | ast.UnaryOp(operator, _):
            return isinstance(operator, _ARITHMETIC)
    return isinstance(node, (*_PARTS, *_ARITHMETIC))


def _norm_before(own: _Own, body: ast.FunctionDef, call: ast.Call, given: ast.expr) -> str:
    """The child whose result, or that with two axes exchanged, is the value of a variable until ``call``, if any is."""
    every = [node for node in ast.walk(body) if isinstance(node, ast.Name) and ast.unparse(given) == node.id]
    here = [node for node in every if node.lineno < call.lineno]
    rotated = [one.targets for one in ast.walk(body) if isinstance(one, ast.Assign) and one.value is call]
    names = {node.id for targets in rotated for target in targets for node in ast.walk(target) if hasattr(node, "id")}
    if any(node.lineno > (call.end_lineno or 0) for node in every) and ast.unparse(given) not in names:
        return ""  # what is not rotated is read later
    made = [one for one in body.body if isinstance(one, ast.Assign) and any(node in one.targets for node in here)]
    if not made or any(node.lineno > (made[-1].end_lineno or 0) for node in here):
        return ""
    value = made[-1].value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "transpose":
        value = value.func.value if [ast.unparse(one) for one in value.args] == ["1", "2"] else value
    plain = isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords
    child = value.func.attr if plain and isinstance(value.func, ast.Attribute) else ""  # type: ignore[attr-defined]
    return child if child and own(value.func, child) else ""  # type: ignore[attr-defined]
