"""Small changes of a Python source, one at a time, made by the operators of cosmic-ray.

Only operators whose mutants a test should notice are used. cosmic-ray also swaps ``==`` with ``is`` and every binary
operator with eleven others: most of those mutants change nothing or fail at once. Strings are never changed, so
docstrings, log texts and ``__all__`` have no mutants.
"""

from __future__ import annotations

import difflib
import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parso.tree import NodeOrLeaf

SWAPS = (
    *("Add_Sub", "Sub_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul"),
    *("BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitOr", "LShift_RShift", "RShift_LShift"),
)
COMPARISONS = (
    *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
)
OPERATORS = (
    *(f"ReplaceBinaryOperator_{swap}" for swap in SWAPS),
    *(f"ReplaceComparisonOperator_{swap}" for swap in COMPARISONS),
    *(f"ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer"),
    *("RemoveDecorator", "ZeroIterationForLoop"),
)
# The result of a function does not depend on these decorators, only its speed and what it tells a type checker.
SILENT_DECORATORS = ("cache", "lru_cache", "overload", "override", "final")
# Options whose value changes memory or what a mistake of ours would look like, but no result.
SILENT_OPTIONS = ("slots=", "strict=")
# Branches that only type checkers take, or only a program.
SILENT_CONDITIONS = ("TYPE_CHECKING", '__name__ == "__main__"')


@dataclass(frozen=True)
class Mutant:
    """One change of one file. ``before`` and ``after`` are the lines that differ, without indentation."""

    file: str
    line: int
    column: int
    operator: str
    before: str
    after: str
    source: str

    def diff(self, original: str) -> str:
        """Return the change as a unified diff."""
        lines = original.splitlines(), self.source.splitlines()
        return "\n".join(difflib.unified_diff(*lines, f"a/{self.file}", f"b/{self.file}", n=1, lineterm=""))


def changed(original: str, mutated: str) -> tuple[str, str]:
    """Return the lines of two texts that differ, without their indentation."""
    old, new = original.splitlines(), mutated.splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    before, after = ("\n".join(map(str.strip, lines[start : len(lines) - end])).strip() for lines in (old, new))
    return before, after


@functools.cache
def _operators() -> tuple[Any, ...]:
    from cosmic_ray.operators.provider import OperatorProvider

    every = OperatorProvider()
    return tuple(every[name]() for name in OPERATORS)


def _applied(source: str, operator: Any, occurrence: int) -> str:
    """Return the source with the change that an operator makes at its n-th place."""
    from cosmic_ray.ast import Visitor, get_ast

    class Change(Visitor):
        seen = 0

        def visit(self, node: Any) -> Any:
            for index, _ in enumerate(operator.mutation_positions(node)):
                self.seen += 1
                if self.seen == occurrence + 1:
                    return operator.mutate(node, index)
            return node

    code: str = Change().walk(get_ast(source)).get_code()
    return code


def _is_annotation(node: NodeOrLeaf) -> bool:
    """Return whether a node is part of an annotation, which never runs here."""
    child, parent = node, node.parent
    while parent is not None:
        if parent.type == "annassign" and child is parent.children[1]:
            return True
        if parent.type == "tfpdef" and child is not parent.children[0]:
            return True
        if parent.type == "funcdef" and child is parent.annotation:
            return True
        child, parent = parent, parent.parent
    return False


def _is_silent(node: NodeOrLeaf) -> bool:
    """Return whether a change here is one that no test should have to notice."""
    code = node.get_code().strip()
    if node.type == "decorator":
        return any(name in code.partition("(")[0] for name in SILENT_DECORATORS)
    if node.type == "if_stmt":
        code = node.children[1].get_code().strip()
    option = node.parent is not None and node.parent.get_code().strip().startswith(SILENT_OPTIONS)
    return option or (node.type in ("if_stmt", "comparison") and code.startswith(SILENT_CONDITIONS))


def places(source: str) -> dict[tuple[int, int], list[tuple[Any, int]]]:
    """Return where a source can be changed, with the operators that can do it and which occurrence of theirs it is."""
    from cosmic_ray.ast import ast_nodes, get_ast

    found: dict[tuple[int, int], list[tuple[Any, int]]] = {}
    nodes = list(ast_nodes(get_ast(source)))
    for operator in _operators():
        occurrence = 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                if not _is_annotation(node) and not _is_silent(node):
                    found.setdefault(start, []).append((operator, occurrence))
                occurrence += 1
    return found


def mutants_at(file: str, source: str, place: tuple[int, int], ways: list[tuple[Any, int]]) -> list[Mutant]:
    """Return the mutants of one place in a file, those that are no Python left out."""
    mutants = []
    for operator, occurrence in ways:
        try:
            mutated = _applied(source, operator, occurrence)
            compile(mutated, file, "exec", dont_inherit=True)
        except (SyntaxError, AttributeError):  # cosmic-ray has no mutant of `except (a.B, C)`, but counts it
            continue
        mutants.append(Mutant(file, *place, type(operator).__name__, *changed(source, mutated), mutated))
    return mutants


def draw(sources: Mapping[str, str], count: int, seed: int) -> list[Mutant]:
    """Return mutants at random: first the place, so that a place with many mutants is as likely as one with few."""
    chance = random.Random(seed)
    every = [(file, place, ways) for file, source in sources.items() for place, ways in sorted(places(source).items())]
    chance.shuffle(every)
    drawn: list[Mutant] = []
    for file, place, ways in every:
        if len(drawn) == count:
            break
        drawn += chance.sample(there, 1) if (there := mutants_at(file, sources[file], place, ways)) else []
    return drawn
