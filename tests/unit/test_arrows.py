"""The arrows of CONTRIBUTING.md: which part imports which, read from the sources and held against the drawing.

An import counts wherever in a file it stands, and so does the name of a module as text: that is how ``import_module``,
lazy attributes and child processes name one. The drawing leaves out an arrow that follows from others; there is one way
to do that for arrows without a circle, so the drawing must be exactly it.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "pkg" / "precast"

FREE = ("errors", "_version", "core")  # importable by all; they import nothing of ours but core
# Programs for environments that have a torch, and a wheel or what would be in one.
ELSEWHERE = {CHECKOUT / "tools" / name for name in ("smoke_check.py", "classic_check.py")}

Edges = Mapping[str, frozenset[str]]

# The files that may import torch. Outside ops, optim and nn they do so inside functions, when it is needed.
TORCH = (
    "_builder/host.py",
    "_load/probe.py",
    "_loading.py",
    "_load/prebuilt.py",
    "_load/handover.py",
    "_load/library.py",
    "_load/proof.py",
    "build/trial.py",
    "core/dangling.py",
    "core/opening.py",
    "core/patching.py",
    "core/probe.py",
    "build/command.py",
    "_load/loader.py",
    "_cli/numbers.py",
)
TORCH_ROOMS = ("_adopt", "_cubin", "_dispatch", "compat", "extension", "ops", "optim", "nn")
EAGER_TORCH_ROOMS = ("_adopt", "ops", "optim", "nn")
EAGER_TORCH = (
    *(f"compat/{name}.py" for name in ("adam", "causal_softmax", "inference", "jit", "lists")),
    *(f"compat/{name}.py" for name in ("masked_softmax", "moe", "norms", "rms_norms")),
    "_dispatch/formulas.py",
    "_dispatch/in_place.py",
    "_dispatch/routes.py",
    "_cli/numbers.py",
)  # runs in a child process that is there to call the ops

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
    "_cubin/code.py": {"setuptools"},
    "build/command.py": {"setuptools"},
    "build/device.py": {"setuptools"},
    "build/extensions.py": {"setuptools"},
    "build/freezing/hook-precast.py": {"PyInstaller"},  # which alone runs it
    **{f"extension/{name}.py": {"setuptools"} for name in ("aot", "child", "cpp", "device", "families", "native")},
}
# Imported if installed; nothing is missing without it.
IF_THERE = {"_cli/main.py": {"argcomplete"}, "_adopt/vllm.py": {"vllm"}}


def imports(source: str, *, top_level_only: bool = False) -> Iterator[str]:
    """Give the full name of every module that a file imports, wherever in the file it does so."""
    tree = ast.parse(source)
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node)
            # `from precast import _abi` names a part in its list of names.
            yield from (f"precast.{alias.name}" for alias in node.names) if base == "precast" else (base,)


def base_of(node: ast.ImportFrom) -> str:
    """The module that names are imported from. `core` imports itself relatively, as it runs under other names too."""
    assert node.level < 2, f"line {node.lineno}: imports are absolute here"
    return ".".join(filter(None, ("precast.core" if node.level else "", node.module)))


def that_runs(source: str) -> str:
    """A file without the imports that only a type checker sees."""
    tree = ast.parse(source)
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    return ast.unparse(tree)


def edges_of_files(sources: Mapping[str, str]) -> Edges:
    """Of each module, given by name and text, the modules among them that it imports: ``from precast.ops import moe``
    imports ``precast.ops.moe``, and ``from precast.ops.moe import topk_softmax`` the same.
    """
    found: dict[str, set[str]] = {}
    for name, text in sources.items():
        nodes = list(ast.walk(ast.parse(that_runs(text))))
        whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        pairs = [(base_of(node), a.name) for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names]
        given = {f"{base}.{one}" if f"{base}.{one}" in sources else str(base) for base, one in pairs}
        found[name] = ((whole | given) & set(sources)) - {name}
    return {name: frozenset(to) for name, to in found.items()}


def names(tree: ast.AST) -> Iterator[str]:
    """Give every text in the code that is the dotted name of a module of ours, or begins one in ``import_module``."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    prose = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and has_docstring(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if re.fullmatch(r"precast(\.\w+)+", node.value) and is_module(node.value):
                yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            yield from re.findall(r"^f['\"](precast\.\w+)", ast.unparse(node.args[0]))


def has_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr)


def is_module(name: str) -> bool:
    path = PACKAGE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def part_of(module: str) -> str | None:
    """Name the part that a module of ours belongs to; None for anybody else's."""
    words = module.split(".")
    return words[1] if words[0] == "precast" and len(words) > 1 else None


def parts_in(source: str) -> set[str]:
    """The parts that a file imports, or names as text."""
    found = {part_of(module) for module in (*imports(source), *names(ast.parse(source)))}
    return {part for part in found if part is not None and part not in FREE}


def strangers_in(part: str, source: str) -> set[str]:
    """What the package must not import: what is not in a wheel."""
    first = {name.split(".")[0] for name in imports(source)}
    return first & ({"tests", "examples", "benchmarks", "setup"} | (set() if part == "tools" else {"tools"}))


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.name != "__init__.py")


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of_file(path: Path) -> str:
    return relative(path).split("/")[0].removesuffix(".py")


def edges_of(sources: Mapping[str, list[str]]) -> Edges:
    """Of each part, given as the texts of its files, the parts it imports."""
    return {part: frozenset(to for text in texts for to in parts_in(text)) - {part} for part, texts in sources.items()}


def read_sources() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in files():
        if part_of_file(path) not in FREE:
            found.setdefault(part_of_file(path), []).append(path.read_text(encoding="utf-8"))
    tools = sorted({*(CHECKOUT / "tools").rglob("*.py")} - ELSEWHERE)
    found["tools"] = [path.read_text(encoding="utf-8") for path in tools]
    found["setup.py"] = [(CHECKOUT / "setup.py").read_text(encoding="utf-8")]
    return found


def reachable(edges: Edges, start: str) -> set[str]:
    """Every part that follows from one, itself only if it lies on a circle."""
    seen: set[str] = set()
    todo = list(edges.get(start, ()))
    while todo:
        part = todo.pop()
        if part not in seen:
            seen.add(part)
            todo += edges.get(part, ())
    return seen


def circle(edges: Edges) -> list[str]:
    """The parts that lie on a circle."""
    return sorted(part for part in edges if part in reachable(edges, part))


def reduced(edges: Edges) -> set[tuple[str, str]]:
    """The arrows that follow from no others."""
    return {
        (part, to)
        for part, direct in edges.items()
        for to in direct
        if not any(to in reachable(edges, other) for other in direct if other != to)
    }


def drawn(text: str) -> set[tuple[str, str]]:
    """The arrows of a drawing: ``a, b ─► c`` has two, and a chain has those of each step."""
    arrows: set[tuple[str, str]] = set()
    for chain in re.split(r"\n|   +", text):
        groups = [[name.strip() for name in group.split(",")] for group in chain.split("─►")]
        arrows |= {(a, b) for left, right in itertools.pairwise(groups) for a in left for b in right}
    return arrows


def drawing() -> str:
    page = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "─►" in block)
    return str(block)


def test_no_part_lies_on_a_circle() -> None:
    assert circle(edges_of(read_sources())) == []


def test_no_file_lies_on_a_circle() -> None:
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files()
    }
    assert circle(edges_of_files({name: path.read_text(encoding="utf-8") for name, path in modules.items()})) == []


def test_the_drawing_is_what_the_sources_have() -> None:
    there, told = reduced(edges_of(read_sources())), drawn(drawing())
    assert there == told, f"not drawn: {sorted(there - told)}; drawn and not there: {sorted(told - there)}"


def test_the_package_imports_nothing_that_is_not_in_a_wheel() -> None:
    found = {part: set().union(*(strangers_in(part, text) for text in texts)) for part, texts in read_sources().items()}
    assert {part: names for part, names in found.items() if names} == {}


def test_what_all_may_import_imports_nothing_of_ours() -> None:
    for part in FREE[:2]:
        assert parts_in((PACKAGE / f"{part}.py").read_text(encoding="utf-8")) == set()


def beyond_core(source: str) -> set[str]:
    """What a file of the core uses but the standard library, torch and, relatively, itself; names in texts count."""
    found = {*imports(source), *re.findall(r"[\"'](precast(?:\.\w+)+)", source)}
    relative = {
        base_of(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.level
    }
    usual = {name for name in found if name.partition(".")[0] in {*sys.stdlib_module_names, "torch"}}
    return found - usual - relative - {"precast.build"}  # which an error tells an author to run


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*")), ids=lambda path: path.name)
def test_the_core_needs_the_standard_library_and_itself(path: Path) -> None:
    """It runs as a copy in other people's wheels, where there is no precast."""
    if path.name != "__pycache__":
        assert path.suffix == ".py" and beyond_core(path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    "source",
    ["import precast.errors", "from precast.core import value", "import numpy", "NAME = 'precast._load.probe'"],
)
def test_a_core_that_needs_more_is_found(source: str) -> None:
    assert beyond_core(source)
    assert not beyond_core("import os\nfrom . import value\nfrom .host import Host\nimport torch")


def test_tools_import_no_torch() -> None:
    for path in sorted({*(CHECKOUT / "tools").rglob("*.py")} - ELSEWHERE):
        assert "torch" not in {name.split(".")[0] for name in imports(path.read_text(encoding="utf-8"))}, path.name


@pytest.mark.parametrize("path", files(), ids=relative)
def test_torch_is_imported_where_it_may_be_and_when_it_is_used(path: Path) -> None:
    source, part = path.read_text(encoding="utf-8"), part_of_file(path)
    if part in EAGER_TORCH_ROOMS or relative(path) in EAGER_TORCH:
        return
    assert "torch" not in {name.split(".")[0] for name in imports(source, top_level_only=True)}
    if "torch" in {name.split(".")[0] for name in imports(that_runs(source))}:
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


TOY = {"top": ["import precast.middle"], "middle": ["from precast import low"], "low": ["import re"]}


@pytest.mark.parametrize(
    "source",
    [
        "from precast.top import a",
        "def f():\n    import precast.top.b",
        "from precast import errors, top",
        "import importlib\nimportlib.import_module('precast._builder.cache')",
        "NAMES = {'load': 'precast._builder.cache'}",
        "from importlib import import_module\nimport_module(f'precast._builder.{name}')",
    ],
)
def test_an_arrow_that_runs_up_is_found(source: str) -> None:
    edges = dict(edges_of({**TOY, "low": [source], "_builder": ["import precast.top"]}))
    assert set(circle(edges)) >= {"low", "top", "middle"}


def test_a_circle_of_files_is_found_although_an_import_is_late() -> None:
    toy = {"p.a": "from p import b", "p.b": "def f():\n    from p.a import x", "p": "import p.a", "p.c": "import p.a"}
    assert circle(edges_of_files(toy)) == ["p.a", "p.b"]
    typed = "if TYPE_CHECKING:\n    from p.a import X"
    assert circle(edges_of_files({**toy, "p.b": typed})) == []


def test_a_text_that_names_no_module_or_explains_one_is_no_arrow() -> None:
    assert parts_in('"""Like precast.ops."""\nLOG = "precast.nothing"\nWORDS = "see precast.ops"') == set()


def test_what_follows_from_other_arrows_is_left_out() -> None:
    edges = edges_of({**TOY, "top": ["import precast.middle, precast.low"]})
    assert reduced(edges) == {("top", "middle"), ("middle", "low")} == drawn("top ─► middle ─► low")
    assert drawn("a, b ─► c, d") == {("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")}


def test_what_is_not_in_a_wheel_is_found() -> None:
    assert strangers_in("ops", "def f():\n    import tools.cells") == {"tools"}
    assert strangers_in("tools", "import tools.cells\nfrom tests import made_up") == {"tests"}


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError, match="absolute"):
        list(imports("from .. import cache"))
    for path in files():
        if part_of_file(path) != "core":
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes), relative(path)


NAMED = re.compile(r"`([\w<>]+(?:/[\w<>]+)+\.py)`((?:\s+`\w+`(?=\W))?)")


def named_functions(text: str) -> list[tuple[Path, str]]:
    """The files that "the code in ten minutes" names, each with the function behind it, or an empty text."""
    section = text.partition("## The code in ten minutes")[2].partition("\n## ")[0]
    found = [(file, name.strip().strip("`")) for file, name in NAMED.findall(section)]
    return [(CHECKOUT / file if file.startswith("tools/") else PACKAGE / file, name) for file, name in found]


def missing_functions(named: list[tuple[Path, str]]) -> list[str]:
    """Those that are not where the text says."""
    lost = []
    for file, name in named:
        source = file.read_text(encoding="utf-8") if file.is_file() else ""
        if not source or (name and not re.search(rf"^ *(?:def|class) {name}\b", source, re.MULTILINE)):
            lost.append(f"{file.name} {name}")
    return lost


def test_the_walks_name_what_is_there() -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = named_functions(text)
    assert len(named) > 15
    assert missing_functions(named) == []
    moved = text.replace("`_load/loader.py` `ensure`", "`_load/loader.py` `secure`").replace(
        "`_abi/decide.py`", "`_abi/rule.py`"
    )
    assert missing_functions(named_functions(moved)) == ["loader.py secure", "rule.py decide"]
