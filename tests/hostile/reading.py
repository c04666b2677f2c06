"""Hostile files for ``xray``: libraries with needs and headers drawn at random, archives and folders that imply much.

The law: the dynamic loader of this machine opens a library that "works", and refuses one that "does not work". What
cannot be read is one short sentence. Nothing is left behind, and no more is read than the limits allow.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precast._builder import dlopen, verdicts, xray, xray_verdict
from precast.core.version import Release
from precast.errors import KernelError
from tests.kit import spawn
from tests.kit.elves import Library

# What this machine has, and what none has. Of each field one value is drawn; the first is right.
FIELDS: dict[str, tuple[Any, ...]] = {
    "machine": (62, 62, 62, 62, 190, 3),
    "kind": (3, 3, 3, 3, 3, 2),
    "os_abi": (0, 0, 0, 3, 9),
    "padding": (0, 0, 0, 0, 1),
    "entry_size": (56, 56, 56, 56, 64, 0),
    "loads": (True, True, True, True, False),
    "align": (4096, 4096, 4096, 65536, 1),
    "dynamic": (True, True, True, True, False),
    "stack": (6, 6, 6, 7, None),
    "flags_1": (0, 0, 0, 1, 0x40, 0x8000000),
    "relative": (False, False, True),
    "sections": (True, True, True, True, False),
    "sections_move": (False, False, False, True),
    "soname": ("", "libown.so"),
    "offered": ((), (), ("libown.so", "OWN_1")),
}
NEEDED = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libnowhere.so.1")
VERSIONS = (
    ("libc.so.6", "GLIBC_2.2.5"),
    ("libc.so.6", "GLIBC_2.17"),
    ("libc.so.6", "GLIBC_2.99"),
    ("libc.so.6", "GLIBC_ABI_DT_RELR"),
    ("libc.so.6", "GLIBC_ABI_NOWHERE"),
    ("libc.so.6", "GLIBC_PRIVATE"),
    ("libm.so.6", "GLIBC_2.2.5"),
    ("libm.so.6", "MATHS_1.0"),
    ("libstdc++.so.6", "GLIBCXX_3.4.9"),
    ("libstdc++.so.6", "GLIBCXX_3.4.99"),
    ("libstdc++.so.6", "CXXABI_1.3.5"),
    ("libstdc++.so.6", "CXXABI_1.3.99"),
    ("libstdc++.so.6", "CXXABI_TM_1"),
    ("libgcc_s.so.1", "GCC_3.0"),
    ("libgcc_s.so.1", "GCC_99.0.0"),
    ("libgcc_s.so.1", "GOMP_1.0"),
    ("libnowhere.so.1", "NOWHERE_1"),
)
UNDEFINED = ("malloc", "pthread_create", "nowhere", "_ZSt4cout")


@dataclass(frozen=True)
class Case:
    """A library, and bits of its header and program table that are turned."""

    library: Library
    flips: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """The file."""
        data = bytearray(self.library.to_bytes())
        for bit in self.flips:
            data[bit // 8] ^= 1 << bit % 8
        return bytes(data)


def cases(seed: int, count: int) -> Iterator[Case]:
    """Libraries with none to a few fields drawn, with needs, and some with turned bits."""
    chance = random.Random(seed)
    for _ in range(count):
        one = Library()
        for name in chance.sample(sorted(FIELDS), chance.choice((0, 0, 1, 1, 2, 3))):
            one = replace(one, **{name: chance.choice(FIELDS[name])})
        versions = chance.sample(VERSIONS, chance.choice((0, 1, 1, 2, 3)))
        files = [file for file, _ in versions if chance.random() < 0.9]
        needed = dict.fromkeys(("libc.so.6", *files, *chance.sample(NEEDED, chance.choice((0, 0, 1)))))
        undefined = chance.sample(UNDEFINED, chance.choice((0, 0, 1)))
        one = replace(
            one,
            needed=tuple(needed),
            versions=tuple((file, version, chance.random() < 0.1) for file, version in versions),
            undefined=tuple(undefined),
        )
        flips = [chance.randrange(8 * (64 + 56 * 3)) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
        yield Case(one, tuple(flips))


# A bare Python that forks for each library, which may end the process that opens it.
_OPEN = """import ctypes, os, sys
for path in sys.stdin.read().splitlines():
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            ctypes.CDLL(path)
        except OSError:
            os._exit(1)
        os._exit(0)
    print(int(os.waitpid(child, 0)[1] == 0))
"""


def opened(paths: list[Path]) -> list[bool]:
    """Whether the dynamic loader opens each library."""
    done = spawn.run(sys.executable, "-I", "-S", "-c", _OPEN, stdin="\n".join(map(str, paths)))
    return [line == "1" for line in done.stdout.split()]


def answer(path: Path, glibc: Release) -> str:
    """What xray says of a library on a machine, or ``"unreadable"``."""
    try:
        contents = xray.read(path)
    except KernelError as error:
        return said(error)
    return xray_verdict.overall(contents, verdicts.Machine(glibc=glibc)).answer


def said(error: KernelError) -> str:
    """Refuses an error that is not one short sentence with what was found."""
    first, *others = str(error).splitlines()
    if not 0 < len(first) <= 200 or len(others) > 3 or max(map(len, others), default=0) > 300:
        raise AssertionError(f"not a short sentence: {error}")
    return "unreadable"


def broken(some: list[Case], folder: Path, glibc: Release) -> tuple[dict[Case, str], Counter[str]]:
    """How xray breaks the law for some libraries, and how often it gave which answer."""
    paths = [folder / f"{index}.so" for index in range(len(some))]
    found, answers = {}, Counter[str]()
    for case, path in zip(some, paths, strict=True):
        path.write_bytes(case.to_bytes())
    for case, path, opens in zip(some, paths, opened(paths), strict=True):
        here = answer(path, glibc)
        answers[here] += 1
        if here in ("yes", "no") and opens != (here == "yes"):
            found[case] = f"the answer is {here}, and the loader does the opposite"
        elif case.library.stack != 6 and answer(path, dlopen.STRICT_STACK) == "yes":
            found[case] = "the answer is yes where an executable stack is refused"
    return found, answers


# ---- archives and folders ----


def archives(folder: Path) -> Iterator[tuple[str, Path]]:
    """Wheels that imply much, each with what it is."""
    library = Library().to_bytes()

    def wheel(members: Callable[[zipfile.ZipFile], None]) -> Path:
        path = folder / "ops-1.0-py3-none-linux_x86_64.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            members(archive)
        return path

    def many(count: int, depth: int) -> Callable[[zipfile.ZipFile], None]:
        def write(archive: zipfile.ZipFile) -> None:
            for index in range(count):
                archive.writestr("/".join(f"{index:x}{level:x}" for level in range(depth)) + "/x.so", b"")

        return write

    def holds(name: str, content: bytes) -> Callable[[zipfile.ZipFile], None]:
        return lambda archive: archive.writestr(name, content)

    yield "many deep folders", wheel(many(5000, 29))
    yield "deeper than any", wheel(many(1, 40))
    yield "a bomb", wheel(holds("ops/_C.so", bytes(256 << 20)))
    yield "a name without end", wheel(holds("a" * 700 + ".so", library))
    yield "a large manifest", wheel(holds("ops/_C/build_info.json", b" " * (5 << 20)))
    yield "no text", wheel(holds("ops/_C/build_info.json", b"\xff"))
    yield "outside", wheel(holds("../ops.so", library))
    path = wheel(holds("ops/_C.so", library))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 10)
    path.write_bytes(data)
    yield "a size that is a lie", path


def folders(folder: Path) -> Iterator[tuple[str, Path]]:
    """Folders and files that imply much."""
    for name, size in (("sparse", 200 << 30), ("half", 3 << 30)):
        place = folder / name
        place.mkdir()
        for index in range(1 if name == "sparse" else 2):
            with (place / f"lib{index}.so").open("wb") as file:
                file.truncate(size)
        yield f"{name} files", place
    odd = folder / "odd"
    (odd / "lib.so").mkdir(parents=True)
    os.mkfifo(odd / "pipe.so")
    (odd / "loop.so").symlink_to("loop.so")
    (odd / "endless.so").symlink_to("/dev/zero")
    yield "no files", odd
    yield "a pipe", odd / "pipe.so"
