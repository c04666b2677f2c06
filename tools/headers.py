"""Pin the closure of torch's stable headers: read a released wheel, write ``_build/headers.json``. Hashes only."""

from __future__ import annotations

import argparse
import hashlib
import json
import posixpath
import re
import zipfile

from precast._build import headers

# What host code may include, whatever it includes today.
ROOTS = (
    "torch/csrc/stable/accelerator.h",
    "torch/csrc/stable/c/shim.h",
    "torch/csrc/stable/library.h",
    "torch/csrc/stable/ops.h",
    "torch/csrc/stable/tensor.h",
    "torch/headeronly/core/ScalarType.h",
)
NOTICES = ("LICENSE", "NOTICE")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


def pin(wheel: zipfile.ZipFile, torch: str) -> dict[str, object]:
    """The closure of ROOTS inside one wheel, with its notices, as headers.json holds it."""
    names = set(wheel.namelist())
    found: dict[str, str] = {}
    todo = list(ROOTS)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        data = wheel.read(f"torch/include/{name}")
        found[name] = hashlib.sha256(data).hexdigest()
        for spelled in _INCLUDE.findall(data):
            text = spelled.decode()
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(name), text))
            todo += [path for path in (text, beside) if f"torch/include/{path}" in names][:1]
    licences = f"torch-{torch}.dist-info/licenses"
    notices = {name: f"{licences}/{name}" for name in NOTICES if f"{licences}/{name}" in names}
    return {
        "torch": torch,
        "headers": dict(sorted(found.items())),
        "notices": {name: hashlib.sha256(wheel.read(path)).hexdigest() for name, path in notices.items()},
    }


def main(arguments: list[str]) -> int:
    """Rewrite headers.json for another torch."""
    parser = argparse.ArgumentParser(prog="python -m tools headers", description=__doc__)
    parser.add_argument("torch", help="the torch release whose headers are pinned, such as 2.15.0")
    torch: str = parser.parse_args(arguments).torch
    url = headers.find_wheel(headers.Pins(torch, {}, {}))
    with headers.open_url(url) as file, zipfile.ZipFile(file) as wheel:
        pins = pin(wheel, torch)
    headers.PINS.write_text(json.dumps(pins, indent=1) + "\n", encoding="utf-8")
    print(f"{headers.PINS}: the headers of torch {torch} are pinned")
    return 0
