"""Makes a wheel work without precast: it gets a copy of precast's checks (the core), guards, and changed calls.

The copy is a package ``_precast`` in the outermost package around a guard. It is not inside of ``_C``, which may
be a compiled module itself. Each manifest has the version and digest of the copy, and the audit compares them.

So precast and guarded wheels share one source of the checks. Copies of several versions may run in one process: they
share only the form of the manifest. A wheel gets a fix of the checks when it is guarded again.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import precast.core
from precast._version import __version__
from precast.build import answering, calls
from precast.core import verify
from precast.core.manifest import GUARD_MARK, BuildInfo, ManifestError
from precast.errors import REPORT, KernelError

COPY = "_precast"
# The whole text of a guard that Python imports. `import` reaches the compiled module only through it.
_GUARD = '''{mark}: gives way to the compiled module of this name, once that is known to fit here."""

from {core}.opening import guard

guard(__name__)
'''
# That of a guard whose path torch is given.
_BY_PATH = '''{mark}: stands for the library of this name, which torch.ops.load_library opens."""
'''


@dataclass(frozen=True)
class Alone:
    """The files of a wheel that stands alone, its manifests, and the lines that were changed, with file and number."""

    files: dict[str, bytes]
    infos: tuple[BuildInfo, ...]
    changed: tuple[tuple[str, str], ...]


def standing(
    files: Mapping[str, bytes], infos: Mapping[str, BuildInfo], guards: Iterable[str], *, patch_loader: bool = False
) -> Alone:
    """The files of a wheel with guards, copies of the core, and manifests; ``infos`` has a manifest for each folder.

    KernelError for a guard that no call opens, and for a use of ``torch.ops.load_library`` that cannot be changed,
    unless ``patch_loader`` lets the copy wrap the function for the whole process.
    """
    made, guards = without_copies(files), sorted(guards)
    names = {*made, *guards}
    made |= {where: text(where, names).encode() for where in guards}
    changed: dict[str, tuple[tuple[int, str], ...]] = {}
    if patch_loader:
        made |= {where: answering.answering(made[where], where) for where in answering.asking(made)}
    elif guards:
        for where, source in calls.of_wheel(made, guards):
            made[where] = calls.through(source, COPY, _level(where, names))
            changed[where] = calls.in_place(calls.read(made[where], where))
    homes = {home(where, names) for where in (*guards, *changed)}
    copy = copied()
    made |= {f"{place}/{COPY}/{name}": content for place in homes for name, content in copy.items()}
    lines = tuple((f"{where}:{number}", line) for where, some in sorted(changed.items()) for number, line in some)
    core = (__version__, digest(copy)) if homes else None
    whole = {folder: replace(info, core=core, changed=lines, patches_loader=patch_loader and bool(homes))
             for folder, info in infos.items()}  # fmt: skip
    made |= {f"{folder}/{verify.MANIFEST}": _written(info, folder) for folder, info in whole.items()}
    return Alone(made, tuple(whole.values()), lines)


def home(where: str, files: Collection[str]) -> str:
    """The folder that has the copy for a file: the outermost package on the way to it, or its own folder."""
    *folders, _ = where.split("/")
    packages = ("/".join(folders[: end + 1]) for end in range(len(folders)))
    return next((package for package in packages if f"{package}/__init__.py" in files), "/".join(folders))


def text(where: str, files: Collection[str]) -> str:
    """The whole text of the guard at a place in a wheel with these files."""
    mark = GUARD_MARK
    return _BY_PATH.format(mark=mark) if where.endswith(".so") else _GUARD.format(mark=mark, core=reach(where, files))


def reach(where: str, files: Collection[str]) -> str:
    """The copy of the core as a relative import in a file names it: ``.._precast``."""
    return f"{'.' * _level(where, files)}{COPY}"


def _level(where: str, files: Collection[str]) -> int:
    return where.count("/") - home(where, files).count("/")


def without_copies(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a wheel without copies of a core, also without copies of another version."""
    return {where: content for where, content in files.items() if f"/{COPY}/" not in f"/{where}"}


def copied() -> dict[str, bytes]:
    """The modules of the core, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(precast.core.__file__).parent.glob("*.py"))}


def digest(copy: Mapping[str, bytes]) -> str:
    """One digest of a copy: of the names and the bytes of its modules."""
    whole = hashlib.sha256()
    for name, content in sorted(copy.items()):
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def importing(files: Mapping[str, bytes]) -> Iterator[str]:
    """The files of a wheel that import precast itself, so that the wheel must require it."""
    for where, content in sorted(without_copies(files).items()):
        if where.endswith(".py") and b"precast" in content:
            try:
                tree = calls.parsed(content)
            except (SyntaxError, ValueError):
                continue
            if any(name.partition(".")[0] == "precast" for name in _imported(tree)):
                yield where


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            yield from (str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant))


def _written(info: BuildInfo, folder: str) -> bytes:
    try:
        return info.to_json().encode()
    except ManifestError as error:
        raise KernelError(
            f"{folder}/{verify.MANIFEST} cannot be made",
            found=str(error),
            needed="libraries and device code that one manifest can list",
            fix=REPORT,
        ) from error
