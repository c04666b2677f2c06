"""What is offered depends on what is known: an index, the sources, the tools."""

from __future__ import annotations

from dataclasses import replace

from precast._abi import fixes
from precast._abi.settings import JitMode, Settings
from precast.core.host import Installer
from precast.core.reasons import BRIEF, Reason
from tests.kit import hosts as ex

AUTO, AOT = Settings(), Settings(jit=JitMode.AOT)
UNKNOWN = ex.build_info("", label="", host_files=(), index_url=None)


def test_a_wheel_is_offered_only_from_an_index_that_is_known() -> None:
    machine = ex.host(gpu="")
    assert fixes.prebuilt_wheel(machine, UNKNOWN, AUTO) == ""
    assert fixes.prebuilt_wheel(machine, replace(UNKNOWN, index_url=ex.INDEX), AUTO) == ex.from_index("cpu")
    named = Settings(index_url="https://mine")
    assert "https://mine/cpu/" in fixes.prebuilt_wheel(machine, replace(UNKNOWN, index_url=ex.INDEX), named)
    assert fixes.other_label(ex.host(gpu="12.0"), ex.gpus("12.0")[0].capability, UNKNOWN, AUTO) == ""


def test_without_an_index_the_sources_are_built_if_nothing_may_be_built_at_run_time() -> None:
    machine = ex.host(gpu="", build_with=ex.builders())
    built = "CUDA_EXT=1 pip install --force-reinstall --no-deps --no-cache-dir /src/precast"
    assert fixes.prebuilt_wheel(machine, UNKNOWN, AOT) == built
    assert fixes.prebuilt_wheel(replace(machine, installer=Installer()), UNKNOWN, AOT) == ""
    bare = replace(machine, builders=ex.builders(compiler=False))
    assert fixes.prebuilt_wheel(bare, UNKNOWN, AOT) == f"apt-get update && apt-get install -y g++ && {built}"
    no_manager = replace(bare, installer=replace(ex.INSTALLER, compiler=""))
    assert fixes.prebuilt_wheel(no_manager, UNKNOWN, AOT) == "", "the build would fail"


def test_a_release_is_restored_from_its_index_else_from_its_file() -> None:
    info = ex.build_info()
    machine = ex.host(gpu="")
    assert fixes.reinstall(machine, info, AUTO) == ex.from_index("cu130")
    from_file = replace(machine, installer=Installer(wheel="/w/a.whl"))
    lost = replace(info, index_url=None)
    assert fixes.reinstall(from_file, lost, AUTO) == "pip install --force-reinstall --no-deps /w/a.whl"
    assert fixes.reinstall(replace(machine, installer=Installer()), lost, AUTO) == ""


def test_one_label_for_all_gpus_if_there_is_one() -> None:
    both = ex.host(gpu="7.0 12.0")
    for gpu in both.gpus:
        assert fixes.other_label(both, gpu.capability, ex.build_info(), AUTO) == ex.from_index("cu129")
    alone = ex.host(gpu="12.0")
    assert fixes.other_label(alone, alone.gpus[0].capability, ex.build_info(), AUTO) == ex.from_index("cu132")


def test_a_broken_torch_is_replaced_and_a_missing_one_installed() -> None:
    assert fixes.install_torch(ex.host(torch=None)) == 'pip install "torch>=2.10"'
    broken = ex.host(torch=None, torch_error="OSError")
    assert fixes.install_torch(broken) == 'pip install --force-reinstall "torch>=2.10"'


def test_steps_are_one_line_and_each_comes_once() -> None:
    assert fixes.both(["a", "b", "a"]) == "a && b"


def test_every_reason_has_a_brief_and_a_fix_or_says_that_it_has_none() -> None:
    # fails if a reason is added to the list alone
    assert set(BRIEF) == set(fixes._FIXES) == set(Reason)
