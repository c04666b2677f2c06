"""Check the ops that C++ sources register: an implementation with a misspelt name stops the build.

This reads the sources as text, so it needs no torch. A registration by a macro is checked when the library is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from precast._load import near
from precast.errors import KernelError

_BLOCK = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(_IMPL|_FRAGMENT)?\s*\(\s*(\w+)\s*,")
_CALL = re.compile(r'\.\s*(def|impl)\s*\(\s*(?:TORCH_SELECTIVE_\w+\(\s*)?"(?:\w+::)?(\w+)')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def refuse_misspelt(sources: Iterable[Path]) -> None:
    """Raise KernelError for the first implementation whose name is close to that of an op defined in these sources."""
    defined: dict[str, set[str]] = {}
    implemented: list[tuple[str, str, str, Path]] = []
    for path in sources:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # the compiler reports this better
        for namespace, kind, name, line in _registrations(text):
            if kind == "def":
                defined.setdefault(namespace, set()).add(name)
            else:
                implemented.append((namespace, name, f"{path}:{line}", path))
    for namespace, name, place, path in implemented:
        known = defined.get(namespace, set())
        meant = None if name in known else near.near_miss(name, sorted(known))
        if meant is not None:
            raise KernelError(near.refusal(f"{namespace}::{name}", meant, place, str(path)))


def _registrations(text: str) -> Iterable[tuple[str, str, str, int]]:
    """Namespace, ``def`` or ``impl``, name and line of each call in a registration block."""
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    blocks = list(_BLOCK.finditer(text))
    ends = [*(block.start() for block in blocks[1:]), len(text)]
    for block, end in zip(blocks, ends, strict=False):
        for call in _CALL.finditer(text, block.end(), end):
            yield block[2], call[1], call[2], text.count("\n", 0, call.start()) + 1
