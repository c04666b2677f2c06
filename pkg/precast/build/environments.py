"""An environment for each torch: a Python of its own, that torch, and nvcc from the package index if CUDA is wanted.

Environments are kept in the cache, because a torch takes minutes to install and serves every package. The requirements
of a package in ``[build-system] requires`` are installed for that package alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast._abi import toolkits
from precast._abi.settings import Settings
from precast._builder import failure, lock, process, python, roots, toolchain
from precast.build import compilers, preflight
from precast.core import owned
from precast.core.capability import GpuTarget
from precast.core.version import CudaVersion, Label, TorchVersion
from precast.errors import KernelError

PACKAGE = Path(__file__).resolve().parents[1]
# Prefixes of variables that a build does not see, as they would change it. Torch's list of GPUs stays: it is asked for.
_FOREIGN = ("PYTHON", "PRECAST_LABEL", "VIRTUAL_ENV", "FORCE_", "CUDA_HOME", "CMAKE_PREFIX_PATH")
_READY = ".ready"
_TOOLS = ("setuptools<82", "wheel", "ninja")  # torch 2.12 and older do not accept a later setuptools
_ASKED = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda]))"


@dataclass(frozen=True)
class Job:
    """One build: a torch release, and the CUDA label or ``cpu``."""

    torch: TorchVersion
    label: Label

    @property
    def name(self) -> str:
        """``torch2.14.1-cu130``."""
        return f"torch{self.torch.release}.{self.torch.patch}-{self.label}"

    @property
    def standard(self) -> int:
        """The C++ standard that the headers of this torch ask for."""
        return _release(self.torch)[1]

    @property
    def requirements(self) -> tuple[str, ...]:
        """The arguments of pip for this torch: the index's own build if that has the right CUDA, else torch's index."""
        version = f"{self.torch.release}.{self.torch.patch}"
        if self.label.cuda is None:
            return (f"torch=={version}",)
        if _release(self.torch)[2].get(platform.machine()) == str(self.label):
            return (f"torch==={version}",)  # not 2.13.0+cpu, which == accepts and prefers
        return (f"torch=={version}+{self.label}", "--extra-index-url", f"{toolkits.INDEX}/{self.label}")


@dataclass(frozen=True)
class Environment:
    """A Python with its torch; ``cuda_home`` for a build with CUDA; ``kept``: it was there before."""

    folder: Path
    site: Path
    cuda_home: Path | None
    kept: bool

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def parse_torch(text: str) -> TorchVersion:
    """Read a torch release; ``2.14`` means its newest patch release. ValueError for an unknown torch."""
    known = toolkits.RELEASES.get(text)
    version = TorchVersion.parse(known[0] if known else text)
    _release(version)
    return version


def _release(version: TorchVersion) -> tuple[str, int, Mapping[str, str]]:
    found = toolkits.RELEASES.get(str(version.release))
    if found is None:
        raise ValueError(f"not a torch that is known: {version}; there are {', '.join(toolkits.RELEASES)}")
    return found


def parse_label(text: str) -> Label:
    """Read a label such as ``cu130``. ValueError for a CUDA version without a label."""
    if text not in toolkits.TARGETS:
        raise ValueError(f"not a CUDA label: {text!r}; there are {', '.join(toolkits.TARGETS)}")
    return Label(text)


def folder_of(job: Job, settings: Settings) -> Path:
    """Where the environment of a job is kept."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return roots.default_root(settings) / "torches" / f"{tag}-{job.name}"


def is_ready(job: Job, settings: Settings) -> bool:
    """Whether the environment is there from before."""
    return (folder_of(job, settings) / _READY).is_file()


def environment(job: Job, settings: Settings) -> Environment:
    """Make the environment of a job, or take the one that is kept. KernelError if a part cannot be had."""
    folder, cuda = folder_of(job, settings), job.label.cuda
    toolkit = None if cuda is None else _toolkit(cuda)
    compiler = () if cuda is None or toolkit is not None else _compiler(cuda, toolkits.TARGETS[str(job.label)][0])
    own = folder / "bin" / "python"
    with lock.exclusive(lock.lock_file(folder.parent, folder.name), folder.name, wait_s=3600):
        kept = is_ready(job, settings)
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
            owned.make_private(folder.parent)
            venv = python.command("venv", "--without-pip", str(folder))
            run(venv, folder.parent, plain(os.environ), f"the environment {folder}")
            _install_torch(job, own)
            _refuse_other(job, own)
            (folder / _READY).touch()
        (site,) = folder.glob("lib/python3*/site-packages")
        home = toolkit if cuda is None or toolkit is not None else site / "nvidia" / f"cu{cuda.major}"
        if compiler and home is not None:
            if not (home / "bin" / "nvcc").is_file():  # also if the machine had a toolkit when torch was installed
                run(pip(own, "install", *compiler), folder, plain(os.environ), f"nvcc for {job.label}")
            _link(home)
    return Environment(folder, site, home, kept)


def _install_torch(job: Job, own: Path) -> None:
    """Install torch; without CUDA its CPU build, because the build on the package index needs 5 GB of CUDA libraries.

    pip searches torch itself on torch's index, and the requirements of torch on the usual index.
    """
    version, what = f"{job.torch.release}.{job.torch.patch}", f"torch {job.torch} for {job.label}"
    print(f"{job.name}: installing torch, once for all packages", flush=True)
    if job.label.cuda is None:
        options = ("--no-compile", "--no-deps", "--timeout", "10", "--retries", "1")
        command = pip(own, "install", *options, "--index-url", f"{toolkits.INDEX}/cpu", f"torch=={version}+cpu")
        try:
            run(command, own.parents[1], plain(os.environ), f"{what}, alone")
        except KernelError:
            print(f"{job.name}: no torch {version}+cpu on {toolkits.INDEX}/cpu, so the one of the package index")
    install = pip(own, "install", "--no-compile", *_TOOLS, *job.requirements)
    run(install, own.parents[1], plain(os.environ), what)


def _compiler(cuda: CudaVersion, version: str) -> tuple[str, ...]:
    """The packages of nvcc and its requirements. KernelError before CUDA 13: the package index has no older nvcc."""
    if cuda.major < 13:
        raise KernelError(
            f"nothing can be compiled for CUDA {cuda}",
            found=f"no nvcc {cuda} on this machine; the package index has none before CUDA 13",
            needed=f"a CUDA {cuda} toolkit, and CUDA_HOME",
            fix=[
                "repeat the command with --cuda cu130  # the package index has its nvcc",
                f"export CUDA_HOME=/usr/local/cuda-{cuda}  # after NVIDIA's installer put the toolkit there",
            ],
        )
    exact = (f"nvidia-{part}=={version}" for part in ("cuda-nvcc", "cuda-crt", "nvvm"))
    return (*exact, f"nvidia-cuda-cccl=={cuda}.*")


def _toolkit(cuda: CudaVersion) -> Path | None:
    """A toolkit of this machine with exactly this CUDA version."""
    named = [os.environ.get("CUDA_HOME"), f"/usr/local/cuda-{cuda}", "/usr/local/cuda"]
    for home in (Path(name) for name in named if name):
        nvcc = home / "bin" / "nvcc"
        if nvcc.is_file():
            said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
            if f"release {cuda}," in said:
                return home
    return None


def _link(home: Path) -> None:
    """Give a CUDA_HOME what a linker looks for: ``lib64``, and ``libcudart.so`` for ``libcudart.so.13``."""
    if not (home / "lib64").exists():
        (home / "lib64").symlink_to("lib")
    for library in (home / "lib").glob("*.so.*"):
        plain_name = home / "lib" / f"{library.name.partition('.so.')[0]}.so"
        if not plain_name.exists():
            plain_name.symlink_to(library.name)


def pip(interpreter: Path, *arguments: str) -> list[str]:
    """The command that runs this Python's pip for another one."""
    return python.command("pip", "--python", str(interpreter), *arguments, "-q")


def folder_with(requirements: Sequence[str], folder: Path, made: Environment, what: str) -> Path:
    """A folder for PYTHONPATH with this precast and requirements; torch is in the environment."""
    folder.mkdir(exist_ok=True)
    if not (folder / "precast").exists():
        (folder / "precast").symlink_to(PACKAGE)
    wanted = [text for text in requirements if not re.match(r"(torch|precast)(?![\w.-])", text.strip())]
    there = folder / f".{hashlib.sha256(repr(sorted(wanted)).encode()).hexdigest()[:16]}"
    if wanted and not there.exists():  # what a build goes on with keeps its times, by which objects are judged
        command = pip(made.python, "install", "--upgrade", "--target", str(folder), *wanted)
        run(command, folder.parent, plain(os.environ), what)
        there.touch()
    return folder


def _refuse_other(job: Job, own: Path) -> None:
    said = run([str(own), "-c", _ASKED], own.parent, plain(os.environ), f"torch {job.torch}")
    version, cuda = json.loads(said.splitlines()[-1])  # after warnings, such as about numpy
    found = "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"
    if job.label.cuda is not None and found != str(job.label):
        raise KernelError(
            f"no torch {job.torch} for {job.label}",
            found=f"torch {version}, built for {found}",
            needed=f"a torch {job.torch} that is built for {job.label}",
            fix=f"repeat the command with --cuda {found}, or with a --torch that has a build for {job.label}",
        )


def variables(job: Job, made: Environment, requires: Path, work: Path, settings: Settings) -> dict[str, str]:
    """The environment variables of a build: compilers, the list of GPUs, and the folders of what it requires.

    A list of GPUs that the user names also replaces the ``-gencode`` options that a package writes itself.
    """
    tools = work / "bin"
    for made_again in (tools, work / "cuda"):
        shutil.rmtree(made_again, ignore_errors=True)
    tools.mkdir()
    places = {work: "/build", made.site: "/site"}
    compilers.write_host(tools, job.standard, places, debug=settings.debug)
    jobs = str(toolchain.default_jobs(settings))
    found = {
        **plain(os.environ),
        "CC": str(tools / "gcc"),
        "CXX": str(tools / "g++"),
        "PATH": os.pathsep.join(map(str, (requires / "bin", made.folder / "bin", os.environ.get("PATH", os.defpath)))),
        "PYTHONPATH": str(requires),
        "CMAKE_PREFIX_PATH": str(made.site / "torch" / "share" / "cmake"),
        "MAX_JOBS": jobs,
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        "SKBUILD_BUILD_DIR": str(work / "objects"),  # scikit-build-core has a temporary one otherwise
    }
    if made.cuda_home is None:
        return {**found, "FORCE_CUDA": "0", "CUDA_VISIBLE_DEVICES": ""}
    targets = targets_of(job.label, settings)
    home = compilers.write_cuda_home(work / "cuda", made.cuda_home, targets if settings.targets() else ())
    standard = f"-std=c++{job.standard} {os.environ.get('NVCC_APPEND_FLAGS', '')}".strip()
    cuda = {"CUDA_HOME": str(home), "CUDACXX": str(home / "bin" / "nvcc"), "FORCE_CUDA": "1"}
    return {**found, **cuda, preflight.ARCH_LIST: preflight.torch_form(targets), "NVCC_APPEND_FLAGS": standard}


def targets_of(label: Label, settings: Settings) -> tuple[GpuTarget, ...]:
    """The targets to compile for: the user's list, else that of precast's wheels of the label; Tegra only on ARM."""
    own = (GpuTarget.parse(text) for text in toolkits.TARGETS[str(label)][1].split())
    arm = platform.machine() == "aarch64"
    return settings.targets() or tuple(target for target in own if arm or not target.capability.is_tegra)


def plain(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without those that would change a build."""
    return {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}


def run(
    command: Sequence[str], folder: Path, env: Mapping[str, str], what: str, tick: Callable[[], None] | None = None
) -> str:
    """Run a command in a folder; KernelError with its first error and its last lines if it fails.

    The temporary files of the command are removed, also if it is killed.
    """
    log = folder / f"{re.sub(r'[^a-z0-9]+', '-', what.lower())[:60]}.log"
    shell = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]
    with tempfile.TemporaryDirectory(prefix="precast-run-") as temporary:
        env = {**env, "LC_ALL": "C.UTF-8", "TMPDIR": temporary}
        status, said = process.run(shell, log=log, environment=env, umask=process.INHERITED, tick=tick)
    if status:
        raise KernelError(
            f"{what}: a command failed",
            found=failure.told(said),
            needed=f"a clean run of: {shlex.join(command)}",
            fix=f"correct the first error in the log: {log}",
        )
    log.unlink()
    return said
