"""Writes compiler scripts, which correct the options of a package, so that the package itself needs no change."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from precast.build import flags
from precast.core.capability import GpuTarget

# A compiler that speaks the C++ of torch's headers, although a package asks for an older one, and that writes neither a
# folder of this machine nor, if none is asked for by PRECAST_DEBUG=1, what a debugger reads into a library.
_HOST = """#!/bin/sh
for word; do
    shift
    case $word in {older}) word=-std=c++{standard} ;; esac
    set -- "$@" "$word"
done
exec {compiler} "$@" {debug} {maps}
"""
# An nvcc that compiles for the named GPUs, although a package writes a list of its own into its setup.py.
_NVCC = """#!/bin/sh
found=
skip=
for word; do
    shift
    if [ -n "$skip" ]; then skip=; continue; fi
    case $word in
        -gencode | --generate-code) found=1; skip=1; continue ;;
        -gencode=* | --generate-code=*) found=1; continue ;;
    esac
    set -- "$@" "$word"
done
if [ -n "$found" ]; then set -- "$@" {options}; fi
exec {nvcc} "$@"
"""


def write_host(folder: Path, standard: int, places: Mapping[Path, str], *, debug: bool) -> None:
    """Write ``gcc`` and ``g++``, which run CC and CXX; ``places`` are names for folders of this machine."""
    older = "|".join(f"-std={kind}++{old}" for kind in ("c", "gnu") for old in _older(standard))
    maps = " ".join(shlex.quote(f"-ffile-prefix-map={path}={name}") for path, name in places.items())
    for variable, fallback in (("CC", "gcc"), ("CXX", "g++")):
        words = {"compiler": os.environ.get(variable) or fallback, "debug": "-g" if debug else "-g0", "maps": maps}
        _write(folder / fallback, _HOST.format(older=older, standard=standard, **words))


def write_cuda_home(folder: Path, home: Path, targets: Sequence[GpuTarget]) -> Path:
    """A CUDA_HOME whose nvcc compiles for ``targets`` alone, in ``folder``; ``home`` itself if there are none."""
    if not targets:
        return home
    (folder / "bin").mkdir(parents=True)
    for part in (*home.iterdir(), *(home / "bin").iterdir()):
        place = folder / part.relative_to(home)
        if not place.exists():
            place.symlink_to(part)
    options = [word for one in targets for word in flags.gencode(one)]
    (folder / "bin" / "nvcc").unlink()
    _write(folder / "bin" / "nvcc", _NVCC.format(options=shlex.join(options), nvcc=shlex.quote(str(home / "bin/nvcc"))))
    return folder


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _older(standard: int) -> tuple[str, ...]:
    names = {"11": 11, "0x": 11, "14": 14, "1y": 14, "17": 17, "1z": 17}
    return tuple(name for name, year in names.items() if year < standard)
