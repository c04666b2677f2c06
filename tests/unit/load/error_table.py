"""Every error of the package whose text is written out, as a table to read from top to bottom.

python -m tests.unit.load.error_table
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "pkg" / "precast"
ERRORS = (
    "BuildFailed", "BuildTimeout", "JitDisabled", "KernelError", "KernelIncompatible", "KernelUnavailable",
    "PrebuiltRefused",
)  # fmt: skip


@dataclass(frozen=True)
class Text:
    """One place that makes an error: its class, and the source of each part of its text."""

    place: str
    error: str
    what: str
    parts: dict[str, str]


def texts() -> Iterator[Text]:
    """The errors of every module, in the order of their files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
        for call in sorted(calls, key=lambda call: call.lineno):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in ERRORS:
                place = f"{path.relative_to(PACKAGE)}:{call.lineno}"
                parts = {word.arg or "**": ast.unparse(word.value) for word in call.keywords}
                yield Text(place, name, ast.unparse(call.args[0]), parts)


if __name__ == "__main__":
    for text in texts():
        print(f"{text.place} {text.error}\n    {text.what}")
        for name, value in text.parts.items():
            print(f"    {name:8}{value}")
