"""Record which release of torch exports which name: read PyPI's builds, write ``_builder/torch_names.json``."""

from __future__ import annotations

import argparse
import mmap
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from precast._builder import elf, matrix, torch_names, torch_wheel

ROOT = Path(__file__).resolve().parents[2]
# Every library of torch whose names extensions use. A name of a recorded kind that none of these has is in no torch.
LIBRARIES = (
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_python.so",
    "libc10.so",
    "libc10_cuda.so",
)


def names_of(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Every name that the libraries of a torch define. The largest library has a gigabyte, so it goes to a file."""
    for path in sorted({f"torch/lib/{name}" for name in LIBRARIES} & set(wheel.namelist())):
        with tempfile.TemporaryFile() as file, wheel.open(path) as packed:
            shutil.copyfileobj(packed, file)
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield from elf.read_shared_object(content).exported


def main(arguments: list[str]) -> int:
    """Read every release of matrix.toml, which downloads 8 GB, and write the table."""
    argparse.ArgumentParser(prog="python -m tools torch-names", description=__doc__).parse_args(arguments)
    names, cxx11 = {}, {}
    for torch in matrix.load(ROOT / "matrix.toml").releases:
        with torch_wheel.opened(torch_wheel.find_wheel(torch.version)) as wheel:
            names[torch.release] = [name for name in names_of(wheel) if torch_names.is_recorded(name)]
        cxx11[torch.release] = next(b.cxx11 for b in torch.builds["x86_64"] if b.name == torch.pypi["x86_64"])
        print(f"torch {torch.version}: {len(names[torch.release])} names", flush=True)
    torch_names.PATH.write_text(torch_names.to_json(names, cxx11), encoding="utf-8")
    return 0
