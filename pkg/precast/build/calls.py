"""Finds calls in a wheel's Python files that open a library by its path, and sends them through the copy of the core.

``torch.ops.load_library(path)`` becomes ``torch.ops.load_library(<core>.resolve(path))``: a guard's path gives the
library behind it, any other path stays as it is. Only the argument is put in parentheses, so lines keep their numbers,
and the meaning of the other code must not change.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from precast.errors import KernelError

_NAME = "load_library"
# Functions that take the path of a library, each with place and keyword of that argument. What the first of them
# returns goes through the core as a whole, as it has both a path and a loader for that.
_SPEC = "spec_from_file_location"
_TAKE = {
    _SPEC: (1, "location"),
    "load_library": (0, "path"),
    "ExtensionFileLoader": (1, "path"),
    "CDLL": (0, "name"),
    "PyDLL": (0, "name"),
    "LoadLibrary": (0, "name"),
}
NEWLINE = re.compile(r"\r\n?|\n")
_NO_PACKAGE = re.compile(r"[^/]+|[^/]+\.data/scripts/.*")
_CALLED = "resolve"


@dataclass(frozen=True)
class Source:
    """One Python file of a wheel: its path, text, encoding by byte order mark and cookie, and statements."""

    where: str
    text: str
    encoding: str
    tree: ast.Module


def read(content: bytes, where: str) -> Source:
    """A file of Python that can be changed. KernelError if it cannot be read."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        return Source(where, text, encoding, parsed(text))
    except (SyntaxError, ValueError, LookupError, RecursionError) as error:
        needed = "Python that can be read here, as it may open a library by its path"
        raise KernelError(
            f"{where} cannot be changed",
            found=str(error),
            needed=needed,
            fix="correct the file, or leave it out of the wheel",
        ) from error


def parsed(source: str | bytes) -> ast.Module:
    """The statements of a source, read without Python's warnings, which are for the author of the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def asks(content: bytes) -> bool:
    """Whether a file may open a library by its path."""
    return any(name.encode() in content for name in _TAKE)


def of_wheel(files: Mapping[str, bytes], guards: Collection[str]) -> list[tuple[str, Source]]:
    """The files of a wheel that open the library behind a guard by its path.

    KernelError for a guard that no call opens, and for a use of ``torch.ops.load_library`` that is no call with a path:
    neither can be changed in the wheel's own Python.
    """
    sources = [read(content, where) for where, content in sorted(files.items())
               if where.endswith(".py") and where not in guards and asks(content)]  # fmt: skip
    by_path = sorted(where for where in guards if where.endswith(".so"))
    stuck = [place for source in sources for place in unchangeable(source)]
    if stuck:
        raise _refused(
            f"{stuck[0]} cannot be changed to open a guarded library",
            "a use of torch.ops.load_library that is not a call with a path",
        )
    if by_path and not any(map(takes, sources)):
        raise _refused(f"{by_path[0]} cannot be guarded", "no call in the wheel that opens this library by its path")
    asking = [one for one in sources if by_path or opens(one)]  # otherwise Python imports every guard
    if alone := [one.where for one in asking if takes(one) and _NO_PACKAGE.fullmatch(one.where)]:
        raise _refused(
            f"{alone[0]} cannot be changed to open a guarded library",
            "a module outside a package, which cannot import the checks of the package",
        )
    return [(one.where, one) for one in asking]


def _refused(what: str, found: str) -> KernelError:
    return KernelError(
        what,
        found=found,
        needed="torch.ops.load_library(path) in a module of a package: guard replaces the path",
        fix="repeat the command with --patch-loader: it wraps torch.ops.load_library for the whole process",
    )


def through(source: Source, core: str, level: int) -> bytes:
    """The file with its calls through the core; unchanged if it has no others.

    ``core`` is the package of the copy and ``level`` the number of dots before it, as for ``__import__``. KernelError
    names the file and the line of a call that cannot be changed.
    """
    starts = [0, *(found.end() for found in NEWLINE.finditer(source.text))]
    before = f"__import__({core + '.opening'!r}, globals(), None, [{_CALLED!r}], {level}).{_CALLED}("
    points = list[tuple[int, str]]()
    # Before Python 3.12 an f-string cannot have the quotes of `before`, and `ast` does not know the places in it.
    within = {id(one) for node in ast.walk(source.tree) if isinstance(node, ast.JoinedStr) for one in ast.walk(node)
              if one is not node}  # fmt: skip
    for argument in _arguments(source.tree):
        if id(argument) in within:
            raise _unchanged(source, argument.lineno, "a call inside an f-string")
        if isinstance(argument, ast.GeneratorExp | ast.Yield | ast.YieldFrom):  # their parentheses are not their own
            raise _unchanged(source, argument.lineno, "a generator or yield expression as the path")
        points.append((offset(source.text, starts, argument.lineno, argument.col_offset), before))
        points.append((offset(source.text, starts, argument.end_lineno or 0, argument.end_col_offset or 0), ")"))
    text = source.text
    for at, added in sorted(points, reverse=True):
        text = f"{text[:at]}{added}{text[at:]}"
    made = text.encode(source.encoding)
    if ast.dump(_without(read(made, source.where).tree)) != ast.dump(_without(parsed(source.text))):
        raise KernelError(
            f"{source.where} cannot be changed",
            found="a call with a library path that cannot be changed safely",
            needed="paths that are variables",
            fix="assign each library path to a variable on its own line",
        )
    return made


def _unchanged(source: Source, line: int, found: str) -> KernelError:
    return KernelError(
        f"{_at(source, line)} cannot be changed",
        found=found,
        needed="a path that is a variable",
        fix="assign the path to a variable on its own line",
    )


def _at(source: Source, line: int) -> str:
    return f"{source.where}:{line}: {NEWLINE.split(source.text)[line - 1].strip()}"


def in_place(source: Source) -> tuple[tuple[int, str], ...]:
    """The lines with calls that go through a core already."""
    lines = NEWLINE.split(source.text)
    numbers = sorted(
        {node.lineno for node in ast.walk(source.tree) if isinstance(node, ast.Call) and _is_resolved(node)}
    )
    return tuple((number, lines[number - 1].strip()) for number in numbers)


def takes(source: Source) -> bool:
    """Whether a file has a call that takes the path of a library."""
    return any(True for _ in _calls(source.tree))


def opens(source: Source) -> bool:
    """Whether a file has a call of ``torch.ops.load_library`` with a path, through a core or not."""
    return any(_names_it(node.func) for node, _ in _calls(source.tree))


def unchangeable(source: Source) -> Iterator[str]:
    """Each use of ``torch.ops.load_library`` other than a call with a path, as ``file:line: text``."""
    fine = {id(node.func) for node, _ in _calls(source.tree)}
    for node in ast.walk(source.tree):
        if _names_it(node) and id(node) not in fine:
            yield _at(source, getattr(node, "lineno", 1))


def _names_it(node: ast.AST) -> bool:
    """Whether a node is the function of torch: an attribute of ``ops`` or ``classes``, or got or set by its name."""
    if isinstance(node, ast.Attribute):
        return node.attr == _NAME and ast.unparse(node.value).rpartition(".")[2] in ("ops", "classes")
    if isinstance(node, ast.ImportFrom):
        of_torch = not node.level and node.module in ("torch.ops", "torch.classes")
        return of_torch and any(alias.name == _NAME for alias in node.names)
    if isinstance(node, ast.Call) and _called(node, {}) != "hasattr":
        return any(isinstance(one, ast.Constant) and one.value == _NAME for one in node.args)
    return False


def _arguments(tree: ast.AST) -> Iterator[ast.expr]:
    """The path in each call that takes the path of a library, unless the path goes through the core already."""
    done = {id(node.args[0]) for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_resolved(node)}
    for _, argument in _calls(tree):
        if id(argument) not in done and not _is_resolved(argument):
            done.add(id(argument))  # a spec may itself be the path of another call
            yield argument


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Each call that takes the path of a library, with the part of it that goes through the core."""
    names = {alias.asname: alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             for alias in node.names if alias.asname and alias.name in _TAKE}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _called(node, names)
            through = node if name == _SPEC else _argument(node, name)
            if through is not None and (name != _NAME or isinstance(node.func, ast.Attribute)):
                yield node, through


def _argument(node: ast.Call, name: str) -> ast.expr | None:
    place, keyword = _TAKE.get(name, (0, ""))
    if not keyword:
        return None
    if len(node.args) > place and not any(isinstance(one, ast.Starred) for one in node.args[: place + 1]):
        return node.args[place]
    return next((one.value for one in node.keywords if one.arg == keyword), None)


def _called(node: ast.Call, names: Mapping[str, str]) -> str:
    """The name of a function that is called, as it was before ``import ... as``."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return names.get(name, name) if isinstance(node.func, ast.Name) else name


def _is_resolved(node: ast.AST) -> bool:
    """Whether a node is ``__import__(...).resolve(path)``, as :func:`through` writes it."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == _CALLED):
        return False
    made = node.func.value
    if not (isinstance(made, ast.Call) and ast.unparse(made.func) == "__import__" and len(made.args) == 5):
        return False
    return ast.unparse(made.args[0]).endswith(".opening'") and ast.unparse(made.args[3]) == f"[{_CALLED!r}]"


class _Without(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if _is_resolved(node) else node


def _without(tree: ast.Module) -> ast.Module:
    """The statements as they were before the change."""
    _Without().visit(tree)
    return tree


def offset(text: str, starts: list[int], line: int, column: int) -> int:
    """A place of ``ast``, which counts the bytes of UTF-8, as an index of the text."""
    start = starts[line - 1]
    return start + len(text[start:].encode("utf-8", "surrogatepass")[:column].decode("utf-8", "surrogatepass"))
