"""Finds and inserts the line that ``--patch-loader`` adds to a package's ``__init__.py``.

The line is put between two statements, and must not change the meaning of the other statements.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from precast.build import calls
from precast.core.manifest import GUARD_MARK
from precast.errors import KernelError

_CALL = "__import__('_precast.patching', globals(), None, ['patch_loader'], 1).patch_loader()"
LINE = f"{_CALL}  # precast.build: torch.ops.load_library opens what fits"
_ASKS = b"ops.load_library"
# What may stand between two statements on one logical line.
_SAME_LINE = re.compile(r"(?:[ \t\f;]|\\(?:\r\n?|\n))*")


def asking(files: Mapping[str, bytes]) -> list[str]:
    """The ``__init__.py`` that runs first in each package in which torch opens a guard, made for that or not."""
    guards = {where for where, text in files.items() if text.startswith(GUARD_MARK.encode())}
    asked = [where for where in guards if where.endswith(".so")]
    asked += [where for where, text in files.items() if guards and where.endswith(".py") and _ASKS in text]
    return sorted({first for where in asked for first in [_first(where, files)] if first is not None} - guards)


def _first(where: str, files: Mapping[str, bytes]) -> str | None:
    """The ``__init__.py`` that Python runs first when it imports what is in the folder of a file."""
    *folders, _ = where.split("/")
    packages = ("/".join([*folders[: end + 1], "__init__.py"]) for end in range(len(folders)))
    return next((package for package in packages if package in files), None)


def answering(source: bytes, where: str) -> bytes:
    """The source of a package with the line behind docstring and future imports. KernelError if it cannot be read."""
    found = calls.read(source, where)
    tree = found.tree
    at = _place(tree)
    if at < len(tree.body) and _is_call(tree.body[at]):
        return source
    made = _inserted(found.text, tree, at).encode(found.encoding)
    why = _changed(tree, made, where, at)
    if why is not None:
        raise KernelError(
            f"{where} cannot be changed",
            found=why,
            needed="a file to which one line can be added without a change of its meaning",
            fix="repeat the command without --patch-loader, and open the library by import",
        )
    return made


def why_not(source: bytes, where: str) -> str | None:
    """Why torch opens no guard in the package with this source; None if it does."""
    try:
        tree = calls.read(source, where).tree
        compile(source, where, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    except KernelError as error:
        return str(error)
    at = _place(tree)
    if at < len(tree.body) and _is_call(tree.body[at]):
        return None
    return "another statement before it" if any(map(_is_call, tree.body)) else "no such statement"


def _place(tree: ast.Module) -> int:
    """The index of the statement behind the docstring and the imports from ``__future__``."""
    at = int(ast.get_docstring(tree, clean=False) is not None)
    while at < len(tree.body) and _is_future(tree.body[at]):
        at += 1
    return at


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__" and not node.level


def _is_call(node: ast.stmt) -> bool:
    return ast.unparse(node) == _CALL


def _inserted(text: str, tree: ast.Module, at: int) -> str:
    """The text with the line before a statement, on a line of its own."""
    newline = found[0] if (found := calls.NEWLINE.search(text)) else "\n"
    if at == len(tree.body):
        ended = not text or text.endswith(("\n", "\r"))
        return f"{text}{'' if ended else newline}{LINE}{newline}"
    starts = [0, *(found.end() for found in calls.NEWLINE.finditer(text))]
    begin, end = (calls.offset(text, starts, *place) for place in _around(tree, at))
    if at and _SAME_LINE.fullmatch(text, begin, end):
        return f"{text[:begin]}{newline}{LINE}{newline}{text[end:]}"
    line = max(start for start in starts if start <= end)
    return f"{text[:line]}{LINE}{newline}{text[line:]}"


def _around(tree: ast.Module, at: int) -> Iterator[tuple[int, int]]:
    """Line and column where the statement before that index ends, and where the statement begins."""
    before, node = tree.body[at - 1] if at else None, tree.body[at]
    yield (1, 0) if before is None else (before.end_lineno or 1, before.end_col_offset or 0)
    first = min([node, *getattr(node, "decorator_list", ())], key=lambda one: one.lineno)
    yield (first.lineno, first.col_offset - (first is not node))  # the @ stands before a decorator


def _changed(tree: ast.Module, made: bytes, where: str, at: int) -> str | None:
    """How the statements of a changed source differ from those before, apart from the new one; None if they do not."""
    now = calls.read(made, where).tree
    if at >= len(now.body) or not _is_call(now.body.pop(at)):
        return "a source in which the line is not where it belongs"
    if ast.dump(now) != ast.dump(tree):
        return "a source that means something else with one more line"
    compile(made, where, "exec", dont_inherit=True)
    return None
