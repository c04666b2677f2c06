"""Every way to install from source, each followed by what the doctor says of it, from outside the checkout."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Install, Installed, Run

pytestmark = [pytest.mark.wheel, pytest.mark.compiler, pytest.mark.torch]

PURE_NOTE = "pure wheel: CUDA_EXT was not seen at build time"
DEAD_NETWORK = {
    "PIP_NO_INDEX": "1",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
}
# A kernel run for real, and where its library was mapped from.
RUN_ONE = """
import torch, precast
x, w = torch.randn(3, 40), torch.randn(40)
y = precast.ops.rms_norm(x, w)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (40,), w, 1e-6))
maps = [line.rstrip().split(maxsplit=5) for line in open("/proc/self/maps")]
print([words[5] for words in maps if words[-1].endswith(("/rms_norm.so", "/kernels-x86_64.so"))][0])
"""


def test_plain_is_pure_and_builds_at_run_time(install: Install, tree: Path, tmp_path: Path) -> None:
    installed = install(tree)
    build = installed.doctor()["build"]
    assert (build["mode"], build["host_files"], build["note"]) == ("pure", [], PURE_NOTE)
    assert installed.sources() == ["jit", "torch"]
    cache = tmp_path / "cache"
    assert installed.python(RUN_ONE, PRECAST_CACHE_DIR=cache, **DEAD_NETWORK).startswith(f"{cache}/v1/rms_norm/")
    before = sorted(path for path in installed.site.rglob("*") if "__pycache__" not in path.parts)
    assert not [path for path in before if path.suffix in {".so", ".cubin", ".xz", ".o"}], "the JIT writes nothing here"


def test_cuda_ext_with_isolation_builds_the_host_library(install: Install, tree: Path) -> None:
    installed = install(tree, CUDA_EXT="1", PRECAST_CUDA_ARCH_LIST="9.0")
    build = installed.doctor()["build"]
    assert (build["mode"], build["host_files"]) == ("machine", ["host/kernels-x86_64.so"])
    assert build["note"] == "" and installed.sources() == ["prebuilt", "torch"]
    assert "no torch here (build isolation hides it)" in installed.log
    assert installed.python(RUN_ONE).startswith(f"{installed.site}/precast/_C/host/")
    if not build["device_files"]:  # no toolkit on this machine
        assert "no NVRTC was found, so no device code is built ahead of time" in installed.log


def test_cuda_ext_without_isolation_sees_torch_and_nvrtc(install: Install, tree: Path, nvrtc_site: Path) -> None:
    installed = install(
        "--no-build-isolation", tree, CUDA_EXT="1", PRECAST_CUDA_ARCH_LIST="9.0+PTX", PYTHONPATH=nvrtc_site
    )
    build = installed.doctor()["build"]
    assert build["mode"] == "machine" and build["compilers"]["nvrtc"] == "13.0.88"
    assert {"device/rms_norm.sm_90.cubin", "device/rms_norm.compute_90.ptx"} <= set(build["device_files"])
    assert re.search(r"precast: torch 2\.\S+ has every function itself", installed.log)
    assert installed.sources() == ["prebuilt", "torch"]


def test_cuda_ext_refuses_a_target_that_nvrtc_does_not_know(install: Install, tree: Path, nvrtc_site: Path) -> None:
    variables = {"CUDA_EXT": "1", "PRECAST_CUDA_ARCH_LIST": "7.0", "PYTHONPATH": nvrtc_site}
    refused = install("--no-build-isolation", tree, expect=1, **variables)
    assert "device code for sm_70 cannot be built" in refused.log


@pytest.mark.parametrize(
    "ahead", [pytest.param(False, marks=pytest.mark.long, id="plain"), pytest.param(True, id="CUDA_EXT")]
)
def test_editable_builds_into_the_cache_and_never_into_the_tree(
    venv: Path, run: Run, tree: Path, tmp_path: Path, ahead: bool, lend_objects: Callable[[Path], None]
) -> None:
    cache = tmp_path / "cache"
    lend_objects(cache)
    variables: dict[str, object] = {"PRECAST_CACHE_DIR": cache, **({"CUDA_EXT": "1"} if ahead else {})}
    run(venv, "-m", "pip", "install", "--no-deps", "-e", tree, **variables)
    assert (cache / "v1" / "rms_norm").is_dir() is ahead
    answer = run(venv, "-m", "precast", "doctor", "--json", PRECAST_CACHE_DIR=cache, expect=0).stdout
    facts = json.loads(answer)
    assert facts["build"]["mode"] is None and facts["build"]["manifest"].startswith(f"{tree}/pkg/precast/_C/")
    say = "import precast; print(precast.load('rms_norm').host.kind)"
    assert run(venv, "-c", say, PRECAST_CACHE_DIR=cache).stdout.strip() == ("cache" if ahead else "jit")
    assert not [path for path in (tree / "pkg").rglob("*") if path.suffix in {".so", ".cubin", ".ptx", ".xz"}]


def test_pip_reuses_a_pure_wheel_and_the_doctor_says_so(install: Install, sdist: Path, tmp_path: Path) -> None:
    """The trap that the guide warns of: pip keys its cache by the sdist, not by the environment it was built in.

    It looks there for what it takes from an index, not for a file named on the command line.
    """
    wanted = ("--no-build-isolation", "--no-index", "--find-links", sdist.parent, "precast")
    install(*wanted, site="first", PIP_CACHE_DIR=tmp_path / "pip")
    second = install(*wanted, site="second", CUDA_EXT="1", PIP_CACHE_DIR=tmp_path / "pip").doctor()["build"]
    assert (second["mode"], second["note"]) == ("pure", PURE_NOTE)
    third = install("--no-cache-dir", *wanted, site="third", CUDA_EXT="1").doctor()["build"]
    assert (third["mode"], third["note"]) == ("machine", "")


def test_pip_reuses_what_was_built_ahead_of_time(install: Install, sdist: Path, tmp_path: Path) -> None:
    wanted = ("--no-build-isolation", "--no-index", "--find-links", sdist.parent, "precast")
    first = install(*wanted, site="first", CUDA_EXT="1", PIP_CACHE_DIR=tmp_path / "pip").doctor()["build"]
    second = install(*wanted, site="second", PIP_CACHE_DIR=tmp_path / "pip").doctor()["build"]
    assert first["mode"] == second["mode"] == "machine" and second["note"] == ""


@pytest.mark.parametrize(
    "ahead_first",
    [pytest.param(False, id="pure first"), pytest.param(True, marks=pytest.mark.long, id="CUDA_EXT first")],
)
def test_uv_reuses_whatever_it_built_first(
    uv: str, run: Run, builds: Path, sdist: Path, tmp_path: Path, ahead_first: bool
) -> None:
    modes = []
    for number, ahead in enumerate((ahead_first, not ahead_first)):
        site = tmp_path / f"site{number}"
        command = [uv, "pip", "install", "--python", sys.executable, "--cache-dir", tmp_path / "uv", "--no-deps"]
        run(*command, "--target", site, sdist, **({"CUDA_EXT": "1"} if ahead else {}))
        build = Installed(site, builds, "").doctor()["build"]
        modes.append(build["mode"])
        assert (build["note"] == PURE_NOTE) is (build["mode"] == "pure")
    assert modes == (["machine", "machine"] if ahead_first else ["pure", "pure"]), "uv has learned to tell them apart"


def test_the_sdist_installs_and_builds_offline(
    install: Install, sdist: Path, tmp_path: Path, lend_objects: Callable[[Path], None]
) -> None:
    installed = install("--no-build-isolation", sdist, **DEAD_NETWORK, PRECAST_CACHE_DIR=tmp_path / "empty")
    cache = tmp_path / "also empty"
    assert installed.python(RUN_ONE, PRECAST_CACHE_DIR=cache, **DEAD_NETWORK).startswith(f"{cache}/v1/rms_norm/")
    lend_objects(cache)
    ahead = install(
        *("--no-build-isolation", "--no-cache-dir", sdist),
        site="ahead",
        CUDA_EXT="1",
        **DEAD_NETWORK,
        PRECAST_CACHE_DIR=cache,
    )
    assert ahead.sources() == ["prebuilt", "torch"] and ahead.doctor()["build"]["mode"] == "machine"


def test_a_labelled_wheel_serves_its_library(install: Install, repaired: dict[str, Path]) -> None:
    installed = install(repaired["cpu"])
    build = installed.doctor()["build"]
    assert (build["mode"], build["label"]) == ("release", "cpu")
    assert installed.python(RUN_ONE, PRECAST_JIT="aot").startswith(f"{installed.site}/precast/_C/host/")


def test_uninstalling_leaves_nothing(venv: Path, run: Run, built: dict[str, Path], tmp_path: Path) -> None:
    """Also after a JIT: what is built at run time lies in the cache only."""
    run(venv, "-m", "pip", "install", "--no-deps", built[""])
    run(venv, "-c", RUN_ONE, PRECAST_CACHE_DIR=tmp_path / "cache")
    run(venv, "-m", "pip", "uninstall", "-y", "precast")
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    assert not [path for path in site.rglob("*") if "precast" in path.name]


def test_the_build_of_another_torch_is_announced(install: Install, tree: Path, tmp_path: Path) -> None:
    """A torch that lacks functions needs an adapter, which this build does not make; it says so and goes on."""
    old = tmp_path / "old" / "torch-2.6.0.dist-info"
    (tmp_path / "old" / "torch").mkdir(parents=True)
    (tmp_path / "old" / "torch" / "__init__.py").write_text("")
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n")
    installed = install("--no-build-isolation", tree, CUDA_EXT="1", PYTHONPATH=tmp_path / "old")
    assert "torch 2.6.0: torch below 2.10 also needs an adapter, which g++ builds at the first use" in installed.log
    assert (installed.site / "precast/_C/host/kernels-x86_64.so").is_file()
