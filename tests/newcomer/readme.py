"""The commands of README.md, as a reader would copy them."""

from __future__ import annotations

import re


class NotInReadme(AssertionError):
    """The README has no such block or line: it changed, and the runner did not."""


def section(text: str, title: str) -> str:
    """What stands under a heading, without the sections below it."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise NotInReadme(f"README.md has no section {title!r}")
    return match[1]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def use(text: str) -> str:
    """The program under "Use"."""
    found = blocks(section(text, "Use"), "python")
    if len(found) != 1:
        raise NotInReadme(f"README.md has {len(found)} Python blocks under 'Use', not one")
    return found[0]


def install(text: str, start: str) -> list[str]:
    """The way to install whose line starts with ``start``, and the next line if that one only builds a wheel."""
    part = section(text, "Install")
    lines = [line.partition("#")[0].strip() for block in blocks(part, "sh") for line in block.splitlines()]
    found = [number for number, line in enumerate(lines) if line.startswith(start)]
    if len(found) != 1:
        raise NotInReadme(f"README.md has {len(found)} lines under 'Install' that start with {start!r}, not one")
    (number,) = found
    if " wheel " not in lines[number]:
        return [lines[number]]
    if not lines[number + 1].startswith("pip install dist/"):
        raise NotInReadme("README.md does not say how the wheel is installed")
    return lines[number : number + 2]


def index(guide: str) -> list[str]:
    """The commands of the install guide that make an index from the wheel that was built."""
    found = [block for block in blocks(section(guide, "From a checkout"), "sh") if "tools index" in block]
    if len(found) != 1:
        raise NotInReadme(f"docs/guides/install.md has {len(found)} blocks that write an index, not one")
    return found[0].splitlines()


def command(text: str, target: str) -> str:
    """A line of "Two commands", such as ``make demo``."""
    for line in blocks(section(text, "Two commands"), "sh")[0].splitlines():
        if line.partition("#")[0].strip() == f"make {target}":
            return f"make {target}"
    raise NotInReadme(f"README.md has no line 'make {target}' under 'Two commands'")
