"""Every device source compiles for every target of the labels, without a spill and within its register budget."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import catalogue, device, elf, flags, nvrtc, nvrtc_child, sources
from precast._builder.cache import Cache, default_root
from precast._builder.entry import LOG_NAME
from precast.core.capability import GpuTarget, TargetKind
from precast.core.host import Nvrtc
from tests.kit.fetched import LABELS
from tests.unit.csrc.entry_points import CSRC, EntryPoint, entry_points, list_name, read_list

WITH_DEVICE = [family for family in catalogue.FAMILIES if family.device is not None]
IDS = [family.name for family in WITH_DEVICE]

# An SM with room for 1024 or 1536 threads has more registers for each, and there the compiler may use them.
FEWER_THREADS = {75, 86, 87, 89, 110, 120, 121}
# What NVRTC 12.8 and 12.9 say of every program for Volta.
LAST_CALL = (
    "nvrtc: warning: architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release"
)

# The oldest compiler for the oldest GPU, and the current one for the GPU that the kernels are tuned for.
QUICK = {("cu121", "sm_70"), ("cu130", "sm_90")}
# One target of each kind of register budget; the others are left to the long tests of a machine with more cores.
KINDS = {"sm_80", "sm_100", "sm_120"}
LATER = (pytest.mark.long, pytest.mark.targets)


def newest(target: GpuTarget) -> str:
    """The newest label with a target. The audit of every label's wheel refuses spills with the others."""
    return [label for label, spec in LABELS.items() if target in spec.targets][-1]


def marks_of(label: str, target: str) -> tuple[pytest.MarkDecorator, ...]:
    """When a compile is part of a run."""
    if (label, target) in QUICK:
        return ()
    return (pytest.mark.long,) if target in KINDS else LATER


COMPILES = [
    pytest.param(
        *(family, label, target),
        id=f"{family.name}-{label}-{target}",
        marks=marks_of(label, str(target)),
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


def over_budget(points: Sequence[EntryPoint], used: Mapping[str, Usage], target: GpuTarget) -> list[str]:
    """What an image takes beyond the list of its entry points: memory for a spill, or more registers."""
    least = 64 if target.capability.number in FEWER_THREADS else 0
    allowed = {point.name: max(point.budget(target.capability.major), least) for point in points}
    return [
        f"{name}: {usage}, allowed {allowed[name]} registers"
        for name, usage in used.items()
        if usage.stack_bytes or usage.spill_bytes or usage.registers > allowed[name]
    ]


def usage_in(image: bytes) -> dict[str, Usage]:
    """The same of a cubin, where spilled registers are part of a stack."""
    frames, registers = elf.read_frames(image), elf.read_frames(image, elf.REGISTERS)
    return {name: Usage(count, frames[name], 0) for name, count in registers.items()}


Opener = Callable[[str], nvrtc.Compiler]


@pytest.fixture(scope="session")
def opened(label_nvrtc: Callable[[str], Nvrtc]) -> Opener:
    """A label's own NVRTC, opened once."""
    return functools.cache(lambda label: nvrtc_child.open_nvrtc(label_nvrtc(label)))


Asked = tuple[catalogue.Family, str, GpuTarget]
Compiled = tuple[bytes, str]  # an image, and what NVRTC said


@pytest.fixture(scope="module")
def compiled(
    label_nvrtc: Callable[[str], Nvrtc], request: pytest.FixtureRequest
) -> Iterator[Callable[[Asked], Compiled]]:
    """The images that the tests of this run ask for, built on all processors at once, in the cache of the user.

    Those of the wheels are the same, and are compiled once.
    """
    cache = Cache(default_root(Settings.from_env(os.environ)))

    def compiled_for(family: catalogue.Family, label: str, target: GpuTarget) -> Compiled:
        (image,) = device.build_images(family, [target], label_nvrtc(label), cache=cache, debug=False, jobs=1)
        return image.path.read_bytes(), image.path.with_name(LOG_NAME).read_text()

    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = [tuple(test.callspec.params.values()) for test in tests if test.originalname == "test_nvrtc"]
    for label in {label for _, label, _ in asked}:
        label_nvrtc(label)  # by one thread
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures: dict[Asked, Future[Compiled]] = {one: pool.submit(compiled_for, *one) for one in asked}
        yield lambda one: futures[one].result()
        pool.shutdown(cancel_futures=True)  # those of tests that no longer run


@pytest.mark.wheel
@pytest.mark.parametrize(("family", "label", "target"), COMPILES)
def test_nvrtc(compiled: Callable[[Asked], Compiled], family: catalogue.Family, label: str, target: GpuTarget) -> None:
    image, log = compiled((family, label, target))
    assert "warning" not in log.lower().replace(LAST_CALL, "" if target.capability.number < 75 else LAST_CALL)
    points = entry_points(family)
    wanted = {point.name for point in points}
    if target.kind is TargetKind.PTX:
        assert set(re.findall(rb"\.visible \.entry (\w+)", image)) == {entry.encode() for entry in wanted}
        return
    assert elf.read_cubin(image).target.capability == target.capability
    used = usage_in(image)
    assert set(used) == wanted
    assert not over_budget(points, used, target)


@pytest.mark.wheel
@pytest.mark.parametrize("label", ["cu121", "cu128", "cu132"])
def test_stack_and_registers_of_a_kernel_are_read_from_its_cubin(opened: Opener, label: str) -> None:
    array = (
        'extern "C" __global__ void deep(int* p) { int a[64]; for (int i = 0; i < 64; ++i) a[p[i]] = i; *p = a[*p]; }'
    )
    flat = 'extern "C" __global__ void flat(int* p) { *p += 1; }'
    target = next(target for target in LABELS[label].targets if str(target) == "sm_90")
    options = (*flags.nvrtc_options(target, debug=False), "--ptxas-options=-v")
    done = opened(label).compile((array + flat).encode(), "deep.cu", {}, options, ptx=False)
    assert usage_in(done.image) == usage_of(done.log), "as ptxas says"
    assert {name: usage.stack_bytes for name, usage in usage_in(done.image).items()} == {"deep": 256, "flat": 0}


@pytest.mark.wheel
@pytest.mark.parametrize(
    "label", [label if label == "cu121" else pytest.param(label, marks=pytest.mark.long) for label in LABELS]
)
def test_machine_code_is_made_from_the_ptx_of_its_target(opened: Opener, label: str) -> None:
    """So a build takes one compile for both."""
    program = device.read_program(catalogue.get("moe_routing"))
    for target in (target for target in LABELS[label].targets if target.kind is TargetKind.PTX):
        code = replace(target, kind=TargetKind.SASS)
        ptx, sass = (
            opened(label).compile(
                program.source,
                program.name,
                program.headers,
                flags.nvrtc_options(each, debug=False),
                ptx=each is target,
            )
            for each in (target, code)
        )
        assert ptx.image == sass.ptx and elf.read_cubin(sass.image).target == code


def by_nvcc(family: catalogue.Family, folder: Path, *options: str) -> tuple[str, bytes]:
    """What the toolkit's compiler says, host pass included, and the object; it warns of nothing."""
    assert family.device is not None
    nvcc, result = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc", folder / "device.o"
    command = [nvcc, "-std=c++17", "-Werror", "all-warnings", *options, "-c", str(CSRC / family.device)]
    command += ["-o", str(result)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout, result.read_bytes()


@pytest.mark.nvcc
@pytest.mark.parametrize("family", WITH_DEVICE, ids=IDS)
def test_nvcc_takes_the_same_files(family: catalogue.Family, tmp_path: Path) -> None:
    """To PTX and without optimisations, which take most of a compiler's time."""
    quick = ("-gencode", "arch=compute_90,code=compute_90", "-Xcicc", "-O0", "-Xfatbin", "-compress=false")
    found = re.findall(rb"\.visible \.entry (\w+)", by_nvcc(family, tmp_path, *quick)[1])
    assert set(found) == {point.name.encode() for point in entry_points(family)}


@pytest.mark.nvcc
@pytest.mark.parametrize("target", ["90", pytest.param("75", marks=LATER)])
@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f.name == "rms_norm" else LATER) for f in WITH_DEVICE], ids=IDS
)
def test_nvcc(family: catalogue.Family, target: str, tmp_path: Path) -> None:
    """Nor does anything spill. NVRTC is the same compiler, so that one family is enough for most runs."""
    said, _ = by_nvcc(family, tmp_path, "-Xptxas", "-v", "-gencode", f"arch=compute_{target},code=sm_{target}")
    used = usage_of(said)
    assert set(used) == {point.name for point in entry_points(family)}
    assert all((usage.stack_bytes, usage.spill_bytes) == (0, 0) for usage in used.values()), used


def test_an_entry_point_stands_in_one_list() -> None:
    """Device and host code expand the list, and neither has an entry point besides."""
    for family in WITH_DEVICE:
        assert family.device is not None
        program = device.read_program(family, CSRC)
        assert program.source.count(f"\n{list_name(family)}(KERNEL)\n".encode()) == 1, family.name
        kernels = {Path(name).name for name, text in program.headers.items() if b"__global__" in text}
        assert kernels == {"device.cuh"} and b"__global__" not in program.source, family.name
        host = host_of(family)
        assert host.count(f"PRECAST_ENTRIES({list_name(family)})") == 1, family.name
        assert f'KernelFamily kernels = {{"{family.name}", kEntries, entry::kCount}};' in host


def host_of(family: catalogue.Family) -> str:
    """The host sources of a family, with the headers of its folder."""
    names = sources.Tree({"csrc": CSRC}).reachable(f"csrc/{name}" for name in family.host)
    folder = f"csrc/{Path(family.host[0]).parent}/"
    return "".join(file.data.decode() for file in names if file.name.startswith(folder))


LIST = """
#define SOME_KERNELS(KERNEL)                                   \\
  KERNEL(some_f32, SomeArgs, 512, 1024, 64, 0, some<Float32, 2>) \\
  KERNEL(some_any, SomeArgs, 128, RESIDENT, BY_MAJOR(80, 10, 128), kSome, some_any)

#define OTHER_KERNELS(KERNEL) KERNEL(other, OtherArgs, 64, 64, 32, 0, other)
"""

EACH = """
#define A_OF(f, T, NARROW, KERNEL)                                    \\
  KERNEL(a_##f, AArgs, 512, 1024, PRECAST_PICK_##f(80, 96), 0, a<T>) \\
  NARROW(KERNEL(b_##f, AArgs, 512, 1024, 64, 0, b<T, 2>))

#define EACH_KERNELS(KERNEL) PRECAST_DTYPES(A_OF, KERNEL) KERNEL(c, CArgs, 64, 64, 32, 0, c)
"""


def test_the_list_says_what_an_image_may_take() -> None:
    points = read_list(LIST, "SOME_KERNELS")
    assert points == (EntryPoint("some_f32", 64), EntryPoint("some_any", 80, (10, 128)))
    used = {"some_f32": Usage(64, 0, 0), "some_any": Usage(96, 0, 0)}
    (refused,) = over_budget(points, used, GpuTarget.parse("sm_90"))
    assert refused.startswith("some_any: Usage(registers=96,") and refused.endswith("allowed 80 registers")
    assert not any(over_budget(points, used, GpuTarget.parse(target)) for target in ("sm_100", "sm_120"))
    other = read_list(LIST, "OTHER_KERNELS")
    for target, usage, fits in (
        ("sm_90", Usage(32, 0, 0), True),
        ("sm_90", Usage(64, 0, 0), False),
        ("sm_89", Usage(64, 0, 0), True),  # which has room for fewer threads
        ("sm_90", Usage(32, 8, 0), False),
        ("sm_90", Usage(32, 0, 8), False),
    ):
        assert (not over_budget(other, {"other": usage}, GpuTarget.parse(target))) is fits, (target, usage)
    each = read_list(EACH, "EACH_KERNELS")
    assert each == tuple(
        EntryPoint(name, registers)
        for name, registers in (("a_f32", 80), ("a_f16", 96), ("b_f16", 64), ("a_bf16", 96), ("b_bf16", 64), ("c", 32))
    )
    with pytest.raises(ValueError, match="other columns"):
        read_list(LIST.replace("64, 0, some<", "64, some<"), "SOME_KERNELS")
    with pytest.raises(ValueError, match="twice"):
        read_list(LIST.replace("some_any,", "some_f32,", 1), "SOME_KERNELS")


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
