"""When plain torch stands in after a refusal, and when another kernel would change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precast._abi import plain
from precast._abi.decide import decide
from precast._abi.decision import Refuse
from precast._abi.settings import JitMode, Settings
from precast.core.host import Host
from precast.core.reasons import Need, Reason
from tests.kit import hosts as ex

AUTO = Settings()
AOT = replace(AUTO, jit=JitMode.AOT)
CUDA, XPU, CPU = (Need(ex.FAMILY, device) for device in ("cuda", "xpu", "cpu"))
BARE = ex.builders(None, compiler=False)
ROCM = ex.host(torch=ex.torch_info("2.13.0+rocm6.4", cuda=None, hip="6.4"), driver=None, gpu="", build_with=BARE)
INTEL = ex.host(torch=ex.torch_info("2.13.0+xpu", cuda=None, xpu="20250300"), driver=None, gpu="", build_with=BARE)


def stands_in(host: Host, need: Need, settings: Settings = AUTO, files: str | None = None) -> bool:
    refused = decide(host, None if files is None else ex.build_info(files), settings, need)
    assert isinstance(refused, Refuse)
    return plain.stands_in(host, need, refused)


@pytest.mark.parametrize(
    ("host", "need", "settings", "files"),
    [
        (ex.host(gpu="12.1", build_with=BARE), CUDA, AUTO, "sm_90"),  # no cubin and no NVRTC
        (ex.host(gpu="9.0", build_with=BARE), CUDA, AUTO, None),  # nothing prebuilt and no compiler
        (ex.host(gpu="9.0", driver="12.8", build_with=BARE), CUDA, AUTO, "sm_90"),  # a driver too old for the files
        (ex.host(gpu="6.1", build_with=BARE), CUDA, AUTO, "sm_90"),
        (ex.host(gpu="6.1"), CUDA, AUTO, "sm_90"),  # before the builders are probed
        (ROCM, CUDA, AUTO, "sm_90"),
        (ROCM, CUDA, AOT, "sm_90"),
        (INTEL, XPU, AUTO, "sm_90"),
    ],
)
def test_it_stands_in_where_a_kernel_is_all_that_is_missing(
    host: Host, need: Need, settings: Settings, files: str | None
) -> None:
    assert stands_in(host, need, settings, files)


@pytest.mark.parametrize(
    ("host", "need", "settings"),
    [
        (ex.host(system="Windows", build_with=BARE), CUDA, AUTO),
        (ex.host(torch=None, build_with=BARE), CUDA, AUTO),
        (ex.host(torch=ex.torch_info(cuda=None), build_with=BARE), CUDA, AUTO),
        (ex.host(driver=None, gpu="", build_with=BARE), CUDA, AUTO),
        (ex.host(gpu="", build_with=BARE), CUDA, AUTO),
        (ROCM, CUDA, replace(AUTO, jit=JitMode.NONE)),
        (ROCM, XPU, AUTO),
        (ex.host(gpu="9.0", build_with=BARE), CUDA, AOT),
        (ex.host(build_with=BARE), CPU, AUTO),
    ],
)
def test_it_does_not_where_another_kernel_would_change_nothing(host: Host, need: Need, settings: Settings) -> None:
    assert not stands_in(host, need, settings)


@pytest.mark.parametrize(("host", "wanted"), [(INTEL, "an NVIDIA GPU, or the CPU"), (ROCM, "an XPU build of torch")])
def test_intel_gpus_have_no_kernels(host: Host, wanted: str) -> None:
    refused = decide(host, ex.build_info("sm_90"), AUTO, XPU)
    assert isinstance(refused, Refuse)
    assert [(r.reason, r.needed) for r in refused.rejections] == [(Reason.XPU, wanted)]
