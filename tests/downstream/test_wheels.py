"""Somebody else's wheel: what it is called, what it says, where it loads, and where it is refused, with the reason."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from precast.core import opening, probe
from precast.core.host import Host, TorchInfo
from precast.core.manifest import READERS, SCHEMA, BuildInfo
from precast.core.version import CudaVersion, Release, TorchVersion
from precast.errors import KernelError, KernelIncompatible

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def test_a_module_is_for_one_python_and_one_torch(bound_wheel: Path, installed: Callable[[Path], Path]) -> None:
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    cuda = "cpu" if torch.version.cuda is None else f"cu{torch.version.cuda.replace('.', '')}"
    assert bound_wheel.name.startswith(f"bound_ops-1.0+{cuda}.torch{minor}-{TAG}-{TAG}-linux_")
    folder = installed(bound_wheel)
    (file,) = manifest(folder).host
    assert (file.python, str(file.abi).rpartition("-")[0]) == (TAG, f"torch-{minor}")
    fused = importlib.import_module("bound_ops.fused")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert fused.threads() == 3
    finally:
        torch.set_num_threads(before)
    assert fused.__file__ == str(folder / "_C" / file.path), "the compiled module, not its guard"


def test_a_library_on_the_stable_abi_is_for_all(free_wheel: Path, installed: Callable[[Path], Path]) -> None:
    import torch

    assert free_wheel.name.startswith("free_ops-1.0-py3-none-linux_")
    folder = installed(free_wheel)
    (file,) = manifest(folder).host
    assert (file.python, str(file.abi), file.cuda_major) == ("none", "torch-stable-2.10", None)
    scale = importlib.import_module("free_ops.scale")
    assert scale.library == folder / "_C" / file.path
    assert torch.ops.free_ops.scale(torch.ones(2)).tolist() == [3, 3]
    assert opening.load_library("free_ops", "scale") == scale.library, "again, without the guard"


def test_torch_is_not_asked_for_twice_when_nothing_is_prebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty_ops").mkdir()
    (tmp_path / "empty_ops" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KernelIncompatible, match=r"empty_ops has nothing prebuilt\n  found   no manifest in"):
        opening.load_library("empty_ops", "scale")
    with pytest.raises(KernelError, match="there is no package 'no_ops'"):
        opening.load_library("no_ops", "scale")


def other_torch(host: Host, version: str, cuda: str | None = None) -> Host:
    assert host.torch is not None
    wanted = TorchInfo(TorchVersion.parse(version), host.torch.cxx11, CudaVersion.parse(cuda) if cuda else None)
    return replace(host, torch=wanted)


REFUSALS = {
    "another torch": (lambda host: other_torch(host, "2.3.1"), "rejected (torch-abi): needs torch 2."),
    "a pre-release": (lambda host: other_torch(host, f"{host.torch.version.release}.0a0"), ", a pre-release of 2."),
    "another Python": (lambda host: replace(host, python=Release(3, 9)), f"needs {TAG}; found Python 3.9"),
    "another machine": (lambda host: replace(host, machine="riscv64"), "found riscv64"),
    "an older C library": (lambda host: replace(host, glibc=Release(1, 0)), "rejected (glibc)"),
    "no torch": (lambda host: replace(host, torch=None), "needs torch"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_module_is_refused_with_the_reason(
    what: str, bound_wheel: Path, installed: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = installed(bound_wheel)
    change, words = REFUSALS[what]
    if what == "an older C library":
        rewrite(folder, lambda file: replace(file, glibc=Release(2, 2)))
    host = change(probe.host(with_gpus=False))
    monkeypatch.setattr(probe, "host", lambda with_gpus: host)
    with pytest.raises(ImportError) as caught:
        importlib.import_module("bound_ops.fused")
    assert words in str(caught.value) and isinstance(caught.value, KernelIncompatible)
    assert "PRECAST_JIT" not in str(caught.value), "no setting of ours can help"


def test_a_cuda_module_is_refused_under_another_cuda(
    bound_wheel: Path, installed: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = installed(bound_wheel)
    rewrite(folder, lambda file: replace(file, cuda_major=13))
    host = probe.host(with_gpus=False)
    assert host.torch is not None
    for cuda, found in ((None, "none"), ("12.8", "12.8")):
        there = other_torch(host, str(host.torch.version), cuda)
        monkeypatch.setattr(probe, "host", lambda with_gpus, there=there: there)
        with pytest.raises(ImportError, match=f"needs a torch with CUDA 13; found torch with CUDA {found}"):
            importlib.import_module("bound_ops.fused")
    there = other_torch(host, str(host.torch.version), "13.0")
    monkeypatch.setattr(probe, "host", lambda with_gpus: there)
    assert importlib.import_module("bound_ops.fused").threads() > 0


def test_a_manifest_of_another_schema_is_refused_for_its_own_package(
    bound_wheel: Path, installed: Callable[[Path], Path]
) -> None:
    path = installed(bound_wheel) / "_C" / "build_info.json"
    text = path.read_text()
    for schema, fix in ((1, "--no-binary bound"), (SCHEMA + 1, f" -U 'precast{READERS}'")):
        path.write_text(text.replace(f'"schema": {SCHEMA}', f'"schema": {schema}'))
        wanted = rf"manifest of bound_ops cannot be used[^$]*\$\.schema: needed \d+ to \d+, found {schema}"
        with pytest.raises(ImportError, match=wanted) as caught:
            importlib.import_module("bound_ops.fused")
        assert isinstance(caught.value, KernelIncompatible) and fix in str(caught.value)
    # fails if a precast of today refuses what one of the first release has built
    document = json.loads(text)
    del document["readers"], document["core"], document["changed"], document["patches_loader"]
    for file in document["host"]:
        del file["kind"], file["code"], file["cpu"], file["links"], file["compiled"]
    path.write_text(json.dumps(document | {"schema": 4}))
    assert importlib.import_module("bound_ops.fused").threads() > 0


@pytest.mark.parametrize("version", ["2.10.0", "2.13.1", "2.15.0"])
def test_a_stable_library_fits_every_torch_and_python(
    version: str, free_wheel: Path, installed: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(free_wheel)
    host = replace(other_torch(probe.host(with_gpus=False), version, "13.0"), python=Release(3, 14))
    monkeypatch.setattr(probe, "host", lambda with_gpus: host)
    # Not opened: a second definition of an op, from another copy of the file, would end the process.
    fitting = opening.fit(opening.wheel_of("free_ops"), "scale")
    assert fitting.path.name == "scale.so" and not fitting.is_module


def test_damage_is_found_before_anything_is_opened(bound_wheel: Path, installed: Callable[[Path], Path]) -> None:
    folder = installed(bound_wheel)
    (file,) = manifest(folder).host
    path = folder / "_C" / file.path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ImportError, match=r"bound_ops.fused is damaged\n.*checksum mismatch"):
        importlib.import_module("bound_ops.fused")


def test_only_what_changed_is_compiled_again(
    free_project: Path, setup_py: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    def compiled(**environment: str) -> str:
        done = setup_py(free_project, "build_ext", **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return next(free_project.glob("build/temp*/precast/free_ops.scale/build.log")).read_text()

    assert "no work to do" in compiled()
    (free_project / "csrc" / "factor.cpp").write_text('#include "factor.h"\nfloat factor() { return 5; }\n')
    log = compiled()
    assert "-c " in log and "factor.cpp.o" in log and "-o csrc.scale.cpp.o" not in log
    (free_project / "csrc" / "factor.h").write_text("float factor();  // of three\n")
    log = compiled()
    assert "-o csrc.factor.cpp.o" in log and "-o csrc.scale.cpp.o" in log, "both read the header"
    log = compiled(PRECAST_DEBUG="1")
    assert log.count("-O0 -g") == 2 and "prefix-map=.=" not in log, "for a debugger, with the paths of the sources"


def manifest(folder: Path) -> BuildInfo:
    return BuildInfo.from_json((folder / "_C" / "build_info.json").read_text())


def rewrite(folder: Path, change: Callable[..., object]) -> None:
    """Give the manifest another claim on its library."""
    info = manifest(folder)
    changed = replace(info, host=tuple(change(file) for file in info.host))
    (folder / "_C" / "build_info.json").write_text(changed.to_json())
