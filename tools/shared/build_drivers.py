"""The drivers that run the hooks of [tool.cibuildwheel]: cibuildwheel in a container, or this program itself.

Both unpack the same sdist, build it with the same environment, and repair and audit the wheel with the same commands.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from precast._builder.matrix import Matrix
from precast._builder.tables import read_toml
from precast.core.version import Release, TorchVersion
from precast.errors import KernelError
from tools.verbs import smoke

# Where cibuildwheel mounts this machine's file system in its container.
MOUNT = Path("/host")


class BuildStopped(KernelError):
    """A step of a wheel's build failed; the message holds its output."""


def environment(label: str, machine: str, parts_dir: Path, work: Path, epoch: int | None) -> dict[str, str]:
    """The environment of a build. The build cache is a missing folder, so that everything comes from the parts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECAST_", "CUDA_", "PYTHON"))}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}",
        "PRECAST_LABEL": label,
        "PRECAST_ARCH": machine,
        "PRECAST_PARTS": str(parts_dir),
        "PRECAST_CACHE_DIR": str(work / "no-cache"),
        "SOURCE_DATE_EPOCH": str(max(epoch or 0, 315532800)),  # zip files have no dates before 1980
    }


def by_hooks(sdist: Path, machine: str, known: Matrix, work: Path, env: Mapping[str, str]) -> Path:
    """Run the hooks here, without a container, and so with this machine's glibc."""
    del machine, known
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "source", filter="data")
    (tree,) = (work / "source").iterdir()
    built, repaired = work / "built", work / "repaired"
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*pip, "--disable-pip-version-check", "-w", str(built), str(tree)], tree, env)
    quoted = {"wheel": shlex.quote(str(_only(built))), "dest_dir": shlex.quote(str(repaired))}
    for command in repair_hooks(tree):
        run(["sh", "-c", command.format(**quoted)], tree, env)
    return _only(repaired)


def by_cibuildwheel(sdist: Path, machine: str, known: Matrix, work: Path, env: Mapping[str, str]) -> Path:
    """Let cibuildwheel run the hooks, in the image of matrix.toml or of cibuildwheel's own variable."""
    if machine != platform.machine():
        raise BuildStopped(
            "cibuildwheel builds for the machine it runs on",
            found=platform.machine(),
            needed=machine,
            fix=[f"a runner that is {machine}", "--driver hooks, which cross-compiles"],
        )
    if shutil.which("docker") is None and shutil.which("podman") is None:
        raise BuildStopped(
            "cibuildwheel needs a container engine",
            found="neither docker nor podman on PATH",
            needed="one of them",
            fix=["tools/local/podman.sh", "--driver hooks, which runs the same hooks without one"],
        )
    image = f"CIBW_MANYLINUX_{machine.upper()}_IMAGE"
    (spec,) = (spec for spec in known.machine_specs if spec.name == machine)
    told = {
        **env,
        image: env.get(image, spec.image),
        "PRECAST_PARTS": f"{MOUNT}{env['PRECAST_PARTS']}",
        "PRECAST_CACHE_DIR": "/nowhere",
        "PIP_CONSTRAINT": "/project/constraints.txt",
    }
    only = env.get("PRECAST_ONLY_TORCH")
    elsewhere = only and smoke.why_not(Release.parse(only), TorchVersion.parse(smoke.pinned_torch()))
    if elsewhere:
        print(f"not tried, as {elsewhere}", flush=True)
        told["CIBW_TEST_SKIP"] = "*"
    out = work / "wheelhouse"
    command = [sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs", machine]
    run([*command, "--output-dir", str(out), str(sdist.absolute())], work, told)
    return _only(out)


def repair_hooks(tree: Path) -> list[str]:
    """The commands that repair and audit a built wheel."""
    found: list[str] = read_toml(tree / "pyproject.toml")["tool"]["cibuildwheel"]["repair-wheel-command"]
    return found


def run(command: list[str], cwd: Path, env: Mapping[str, str]) -> None:
    """Run one step; its output goes to the log and, on failure, into the error."""
    done = subprocess.run(
        command, cwd=cwd, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise BuildStopped(f"{shlex.join(command)}\n{done.stdout}")
    print(done.stdout, end="", flush=True)


def _only(folder: Path) -> Path:
    found = sorted(folder.glob("*.whl"))
    if len(found) != 1:
        raise BuildStopped(f"one wheel was to come out in {folder}, found {[path.name for path in found]}")
    return found[0]
