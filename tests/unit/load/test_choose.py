"""Deciding with intact files only, on made-up hosts; and looking for builders only when something has to be built."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from precast._abi.decision import BuildImage, BuildJit, Refuse, UsePrebuilt, all_rejections
from precast._abi.settings import JitMode, Settings
from precast._load import probe, verdict
from precast._load.choose import choose, choose_on
from precast.core.host import Builders, Host
from precast.core.manifest import BuildInfo, DeviceFile
from precast.core.reasons import Need, Reason, damaged
from tests.kit import fakes
from tests.kit import hosts as ex

CUDA = Need("rms_norm", "cuda")
CPU = Need("rms_norm", "cpu")
pytestmark = pytest.mark.compiler


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Every look at the builders; there are all of them."""
    seen: list[Settings] = []

    def look(settings: Settings) -> Builders:
        seen.append(settings)
        return ex.builders()

    monkeypatch.setattr(probe, "probe_builders", look)
    return seen


@pytest.fixture
def info(c_dir: Path, toy_library: Path) -> BuildInfo:
    return fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90), "compute_80": fakes.ptx(80)})


def h200() -> Host:
    return dataclasses.replace(ex.host(gpu="9.0"), builders=None)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def image_of(decision: object) -> str:
    assert isinstance(decision, (UsePrebuilt, BuildJit))
    ((_, image),) = decision.images
    return image.path if isinstance(image, DeviceFile) else f"build {image.target}"


def test_a_prebuilt_that_fits_needs_no_look_at_the_builders(info: BuildInfo, looks: list[Settings]) -> None:
    choice = choose_on(h200(), info, Settings(), CUDA)
    assert isinstance(choice.decision, UsePrebuilt) and looks == []
    assert sorted(choice.contents) == ["device/rms_norm.sm_90.cubin", "host/kernels-x86_64.so"]
    assert choice.contents["device/rms_norm.sm_90.cubin"] == fakes.cubin(90)


def test_each_damaged_file_gives_way_to_the_next_best(c_dir: Path, info: BuildInfo, looks: list[Settings]) -> None:
    damage(c_dir / "device/rms_norm.sm_90.cubin.xz")
    first = choose_on(h200(), info, Settings(), CUDA)
    assert image_of(first.decision) == "device/rms_norm.compute_80.ptx.xz" and looks == []
    damage(c_dir / "device/rms_norm.compute_80.ptx.xz")
    second = choose_on(h200(), info, Settings(), CUDA)
    assert image_of(second.decision) == "build sm_90" and len(looks) == 1
    assert {r.candidate for r in all_rejections(second.decision) if r.reason is Reason.DAMAGED} == {
        "device/rms_norm.sm_90.cubin",
        "device/rms_norm.compute_80.ptx",
    }
    (c_dir / "host/kernels-x86_64.so").unlink()
    third = choose_on(h200(), info, Settings(jit=JitMode.AOT), CUDA)
    assert isinstance(third.decision, Refuse)
    found = {r.candidate: r.found for r in third.decision.rejections if r.reason is Reason.DAMAGED}
    assert found == {"host/kernels-x86_64.so": "missing"}, "the library alone stands in the way"


def test_a_python_without_lzma_builds_device_code_and_keeps_the_library(
    info: BuildInfo, looks: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "_lzma", None)
    monkeypatch.delitem(sys.modules, "lzma")
    choice = choose_on(h200(), info, Settings(), CUDA)
    assert image_of(choice.decision) == "build sm_90" and len(looks) == 1
    assert sorted(choice.contents) == ["host/kernels-x86_64.so"] and choice.bad == {}
    why = [r for r in all_rejections(choice.decision) if r.reason is Reason.NO_LZMA]
    assert {r.candidate for r in why} == {"device/rms_norm.sm_90.cubin", "device/rms_norm.compute_80.ptx"}
    assert "_lzma" in why[0].found and choice.host.lzma_error in why[0].found
    assert choose_on(h200(), info, Settings(), CPU).host.lzma_error is None, "nobody asked"


def test_what_an_earlier_turn_found_bad_is_not_read_again(c_dir: Path, info: BuildInfo, looks: list[Settings]) -> None:
    bad = {"host/kernels-x86_64.so": damaged("the dynamic linker refuses it")}
    choice = choose_on(h200(), info, Settings(), CPU, bad)
    assert isinstance(choice.decision, BuildJit) and choice.bad == bad and choice.contents == {}
    assert len(looks) == 1 and choice.builders == ex.builders()


def test_mode_jit_does_not_even_read_the_manifest(
    c_dir: Path, looks: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    (c_dir / "build_info.json").write_text("damaged")
    monkeypatch.setattr(probe, "probe_host", lambda *_, **__: h200())
    choice = choose(CUDA, Settings(jit=JitMode.JIT), {}, certain=True)
    assert isinstance(choice.decision, BuildJit) and image_of(choice.decision) == "build sm_90"
    assert all(not isinstance(image, DeviceFile) for _, image in choice.decision.images)


def test_mode_aot_looks_for_a_compiler_only_to_say_what_is_missing(
    info: BuildInfo, looks: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dataclasses.replace(h200(), installer=None)
    served = choose_on(asked, info, Settings(jit=JitMode.AOT), CPU)
    assert not isinstance(served.decision, Refuse) and looks == []
    with pytest.raises(AssertionError, match="without a look at the builders"):
        _ = served.builders
    refused = choose_on(asked, None, Settings(jit=JitMode.AOT), CPU)
    assert isinstance(refused.decision, Refuse) and len(looks) == 1 and refused.host.installer is None
    monkeypatch.setattr(probe, "probe_installer", lambda: ex.INSTALLER)
    assert "CUDA_EXT=1 pip install" in str(verdict.refusal(refused)), "a person is told how to install here"


def test_one_of_two_gpus_may_need_a_build(info: BuildInfo, looks: list[Settings]) -> None:
    host = dataclasses.replace(h200(), gpus=ex.gpus("9.0", "7.5"))
    choice = choose_on(host, info, Settings(), CUDA)
    assert isinstance(choice.decision, BuildJit) and len(looks) == 1
    images = dict(choice.decision.images)
    assert isinstance(images[0], DeviceFile) and isinstance(images[1], BuildImage)
