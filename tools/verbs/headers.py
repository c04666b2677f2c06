"""Pin torch's headers: read a released wheel, write ``headers.json`` or ``classic_headers.json``. Hashes only."""

from __future__ import annotations

import argparse
import hashlib
import json
import zipfile
from dataclasses import asdict

from precast._builder import classic_headers, headers, torch_wheel
from precast.core.version import TorchVersion

# The headers of the stable ABI that host code may include, whether it uses them or not.
ROOTS = (
    "torch/csrc/stable/accelerator.h",
    "torch/csrc/stable/c/shim.h",
    "torch/csrc/stable/library.h",
    "torch/csrc/stable/ops.h",
    "torch/csrc/stable/tensor.h",
    "torch/headeronly/core/ScalarType.h",
)
NOTICES = ("LICENSE", "NOTICE")


def pin(wheel: zipfile.ZipFile, torch: str) -> dict[str, object]:
    """The closure of ROOTS inside one wheel, with its notices, in the format of headers.json."""
    names = frozenset(wheel.namelist())
    found = headers.closure_in(wheel, ROOTS)
    licences = f"torch-{torch}.dist-info/licenses"
    notices = {name: f"{licences}/{name}" for name in NOTICES if f"{licences}/{name}" in names}
    return {
        "torch": torch,
        "headers": {name: hashlib.sha256(found[name]).hexdigest() for name in sorted(found)},
        "notices": {name: hashlib.sha256(wheel.read(path)).hexdigest() for name, path in notices.items()},
    }


def main(arguments: list[str]) -> int:
    """Pin the headers of another torch."""
    parser = argparse.ArgumentParser(prog="python -m tools headers", description=__doc__)
    parser.add_argument("torch", help="the torch release whose headers are pinned, such as 2.15.0")
    parser.add_argument("--classic", action="store_true", help="those of its C++, for torch below the stable ABI")
    given = parser.parse_args(arguments)
    torch: str = given.torch
    with torch_wheel.opened(torch_wheel.find_wheel(torch)) as wheel:
        if given.classic:
            known = {
                **classic_headers.load_pins(),
                TorchVersion.parse(torch).release: classic_headers.pin(wheel, torch),
            }
            path = classic_headers.PINS
            pins: dict[str, object] = {str(minor): asdict(known[minor]) for minor in sorted(known)}
        else:
            path, pins = headers.PINS, pin(wheel, torch)
    path.write_text(json.dumps(pins, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: the headers of torch {torch} are pinned")
    return 0
