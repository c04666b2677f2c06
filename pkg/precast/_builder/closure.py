"""The sources of a user's extension: check that they exist, and collect every header that they reach."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from precast._builder import sources
from precast.errors import KernelUnavailable


def assert_there(name: str, paths: Sequence[str]) -> None:
    """Raise KernelUnavailable unless there is at least one source and all of them exist."""
    missing = [path for path in paths if not Path(path).is_file()]
    if missing or not paths:
        raise KernelUnavailable(
            f"{name} cannot be built: {'its sources are missing' if missing else 'it names no sources'}",
            found=f"{', '.join(missing) or 'an empty list'}{': no such file' if missing else ''}",
            needed="at least one existing file in the result of sources_files()",
            fix="correct sources_files(): self.csrc_abs_path() makes a path from one relative to the file of the class",
        )


def reachable(paths: Sequence[str], include_dirs: Sequence[str], cuda_home: str | None) -> dict[str, str]:
    """The digest of each source and of each header that it reaches, except torch's and the toolkit's.

    Names are relative to the common folder, whose location does not matter.
    """
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files(paths, include_dirs, cuda_home)}
    base = os.path.commonpath([str(path.parent) for path in digests])
    return {os.path.relpath(path, base): digest for path, digest in sorted(digests.items())}


def files(paths: Sequence[str], include_dirs: Sequence[str], cuda_home: str | None) -> Iterator[Path]:
    """The files that a compiler will read, without those of torch and the toolkit, whose versions stand for them."""
    foreign = [Path(place).resolve() for place in _foreign(cuda_home)]
    folders = [Path(folder).resolve() for folder in include_dirs]
    folders = [folder for folder in folders if not any(folder.is_relative_to(place) for place in foreign)]
    todo = [Path(path).resolve() for path in paths]
    seen: set[Path] = set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path
        for spelled in sources.INCLUDE.findall(path.read_bytes()):
            text = spelled.decode("utf-8", "replace")
            places = (folder / text for folder in (path.parent, *folders))
            todo += [place.resolve() for place in places if place.is_file()][:1]


def _foreign(cuda_home: str | None) -> list[str]:
    spec = importlib.util.find_spec("torch")
    return [*(spec.submodule_search_locations or () if spec else ()), *([cuda_home] if cuda_home else [])]
