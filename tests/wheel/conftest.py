"""Wheels, built once for all tests here, away from the checkout's own environment."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from examples import downstream
from precast._abi.settings import Settings
from precast._builder import matrix, packing
from precast._builder.roots import default_root
from tests.kit import forked
from tools.shared import binaries

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parents[2]
# The oldest NVRTC, the first that writes cubins in both layouts, two of CUDA 13, and none. The device code of a label
# takes minutes to compile, so a quick run has the label without any, and +cu130 for two of its GPUs.
QUICK_LABELS = ("cu130", "cpu")
LABELS = ("cu121", "cu128", "cu132", *QUICK_LABELS)
FEWER_GPUS = {
    '["7.5", "8.0", "8.6", "9.0", "10.0", "11.0", "12.0"]\nptx = ["9.0"]\ndriver = { sass = "13.0", ptx = "13.0" }': (
        '["8.0", "9.0"]\nptx = ["9.0"]\ndriver = { sass = "13.0", ptx = "13.0" }'
    ),
    # The wheel without a label takes some of these, and no test builds it.
    '"sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_90"], cu130 = ["sm_110"]': (
        '"sm_86", "sm_90", "sm_100", "sm_120", "compute_90"], cu130 = ["sm_80"]'
    ),
}
# A quick run has the two of QUICK_LABELS, a long one the newest of the others too, and one of all targets all of them.
LATER = (pytest.mark.long, pytest.mark.targets)
_MARKS = {"cu132": pytest.mark.long, "cu130": (), "cpu": ()}
EACH_LABEL = [pytest.param(label, marks=_MARKS.get(label, LATER)) for label in LABELS]
# Slim wheels: the library for the stable ABI alone. Those for the classic ABI are proved in their torch.
ONLY_TORCH = "2.13"
# What would change a build, or find the checkout's package instead of the installed one.
_FOREIGN = ("PRECAST_", "CUDA_", "TORCH_CUDA_ARCH_LIST", "PYTHONPATH", "MAX_JOBS", "CXX", "XDG_CACHE_HOME")


def _fewer_gpus(text: str) -> str:
    for full, fewer in FEWER_GPUS.items():
        assert text.count(full) == 1, f"matrix.toml has no longer one {full}"
        text = text.replace(full, fewer)
    return text


_MATRIX = (CHECKOUT / "matrix.toml").read_text()
MATRIX = matrix.parse(tomllib.loads(_fewer_gpus(_MATRIX)))  # of the tree that is built here

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Install = Callable[..., "Installed"]


# A release and an sdist carry torch's headers for extensions; nothing else in this folder reads any.
_CARRIES_HEADERS = {"built", "repaired", "sdist"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of a release or of the sdist need the headers."""
    if _CARRIES_HEADERS.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("headers")


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this session."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="session")
def tree(work: Path) -> Path:
    """A copy of the checkout with its history and fewer GPUs: builds see one state, and the checkout sees no build."""
    ignored = shutil.ignore_patterns(".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info")
    copy = Path(shutil.copytree(CHECKOUT, work / "tree", ignore=ignored, symlinks=True))
    (copy / "matrix.toml").write_text(_fewer_gpus(_MATRIX))
    return copy


@pytest.fixture(scope="session")
def builds() -> Path:
    """The build cache of whoever runs the tests: those of the ops compile the same objects."""
    return default_root(Settings.from_env(os.environ))


@pytest.fixture
def lend_objects(builds: Path) -> Callable[[Path], None]:
    """Put what has been compiled into a cache of the test's own, so that a build there only links."""

    def lend(cache: Path) -> None:
        if (builds / "v1" / "objects").is_dir():
            shutil.copytree(builds / "v1" / "objects", cache / "v1" / "objects", dirs_exist_ok=True)
            cache.chmod(0o700)

    return lend


def environment(**variables: object) -> dict[str, str]:
    """This process's environment without what would change a build, and with others."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONNOUSERSITE": "1"}
    return env | {name: str(value) for name, value in variables.items()}


@pytest.fixture(scope="session")
def run(work: Path, builds: Path) -> Run:
    """Run a command away from the checkout, with a clean environment; a failure shows what it said."""

    def run(*command: object, expect: int = 0, **variables: object) -> subprocess.CompletedProcess[str]:
        env = environment(**{"PRECAST_CACHE_DIR": builds, **variables})
        words = [str(word) for word in command]
        done = subprocess.run(words, env=env, cwd=work, capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == expect, f"{' '.join(words)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


class Wheels(Mapping[str, Path]):
    """A wheel for each label, made when a test first asks for it."""

    def __init__(self, labels: tuple[str, ...], make: Callable[[str], Path]) -> None:
        self._labels, self._make, self._made = labels, make, dict[str, Path]()

    def __getitem__(self, label: str) -> Path:
        if label not in self._labels:
            raise KeyError(label)
        if label not in self._made:
            self._made[label] = self._make(label)
        return self._made[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


@pytest.fixture(scope="session")
def built(work: Path, tree: Path, run: Run) -> Mapping[str, Path]:
    """A labelled wheel for each label, and the pure one under ``""``, all with build isolation."""

    def make(label: str) -> Path:
        folder = work / "built" / (label or "pure")
        variables = {"PRECAST_LABEL": label, "PRECAST_ONLY_TORCH": ONLY_TORCH} if label else {}
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, tree, **variables)
        (made,) = folder.glob("*.whl")
        return made

    return Wheels((*LABELS, ""), make)


@pytest.fixture(scope="session")
def repaired(work: Path, tree: Path, run: Run, built: Mapping[str, Path]) -> Mapping[str, Path]:
    """The labelled wheels as they are published."""

    def make(label: str) -> Path:
        folder = work / "repaired" / label
        run(sys.executable, "-m", "tools", "repair", "--out", folder, built[label], PYTHONPATH=tree)
        (made,) = folder.glob("*.whl")
        return made

    return Wheels(LABELS, make)


@pytest.fixture(scope="session")
def sdist(work: Path, tree: Path, run: Run) -> Path:
    """The sdist, made without isolation."""
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    folder = work / "sdist"
    folder.mkdir()
    run("sh", "-c", 'cd "$1" && exec "$2" -c "$3" "$4"', "sh", tree, sys.executable, code, folder)
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def each_file_once() -> Iterator[None]:
    """For wheels that differ in a file or two: what the audit reads of a file is the same for all that have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_read", functools.cache(packing._read))
        for name in ("absolute_paths", "read_cubin", "read_library", "read_ptx"):
            patch.setattr(binaries, name, functools.cache(getattr(binaries, name)))
        yield


class Installed:
    """An installation in a folder of its own, asked from outside the checkout."""

    def __init__(self, site: Path, builds: Path, log: str) -> None:
        self.site, self._builds, self.log = site, builds, log

    def python(self, code: str, **variables: object) -> str:
        """Run code with this installation before everything else on the path, in a fork that has imported torch."""
        env = environment(**{"PYTHONPATH": self.site, "PRECAST_CACHE_DIR": self._builds, **variables})
        done = forked.run(code, env=env, cwd=self.site.parent, timeout=1200)
        assert done.returncode == 0, f"{code}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def doctor(self, **variables: object) -> dict[str, Any]:
        """What ``precast doctor --json`` says; 1 is a verdict, not a failure to answer."""
        code = "import json; from precast._cli import doctor; print(json.dumps(doctor.examine()))"
        facts: dict[str, Any] = json.loads(self.python(code, **variables))
        assert str(self.site) in facts["build"]["manifest"], "the doctor of another installation answered"
        return facts

    def sources(self, family: str = "rms_norm", device: str = "cpu") -> list[str]:
        """Where the doctor says that each piece of a family would come from."""
        kernels = [k for k in self.doctor()["kernels"] if (k["family"], k["device"]) == (family, device)]
        return [piece["source"] for kernel in kernels if kernel["expected"] for piece in kernel["pieces"]]


@pytest.fixture
def install(tmp_path: Path, run: Run, builds: Path) -> Install:
    """Install something with pip into an empty folder."""

    def install(*what: object, site: str = "site", expect: int = 0, **variables: object) -> Installed:
        target = tmp_path / site
        command = [sys.executable, "-m", "pip", "install", "-v", "--no-deps", "--target", target, *what]
        done = run(*command, expect=expect, **variables)
        return Installed(target, builds, done.stdout + done.stderr)

    return install


@pytest.fixture(scope="session")
def nvrtc_site(work: Path, run: Run) -> Path:
    """A folder with the NVRTC of +cu130, as an environment with it would have; that wheel has the same images."""
    site, spec = work / "nvrtc", MATRIX.label(matrix.Label("cu130"))
    wanted = f"{spec.package}=={spec.nvrtc}"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--target", site, wanted)
    return site


@pytest.fixture(scope="session")
def torch_site(work: Path) -> Path:
    """Links to this environment's torch and what it needs, and to nothing else: not to precast."""
    site = work / "torch-site"
    downstream.lend(site, ("torch", "setuptools", "ninja"))
    return site


@pytest.fixture
def venv(tmp_path: Path, run: Run, torch_site: Path) -> Path:
    """A fresh virtual environment that sees this environment's torch; returns its python."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "torch.pth").write_text(f"{torch_site}\n")
    return tmp_path / "venv" / "bin" / "python"


@pytest.fixture(scope="session")
def uv() -> str:
    """The uv of this environment."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found is not None, "uv is not installed: it belongs to the dev group"
    return found
