"""The child process that runs torch's ``build_ext`` on one extension, separate from the calling program.

``python -m precast.extension.child SPEC LIBRARY_FOLDER SCRATCH_FOLDER``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(spec: str, library: str, scratch: str) -> None:
    """Builds the extension that the file ``spec`` describes."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension

    from precast.extension.native import Native, setuptools_extension

    said = json.loads(Path(spec).read_text(encoding="utf-8"))
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    native = Native(**fields)
    extension = setuptools_extension(native.name, native)
    Path(library).mkdir(parents=True, exist_ok=True)
    distribution = Distribution({"name": native.name, "ext_modules": [extension]})
    command = BuildExtension(distribution)
    command.build_lib, command.build_temp = library, scratch
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
