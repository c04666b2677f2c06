"""Hostile wheels for ``guard``: features of sources, layouts, metadata, modes and outputs, combined by chance.

The law: the inputs are the same afterwards, and either one sentence refuses them and nothing is left, or the output
passes the audit, has the metadata, files, modes and places of the inputs but for what guard says of itself, and each
Python file in it means the same but for its calls of the copy.
"""

from __future__ import annotations

import ast
import io
import platform
import random
import re
import sysconfig
import tokenize
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from precast.build import answering, guarding
from precast.build.stated import Stated
from precast.core.manifest import BuildInfo
from precast.errors import KernelError
from tests.kit import spawn

PLATFORM = f"linux_{platform.machine()}"
TORCHES = Stated.parse(["2.9.0"]), Stated.parse(["2.8.0"])
# No torch is needed: a stub has its file name, and each library needs one name of its classic C++.
NAMES = "namespace at { int get_num_threads(); }\n"
OPS = NAMES + 'extern "C" int mark() {{ return at::get_num_threads() + {mark}; }}\n'
MODULE = OPS + 'extern "C" void* PyModule_Create2(void*, int);\n'
MODULE += 'extern "C" void* PyInit_{name}() {{ return PyModule_Create2(nullptr, 3); }}\n'

# The source of a package: what stands at its head, which the line of --patch-loader must not change, and its calls.
SOURCES: dict[str, bytes] = {
    "plain": b"import torch\ntorch.ops.load_library(p)\n",
    "nothing": b"",
    "docstring": b'"""Doc."""\nimport torch\ntorch.ops.load_library(p)  # why\n',
    "on the docstring's line": b'"""Doc."""; __import__("torch").ops.load_library(p)\n',
    "continued": b'"""Doc."""; \\\n torch.ops. \\\n load_library \\\n (p \\\n + q)\n',
    "future": b'"""Doc."""\nfrom __future__ import annotations\nimport os\ntorch.ops.load_library(path=(p))\n',
    "futures on a line": b"from __future__ import annotations; from __future__ import division; import os\n",
    "byte order mark": b"\xef\xbb\xbf'''Doc.'''\ntorch.ops.load_library(p)",
    "latin-1": "# -*- coding: latin-1 -*-\n'''\u00e9'''; torch.ops.load_library('\u00e9')\n".encode("latin-1"),
    "cookie in line 2": b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\ntorch.ops.load_library('\xe9')\n",
    "Windows": b'"""Doc."""\r\nimport os\r\ntorch.ops.load_library(\r\n  p)\r\n',
    "old Mac": b'"""Doc."""\rtorch.ops.load_library(p)\r',
    "expression": b'"""Doc."""\n1 + 1\n"""more"""\ntorch.ops.load_library(q := p)\n',
    "decorator": b'"""Doc."""\n@torch.ops.load_library(p)\ndef f(): pass\n',
    "no newline": b'"""Doc."""',
    "calls in calls": b"torch.ops.load_library(str(spec_from_file_location(*a).origin)); CDLL(name=p)\n",
    "an f-string": b"f'{torch.ops.load_library(p)}'\n",
    "an alias": b"load = torch.ops.load_library\n",
    "no Python": b"print 'x'\n",
    "no codec": b"# coding: nothing\n",
}
METADATA: dict[str, str] = {
    "plain": "Requires-Dist: torch\n\nText.\n",
    "no body": "Requires-Dist: torch>=2\n",
    "Windows": "Requires-Dist: torch\r\nRequires-Dist: numpy\r\n\r\nText.\r\n",
    "extras": "requires-dist: Torch[opt-einsum] (>=2.0)\nProvides-Extra: x\nRequires-Dist: numpy ; extra == 'x'\n",
    "Python": "Requires-Python: >=3.9,<3.15\nRequires-Dist: torch\nRequires-Dist: torchvision\n\nText.\n",
    "folded": "License: one\n        two\nRequires-Dist: torch\nAuthor: \u00e9\n\nT\u00e9xt.\n",
    "precast": "Requires-Dist: precast>=0.1\nRequires-Dist: torch\n\nText.\n",
    "no header": "Requires-Dist: torch\nno header at all\n",
}
# The place of the library, the package in which it lies, and whether it is a module for Python.
LAYOUTS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "a module": ("ops/_C.cpython-312-{machine}-linux-gnu.so", ("ops",), True),
    "a library": ("ops/_ops.so", ("ops",), False),
    "in a folder": ("ops/lib/_ops.so", ("ops",), False),
    "in a package of a package": ("ops/sub/_ops.so", ("ops", "ops/sub"), False),
    "in a namespace": ("ns/ops/_ops.so", ("ns/ops",), False),
    "in no package": ("ops/_ops.so", (), False),
    "a package _C": ("ops/_C/_ops.so", ("ops", "ops/_C"), False),
    "a top module": ("lone.cpython-312-{machine}-linux-gnu.so", (), True),
    "at the top": ("libhost.so", ("ops",), False),
    "platlib": ("ops-1.0.data/platlib/ops/_ops.so", ("ops",), False),
    "odd names": ("ops/a b/_ops.so", ("ops",), False),
}
EXTRA: dict[str, dict[str, bytes]] = {
    "nothing": {},
    "data": {"ops/data.bin": b"\0\1", "ops/run.sh": b"#!/bin/sh\n"},
    "a left library": {"ops/libplain.so": b"left"},
    "two meanings": {"ops/_C.py": b"x = 1\n", "ops/_ops.py": b"x = 1\n"},
    "a signature": {"ops-1.0.dist-info/RECORD.jws": b"{}"},
    "scripts": {"ops-1.0.data/scripts/run": b"#!python\n", "ops-1.0.dist-info/entry_points.txt": b"[x]\n"},
    "of another": {"torch/more.py": b""},
    "another caller": {"ops/load.py": b"import torch\ntorch.ops.load_library('x')\n"},
}
MODES = {"plain": 0o100644, "group": 0o100664, "program": 0o100755, "no kind": 0o600, "set-uid": 0o104755}
SECOND = (
    "none",
    "the same",
    "another torch",
    "other metadata",
    "other modes",
    "another file",
    "another name",
    "a build tag",
)
OUTPUTS = ("new", "there", "the input's folder", "a file", "below a file", "a link to the input")
WAYS = {"calls": guarding.How(), "the loader": guarding.How(patch_loader=True)}
FEATURES = {"way": WAYS, "source": SOURCES, "metadata": METADATA, "layout": LAYOUTS, "extra": EXTRA, "mode": MODES,
            "second": SECOND, "out": OUTPUTS}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One combination of features, by their names."""

    way: str
    source: str
    metadata: str
    layout: str
    extra: str
    mode: str
    second: str
    out: str

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in vars(self).items())


class Broken(AssertionError):
    """A case that breaks the law."""


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Combinations drawn by chance; in the first ones each feature is the only odd one."""
    plain = {name: next(iter(values)) for name, values in FEATURES.items()}
    plain |= {"layout": "a library"}
    single = [Case(**{**plain, name: value}) for name, values in FEATURES.items() for value in values]
    yield from single[:count]
    drawn = random.Random(seed)
    for _ in range(count - len(single)):
        # Half of the features are plain, so that most cases get past the first refusal.
        odd = {name: drawn.choice([*values]) for name, values in FEATURES.items() if drawn.random() < 0.5}
        yield Case(**{**plain, **odd})


def libraries(folder: Path) -> dict[str, bytes]:
    """The code of every case, compiled once: of two builds a module, a library of ops, and one that nothing opens."""
    stub = spawn.library(
        folder / "stub.so", NAMES + "int at::get_num_threads() { return 1; }", "-Wl,-soname,libtorch_cpu.so"
    )
    include = f"-I{sysconfig.get_paths()['include']}"
    found = {"plain": spawn.library(folder / "plain.so", "int f() { return 1; }").read_bytes()}
    for mark in (0, 1):
        for name in ("_C", "lone", ""):
            source = (MODULE if name else OPS).replace("{{", "{").replace("}}", "}")
            source = source.replace("{mark}", str(mark)).replace("{name}", name)
            made = spawn.library(folder / "code.so", source, include, "-O1", str(stub))
            found[f"{name}{mark}"] = made.read_bytes()
    return found


def _files(case: Case, code: Mapping[str, bytes], build: int, name: str) -> dict[str, bytes]:
    """The files of one wheel, but for WHEEL and RECORD."""
    where, packages, is_module = LAYOUTS[case.layout]
    where = where.format(machine=platform.machine())
    which = PurePosixPath(where).name.partition(".")[0] if is_module else ""
    files = {where: code[f"{which}{int(case.second == 'another torch' and build)}"]}
    for package in packages:
        files[f"{package}/__init__.py"] = SOURCES[case.source] if package == packages[0] else b""
    files |= {path: code["plain"] if data == b"left" else data for path, data in EXTRA[case.extra].items()}
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    end = "\r\n" if case.metadata == "Windows" else "\n"
    if case.second == "other metadata" and build:
        metadata += "Requires-Python: >=3.12\n"
    if case.second == "another file" and build:
        files["ops/more.py"] = b""
    files[f"{name}-1.0.dist-info/METADATA"] = (metadata.replace("\n", end) + METADATA[case.metadata]).encode()
    return {path.replace("ops", name) if name != "ops" else path: data for path, data in files.items()}


def _make(case: Case, code: Mapping[str, bytes], folder: Path, build: int) -> Path:
    name = "others" if case.second == "another name" and build else "ops"
    tag = f"cp312-cp312-{PLATFORM}"
    files = _files(case, code, build, name)
    files[f"{name}-1.0.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: cmake\nTag: {tag}\n".encode()
    files[f"{name}-1.0.dist-info/RECORD"] = b""
    number = "-1" if case.second == "a build tag" and build else ""
    path = folder / f"given{build}" / f"{name}-1.0{number}-{tag}.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for where, data in files.items():
            entry = zipfile.ZipInfo(where)
            odd = where.endswith((".py", ".sh", ".bin", "/run"))
            entry.external_attr = (MODES[case.mode] if odd else 0o100644) << 16
            if case.second == "other modes" and build and where.endswith("__init__.py"):
                entry.external_attr ^= 0o111 << 16
            archive.writestr(entry, data)
    return path


def judge(case: Case, code: Mapping[str, bytes], folder: Path) -> str:
    """Guard the wheels of a case in a new folder: ``passed`` or ``refused``. Broken if it breaks the law."""
    given = [_make(case, code, folder, build) for build in range(1 if case.second == "none" else 2)]
    wheels, torch, how = given, TORCHES[0], WAYS[case.way]
    if case.second == "another torch":
        try:
            wheels = [
                guarding.guard([one], folder / f"single{at}", TORCHES[at], how)[0] for at, one in enumerate(given)
            ]
        except KernelError as error:
            return _sentence(error)
    out = _output(case, wheels, torch, folder)
    before = _tree(folder)
    try:
        made = guarding.audited(wheels, out, torch, how)
        came = "passed" if made else "refused"
    except KernelError as error:
        made, came = [], _sentence(error)
    after = _tree(folder)
    new = {path for path in after if path not in before}
    if any(after.get(path) != data for path, data in before.items() if path not in {str(one) for one in made}):
        raise Broken("an input or another file is not the same")
    if new - ({str(out)} if made else set()) != {str(path) for path in made if str(path) not in before}:
        raise Broken(f"left behind: {sorted(new)}")
    if case.out in ("the input's folder", "a link to the input") and {str(one) for one in made} & before.keys():
        raise Broken("an input was replaced")
    for path in made:
        _hold(path, [one for one in given if one.name.partition("-")[0] == path.name.partition("-")[0]])
    if made and case.second == "another torch":
        (again,) = guarding.guard([*reversed(wheels)], folder / "again", torch, how)
        if again.read_bytes() != made[0].read_bytes():
            raise Broken("the order of the wheels is in the output")
    return came


def _output(case: Case, wheels: list[Path], torch: Stated, folder: Path) -> Path:
    out = folder / "out"
    if case.out == "there":
        out.mkdir()
        (out / "kept.txt").write_bytes(b"mine")
    elif case.out == "the input's folder":
        return wheels[0].parent
    elif case.out in ("a file", "below a file"):
        out.write_bytes(b"mine")
        return out if case.out == "a file" else out / "below"
    elif case.out == "a link to the input":
        out.mkdir()
        try:
            for path in guarding.guard(wheels, folder / "named", torch, WAYS[case.way]):
                (out / path.name).hardlink_to(wheels[0])
        except KernelError:
            pass  # the case says so itself
    return out


def _sentence(error: KernelError) -> str:
    headline, *parts = str(error).splitlines()
    if not headline or len(headline) > 200 or not any(part.startswith("  found") for part in parts):
        raise Broken(f"a refusal that does not say what was found: {error}")
    return "refused"


def _tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")
    }


def _hold(path: Path, given: list[Path]) -> None:
    """An output that the audit has passed, against each input."""
    now, programs = _read(path)
    infos = {
        where: BuildInfo.from_json(data.decode()) for where, data in now.items() if where.endswith("build_info.json")
    }
    places = {PurePosixPath(_normal(where, file.path)).parent for where, info in infos.items() for file in info.host}
    for one in given:
        before, before_programs = _read(one)
        for where, data in before.items():
            _hold_file(where, data, now, places)
        own = {where for where in before if ".dist-info/" in where}
        if before_programs - own - {where for where in before if where.endswith(".so")} != programs & (
            before.keys() - own
        ):
            raise Broken("a file has another mode")
        _hold_metadata(before, now)


def _normal(manifest: str, path: str) -> str:
    parts = [*PurePosixPath(manifest).parent.parts]
    for part in path.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _read(path: Path) -> tuple[dict[str, bytes], set[str]]:
    with zipfile.ZipFile(path) as archive:
        programs = {one.filename for one in archive.infolist() if one.external_attr >> 16 & 0o111}
        return {one.filename: archive.read(one) for one in archive.infolist()}, programs


def _hold_file(where: str, data: bytes, now: Mapping[str, bytes], places: set[PurePosixPath]) -> None:
    if ".dist-info/" in where:
        return
    if data.startswith(b"\x7fELF") and now.get(where) != data:
        if PurePosixPath(where).parent not in places:
            raise Broken(f"{where} is in another folder")
        return
    found = now.get(where)
    if found == data:
        return
    if found is None or not where.endswith(".py") or _meaning(found) != _meaning(data):
        raise Broken(f"{where} means something else")


class _Before(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        through = re.fullmatch(rf"__import__\({_COPY}, [1-9]\)\.resolve", ast.unparse(node.func))
        return node.args[0] if through else node


_COPY = re.escape("'_precast.opening', globals(), None, ['resolve']")


def _meaning(source: bytes) -> str:
    """The statements of a source, compiled as Python reads the file, as they were before guard."""
    try:
        compile(source, "it", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Broken(f"no Python: {error}") from error
    with tokenize.TextIOWrapper(io.BytesIO(source), tokenize.detect_encoding(io.BytesIO(source).readline)[0]) as text:
        tree = ast.parse(text.read())
    line = ast.unparse(ast.parse(answering.LINE))
    asks = [node for node in tree.body if ast.unparse(node) == line]
    first = tree.body[: tree.body.index(asks[0])] if asks else []
    if len(asks) > 1 or any(not isinstance(node, ast.Expr | ast.ImportFrom) for node in first) or len(first) > 4:
        raise Broken("the line is there twice, or behind other statements")
    tree.body = [node for node in tree.body if node not in asks]
    return f"{ast.dump(_Before().visit(tree))} {ast.get_docstring(tree)}"


_OURS = ("torch", "precast")


def _hold_metadata(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> None:
    old, new = (next(data for where, data in files.items() if where.endswith("/METADATA")) for files in (before, now))
    was, says = message_from_bytes(old), message_from_bytes(new)
    for name in {key.lower() for key in (*was.keys(), *says.keys())} - {"version"}:
        pair = [[" ".join(str(value).split()) for value in one.get_all(name, ())] for one in (was, says)]
        if name == "requires-dist":
            pair = [[text for text in one if not text.lower().replace("[", " ").startswith(_OURS) or "vision" in text]
                    for one in pair]  # fmt: skip
        if name == "requires-python" and not pair[0]:
            continue
        if sorted(pair[0]) != sorted(pair[1]):
            raise Broken(f"METADATA says another {name}: {pair}")
    bodies = [str(one.get_payload()).replace("\r\n", "\n").strip() for one in (was, says)]
    if bodies[0] != bodies[1]:
        raise Broken("METADATA has another description")
    required = [[text.lower() for text in one.get_all("Requires-Dist", ())] for one in (was, says)]
    ours = [any(text.startswith("precast") for text in one) for one in required]
    if ours[0] != ours[1] or sum(text.startswith(("torch>", "torch[")) for text in required[1]) != 1:
        raise Broken(f"METADATA requires {required[1]}")
