"""``ensure`` from end to end on made-up hosts, with a host library that only tells what it was asked."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._abi.decision import BuildAdapter
from precast._abi.settings import Settings
from precast._load import handover, jit, loader, prebuilt, probe
from precast._load.source import Source
from precast.core.capability import GpuTarget
from precast.core.host import Host
from precast.core.reasons import Reason, Rejection
from precast.errors import JitDisabled, KernelIncompatible, KernelUnavailable
from tests.kit import fakes, spawn
from tests.kit import hosts as ex

pytestmark = pytest.mark.compiler


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A loader that has loaded nothing yet, and the log of its host library. Torch is left out of it."""
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "calls"))
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    monkeypatch.setattr(loader, "_state", loader._State())
    monkeypatch.setattr(handover, "formulas_of", lambda family: SimpleNamespace(bind=lambda library, key: None, ops=()))
    monkeypatch.setattr(handover, "refuse_foreign_kernels", lambda ops, key: None)
    return tmp_path / "calls"


def on_host(monkeypatch: pytest.MonkeyPatch, host: Host) -> list[bool]:
    """Pretends to be on a host; the list grows with every probe."""
    probes: list[bool] = []

    def fake(settings: Settings, *, gpus: bool, certain: bool = False) -> Host:
        probes.append(gpus)
        return dataclasses.replace(host, builders=None, gpus=host.gpus if gpus else ())

    monkeypatch.setattr(probe, "probe_host", fake)
    monkeypatch.setattr(probe, "probe_builders", lambda settings: ex.builders())
    return probes


def test_a_family_is_loaded_once_and_each_device_type_for_itself(
    calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    probes = on_host(monkeypatch, ex.host(gpu="9.0"))
    cpu = loader.ensure("rms_norm", "cpu")
    assert loader.ensure("rms_norm", "cpu") is cpu and probes == [False]
    assert calls.read_text().splitlines() == ["register rms_norm CPU"]
    assert cpu.host == Source("prebuilt", c_dir / "host/kernels-x86_64.so", "torch-table-1")
    cuda = loader.ensure("rms_norm", "cuda")
    assert cuda.images == ((0, Source("prebuilt", c_dir / "device/rms_norm.sm_90.cubin.xz", "sm_90")),)
    assert calls.read_text().splitlines()[1:] == ["set_image rms_norm 0 512 sm_90 9.0", "register rms_norm CUDA"]
    assert capsys.readouterr().err == ""


def test_every_gpu_gets_its_image_or_its_refusal_before_anything_is_registered(
    calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.write_installation(c_dir, toy_library, {"sm_80": fakes.cubin(80), "sm_90": fakes.cubin(90, 600)})
    on_host(monkeypatch, ex.host(gpu="9.0 8.6 6.1"))
    with caplog.at_level(logging.WARNING, "precast"):
        loader.ensure("rms_norm", "cuda")
    said = calls.read_text()
    lines = [line for line in said.splitlines() if line.split()[0] in ("set_image", "refuse", "register")]
    assert lines[:2] == ["set_image rms_norm 0 600 sm_90 9.0", "set_image rms_norm 1 512 sm_80 8.6"]
    assert lines[2] == "refuse rms_norm 2 rms_norm cannot run on cuda:2 (no code for this GPU)"
    assert "compute capability 6.1" in said and lines[3] == "register rms_norm CUDA"
    assert "rms_norm does not run on GPU 2" in caplog.text


def test_files_that_are_out_of_date_are_told_once_in_a_process(
    calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fakes.write_installation(c_dir, toy_library)
    on_host(monkeypatch, ex.host())
    stale = Rejection(Reason.STALE, "files of precast 2", "those of precast 1")
    monkeypatch.setattr(prebuilt, "judged", lambda host, info: dataclasses.replace(host, stale=stale))
    monkeypatch.setattr(jit, "build_host", lambda *_: Source("jit", toy_library, ""))
    with caplog.at_level(logging.WARNING, "precast"):
        for family in ("rms_norm", "cpu_adam", "softmax"):
            assert loader.ensure(family, "cpu").host.kind == "jit"
    said = [text for text in caplog.messages if "is out of date, and what is missing is built" in text]
    assert len(said) == 1 and "needs files of precast 2; found those of precast 1" in said[0]


def test_only_the_missing_image_is_built(
    calls: Path, c_dir: Path, toy_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "built.cubin"
    built.write_bytes(b"built here")
    asked: list[tuple[Sequence[GpuTarget], str]] = []

    def build_images(
        family: str, targets: Sequence[GpuTarget], builders: object, settings: Settings, why: str
    ) -> Mapping[GpuTarget, Source]:
        asked.append((targets, why))
        return {target: Source("jit", built, "NVRTC") for target in targets}

    monkeypatch.setattr(jit, "build_images", build_images)
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    on_host(monkeypatch, ex.host(gpu="9.0 7.5 7.5"))
    loaded = loader.ensure("rms_norm", "cuda")
    ((targets, why),) = asked
    assert targets == [GpuTarget.parse("sm_75")] and "device/rms_norm.sm_90.cubin" in why and "7.5" in why
    assert [source.kind for _, source in loaded.images] == ["prebuilt", "jit", "jit"]
    assert "set_image rms_norm 2 10 sm_75 7.5" in calls.read_text()


def test_a_library_that_does_not_open_is_named_and_the_decision_made_once_more(
    calls: Path,
    c_dir: Path,
    toy_library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign = spawn.library(tmp_path / "foreign.so", "extern int missing(); int use() { return missing(); }")
    fakes.write_installation(c_dir, foreign)
    on_host(monkeypatch, ex.host())
    reasons: list[str] = []

    def build_host(family: str, builders: object, settings: Settings, why: str) -> Source:
        reasons.append(why)
        return Source("jit", toy_library, "")

    monkeypatch.setattr(jit, "build_host", build_host)
    with caplog.at_level(logging.WARNING, "precast"):
        assert loader.ensure("cpu_adam", "cpu").host.kind == "jit"
    assert "the dynamic linker refuses it" in reasons[0]
    assert str(c_dir / "host/kernels-x86_64.so") in caplog.text
    # A library built here that does not open is no reason to build again.
    monkeypatch.setattr(jit, "build_host", lambda *_: Source("jit", foreign, ""))
    monkeypatch.setattr(loader, "_state", loader._State())
    with pytest.raises(KernelIncompatible, match="built for this machine cannot be opened"):
        loader.ensure("cpu_adam", "cpu")


ADAPTER = 'extern "C" const void* precast_torch_table() { static int table; return &table; }'


@pytest.mark.compiler
def test_a_torch_without_a_function_is_bound_by_an_adapter_that_is_built(
    calls: Path, c_dir: Path, toy_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is prebuilt all the same; a second family needs no second adapter."""
    fakes.write_installation(c_dir, toy_library)
    on_host(monkeypatch, ex.host(torch=ex.torch_info(git="a" * 40), build_with=ex.builders()))
    monkeypatch.setenv("TOY_LACKS", "torch_list_size")
    built: list[str] = []

    def build_adapter(piece: BuildAdapter, builders: object, settings: Settings, why: str) -> Source:
        built.append(f"{piece.abi}: {why}")
        return Source("cache" if built[1:] else "jit", adapter, str(piece.abi))

    adapter = spawn.library(tmp_path / "adapter.so", ADAPTER)
    monkeypatch.setattr(jit, "build_adapter", build_adapter)
    loaded = loader.ensure("cpu_adam", "cpu")
    assert loaded.host.kind == "prebuilt" and loaded.torch == Source("jit", adapter, f"torch-2.13-cxx1-git{'a' * 40}")
    why = "libtorch_cpu.so needs the functions of torch 2.10; found libtorch_cpu.so lacks torch_list_size"
    assert built == [f"torch-2.13-cxx1-git{'a' * 40}: {why}"]
    # an adapter built here that does not open is an error, not a reason to build again
    broken = spawn.library(tmp_path / "broken.so", "int nothing;")
    monkeypatch.setattr(jit, "build_adapter", lambda *_: Source("jit", broken, ""))
    monkeypatch.setattr(loader, "_state", loader._State())
    with pytest.raises(KernelIncompatible, match="undefined symbol: precast_torch_table"):
        loader.ensure("cpu_adam", "cpu")


def test_refusals_name_every_candidate_the_host_and_the_way_out(
    calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)}, label="cu130", nvrtc="13.0.88")
    monkeypatch.setenv("PRECAST_INDEX_URL", ex.INDEX)
    monkeypatch.setenv("PRECAST_JIT", "aot")
    on_host(monkeypatch, ex.host(gpu="7.0"))
    with pytest.raises(JitDisabled) as caught:
        loader.ensure("rms_norm", "cuda")
    lines = str(caught.value).splitlines()
    assert lines[0] == "rms_norm cannot be loaded for cuda (no code for this GPU; PRECAST_JIT=aot)"
    assert any("device/rms_norm.sm_90.cubin" in line and "7.0" in line for line in lines)
    assert any(line.lstrip().startswith("env") and "torch 2.13.0" in line for line in lines)
    assert "+cu129" in str(caught.value) and "precast doctor" in lines[-1]
    assert not calls.exists()


def test_a_refusal_for_a_setting_alone_is_jit_disabled(
    calls: Path, c_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_host(monkeypatch, ex.host())
    for mode in ("aot", "none"):
        monkeypatch.setenv("PRECAST_JIT", mode)
        with pytest.raises(JitDisabled, match=f"PRECAST_JIT={mode}"):
            loader.ensure("cpu_adam", "cpu")


def test_a_public_name_loads_what_it_may_call_and_errors_have_that_name(
    calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = ("activations", "activations_backward", "cpu_optim")
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)}, families=families)
    on_host(monkeypatch, ex.host(driver=None, gpu="", torch=ex.torch_info("2.13.0+cpu", cuda=None)))
    assert loader.load("silu_and_mul").family == "activations"
    assert loader.load("precast.optim.CPUAdam").family == "cpu_optim"
    assert calls.read_text().splitlines() == [f"register {family} CPU" for family in families]
    with pytest.raises(KernelUnavailable, match="FusedAdamW cannot be loaded for cuda"):
        loader.load("FusedAdamW")  # which has kernels for GPUs alone
    with pytest.raises(KernelUnavailable, match="found   no function or class of that name"):
        loader.load("precast.nn.silu_and_mul")


def test_devices_and_names_that_do_not_exist_are_refused_with_those_that_do(calls: Path) -> None:
    for family, device, known in (("cpu_adam", "cuda", "cpu"), ("rms_norm", "mps", "cpu or cuda")):
        with pytest.raises(KernelUnavailable, match=f"no {device} kernels") as caught:
            loader.ensure(family, device)
        assert f"needed  the device {known}" in str(caught.value)
    with pytest.raises(KernelUnavailable, match="'rms_nrom' cannot be loaded") as caught:
        loader.load("rms_nrom")
    assert "adam_" in str(caught.value) and "precast.load('rms_norm')" in str(caught.value)
    with pytest.raises(KernelUnavailable, match="'cuda:one' is not understood"):
        loader.load("rms_norm", "cuda:one")


@pytest.mark.parametrize("op", ["rms_norm", "precast::rms_norm", "fused_add_rms_norm_", "precast::fused_add_rms_norm"])
def test_an_op_is_known_by_either_name(op: str) -> None:
    assert loader.family_of(op).name == "rms_norm"


def test_load_makes_the_asked_gpu_ready(
    calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    on_host(monkeypatch, ex.host(gpu="9.0 9.0"))
    loader.load("rms_norm", "cuda:1")
    assert calls.read_text().splitlines()[-1] == "prepare rms_norm 1"
    monkeypatch.setattr(probe, "current_gpu", lambda: 0)
    loader.load("rms_norm", "cuda")
    assert calls.read_text().splitlines()[-1] == "prepare rms_norm 0"
    before = calls.read_text()
    loader.load("precast::rms_norm")
    assert calls.read_text() == before + "register rms_norm CPU\n"


def test_the_files_of_the_installation_are_where_the_package_is() -> None:
    assert Path(prebuilt.__file__).parents[1] / "_C" == prebuilt.C_DIR
