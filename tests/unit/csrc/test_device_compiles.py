"""Every device source compiles for every target of the labels, without a spill and within its register budget."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from precast._abi.capability import GpuTarget, TargetKind
from precast._abi.host import Nvrtc
from precast._builder import catalogue, device, elf, flags, nvrtc, nvrtc_child
from tests.fetched import LABELS

CSRC = Path(__file__).parents[3] / "csrc"
WITH_DEVICE = [family for family in catalogue.FAMILIES if family.device is not None]
IDS = [family.name for family in WITH_DEVICE]

# The registers that leave room for as many threads as the bandwidth needs (65536 / threads on a multiprocessor). An SM
# with room for 1024 or 1536 threads only has more for each, and there the compiler may use them.
BUDGETS = {"add_rms_norm_v1": 32, "rms_norm_v4": 48, "rms_norm_any": 64}
BUDGETS |= {"rms_norm_backward_v2": 96, "rms_norm_backward_v4": 128, "rms_norm_backward_any": 128}
BUDGETS |= {"rms_norm_backward_v2_pair": 96, "rms_norm_backward_columns": 32}
BUDGETS |= {"silu_and_mul": 32, "gelu_and_mul": 40, "gelu_tanh_and_mul": 32, "gated_activation_any": 64}
BUDGETS |= {"silu_backward": 40, "gelu_backward": 48, "gelu_tanh_backward": 40, "gated_backward_any": 64}
BUDGETS |= {"gated_activation_others": 40, "gated_backward_others": 48}
BUDGETS |= {"softmax_v4": 64, "softmax_v8": 128, "softmax_causal_v4": 64, "softmax_causal_v8": 128}
BUDGETS |= {"softmax_any": 64}
BUDGETS |= {"softmax_backward_v4": 64, "softmax_backward_any": 64}
BUDGETS |= {"rms_norm_shifted": 64, "layer_norm_shifted": 80, "softmax_shifted": 96, "softmax_backward_shifted": 128}
BUDGETS |= {"gated_activation_shifted": 64, "rms_norm_backward_v1": 64, "layer_norm_backward_v1": 96}
# A block of 1024 threads, or two of 512, of rows that a cluster shares.
BUDGETS |= {"softmax_wide": 64, "softmax_backward_wide": 64, "rms_norm_wide": 64, "layer_norm_wide": 64}
BUDGETS |= {"rms_norm_backward_wide": 128, "layer_norm_backward_wide": 128}
BUDGETS |= {"rotary": 64, "rotary_8": 40, "rotary_4": 40, "rotary_any": 40}
BUDGETS |= {"layer_norm_v4": 64, "layer_norm_any": 64}
BUDGETS |= {"layer_norm_backward_v2": 96, "layer_norm_backward_v4": 128, "layer_norm_backward_any": 64}
BUDGETS |= {"layer_norm_backward_v2_pair": 96, "layer_norm_backward_columns": 32}
BUDGETS |= {
    "multi_tensor_adam": 64,
    "multi_tensor_others": 64,
    "multi_tensor_adam_masters": 64,
    "multi_tensor_update": 96,
    "multi_tensor_lamb": 96,
    "multi_tensor_axpby": 48,
}
BUDGETS |= {"multi_tensor_prepare": 128, "multi_tensor_norm_parts": 48}
BUDGETS |= {"multi_tensor_sum_each": 64, "multi_tensor_sum_total": 64}
BUDGETS |= {"reshape_and_cache": 64, "rotary_and_cache": 64, "rotary_and_cache_any": 64}
BUDGETS |= {"moe_gate": 64, "moe_gate_backward": 64, "moe_sort_count": 64, "moe_sort_scan": 64, "moe_sort_place": 64}
BUDGETS |= {"moe_permute_few": 64, "moe_combine_few": 128}
BUDGETS |= {"moe_permute": 64, "moe_zero": 64, "moe_repeat": 64, "moe_combine": 48, "moe_combine_any": 64}
BUDGETS |= {"moe_combine_backward": 64, "moe_combine_backward_any": 64}
BUDGETS |= {"bias_act": 64, "bias_act_any": 64, "bias_act_any_f64": 64}
BUDGETS |= {"bias_act_backward": 64, "bias_act_backward_any": 64, "bias_act_backward_any_f64": 64}
BUDGETS |= {"bias_act_sums": 32, "bias_act_sums_f64": 64}
BUDGETS |= {"upfirdn2d": 80, "upfirdn2d_up": 80, "upfirdn2d_down": 80}
BUDGETS |= {"upfirdn2d_general": 64, "upfirdn2d_general_f64": 64}
# Registers do not limit these: their stages fill the shared memory of a multiprocessor first.
BUDGETS |= {
    "decode_64": 168,
    "decode_128": 168,
    "decode_256": 255,
    "decode_narrow": 168,
    "decode_any": 168,
    "merge_parts": 64,
}
FEWER_THREADS = {75, 86, 87, 89, 110, 120, 121}
# What NVRTC 12.8 and 12.9 say of every program for Volta.
LAST_CALL = (
    "nvrtc: warning: architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release"
)

# The oldest compiler for the oldest GPU, and the current one for the GPU that the kernels are tuned for.
QUICK = {("cu121", "sm_70"), ("cu130", "sm_90")}


def newest(target: GpuTarget) -> str:
    """The newest label with a target. The audit of every label's wheel refuses spills with the others."""
    return [label for label, spec in LABELS.items() if target in spec.targets][-1]


COMPILES = [
    pytest.param(
        *(family, label, target),
        id=f"{family.name}-{label}-{target}",
        marks=() if (label, str(target)) in QUICK else pytest.mark.long,
    )
    for family in WITH_DEVICE
    for label, spec in LABELS.items()
    for target in spec.targets
    if label == newest(target) or (label, str(target)) in QUICK
]


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one entry point."""

    registers: int
    stack_bytes: int
    spill_bytes: int


def usage_of(log: str) -> dict[str, Usage]:
    """Reads the report of ``ptxas -v``."""
    pattern = re.compile(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        re.DOTALL,
    )
    return {
        name: Usage(int(registers), int(stack), int(stores) + int(loads))
        for name, stack, stores, loads, registers in pattern.findall(log)
    }


def entry_points(family: catalogue.Family) -> set[str]:
    assert family.device is not None
    return set(re.findall(r"^KERNEL\((\w+)", (CSRC / family.device).read_text(), re.MULTILINE))


def budget(entry: str, target: GpuTarget) -> int:
    name = re.sub(r"_(f32|f16|bf16)", "", entry)
    if name in ("decode_128", "decode_narrow") and target.capability.number >= 120:
        return 255
    if name in ("upfirdn2d", "upfirdn2d_up", "upfirdn2d_down") and target.capability.major == 10:
        return 128
    allowed = BUDGETS[name]
    return max(allowed, 64) if target.capability.number in FEWER_THREADS else allowed


Opener = Callable[[str], nvrtc.Compiler]


@pytest.fixture(scope="session")
def opened(label_nvrtc: Callable[[str], Nvrtc]) -> Opener:
    """A label's own NVRTC, opened once."""
    return functools.cache(lambda label: nvrtc_child.open_nvrtc(label_nvrtc(label)))


Asked = tuple[catalogue.Family, str, GpuTarget]


@pytest.fixture(scope="module")
def compiled(opened: Opener, request: pytest.FixtureRequest) -> Iterator[Callable[[Asked], nvrtc.Compiled]]:
    """What NVRTC makes of each program that a test of this run asks for, compiled on all processors at once."""

    def compiled_for(family: catalogue.Family, label: str, target: GpuTarget) -> nvrtc.Compiled:
        program = device.read_program(family, CSRC)
        ptx = target.kind is TargetKind.PTX
        options = [*flags.nvrtc_options(target, debug=False), *(() if ptx else ("--ptxas-options=-v",))]
        return opened(label).compile(program.source, program.name, program.headers, options, ptx=ptx)

    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = [tuple(test.callspec.params.values()) for test in tests if test.originalname == "test_nvrtc"]
    for label in {label for _, label, _ in asked}:
        opened(label)  # by one thread
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures: dict[Asked, Future[nvrtc.Compiled]] = {one: pool.submit(compiled_for, *one) for one in asked}
        yield lambda one: futures[one].result()
        pool.shutdown(cancel_futures=True)  # those of tests that no longer run


@pytest.mark.wheel
@pytest.mark.parametrize(("family", "label", "target"), COMPILES)
def test_nvrtc(
    compiled: Callable[[Asked], nvrtc.Compiled], family: catalogue.Family, label: str, target: GpuTarget
) -> None:
    done, ptx = compiled((family, label, target)), target.kind is TargetKind.PTX
    assert done.error is None, done.log
    assert "warning" not in done.log.lower().replace(LAST_CALL, "" if target.capability.number < 75 else LAST_CALL)
    wanted = entry_points(family)
    if ptx:
        assert set(re.findall(rb"\.visible \.entry (\w+)", done.image)) == {entry.encode() for entry in wanted}
        return
    assert elf.read_cubin(done.image).target.capability == target.capability
    used = usage_of(done.log)
    assert set(used) == wanted
    frames = elf.read_frames(done.image)
    assert {entry: frames[entry] for entry in wanted} == {entry: usage.stack_bytes for entry, usage in used.items()}
    for entry, usage in used.items():
        assert (usage.stack_bytes, usage.spill_bytes) == (0, 0), entry
        assert usage.registers <= budget(entry, target), (entry, usage)


@pytest.mark.wheel
@pytest.mark.parametrize("label", ["cu121", "cu128", "cu132"])
def test_the_stack_of_a_kernel_is_read_from_its_cubin(opened: Opener, label: str) -> None:
    array = (
        'extern "C" __global__ void deep(int* p) { int a[64]; for (int i = 0; i < 64; ++i) a[p[i]] = i; *p = a[*p]; }'
    )
    flat = 'extern "C" __global__ void flat(int* p) { *p += 1; }'
    target = next(target for target in LABELS[label].targets if str(target) == "sm_90")
    options = flags.nvrtc_options(target, debug=False)
    done = opened(label).compile((array + flat).encode(), "deep.cu", {}, options, ptx=False)
    assert elf.read_frames(done.image) == {"deep": 256, "flat": 0}


@pytest.mark.nvcc
@pytest.mark.parametrize("family", WITH_DEVICE, ids=IDS)
def test_nvcc(family: catalogue.Family, tmp_path: Path) -> None:
    """The toolkit's compiler takes the same files, host pass included, and warns of nothing."""
    assert family.device is not None
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    command = [nvcc, "-std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v", "-gencode", "arch=compute_90,code=sm_90"]
    command += [
        "-gencode",
        "arch=compute_75,code=sm_75",
        "-c",
        str(CSRC / family.device),
        "-o",
        str(tmp_path / "device.o"),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    used = usage_of(done.stdout)
    assert set(used) == entry_points(family)
    assert all((usage.stack_bytes, usage.spill_bytes) == (0, 0) for usage in used.values()), used


def test_the_host_lists_the_entry_points_of_the_device_code() -> None:
    """launch() finds kernels by name: a name that one side lacks would fail at the first use on a GPU only."""
    for family in WITH_DEVICE:
        texts = [(CSRC / host).read_text() for host in family.host]
        (behind,) = (text.partition("kEntries[] = {")[2] for text in texts if "kEntries[] = {" in text)
        table = behind.partition("};")[0]
        assert set(re.findall(r'"(\w+)"', table)) == entry_points(family), family.name


@pytest.mark.parametrize("family", WITH_DEVICE, ids=IDS)
def test_device_code_includes_nothing_of_others(family: catalogue.Family) -> None:
    program = device.read_program(family, CSRC)
    assert all(name.startswith("csrc/") for name in program.digests)


def test_a_spill_is_seen() -> None:
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\nptxas info    : Function properties for a\n"
        "    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\nptxas info    : Used 40 registers, x\n"
    )
    assert usage_of(log) == {"a": Usage(40, 8, 12)}
