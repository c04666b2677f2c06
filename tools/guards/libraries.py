"""The guards of host libraries as ELF files: Python, bundled libraries, glibc, hardening and build paths."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from precast._builder import flags, packing
from precast.core.manifest import HostKind
from precast.core.reasons import Rejection
from tools.guards.subject import Audited, same
from tools.shared import binaries
from tools.shared.platform_tag import PlatformTag

# Names of Python's C API, and of its C++ bindings.
_PYTHON = re.compile(r"_?Py[A-Z_]\w*|_ZN?K?\d*pybind11\w*|THP\w+")
# Libraries that come with torch or the system. A bundled copy would be a second one in the same process.
_FOREIGN = re.compile(r"lib(torch|c10|shm|cu[a-z]|nv|nccl|gomp|omp|iomp|mkl|stdc\+\+|gcc_s|python)[\w.+-]*\.so[\w.]*")


def check_python(a: Audited) -> Iterator[Rejection]:
    """No library needs a Python, so one wheel serves all of them."""
    yield from same("tag", "file name", ("py3", "none"), a.wheel.tag[:2])
    for path, facts in a.libraries.items():
        for name in facts.needed:
            if name.startswith(("libpython", "libtorch_python")):
                yield Rejection("needed", "no Python", name, path)
        for symbol in facts.undefined:
            if _PYTHON.fullmatch(symbol.name):
                yield Rejection("symbol", "no symbol of Python", str(symbol), path)


def check_bundled(a: Audited) -> Iterator[Rejection]:
    """The wheel holds only our libraries, which need only the C and C++ runtime; adapters also need torch."""
    for name in sorted(a.wheel.files):
        folder = name.partition("/")[0]
        if folder.endswith(".libs"):
            yield Rejection("grafted", "no library beside ours", f"put there by a repair of {a.wheel.path.name}", name)
        elif _FOREIGN.fullmatch(Path(name).name):
            yield Rejection("bundled", "torch, CUDA and OpenMP from where torch is installed", "in the wheel", name)
        elif ".so" in Path(name).suffixes and not name.startswith("precast/_C/host/"):
            yield Rejection("strays", "libraries in precast/_C/host alone", "in the wheel", name)
    for file in a.info.host:
        facts = a.libraries.get(file.path)
        if facts is None:
            continue  # the manifest guard reports it
        # Torch's libraries are not in the global scope, so an adapter's symbols are found only if it needs them.
        torch = flags.TORCH if file.kind is HostKind.ADAPTER else ()
        whole = " and ".join([*torch, "the C and C++ runtime"])
        for needed in sorted(set(facts.needed) - flags.RUNTIME - set(torch)):
            yield Rejection("needed", f"{whole} alone", needed, file.path)
        if not set(torch) <= set(facts.needed):
            yield Rejection("needed", whole, ", ".join(facts.needed), file.path)


def check_glibc(a: Audited) -> Iterator[Rejection]:
    """No symbol is newer than the platform tag promises, and the tag promises no more than the matrix."""
    ceilings = {"GLIBC": (a.matrix.glibc.major, a.matrix.glibc.minor), "GLIBCXX": a.matrix.glibcxx}
    for path, facts in a.libraries.items():
        for space, found in (("GLIBC", facts.glibc), ("GLIBCXX", facts.glibcxx)):
            if found <= ceilings[space]:
                continue
            newer = [str(symbol) for symbol in facts.undefined if _newer(symbol.version, space, ceilings[space])]
            wanted = f"at most {space}_{'.'.join(map(str, ceilings[space]))}"
            yield Rejection("ceiling", wanted, ", ".join(newer) or f"{space}_{'.'.join(map(str, found))}", path)
    for part in a.wheel.tag[2].split(".") if a.info.host else ():
        policy = PlatformTag.parse(part).policy
        if policy is not None and policy > ceilings["GLIBC"]:
            yield Rejection("tag", f"nothing newer than {a.matrix.policy}", a.wheel.path.name, part)


def _newer(version: str | None, space: str, ceiling: tuple[int, ...]) -> bool:
    prefix, _, number = (version or "").rpartition("_")
    return prefix == space and tuple(map(int, number.split("."))) > ceiling


def check_hardening(a: Audited) -> Iterator[Rejection]:
    """No run path, text relocation, executable stack or debug information; only our own names are exported."""
    for path, facts in a.libraries.items():
        yield from same("run path", path, None, facts.run_path)
        yield from same("text relocations", path, False, facts.text_relocations)
        yield from same("executable stack", path, False, facts.executable_stack)
        foreign = sorted(name for name in facts.exported if not name.startswith("precast_"))
        yield from same("exports", path, [], foreign[:5])
        if a.released:
            yield from same("debug", path, False, facts.debug)


def check_paths(a: Audited) -> Iterator[Rejection]:
    """No binary contains a path of the machine that built it."""
    for name, data in _binaries(a):
        paths = binaries.absolute_paths(data)
        if paths:
            yield Rejection("paths", "no path of the build machine", ", ".join(paths[:3]), name)


def _binaries(a: Audited) -> Iterator[tuple[str, bytes]]:
    """Every file of the binary folders, with device code unpacked; the targets guard reports files that cannot be."""
    packed = {file.path for file in a.info.device}
    for name, data in a.wheel.below("precast/_C/").items():
        if name in packed:
            with contextlib.suppress(packing.NotPacked):
                yield name, a.content(name)
        elif "/" in name:
            yield name, data
