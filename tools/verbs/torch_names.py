"""Record which release of torch exports which name: read PyPI's builds, write ``_builder/torch_names.json``."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from pathlib import Path

from precast._builder import elf, matrix, torch_names, torch_wheel

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch_python.so", "libc10_cuda.so")


def names_of(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Every name that the libraries of a torch define, but for libtorch_cuda.so, which has gigabytes."""
    for path in sorted({f"torch/lib/{name}" for name in LIBRARIES} & set(wheel.namelist())):
        yield from elf.read_shared_object(wheel.read(path)).exported


def main(arguments: list[str]) -> int:
    """Read every release of matrix.toml, which downloads 2 GB, and write the table."""
    argparse.ArgumentParser(prog="python -m tools torch-names", description=__doc__).parse_args(arguments)
    names, cxx11 = {}, {}
    for torch in matrix.load(ROOT / "matrix.toml").releases:
        with torch_wheel.opened(torch_wheel.find_wheel(torch.version)) as wheel:
            names[torch.release] = [name for name in names_of(wheel) if torch_names.is_recorded(name)]
        cxx11[torch.release] = next(b.cxx11 for b in torch.builds["x86_64"] if b.name == torch.pypi["x86_64"])
        print(f"torch {torch.version}: {len(names[torch.release])} names", flush=True)
    torch_names.PATH.write_text(torch_names.to_json(names, cxx11), encoding="utf-8")
    return 0
