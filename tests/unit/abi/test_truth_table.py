"""What must be decided, written down by hand from what NVIDIA and PyTorch promise, not from the code.

The sources: the compatibility guides of Ampere, Hopper and Blackwell (SASS, PTX, suffixes, Tegra), "CUDA Compatibility"
(minor version compatibility of drivers), the CUDA 13.0 release notes (Volta dropped), and PyTorch's versioning of
containers and of its stable ABI. A verdict is written as ``use sm_90``, ``build sm_90`` or ``refuse reason [reason]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from precast._abi.decide import decide
from precast._abi.decision import (
    OWN_FUNCTIONS,
    Binding,
    BuildAdapter,
    BuildHost,
    BuildImage,
    OwnFunctions,
    Refuse,
    all_rejections,
    needs_builders,
)
from precast._abi.settings import JitMode, Settings
from precast.core.host import Host
from precast.core.reasons import JIT_CANDIDATE, Need, Reason, Rejection, damaged
from tests.kit import hosts as ex

CUDA = Need(ex.FAMILY, "cuda")
CPU = Need(ex.FAMILY, "cpu")
# The PTX and SASS lists of release wheels; a row that needs others says so.
CU121 = "sm_70 sm_75 sm_80 sm_86 sm_89 sm_90 compute_90"
CU130 = "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 compute_90"


@dataclass(frozen=True)
class Gpus:
    """One machine, one wheel, and the verdict for each GPU."""

    story: str
    gpu: str
    wheel: str
    verdict: tuple[str, ...]
    toolkit: str = "13.0.88"
    driver: str = "13.0"
    nvrtc: str | None = "13.0.88"
    jit: JitMode = JitMode.AUTO


GPUS = [
    # exact and same-major SASS
    Gpus("a Hopper with its own code", "9.0", CU130, ("use sm_90",)),
    Gpus("an RTX 3090 prefers 8.6 to 8.0", "8.6", "sm_80 sm_86", ("use sm_86",)),
    Gpus("an RTX 4090 runs the nearest 8.x", "8.9", "sm_80 sm_86 compute_80", ("use sm_86",)),
    Gpus("an A100 does not run 8.6 code", "8.0", "sm_86", ("build sm_80",)),
    Gpus("a GB10 runs sm_120", "12.1", "sm_120 compute_90", ("use sm_120",)),
    Gpus("a B300 runs sm_100", "10.3", "sm_100", ("use sm_100",)),
    Gpus("a B200 does not run sm_103", "10.0", "sm_103", ("build sm_100",)),
    Gpus("an RTX 5090 does not run the GB10's code", "12.0", "sm_121", ("build sm_120",)),
    Gpus("Blackwell does not run Hopper code", "10.0", "sm_90", ("build sm_100",)),
    Gpus("consumer Blackwell does not run sm_100", "12.0", "sm_100 sm_103", ("build sm_120",)),
    Gpus("a V100 under a CUDA 12 label", "7.0", CU121, ("use sm_70",), toolkit="12.1.105"),
    Gpus("a T4 runs sm_70", "7.5", "sm_70", ("use sm_70",), toolkit="12.1.105"),
    # suffixes
    Gpus("sm_120a is not for 12.1", "12.1", "sm_120a compute_120a", ("build sm_121",)),
    Gpus("sm_120f is for its family", "12.1", "sm_120f", ("use sm_120f",)),
    Gpus("sm_100f is for 10.3 too", "10.3", "sm_100f", ("use sm_100f",)),
    Gpus("sm_100f is not for 12.0", "12.0", "sm_100f compute_100f", ("build sm_120",)),
    Gpus("sm_90a is for 9.0, and better than sm_90", "9.0", "sm_90 sm_90a", ("use sm_90a",)),
    Gpus("neither sm_90a nor its PTX is for 10.0", "10.0", "sm_90a compute_90a", ("build sm_100",)),
    # Tegra
    Gpus(
        "Orin runs neither sm_80 nor sm_86", "8.7", "sm_80 sm_86", ("build sm_87",), nvrtc="12.6.85", toolkit="12.6.85"
    ),
    Gpus("Orin runs sm_87", "8.7", "sm_80 sm_87", ("use sm_87",)),
    Gpus("Orin runs PTX", "8.7", "sm_80 sm_86 compute_80", ("use compute_80",)),
    Gpus("an RTX 4090 does not run Orin's code", "8.9", "sm_87", ("build sm_89",)),
    Gpus("Xavier does not run sm_70", "7.2", "sm_70", ("build sm_72",), nvrtc="12.6.85", toolkit="12.6.85"),
    Gpus("Thor runs its own code only", "11.0", "sm_100 sm_103", ("build sm_110",)),
    Gpus(
        "Thor under its first number", "10.1", "sm_100 sm_100f", ("build sm_101",), nvrtc="12.8.93", toolkit="12.8.93"
    ),
    # PTX
    Gpus("PTX carries a wheel to a newer GPU", "12.0", CU121, ("use compute_90",), toolkit="12.1.105"),
    Gpus("the newest PTX wins", "12.0", "compute_80 compute_90", ("use compute_90",)),
    Gpus("PTX is not for older GPUs", "8.0", "compute_90", ("build sm_80",)),
    Gpus("SASS wins over newer PTX", "8.9", "sm_80 compute_89", ("use sm_80",)),
    # drivers
    Gpus("a 12.2 driver takes 12.6 SASS", "8.0", "sm_80", ("use sm_80",), toolkit="12.6.85", driver="12.2"),
    Gpus("a 12.2 driver refuses 12.6 PTX", "9.0", "compute_90", ("refuse driver no-nvrtc",), "12.6.85", "12.2", None),
    Gpus("NVRTC 12.6 makes SASS for it", "9.0", "compute_90", ("build sm_90",), "12.6.85", "12.2", "12.6.85"),
    Gpus("a 12.6 driver takes 12.6 PTX", "9.0", "compute_90", ("use compute_90",), toolkit="12.6.85", driver="12.6"),
    Gpus("a 12.x driver under 13.0, with NVRTC 12", "9.0", "sm_90", ("build sm_90",), driver="12.8", nvrtc="12.8.93"),
    Gpus("a 12.x driver under 13.0 alone", "9.0", "sm_90 compute_90", ("refuse driver driver driver",), driver="12.8"),
    Gpus("a 13.0 driver takes 12.1 SASS and PTX", "9.0", "sm_90", ("use sm_90",), toolkit="12.1.105"),
    # what NVRTC can build
    Gpus("NVRTC 12.1 meets a Blackwell", "12.0", "", ("build compute_90",), toolkit="12.1.105", nvrtc="12.1.105"),
    Gpus("NVRTC 12.8 meets a GB10", "12.1", "", ("build compute_120",), toolkit="12.8.93", nvrtc="12.8.93"),
    Gpus("NVRTC 12.9 knows the GB10", "12.1", "", ("build sm_121",), nvrtc="12.9.86", driver="12.9"),
    Gpus(
        "a driver too old for NVRTC's PTX runs its SASS", "12.1", "", ("build sm_120",), nvrtc="12.8.93", driver="12.5"
    ),
    Gpus("no NVRTC", "12.0", "sm_90", ("refuse arch no-nvrtc",), nvrtc=None),
    # refused GPUs
    Gpus("a V100 under +cu130", "7.0", "sm_75 sm_90 compute_90", ("refuse arch arch arch nvrtc-arch",)),
    Gpus("a V100 under +cu130 with NVRTC 12", "7.0", "sm_75", ("build sm_70",), nvrtc="12.6.85"),
    Gpus("a GTX 1080, which nothing is written for", "6.1", "sm_75", ("refuse arch",), nvrtc="12.6.85"),
    Gpus("Hopper beside Volta", "9.0 7.0", "sm_90", ("use sm_90", "refuse arch nvrtc-arch")),
    Gpus("Volta beside Hopper", "7.0 9.0", "sm_90", ("refuse arch nvrtc-arch", "use sm_90")),
    Gpus("Hopper beside GB10, one prebuilt and one built", "9.0 12.1", "sm_90", ("use sm_90", "build sm_121")),
    Gpus("two alike", "9.0 9.0", "sm_90", ("use sm_90", "use sm_90")),
    # modes
    Gpus("aot never builds", "12.0", "sm_90", ("refuse arch aot-only",), jit=JitMode.AOT),
    Gpus("aot uses PTX", "12.0", "sm_90 compute_90", ("use compute_90",), jit=JitMode.AOT),
    Gpus("jit builds though a file fits", "9.0", "sm_90", ("build sm_90",), jit=JitMode.JIT),
]


@pytest.mark.parametrize("row", GPUS, ids=lambda row: row.story)
def test_gpus(row: Gpus) -> None:
    machine = ex.host(gpu=row.gpu, driver=row.driver, build_with=ex.builders(row.nvrtc))
    info = ex.build_info(row.wheel, nvrtc_version=row.toolkit)
    decision = decide(machine, info, Settings(jit=row.jit), CUDA)
    verdicts = {f"cuda:{gpu.index}": "" for gpu in machine.gpus}
    if isinstance(decision, Refuse):
        for piece in verdicts:
            verdicts[piece] = refusal(r for r in decision.rejections if r.piece == piece)
    else:
        for index, image in decision.images:
            verdicts[f"cuda:{index}"] = f"{'build' if isinstance(image, BuildImage) else 'use'} {image.target}"
        for index, rejections in decision.refused:
            verdicts[f"cuda:{index}"] = refusal(rejections)
    assert tuple(verdicts.values()) == row.verdict


def refusal(rejections: object) -> str:
    found = [r for r in rejections if isinstance(r, Rejection)]  # type: ignore[attr-defined]
    return " ".join(["refuse", *(r.reason.value for r in found)])


@dataclass(frozen=True)
class Torch:
    """One torch and the host files of a wheel: which library, and what binds it to this torch."""

    story: str
    torch: str
    wheel: str
    verdict: str
    cxx11: bool = True
    git: str | None = None
    bad: str = ""  # what is wrong with torch's own functions, as the library found when it was opened


NGC = "b4e4ee81d3" + "0" * 30
OTHER = "6ddf5cf85e" + "0" * 30
LIBRARY = "torch-table-1"
OWN = f"use {LIBRARY}, torch itself"

TORCHES = [
    Torch("the floor itself", "2.10.0+cu128", LIBRARY, OWN),
    Torch("far above the floor", "2.15.0+cpu", LIBRARY, OWN),
    Torch("a patch release", "2.13.1", LIBRARY, OWN),
    Torch("a torch that came out after us", "3.1.0", LIBRARY, OWN),
    Torch("2.9 without an adapter", "2.9.1", LIBRARY, f"use {LIBRARY}, build torch-2.9-cxx1-git{OTHER}", git=OTHER),
    Torch("a 2.9 that does not know its commit", "2.9.1", LIBRARY, "refuse torch-abi"),
    Torch("older than any adapter", "2.3.1", LIBRARY, "refuse classic-jit", git=OTHER),
    Torch("2.9 with its adapter", "2.9.1", f"{LIBRARY} torch-2.9-cxx1", f"use {LIBRARY}, use torch-2.9-cxx1"),
    Torch("an adapter without a library", "2.9.1", "torch-2.9-cxx1", "build any torch, use torch-2.9-cxx1"),
    Torch("an adapter that torch does not need", "2.10.0", f"{LIBRARY} torch-2.10-cxx1", OWN),
    Torch(
        "an adapter to the next minor",
        "2.8.0",
        f"{LIBRARY} torch-2.9-cxx1",
        f"use {LIBRARY}, build torch-2.8-cxx1-git{OTHER}",
        git=OTHER,
    ),
    *(
        Torch(
            f"2.6 with C++ ABI {int(cxx11)}",
            "2.6.0",
            f"{LIBRARY} torch-2.6-cxx0 torch-2.6-cxx1",
            f"use {LIBRARY}, use torch-2.6-cxx{int(cxx11)}",
            cxx11=cxx11,
        )
        for cxx11 in (False, True)
    ),
    Torch(
        "2.6 with the other C++ ABI",
        "2.6.0",
        f"{LIBRARY} torch-2.6-cxx0",
        f"use {LIBRARY}, build torch-2.6-cxx1-git{OTHER}",
        git=OTHER,
    ),
    Torch(
        "conda-forge's post releases",
        "2.4.1.post303",
        f"{LIBRARY} torch-2.4-cxx1",
        f"use {LIBRARY}, use torch-2.4-cxx1",
    ),
    Torch(
        "NVIDIA's container has the functions, and must prove them",
        "2.10.0a0+b4e4ee81d3.nv25.12",
        LIBRARY,
        f"{OWN} if it proves them",
        git=NGC,
    ),
    Torch(
        "NVIDIA's container lacks a function",
        "2.10.0a0+b4e4ee81d3.nv25.12",
        LIBRARY,
        f"use {LIBRARY}, build torch-2.10-cxx1-git{NGC}",
        git=NGC,
        bad="libtorch_cpu.so lacks torch_list_size",
    ),
    Torch(
        "NVIDIA's container with the adapter built inside it",
        "2.10.0a0+b4e4ee81d3.nv25.12",
        f"{LIBRARY} torch-2.10-cxx1-git{NGC}",
        f"use {LIBRARY}, use torch-2.10-cxx1-git{NGC}",
        git=NGC,
        bad="libtorch_cpu.so lacks torch_list_size",
    ),
    Torch(
        "a pre-release that lacks a function and cannot be told from another",
        "2.10.0a0+b4e4ee81d3.nv25.12",
        LIBRARY,
        "refuse torch-abi torch-abi",
        git="Unknown",
        bad="libtorch_cpu.so lacks torch_list_size",
    ),
    Torch(
        "NVIDIA's container is not its minor",
        "2.9.0a0+50eac811a6.nv25.09",
        f"{LIBRARY} torch-2.9-cxx1",
        f"use {LIBRARY}, build torch-2.9-cxx1-git{OTHER}",
        git=OTHER,
    ),
    Torch("a nightly", "2.16.0.dev20261101+cu132", LIBRARY, f"{OWN} if it proves them"),
    Torch("a candidate", "2.10.0rc1", LIBRARY, f"{OWN} if it proves them"),
    Torch("a wheel without host files", "2.13.0", "", "build any torch, torch itself"),
    Torch("another maker's library on the stable ABI", "2.10.0", "torch-stable-2.10", "use torch-stable-2.10"),
]


@pytest.mark.parametrize("row", TORCHES, ids=lambda row: row.story)
def test_library_and_binding(row: Torch) -> None:
    torch = ex.torch_info(row.torch, cxx11=row.cxx11, git=row.git)
    info = ex.build_info("", label="cpu", host_files=tuple(ex.host_file(abi) for abi in row.wheel.split()))
    bad = {OWN_FUNCTIONS: damaged(row.bad)} if row.bad else {}
    host = ex.host(torch=torch, gpu="", driver=None, build_with=ex.builders(None))
    decision = decide(host, info, Settings(), CPU, bad)
    if isinstance(decision, Refuse):
        whys = [why for why in decision.rejections if why.candidate in (JIT_CANDIDATE, OWN_FUNCTIONS)]
        assert refusal(whys) == row.verdict
        return
    library = "build any torch" if isinstance(decision.host, BuildHost) else f"use {decision.host.abi}"
    assert ", ".join([library, *bound(decision.binding)]) == row.verdict


def bound(binding: Binding) -> list[str]:
    if isinstance(binding, OwnFunctions):
        return ["torch itself if it proves them" if binding.prove else "torch itself"]
    return [] if binding is None else [f"{'build' if isinstance(binding, BuildAdapter) else 'use'} {binding.abi}"]


V100_FILES = "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 compute_90"


@pytest.mark.parametrize("driver", ["13.0", "12.4"])
@pytest.mark.parametrize("jit", [JitMode.AUTO, JitMode.AOT])
def test_a_v100_under_cu130_is_sent_to_the_label_that_serves_it(driver: str, jit: JitMode) -> None:
    machine = ex.host(gpu="7.0", driver=driver, build_with=ex.builders("13.0.88"))
    decision = decide(machine, ex.build_info(V100_FILES), Settings(jit=jit), CUDA)
    assert isinstance(decision, Refuse)
    about_files = [r for r in decision.rejections if r.reason is Reason.ARCH]
    assert len(about_files) == len(V100_FILES.split())
    for rejection in about_files:
        assert ex.fix(rejection, machine, ex.build_info(V100_FILES)) == ex.from_index("cu129")
        assert "7.0" in rejection.found and "cu130 serves 7.5 and newer" in rejection.found


def test_a_gpu_that_no_label_serves_is_sent_nowhere() -> None:
    machine = ex.host(gpu="6.1", build_with=ex.builders())
    decision = decide(machine, ex.build_info(), Settings(), CUDA)
    assert isinstance(decision, Refuse)
    assert {ex.fix(r, machine, ex.build_info()) for r in decision.rejections} == {""}


def test_a_12_driver_under_cu130_is_sent_to_a_label_of_cuda_12() -> None:
    machine = ex.host(driver="12.4", build_with=ex.builders())
    decision = decide(machine, ex.build_info(), Settings(), CUDA)
    assert isinstance(decision, Refuse)
    drivers = [r for r in decision.rejections if r.reason is Reason.DRIVER]
    offered = {ex.fix(r, machine, ex.build_info()) for r in drivers if r.candidate != "jit"}
    assert offered == {ex.from_index("cu129")}
    assert all("CUDA 12.4" in r.found and "13.0" in r.needed for r in drivers)


@dataclass(frozen=True)
class Whole:
    """A machine on which nothing at all can be served, and the reasons."""

    story: str
    host: Host
    reasons: str
    need: Need = CUDA
    jit: JitMode = JitMode.AUTO


WHOLE = [
    Whole("Windows", ex.host(system="Windows", torch=None, driver=None, gpu=""), "system"),
    Whole("macOS", ex.host(system="Darwin", machine="arm64", torch=None, driver=None, gpu=""), "system", CPU),
    Whole("no torch", ex.host(torch=None), "torch-missing", CPU),
    Whole("a broken torch", ex.host(torch=None, torch_error="libc10.so: cannot open"), "torch-missing"),
    Whole("ROCm calls itself CUDA", ex.host(torch=ex.torch_info("2.13.0+rocm7.0", cuda=None, hip="7.0")), "hip"),
    Whole("ROCm with a CUDA version", ex.host(torch=ex.torch_info("2.13.0", cuda="13.0", hip="7.0")), "hip"),
    Whole("a CPU build of torch beside a GPU", ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None)), "torch-cpu"),
    Whole("a CUDA torch without a driver", ex.host(driver=None, gpu=""), "driver"),
    Whole("a driver without a GPU", ex.host(gpu=""), "no-gpu"),
    Whole("none", ex.host(), "jit-off", CUDA, JitMode.NONE),
    Whole("off and no torch", ex.host(torch=None), "jit-off torch-missing", CPU, JitMode.NONE),
]


@pytest.mark.parametrize("row", WHOLE, ids=lambda row: row.story)
def test_nothing_can_be_served(row: Whole) -> None:
    decision = decide(row.host, ex.build_info(), Settings(jit=row.jit), row.need)
    assert isinstance(decision, Refuse)
    assert " ".join(r.reason.value for r in decision.rejections) == row.reasons
    assert not needs_builders(decision)


def test_rocm_still_has_its_cpu_kernels() -> None:
    torch = ex.torch_info("2.13.0+rocm7.0", cuda=None, hip="7.0")
    decision = decide(ex.host(torch=torch), ex.build_info(), Settings(), CPU)
    assert not isinstance(decision, Refuse)
    assert all_rejections(decision) == ()
