"""Make files next to their places, and move all of them there once all of them are right.

Whatever ends the work before that, an error, a refusal or a signal, leaves the output folder as it was. Nothing is
moved onto a file that the work reads.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from precast.errors import KernelError


class Staged:
    """The files of one output folder, until :meth:`place` moves them."""

    def __init__(self, out: Path, folder: Path, inputs: tuple[Path, ...]) -> None:
        self._out, self._inputs = out, inputs
        self._new, self._old = folder / "new", folder / "old"
        self._names: list[str] = []
        self._old.mkdir()

    def path(self, name: str) -> Path:
        """Where to make what becomes ``name`` in the output folder. KernelError if that is an input."""
        target = self._out / name
        for one in self._inputs:
            if os.path.realpath(one) == os.path.realpath(target) or (_there(one, target) and one.samefile(target)):
                raise KernelError(
                    "an output would replace its input",
                    found=f"{target}, which is {one}",
                    needed="another folder for the output",
                    fix="repeat the command with another folder after -o",
                )
        self._names = [*dict.fromkeys([*self._names, name])]
        (self._new / name).parent.mkdir(parents=True, exist_ok=True)
        return self._new / name

    def place(self) -> list[Path]:
        """Move everything, or nothing if a step fails; return the places. What they had before is removed."""
        with contextlib.ExitStack() as undo:
            for index, name in enumerate(self._names):
                target, kept = self._out / name, self._old / str(index)
                _make(target.parent, undo)
                if os.path.lexists(target):
                    _keep(target, kept)
                    undo.callback(kept.replace, target)
                (self._new / name).replace(target)
                undo.callback(target.replace, self._new / name)
            undo.pop_all()
        return [self._out / name for name in self._names]


@contextlib.contextmanager
def staged(out: Path, inputs: Iterable[Path] = ()) -> Iterator[Staged]:
    """Stage the files of the folder ``out``, which is made; they are dropped unless the caller places them.

    KernelError if the folder cannot be written to, and for any other OSError meanwhile.
    """
    with contextlib.ExitStack() as undo:
        try:
            _make(out, undo)
            with tempfile.TemporaryDirectory(dir=out, prefix=".precast-") as folder:
                yield Staged(out, Path(folder), tuple(inputs))
        except OSError as error:
            file = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
            raise KernelError(
                f"nothing was written to {out}",
                found=f"{file}{error.strerror or error}",
                needed="a folder with space that this user can write to",
                fix="name another folder for the output, or free space on this disk",
            ) from error
        if any(out.iterdir()):
            undo.pop_all()


def _make(folder: Path, undo: contextlib.ExitStack) -> None:
    """Make a folder and those around it, each of which is removed at an undo if it is empty."""
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        one.mkdir()
        undo.callback(_remove_empty, one)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another process has put something into it
        folder.rmdir()


def _keep(target: Path, kept: Path) -> None:
    """Keep what is replaced for an undo; a file without a moment in which its place is empty, where links are known."""
    if not target.is_dir():
        with contextlib.suppress(OSError):
            os.link(target, kept, follow_symlinks=False)
            return
    target.replace(kept)


def _there(*paths: Path) -> bool:
    return all(path.exists() for path in paths)
