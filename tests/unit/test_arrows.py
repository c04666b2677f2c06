"""The arrows of CONTRIBUTING.md: which part may import which, read from the sources and enforced."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "pkg" / "precast"

# From the top down; a part may import itself and everything below it.
ORDER = (
    "__main__",
    "_cli",
    "jit",
    "optim",
    "nn",
    "ops",
    "_C",
    "base_extension",
    "kernel_loader",
    "extension",
    "build",
    "_load",
    "_builder",
    "_abi",
)
FREE = ("errors", "_version")  # importable by all, import nothing of ours
ALLOWED = {part: {part, *ORDER[rank + 1 :], *FREE} for rank, part in enumerate(ORDER)}
# Narrower than the order alone.
ALLOWED["jit"] = {"jit"}
ALLOWED["nn"] -= {"_C"}
ALLOWED["ops"] -= {"_C", "base_extension"}
ALLOWED["optim"] -= {"nn", "_C", "base_extension"}
ALLOWED["_C"] = {"_C", "kernel_loader", *FREE}
ALLOWED["base_extension"] = {"extension", *FREE}
ALLOWED["tools"] = {"_abi", "_builder", *FREE}
ALLOWED["setup"] = {"_abi", "_builder", *FREE}
ALLOWED.update({part: set() for part in FREE})

# The files that may import torch. Outside ops, optim and nn they do so inside functions, when it is needed.
TORCH = (
    "_builder/host.py",
    "_load/probe.py",
    "_load/prebuild.py",
    "_load/prebuilt.py",
    "_load/library.py",
    "_load/dangling.py",
    "_load/downstream.py",
    "build/command.py",
    "_dispatch/namespace.py",
    "_load/loader.py",
    "_cli/numbers.py",
)
TORCH_ROOMS = ("extension", "ops", "optim", "nn")
EAGER_TORCH_ROOMS = ("ops", "optim", "nn", "jit")
EAGER_TORCH = ("_cli/numbers.py",)  # runs in a child process that is there to call the ops

# `_abi` is values and pure functions: nothing it imports can touch a file, a process or the network.
PURE = {
    *("__future__", "abc", "collections", "dataclasses", "enum", "functools", "itertools", "json", "math", "re"),
    *("string", "typing"),
}

# What is there at run time besides the standard library, and what only a build asks for.
THIRD_PARTY = {"torch", "ninja"}
BUILD_ONLY = {
    "_builder/tables.py": {"tomli", "tomllib"},
    "_builder/commands.py": {"setuptools"},
    "build/command.py": {"setuptools"},
    "build/extensions.py": {"setuptools"},
    **{
        f"extension/{name}.py": {"setuptools"}
        for name in ("aot", "builtin", "child", "cpp", "cubin", "families", "native")
    },
}
# Used where the user has it, and nothing is missing without it.
IF_THERE = {
    "_load/progress.py": {"rich"},
    **{f"ops/_twins/{name}.py": {"triton"} for name in ("rows", "rms_norm", "layer_norm", "activations", "softmax")},
    **{f"ops/_twins/{name}.py": {"triton"} for name in ("updates", "multi_tensor")},
}


def imports(source: str, *, top_level_only: bool = False) -> Iterator[str]:
    """Give the full name of every module that a file imports, wherever in the file it does so."""
    tree = ast.parse(source)
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            base = node.module or ""
            # `from precast import _abi` names a part in its list of names.
            yield from (f"precast.{alias.name}" for alias in node.names) if base == "precast" else (base,)


def part_of(module: str) -> str | None:
    """Name the part that a module of ours belongs to; None for anybody else's."""
    names = module.split(".")
    return names[1] if names[0] == "precast" and len(names) > 1 else None


def broken_arrows(part: str, source: str) -> list[str]:
    """List the imports in ``source`` that ``part`` may not make."""
    parts = {name for name in map(part_of, imports(source)) if name is not None}
    strangers = {name.split(".")[0] for name in imports(source)} & {"tests", "examples", "benchmarks", "setup"}
    if part != "tools":
        strangers |= {name.split(".")[0] for name in imports(source)} & {"tools"}
    return sorted((parts - ALLOWED[part]) | strangers)


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.name != "__init__.py")


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of_file(path: Path) -> str:
    return relative(path).split("/")[0].removesuffix(".py")


@pytest.mark.parametrize("path", files(), ids=relative)
def test_the_package_follows_the_arrows(path: Path) -> None:
    part = part_of_file(path)
    assert part in ALLOWED, f"{relative(path)} is a new part: give it a place in ORDER"
    assert broken_arrows(part, path.read_text(encoding="utf-8")) == []


def test_tools_and_setup_follow_the_arrows() -> None:
    # Programs for environments that have a torch, and a wheel or what would be in one.
    elsewhere = {CHECKOUT / "tools" / name for name in ("smoke_check.py", "classic_check.py")}
    for path in sorted({*(CHECKOUT / "tools").rglob("*.py")} - elsewhere):
        assert broken_arrows("tools", path.read_text(encoding="utf-8")) == [], path.name
        assert "torch" not in {name.split(".")[0] for name in imports(path.read_text(encoding="utf-8"))}, path.name
    assert broken_arrows("setup", (CHECKOUT / "setup.py").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", files(), ids=relative)
def test_torch_is_imported_where_it_may_be_and_when_it_is_used(path: Path) -> None:
    source, part = path.read_text(encoding="utf-8"), part_of_file(path)
    if part in EAGER_TORCH_ROOMS or relative(path) in EAGER_TORCH:
        return
    assert "torch" not in {name.split(".")[0] for name in imports(source, top_level_only=True)}
    # Imports under `if TYPE_CHECKING:` never run; they are removed before looking for the lazy ones.
    tree = ast.parse(source)
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    if "torch" in {name.split(".")[0] for name in imports(ast.unparse(tree))}:
        assert relative(path) in TORCH or part in TORCH_ROOMS, f"{relative(path)} may not import torch"


@pytest.mark.parametrize("path", files(), ids=relative)
def test_only_the_declared_dependencies_are_imported(path: Path) -> None:
    names = {name.split(".")[0] for name in imports(path.read_text(encoding="utf-8"))}
    allowed = set(sys.stdlib_module_names) | {"precast"} | THIRD_PARTY | BUILD_ONLY.get(relative(path), set())
    allowed |= IF_THERE.get(relative(path), set())
    assert names <= allowed


@pytest.mark.parametrize("path", sorted((PACKAGE / "_abi").rglob("*.py")), ids=relative)
def test_abi_is_pure(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path.read_text(encoding="utf-8"))} <= PURE | {"precast"}


@pytest.mark.parametrize(
    ("part", "source", "broken"),
    [
        ("_abi", "from precast._builder import cache", ["_builder"]),
        ("_abi", "def f():\n    import precast._load.probe", ["_load"]),
        ("_builder", "from precast import ops", ["ops"]),
        ("_load", "from precast._builder.cache import Cache\nfrom precast.errors import KernelError", []),
        ("ops", "import tools", ["tools"]),
        ("tools", "from precast._load import probe", ["_load"]),
        ("tools", "from tools import audit\nfrom precast._builder import elf", []),
        ("_C", "from precast._load import loader", ["_load"]),
        ("errors", "from precast import _abi", ["_abi"]),
        ("_load", "from precast._cli import doctor", ["_cli"]),
        ("ops", "import precast._cli.main", ["_cli"]),
        ("_cli", "from precast._load import report\nfrom precast._builder import cache_tools", []),
    ],
)
def test_a_broken_arrow_is_found(part: str, source: str, broken: list[str]) -> None:
    assert broken_arrows(part, source) == broken


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError, match="absolute"):
        list(imports("from . import cache"))
