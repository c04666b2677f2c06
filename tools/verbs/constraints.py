"""Print the versions that make installs: constraints.txt, except where this machine's pip is told otherwise.

Companies and container images often give pip a constraint of their own (PIP_CONSTRAINT, or pip.conf). pip refuses two
constraints that exclude each other, so a pin of ours gives way where theirs excludes it, and stderr says so.
Exit status: 0; 1 when TORCH itself contradicts their constraint.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast._builder import index_pages
from precast.errors import KernelError

ROOT = Path(__file__).resolve().parents[2]
# The keys for constraints in the output of `pip config list`, with their quoted values.
_SETTING = re.compile(r"^(global|install|:env:)\.constraint=(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Theirs:
    """One line of a constraint file that pip must obey on this machine."""

    name: str
    text: str
    source: str
    requirement: Any  # a class of packaging, which a fresh environment has only inside pip

    def allows(self, version: str) -> bool:
        """Whether pip would accept this version; a constraint by URL accepts only its own file."""
        return self.requirement.url is None and bool(self.requirement.specifier.contains(version, prereleases=True))


def parse(text: str, source: str) -> Iterator[Theirs]:
    """The named requirements of a constraint file that apply to this Python. Options are ignored."""
    try:
        requirements = importlib.import_module("packaging.requirements")
    except ModuleNotFoundError:  # a fresh environment
        requirements = importlib.import_module("pip._vendor.packaging.requirements")
    for raw in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*|\s--hash\S*", "", raw).strip()
        if not line or line.startswith("-"):
            continue
        try:
            requirement = requirements.Requirement(line)
        except requirements.InvalidRequirement:
            continue  # pip itself reports the error
        if requirement.marker is None or requirement.marker.evaluate():
            yield Theirs(index_pages.normal(requirement.name), line, source, requirement)


def of_this_machine() -> tuple[Theirs, ...]:
    """Every constraint that pip would apply on its own, from variables and configuration files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    files = [word for _, value in _SETTING.findall(said) for word in str(ast.literal_eval(value)).split()]
    there = [Path(word.removeprefix("file://")) for word in dict.fromkeys(files)]
    return tuple(
        line for path in there if path.is_file() for line in parse(path.read_text(encoding="utf-8"), str(path))
    )


def merged(ours: str, theirs: Sequence[Theirs], torch: str = "") -> tuple[str, tuple[str, ...]]:
    """Our lines without those that their constraints exclude, and one sentence for each omitted line.

    ``torch`` replaces the pin of torch. Triton is pinned for the pinned torch, so another torch drops its pin as well.
    """
    kept, said = [], []
    another_torch = bool(torch)
    for line in ours.splitlines():
        pin = re.match(r"([\w.-]+)==([^\s;]+)", line)
        if pin is None:
            kept.append(line)
            continue
        name, version = index_pages.normal(pin[1]), torch if pin[1] == "torch" and torch else pin[2]
        against = next((one for one in theirs if one.name == name and not one.allows(version)), None)
        if against is not None and name == "torch" and torch:
            raise KernelError(
                f"TORCH={torch} contradicts a constraint of this machine's pip",
                found=f"{against.text}, in {against.source}",
                needed="a torch that it allows, or no such constraint",
                fix=["run make without TORCH", "PIP_CONSTRAINT= PIP_CONFIG_FILE=/dev/null make ..."],
            )
        if against is not None:
            said.append(f"{against.text} instead of {name}=={version}: {against.source}")
            another_torch = another_torch or name == "torch"
        else:
            kept.append(line.replace(pin[2], version))
    if another_torch:
        kept = [line for line in kept if not line.startswith("triton==")]
    return "\n".join(kept) + "\n", tuple(said)


def main(arguments: list[str]) -> int:
    """Print the merged constraints."""
    parser = argparse.ArgumentParser(prog="python -m tools constraints", description=__doc__)
    parser.add_argument("--torch", default="", metavar="VERSION", help="instead of the torch in constraints.txt")
    options = parser.parse_args(arguments)
    ours = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    try:
        text, said = merged(ours, of_this_machine(), options.torch)
    except KernelError as error:
        print(error, file=sys.stderr)
        return 1
    for sentence in said:
        print(f"This machine's pip asks for {sentence}", file=sys.stderr)
    if said:
        print("If no index has that, leave the constraint out: PIP_CONSTRAINT= make ...", file=sys.stderr)
    print(text, end="")
    return 0
