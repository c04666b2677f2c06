"""Where a value goes in a forward, read from its source: so one rule serves all releases and copies of a model."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from precast._adopt.source import Unreadable, syntax


def logits_of(forward: Any) -> tuple[str, ...]:
    """The options of ``self.config`` that must be None if a causal model needs no logits but for its loss.

    In such a forward the result of ``self.lm_head`` is given to ``self.loss_function`` and returned as ``logits=``. It
    is used and changed nowhere else but under ``if self.config.<option> is not None``.

    Raises:
        Unreadable: what else the forward does with them.
    """
    body = syntax(forward)
    own = functools.partial(_own, body.args.args[0].arg)
    made = [one for one in body.body if isinstance(one, ast.Assign) and _is_call(own, one.value, "lm_head")]
    named = len(made) == 1 and len(made[0].targets) == 1 and isinstance(made[0].targets[0], ast.Name)
    named = named and len(made[0].value.args) == 1 and not made[0].value.keywords  # type: ignore[attr-defined]
    if not named or _count(own, body, "lm_head") != 1:
        raise Unreadable("its forward has not one line that calls lm_head, with the hidden states alone")
    logits = made[0].targets[0].id  # type: ignore[attr-defined]
    allowed, options = {id(made[0].targets[0])}, list[str]()
    for one in body.body:
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
    return tuple(options)


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


def _assigns(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == [name]


def rotated(forward: Any, function: str) -> tuple[str, ...]:
    """The children whose results, queries and keys, an attention gives to ``function`` alone; empty if there are none.

    The attention calls that global function once, with queries, keys and two tables.

    Raises:
        Unreadable: it does something else with it.
    """
    body = syntax(forward)
    own = functools.partial(_own, body.args.args[0].arg)
    named = [node for node in ast.walk(body) if isinstance(node, ast.Name) and node.id == function]
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call) and node.func in named]
    if len(named) != 1 or len(calls) != 1 or len(calls[0].args) != 4 or calls[0].keywords:
        raise Unreadable(f"its forward does not call {function} once, with queries, keys and two tables")
    norms = tuple(_norm_before(own, body, calls[0], given) for given in calls[0].args[:2])
    apart = all(_count(own, body, name) == 1 for name in norms) and len({*norms}) == 2
    return norms if all(norms) and apart else ()


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
