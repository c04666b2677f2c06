"""Run two wheels on processors that are not here, under qemu-user: one for aarch64 and one for x86_64.

The ARM wheel, beside torch's own, runs every CPU family from its prebuilt file with NEON and with each vector length of
SVE; the results are compared with torch in float64, and bit by bit with those of this machine's AVX2. The x86 wheel
gives the latter, and then runs on a processor without AVX-512, where a single instruction of it would end the program.

Exit status: 0; 1 when anything is not so. --evidence writes what ran as a file for docs/evidence.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast._builder import flags, matrix
from precast.core.manifest import BuildInfo
from precast.core.torch_abi import TorchAbi
from precast.errors import KernelError
from tools.shared import arm_root, kernel_results
from tools.shared.platform_tag import PlatformTag
from tools.shared.wheel import NotAWheel, Wheel, read_wheel

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "tests" / "qemu" / "check.py"
MANIFEST = "precast/_C/build_info.json"
# The level that the library must choose on its own, and an ARM processor that has it. An SVE vector has vq * 128 bits.
PROCESSORS = {
    level.name: f"max,sve-max-vq={int(level.name[3:]) // 128}" if level.name.startswith("sve") else "neoverse-n1"
    for level in flags.cpu_levels("aarch64")
}
WITHOUT_AVX512 = "Haswell"
REFERENCE = "avx2"


class RanWrong(KernelError):
    """A run on an emulated processor did not give the expected result."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One processor: the facts that the check reported, and the largest error of a result in ULP."""

    processor: str
    level: str
    facts: Mapping[str, Any]
    far: Mapping[str, int]

    def __str__(self) -> str:
        agree = f"{max(self.far.values())} units off in {len(self.far)}" if self.far else "the same bits"
        return (
            f"{self.processor}: {self.level}, torch {self.facts['torch']}, {self.facts['results']} results within the "
            f"bounds of float64, {agree} as {REFERENCE}"
        )


def run(arm: Wheel, x86: Wheel, work: Path) -> list[Ran]:
    """Run everything on every processor, and report each when it ends."""
    missing = [program for program in ("qemu-aarch64", "qemu-x86_64") if shutil.which(program) is None]
    if missing:
        raise KernelError(f"{missing[0]} is not on PATH", needed="qemu-user", fix="apt-get install qemu-user")
    root = arm_root.prepare(work, newest_cpu_torch())
    here = [sys.executable, str(CHECK), "cpu_adam_x86"]
    x86_env = {"PYTHONPATH": str(unpacked(x86, work / "x86_64")), "PRECAST_JIT": "aot", "OMP_NUM_THREADS": "1"}
    reference = work / "reference.results"
    native = _check("this machine", REFERENCE, here, reference, {**x86_env, "PRECAST_CPU_LEVEL": REFERENCE})
    print(native, flush=True)
    ran = []
    emulated = ["qemu-x86_64", "-cpu", WITHOUT_AVX512, *here]
    ran.append(_check(WITHOUT_AVX512, REFERENCE, emulated, work / "results", x86_env, reference))
    print(ran[-1], flush=True)
    arm_env = {"PYTHONPATH": str(unpacked(arm, work / "aarch64")), "PRECAST_JIT": "aot"}
    for level, processor in PROCESSORS.items():
        # The level is set explicitly, so that the library refuses to run if it lacks it. A test without torch checks
        # that it is also the library's own choice (tests/unit/csrc_cpu/test_qemu.py).
        env = {**arm_env, "PRECAST_CPU_LEVEL": level}
        command = root.command(processor, str(CHECK), "cpu_adam_arm", env=env)
        ran.append(_check(processor, level, command, work / "results", {}, reference))
        print(ran[-1], flush=True)
    return ran


def _check(
    processor: str, level: str, command: list[str], path: Path, env: Mapping[str, str], reference: Path | None = None
) -> Ran:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "PYTHON"))}
    done = subprocess.run(
        [*command, str(path)],
        env={**environment, **env},
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RanWrong(
            f"the check ended with {done.returncode} on {processor}",
            found=done.stderr.strip()[-1500:],
            needed="every result from the prebuilt file, near torch's",
        )
    facts = json.loads(done.stdout.splitlines()[-1])
    far = (
        {} if reference is None else kernel_results.furthest(kernel_results.read(path), kernel_results.read(reference))
    )
    if not facts["host"].startswith("prebuilt "):
        raise RanWrong(f"{processor}: the library was not the prebuilt one: {facts['host']}")
    if any(units > 1 for units in far.values()):
        raise RanWrong(f"{processor}: more than one unit in the last place from {REFERENCE}: {far}")
    return Ran(processor, level, facts, far)


def newest_cpu_torch() -> str:
    """The newest torch whose ARM wheel on PyPI is a CPU build; importing other builds needs CUDA libraries."""
    known = matrix.load(ROOT / "matrix.toml")
    return [release.version for release in known.releases if release.pypi[arm_root.MACHINE] == "cpu"][-1]


def unpacked(wheel: Wheel, folder: Path) -> Path:
    """The unpacked files of a wheel, in a folder without older files."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in wheel.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def mapped_abi(info: BuildInfo, library: str) -> TorchAbi:
    """The torch ABI of the host library that a run has mapped; RanWrong if the wheel has no such file."""
    for host in info.host:
        if Path(library).parts[-2:] == Path(host.path).parts[-2:]:
            return host.abi
    raise RanWrong(f"{library} was mapped, and is none of the wheel's: {', '.join(host.path for host in info.host)}")


def evidence(arm: Wheel, ran: Sequence[Ran], command: str) -> str:
    """The record of the ARM wheel, in the format of docs/evidence."""
    info = BuildInfo.from_json(arm.files[MANIFEST].decode("utf-8"))
    emulated = [one for one in ran if one.facts["machine"] == arm_root.MACHINE]
    facts = emulated[0].facts
    said = subprocess.run(["qemu-aarch64", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    version = said.split()[2]
    run = {
        "torch": facts["torch"].partition("+")[0],
        "build": "cpu",
        "python": ".".join(facts["python"].split(".")[:2]),
        "machine": arm_root.MACHINE,
        "host": str(mapped_abi(info, facts["library"])),
        "wheel": str(info.label) or matrix.DEFAULT,
        "device": "cpu",
        "hardware": f"qemu-aarch64 {version}: {', '.join(one.processor for one in emulated)}",
        "checks": [
            f"{arm.path.name}, sha256 {hashlib.sha256(arm.path.read_bytes()).hexdigest()}",
            "load(ext_name='cpu_adam_arm'); cpu_adam_x86 is refused",
            *(str(one) for one in ran),
        ],
    }
    record = {
        "schema": 1,
        "title": f"The CPU kernels of the +{info.label} wheel for aarch64 with NEON and SVE, emulated",
        "date": dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        "commit": info.commit,
        "command": command,
        "runs": [run],
    }
    return json.dumps(record, indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """Run both wheels."""
    parser = argparse.ArgumentParser(prog="python -m tools qemu", description=__doc__)
    parser.add_argument("wheel", type=Path, nargs=2, help="one for aarch64 and one for x86_64, of any label")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "qemu", help="what is fetched is kept here")
    parser.add_argument("--evidence", type=Path, help="write the record of what ran into this file")
    options = parser.parse_args(arguments)
    try:
        wheels = {PlatformTag.parse(read.tag[2].split(".")[0]).machine: read for read in map(read_wheel, options.wheel)}
        if set(wheels) != {"aarch64", "x86_64"}:
            raise KernelError(f"needed one wheel for aarch64 and one for x86_64, found {', '.join(wheels)}")
        options.work.mkdir(parents=True, exist_ok=True)
        ran = run(wheels["aarch64"], wheels["x86_64"], options.work.resolve())
        if options.evidence is not None:
            names = " ".join(sorted(path.name for path in options.wheel))
            options.evidence.write_text(evidence(wheels["aarch64"], ran, f"python -m tools qemu {names}"))
    except (KernelError, NotAWheel, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
