"""A wheel writes only below packages that it owns, so that installing or removing it leaves every other wheel whole.

A wheel owns a package if it has the ``__init__.py``. Several wheels could fill a folder without this file, such as
``_C`` in site-packages: each would overwrite the manifest of the last, and uninstalling one would remove it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from precast.core.opening import FOLDER
from precast.core.reasons import Rejection
from precast.errors import KernelError

# Packages that other wheels need, and whose files are therefore never theirs.
_OF_OTHERS = frozenset({"precast", "torch", "torchgen", "functorch"})
# Folders at the root of a wheel that pip or auditwheel name after the distribution.
_OF_DISTRIBUTION = re.compile(r"[^/]+\.(dist-info|libs)")
_DATA = re.compile(r"[^/]+\.data/(?P<scheme>[^/]+)/(?P<rest>.+)")


def refuse_unowned(module: str, packages: Iterable[str], distribution: str) -> None:
    """Raise KernelError if a wheel with these packages does not own the package of an extension."""
    package, known = module.rpartition(".")[0], sorted(packages)
    why = _why_not_owned(package, set(known), distribution)
    if why is not None:
        home = next((one for one in known if _why_not_owned(one, set(known), distribution) is None), "my_package")
        also = "" if home in known else f", and write setup(packages=['{home}'], ...)"
        raise KernelError(
            f"{module} cannot be built into a wheel",
            found=why,
            needed=f"a module below one of the packages that setup() names: {', '.join(known) or 'none'}",
            fix=f"name the extension {home}.{module.rpartition('.')[2]} in setup.py{also}",
        )


def strangers(files: Iterable[str], distribution: str) -> Iterator[Rejection]:
    """A violation for each folder at the root of a wheel with files that are below no package of the wheel."""
    installed = [place for place in map(_installed, files) if place is not None]
    packages = {
        str(PurePosixPath(path).parent).replace("/", ".") for path in installed if path.endswith("/__init__.py")
    }
    seen = set()
    for path in sorted(installed):
        folder = PurePosixPath(path).parent
        if str(folder) == "." and path.endswith((".py", ".pth")):
            continue  # a module of one file
        why = _why_not_owned(str(folder).replace("/", "."), packages, distribution)
        if why is not None and folder not in seen:
            seen.add(folder)
            yield Rejection("ownership", "files below packages whose __init__.py is in the wheel", why, path)


def shared(files: Iterable[str], wheel: str, owners: dict[str, str]) -> Iterator[Rejection]:
    """A violation for each file that an earlier wheel installs too; this adds the wheel's own files to ``owners``.

    Builds of one distribution share all of their files, because installing one removes the other.
    """
    for path in sorted({place for place in map(_installed, files) if place is not None}):
        other = owners.setdefault(path, wheel)
        if other.partition("-")[0] != wheel.partition("-")[0]:
            yield Rejection("shared", "a file of one wheel alone", f"in {other} as well", path)


def _installed(path: str) -> str | None:
    """Where a file of a wheel goes below site-packages; None if that is a place named after the distribution."""
    data = _DATA.fullmatch(path)
    if data is not None:
        return data["rest"] if data["scheme"] in ("purelib", "platlib") else None
    return None if _OF_DISTRIBUTION.fullmatch(path.partition("/")[0]) else path


def _package(path: str) -> str:
    """The package whose folder holds a file; empty for the root."""
    return ".".join(PurePosixPath(path).parent.parts)


def _why_not_owned(package: str, packages: set[str], distribution: str) -> str | None:
    parts = package.split(".")
    if parts[0] in _OF_OTHERS and parts[0] != distribution:
        return f"{parts[0]} belongs to another distribution"
    if parts[0] == FOLDER:
        return f"a package {FOLDER!r} at the root of site-packages, where another wheel may have one too"
    if not packages.intersection(".".join(parts[: end + 1]) for end in range(len(parts))):
        return f"no package that holds {package}" if package else "the root of site-packages"
    return None
