"""What stands in after a refusal: each condition against a twin, shown refusing, and the cases it is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precast._abi import twin
from precast._abi.decide import decide
from precast._abi.decision import Refuse, needs_builders
from precast._abi.settings import JitMode, Settings
from precast._abi.twin import Twin
from precast.core.capability import ComputeCapability
from precast.core.host import Host
from precast.core.reasons import Need, Reason
from tests.kit import hosts as ex

AUTO = Settings()
CUDA, XPU, CPU = (Need(ex.FAMILY, device) for device in ("cuda", "xpu", "cpu"))
BARE = ex.builders(None, compiler=False, triton="3.6.0")
ROCM = ex.host(torch=ex.torch_info("2.13.0+rocm6.4", cuda=None, hip="6.4"), driver=None, gpu="", build_with=BARE)
INTEL = ex.host(torch=ex.torch_info("2.13.0+xpu", cuda=None, xpu="20250300"), driver=None, gpu="", build_with=BARE)


def after(
    host: Host, need: Need = CUDA, settings: Settings = AUTO, files: str | None = "", *, plain: bool = False
) -> twin.Pick[Twin]:
    refused = decide(host, None if files is None else ex.build_info(files), settings, need)
    assert isinstance(refused, Refuse)
    return twin.stand_in(host, settings, need, refused, plain=plain)


@pytest.mark.parametrize(
    ("host", "need", "files"),
    [
        (ex.host(gpu="12.1", build_with=BARE), CUDA, "sm_90"),  # no cubin and no NVRTC
        (ex.host(gpu="9.0", build_with=BARE), CUDA, None),  # nothing prebuilt and no compiler
        (ex.host(gpu="9.0", driver="12.8", build_with=BARE), CUDA, "sm_90"),  # a driver too old for the files
        (ROCM, CUDA, "sm_90"),
        (INTEL, XPU, "sm_90"),
    ],
)
def test_it_stands_in_where_a_kernel_is_all_that_is_missing(host: Host, need: Need, files: str | None) -> None:
    assert after(host, need, files=files) == twin.Pick(Twin("3.6.0"), ())
    assert after(replace(host, builders=None), need, files=files, plain=True) == twin.Pick(Twin(None), ())


def test_plain_torch_compiles_nothing_and_runs_on_every_gpu_of_this_torch() -> None:
    for host, settings in ((ROCM, replace(AUTO, jit=JitMode.AOT)), (ex.host(gpu="6.1", build_with=BARE), AUTO)):
        assert after(host, CUDA, settings, None, plain=True) == twin.Pick(Twin(None), ())
    (rejection,) = after(replace(INTEL, torch=ex.torch_info()), XPU, AUTO, None, plain=True).rejections
    assert (rejection.candidate, rejection.reason) == ("torch", Reason.XPU)


@pytest.mark.parametrize(
    ("host", "need", "settings", "reason"),
    [
        (replace(ROCM, builders=None), CUDA, AUTO, Reason.BUILDERS_UNKNOWN),
        (replace(ROCM, builders=ex.builders()), CUDA, AUTO, Reason.NO_TRITON),
        (ROCM, CUDA, replace(AUTO, jit=JitMode.AOT), Reason.AOT_ONLY),
        (replace(INTEL, torch=ex.torch_info()), XPU, AUTO, Reason.XPU),
        (ex.host(gpu="9.0 6.1", build_with=BARE), CUDA, AUTO, Reason.ARCH),
    ],
)
def test_what_is_missing_for_it_is_one_more_rejection(
    host: Host, need: Need, settings: Settings, reason: Reason
) -> None:
    found = after(host, need, settings, None)
    assert found.chosen is None
    (rejection,) = found.rejections
    assert (rejection.piece, rejection.candidate, rejection.reason) == (need.device, "triton", reason)
    assert rejection.wanted and rejection.found
    assert needs_builders(Refuse(found.rejections)) == (reason is Reason.BUILDERS_UNKNOWN)


@pytest.mark.parametrize(
    ("host", "need", "settings"),
    [
        (ex.host(system="Windows", build_with=BARE), CUDA, AUTO),
        (ex.host(torch=None, build_with=BARE), CUDA, AUTO),
        (ex.host(torch=ex.torch_info(cuda=None), build_with=BARE), CUDA, AUTO),
        (ex.host(driver=None, gpu="", build_with=BARE), CUDA, AUTO),
        (ex.host(gpu="", build_with=BARE), CUDA, AUTO),
        (ROCM, CUDA, replace(AUTO, jit=JitMode.NONE)),
        (ex.host(gpu="9.0", build_with=BARE), CUDA, replace(AUTO, jit=JitMode.AOT)),
        (ex.host(build_with=BARE), CPU, AUTO),
    ],
)
def test_it_says_nothing_where_another_kernel_would_change_nothing(host: Host, need: Need, settings: Settings) -> None:
    assert after(host, need, settings, None) == after(host, need, settings, None, plain=True) == twin.Pick(None, ())


def test_the_remedy_for_no_triton_is_a_command() -> None:
    (rejection,) = after(replace(ROCM, builders=ex.builders())).rejections
    assert ex.fix(rejection, ROCM) == "pip install triton" and "the triton package: not there" in rejection.found


def test_the_oldest_gpu_is_judged_by_number() -> None:
    assert ComputeCapability(6, 1) < twin.OLDEST_NVIDIA <= ComputeCapability(7, 5)


def test_intel_gpus_have_nothing_but_a_twin() -> None:
    refused = decide(INTEL, ex.build_info("sm_90"), AUTO, XPU)
    assert isinstance(refused, Refuse)
    assert [r.reason for r in refused.rejections] == [Reason.XPU]
