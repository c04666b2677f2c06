"""Known bad builds: what the table says, and a guard that warns of one or refuses it on the GPU that it is about."""

from __future__ import annotations

import hashlib
import platform
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from precast._version import __version__
from precast.core import known_bad, opening, probe, verify
from precast.core.capability import CompiledCode, ComputeCapability, DeviceCode, TargetKind
from precast.core.host import Gpu
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.version import CudaVersion, Label, dotted
from precast.errors import PrebuiltRefused
from tests.kit import hosts

DATA = b"a library"
CONV, OTHER = "causal_conv1d_cuda", "scale"


@pytest.mark.parametrize("row", known_bad.TABLE, ids=lambda row: row.source.rpartition("/")[2])
def test_a_row_is_about_its_versions_its_gpu_and_machine_code(row: known_bad.KnownBad) -> None:
    assert dotted(row.first) < dotted(row.fixed) and row.source.startswith("https://") and row.symptom
    assert row.refuses == bool(row.families), "what is refused is named"
    for compiler in row.compilers:
        code = CompiledCode.parse(f"sm_{row.gpu.number}:{compiler}:{row.first}")
        families = row.families or (OTHER,)
        assert row.covers(code, families) and row.covers(replace(code, version=f"{row.first}.1"), families)
        assert row.source in row.against(code).found and row.fixed in row.against(code).needed
        other_gpu = replace(code.target, capability=ComputeCapability(8, 0))
        for other in (
            replace(code, version=row.fixed),
            replace(code, version="11.8.89"),
            replace(code, target=other_gpu),
            replace(code, target=replace(code.target, kind=TargetKind.PTX)),
            replace(code, compiler="nvcc" if row.compilers == ("nvrtc",) else "another"),
        ):
            assert not row.covers(other, families), other
        assert row.covers(code, (OTHER,)) != bool(row.families)


Importing = Callable[..., list[str]]


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Importing:
    """The warnings of a guard whose library has this machine code, on a machine with these GPUs."""
    package = tmp_path / "their_ops"
    (package / "_C" / "host").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    host = probe.host(with_gpus=False)

    def run(name: str, compiled: tuple[str, ...], *gpus: str, code: tuple[str, ...] = ()) -> list[str]:
        known = tuple(map(CompiledCode.parse, compiled))
        others = tuple(map(DeviceCode.parse, code))
        file = hosts.host_file(
            "torch-stable-2.10", machine=platform.machine(), glibcxx="3.4", families=(name,), bytes=len(DATA),
            sha256=hashlib.sha256(DATA).hexdigest(), compiled=known,
            code=(*(DeviceCode(one.target, CudaVersion(13, 0)) for one in known), *others),
        )  # fmt: skip
        (package / "_C" / file.path).write_bytes(DATA)
        info = BuildInfo(__version__, Label(""), BuildMode.MACHINE, None, False, "0" * 64, host=(file,))
        (package / "_C" / verify.MANIFEST).write_text(info.to_json())
        shown = tuple(Gpu(at, ComputeCapability.parse(gpu), "a GPU") for at, gpu in enumerate(gpus))
        monkeypatch.setattr(probe, "host", lambda with_gpus: replace(host, gpus=shown, driver=CudaVersion(13, 2)))
        sys.modules.pop("their_ops", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opening.library_file("their_ops", name)
        return [str(one.message) for one in caught]

    return run


@pytest.mark.torch
def test_a_guard_warns_of_code_that_this_gpu_takes(importing: Importing) -> None:
    bad = ("sm_120:nvcc:13.0.88",)
    (said,) = importing(OTHER, bad, "12.0")
    assert said.startswith("their_ops.scale may be wrong on this GPU: known-bad: needs code by nvcc 13.1 or newer")
    assert "found sm_120 by nvcc 13.0.88: a GEMM with CuTe" in said and "13.1.1/cuda-toolkit-release-notes" in said
    assert importing(OTHER, bad, "12.1") == [said], "there is no nearer code"
    assert importing(OTHER, bad, "12.1", code=("sm_121:13.0",)) == []
    assert importing(OTHER, bad) == importing(OTHER, ("sm_120:nvcc:13.1.80",), "12.0") == []
    assert len(importing(OTHER, ("sm_120:nvcc:13.2.51",), "9.0", "12.0", code=("sm_90:13.0",))) == 2


@pytest.mark.torch
def test_a_guard_refuses_the_library_that_is_known_to_go_wrong(importing: Importing) -> None:
    bad = ("sm_103:nvcc:13.0.88",)
    with pytest.raises(PrebuiltRefused, match=r"rejected \(known-bad\): needs code by nvcc 13\.3 or newer") as caught:
        importing(CONV, bad, "10.3", code=("sm_100:13.0",))
    assert "causal-conv1d/issues/105" in str(caught.value)
    assert importing(CONV, bad, "10.0", code=("sm_100:13.0",)) == [], "this GPU takes other code"
    assert importing(OTHER, bad, "10.3") == importing(CONV, (), "10.3", code=("sm_103:13.0",)) == []
