"""Every reason shown refusing, every preference shown choosing; the truth table holds the facts about GPUs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from precast._abi.decide import decide
from precast._abi.decision import (
    BuildHost,
    BuildImage,
    BuildJit,
    Decision,
    OwnFunctions,
    Refuse,
    UsePrebuilt,
    all_rejections,
    needs_builders,
)
from precast._abi.settings import JitMode, Settings
from precast._version import __version__
from precast.core import known_bad
from precast.core.capability import CompiledCode, DeviceCode
from precast.core.host import Builders, Host
from precast.core.manifest import BuildInfo, BuildMode, HostFile, HostKind
from precast.core.reasons import Need, Reason, Rejection, damaged
from precast.core.version import Release
from tests.kit import hosts as ex

CPU = Need(ex.FAMILY, "cpu")
CUDA = Need(ex.FAMILY, "cuda")
AUTO = Settings()


def only(decision: Decision, reason: Reason) -> Rejection:
    """The one rejection of that reason."""
    (found,) = [r for r in all_rejections(decision) if r.reason is reason]
    assert found.needed and found.found
    return found


def test_what_fits_is_used_and_nobody_looks_for_builders() -> None:
    decision = decide(ex.host(), ex.build_info(), AUTO, CUDA)
    assert isinstance(decision, UsePrebuilt)
    assert decision.host.path == "host/kernels-x86_64.so"
    assert [(index, file.path) for index, file in decision.images] == [(0, "device/rms_norm.sm_90.cubin.xz")]
    assert decision.refused == decision.notes == ()
    assert {r.reason for r in decision.rejections} == {Reason.ARCH}
    assert not needs_builders(decision)


def test_the_cpu_needs_no_gpu_no_driver_and_no_device_code() -> None:
    decision = decide(ex.host(driver=None, gpu="", torch=ex.torch_info(cuda=None)), ex.build_info(""), AUTO, CPU)
    assert decision == UsePrebuilt(ex.host_file(), (), binding=OwnFunctions())


def test_the_cpu_does_not_look_at_the_gpus_that_are_there() -> None:
    bound = UsePrebuilt(ex.host_file(), (), binding=OwnFunctions())
    assert decide(ex.host(gpu="6.1"), ex.build_info(), AUTO, CPU) == bound


FITTING = ex.host_file()
BAD = replace(
    FITTING,
    families=(ex.FAMILY, "causal_conv1d_cuda"),
    code=(DeviceCode.parse("sm_103:13.0"),),
    compiled=(CompiledCode.parse("sm_103:nvcc:13.0.88"),),
)
UNFIT: list[tuple[HostFile, Host, Reason, str, str]] = [
    (
        replace(FITTING, families=("cpu_adam",)),
        ex.host(),
        Reason.FAMILY,
        "the family rms_norm",
        "a library with cpu_adam",
    ),
    (replace(FITTING, families=()), ex.host(), Reason.FAMILY, "the family rms_norm", "a library with none"),
    (replace(FITTING, machine="aarch64"), ex.host(), Reason.MACHINE, "aarch64", "x86_64"),
    (replace(FITTING, python="cp311"), ex.host(), Reason.PYTHON, "cp311", "Python 3.12"),
    (replace(FITTING, cuda_major=12), ex.host(), Reason.CUDA_RUNTIME, "a torch with CUDA 12", "torch with CUDA 13.0"),
    (
        replace(FITTING, cuda_major=12),
        ex.host(torch=ex.torch_info(cuda=None)),
        Reason.CUDA_RUNTIME,
        "a torch with CUDA 12",
        "torch with CUDA none",
    ),
    (FITTING, ex.host(glibc="2.17"), Reason.GLIBC, "glibc 2.28", "2.17"),
    (FITTING, ex.host(glibc=None), Reason.GLIBC, "glibc 2.28", "another C library"),
    (FITTING, ex.host(glibcxx="3.4.9"), Reason.GLIBCXX, "a libstdc++ with GLIBCXX_3.4.22", "GLIBCXX_3.4.9"),
    (
        ex.host_file("torch-stable-2.10"),
        ex.host(torch=ex.torch_info("2.9.0", git="a" * 40)),
        Reason.TORCH_ABI,
        "torch 2.10 or newer",
        "torch 2.9.0",
    ),
    (
        BAD,
        ex.host(gpu="10.3"),
        Reason.KNOWN_BAD,
        "code by nvcc 13.3 or newer, or older than 13.0",
        known_bad.TABLE[0].against(BAD.compiled[0]).found,
    ),
]


@pytest.mark.parametrize(("file", "machine", "reason", "wanted", "found"), UNFIT, ids=lambda x: getattr(x, "value", ""))
def test_what_a_library_needs_is_checked_before_it_is_used(
    file: HostFile, machine: Host, reason: Reason, wanted: str, found: str
) -> None:
    decision = decide(machine, ex.build_info("", host_files=(file,)), replace(AUTO, jit=JitMode.AOT), CPU)
    assert isinstance(decision, Refuse)
    rejection = only(decision, reason)
    assert (rejection.piece, rejection.candidate) == ("host", file.path)
    assert (rejection.needed, rejection.found) == (wanted, found)
    assert ex.fix(only(decision, Reason.AOT_ONLY), machine) == "export PRECAST_JIT=auto"


@pytest.mark.parametrize("python", ["none", "abi3", "cp312"])
def test_python_tags_that_fit(python: str) -> None:
    info = ex.build_info("", host_files=(replace(FITTING, python=python, cuda_major=13),))
    assert isinstance(decide(ex.host(), info, AUTO, CPU), UsePrebuilt)


def test_a_library_that_cannot_be_opened_is_not_called_damaged() -> None:
    why = Rejection(
        Reason.UNOPENED, "a file system without noexec", "/x is mounted noexec", fix="mount -o remount,exec /x"
    )
    decision = decide(ex.host(), ex.build_info(""), replace(AUTO, jit=JitMode.AOT), CPU, {FITTING.path: why})
    rejection = only(decision, Reason.UNOPENED)
    assert (rejection.needed, rejection.found) == (why.needed, why.found)
    assert ex.fix(rejection, ex.host(), ex.build_info(""), bad={FITTING.path: why}) == why.fix


def test_a_damaged_library_is_not_used_and_is_built_instead() -> None:
    bad = {"host/kernels-x86_64.so": damaged("sha256 differs")}
    decision = decide(ex.host(build_with=ex.builders()), ex.build_info(), AUTO, CPU, bad)
    assert isinstance(decision, BuildJit)
    assert isinstance(decision.host, BuildHost)
    rejection = only(decision, Reason.DAMAGED)
    assert rejection.found == "sha256 differs"
    assert ex.fix(rejection, ex.host(), ex.build_info()) == ex.from_index("cu130")


def stale_host(build_with: Builders | None = None) -> Host:
    stale = Rejection(Reason.STALE, "files of precast 1.0", "those of precast 9.9.9")
    return replace(ex.host(build_with=build_with), stale=stale)


def test_stale_files_are_not_used_and_everything_is_built_instead() -> None:
    decision = decide(stale_host(ex.builders()), ex.build_info("sm_90"), AUTO, CUDA)
    assert isinstance(decision, BuildJit)
    assert isinstance(decision.host, BuildHost) and isinstance(decision.images[0][1], BuildImage)
    assert [why.piece for why in decision.rejections if why.reason is Reason.STALE] == ["host", "cuda:0"]


def test_stale_files_under_aot_are_refused_with_the_way_out() -> None:
    host, info = stale_host(), ex.build_info("sm_90")
    decision = decide(host, info, replace(AUTO, jit=JitMode.AOT), CPU)
    assert isinstance(decision, Refuse)
    assert [why.reason for why in decision.rejections] == [Reason.STALE, Reason.AOT_ONLY]
    assert ex.fix(decision.rejections[0], host, info) == ex.from_index("cu130", __version__)
    restarted = replace(host, stale=Rejection(Reason.STALE, "those of today", "those of yesterday", passing=True))
    assert ex.fix(decision.rejections[0], restarted, info) == "restart this process"


def test_a_damaged_cubin_falls_back_to_the_next_best() -> None:
    info = ex.build_info("sm_80 sm_86 sm_89 compute_80")
    machine = ex.host(gpu="8.9", build_with=ex.builders())
    bad: dict[str, Rejection] = {}
    chosen = []
    for _ in range(5):
        decision = decide(machine, info, AUTO, CUDA, bad)
        assert isinstance(decision, UsePrebuilt | BuildJit)
        target = decision.images[0][1].target
        chosen.append(f"{type(decision).__name__} {target}")
        bad[f"device/rms_norm.{target}.{'ptx' if target.kind.value == 'compute' else 'cubin'}"] = damaged("truncated")
    assert chosen == [
        *("UsePrebuilt sm_89", "UsePrebuilt sm_86", "UsePrebuilt sm_80", "UsePrebuilt compute_80"),
        "BuildJit sm_89",
    ]


def test_a_python_without_lzma_uses_no_device_file_and_every_library() -> None:
    machine = replace(ex.host(build_with=ex.builders()), lzma_error="No module named '_lzma'")
    decision = decide(machine, ex.build_info("sm_75 sm_90 compute_90"), AUTO, CUDA)
    assert isinstance(decision, BuildJit) and decision.host == FITTING
    assert [str(image.target) for _, image in decision.images] == ["sm_90"]
    named = {r.candidate: r for r in decision.rejections if r.reason is Reason.NO_LZMA}
    assert set(named) == {"device/rms_norm.sm_90.cubin", "device/rms_norm.compute_90.ptx"}, "sm_75 fits nothing here"
    for why in named.values():
        assert why.needed == "a Python that was compiled with liblzma-dev, to unpack it"
        assert why.found == "Python 3.12 without: No module named '_lzma'"
    assert isinstance(decide(machine, ex.build_info("sm_90"), AUTO, CPU), UsePrebuilt)


def test_a_machine_build_is_mended_by_building_it_again() -> None:
    info = replace(ex.build_info(label=""), mode=BuildMode.MACHINE)
    machine = ex.host(build_with=ex.builders())
    why = only(decide(machine, info, AUTO, CPU, {FITTING.path: damaged("empty")}), Reason.DAMAGED)
    assert ex.fix(why, machine, info).startswith("CUDA_EXT=1 pip install --force-reinstall")


def test_no_manifest() -> None:
    decision = decide(ex.host(build_with=ex.builders()), None, AUTO, CUDA)
    assert isinstance(decision, BuildJit)
    assert [r.reason for r in decision.rejections] == [Reason.NO_PREBUILT] * 2
    assert [r.piece for r in decision.rejections] == ["host", "cuda:0"]


def test_a_pure_wheel_says_why_it_is_one() -> None:
    pure = replace(ex.build_info("", label="", host_files=()), mode=BuildMode.PURE)
    for machine, label in ((ex.host(), "cu132"), (ex.host(gpu="7.0"), "cu129"), (ex.host(gpu="", driver=None), "cpu")):
        rejection = decide(machine, pure, AUTO, CPU).rejections[0]
        assert rejection.reason is Reason.NO_PREBUILT
        assert rejection.found == "precast was installed from source, without prebuilt kernels"
        assert ex.fix(rejection, machine, pure) == ex.from_index(label)


def test_a_wheel_without_host_libraries_says_so() -> None:
    decision = decide(ex.host(), ex.build_info(host_files=()), AUTO, CPU)
    assert only(decision, Reason.NO_PREBUILT).needed == "a host library"


def test_a_family_that_the_wheel_has_no_device_code_for() -> None:
    library = replace(FITTING, families=("softmax",))
    info = ex.build_info(host_files=(library,))
    decision = decide(ex.host(build_with=ex.builders()), info, AUTO, Need("softmax", "cuda"))
    assert isinstance(decision, BuildJit)
    assert decision.host == library
    assert only(decision, Reason.FAMILY).needed == "device code of softmax"
    assert not any("rms_norm" in r.candidate for r in decision.rejections)


def test_jit_mode_skips_what_is_prebuilt() -> None:
    decision = decide(ex.host(build_with=ex.builders()), ex.build_info(), replace(AUTO, jit=JitMode.JIT), CUDA)
    assert isinstance(decision, BuildJit)
    assert decision.host == BuildHost()
    assert [r.reason for r in decision.rejections] == [Reason.SKIPPED] * 2


def test_builders_are_asked_for_once_and_only_where_they_matter() -> None:
    unknown = ex.host(gpu="12.0")
    decision = decide(unknown, ex.build_info("sm_90"), AUTO, CUDA)
    assert isinstance(decision, Refuse) and needs_builders(decision)
    assert isinstance(decide(replace(unknown, builders=ex.builders()), ex.build_info("sm_90"), AUTO, CUDA), BuildJit)
    # One GPU is served, the other is refused until somebody looks.
    decision = decide(ex.host(gpu="9.0 12.0"), ex.build_info("sm_90"), AUTO, CUDA)
    assert isinstance(decision, UsePrebuilt) and needs_builders(decision)
    # Not in mode aot; and not for device code that no host library could launch.
    assert not needs_builders(decide(unknown, ex.build_info("sm_90"), replace(AUTO, jit=JitMode.AOT), CUDA))
    old = replace(unknown, torch=ex.torch_info("2.3.1"))
    decision = decide(old, ex.build_info("sm_90"), AUTO, CUDA)
    assert not needs_builders(decision)
    assert ex.fix(only(decision, Reason.CLASSIC_JIT), old) == 'pip install "torch>=2.10"'


@pytest.mark.parametrize(
    ("compiler", "ninja", "reasons"),
    [
        (False, True, [Reason.NO_COMPILER]),
        (True, False, [Reason.NO_NINJA]),
        (False, False, [Reason.NO_COMPILER, Reason.NO_NINJA]),
    ],
)
def test_a_missing_builder_is_named_with_where_it_was_sought(
    compiler: bool, ninja: bool, reasons: list[Reason]
) -> None:
    machine = ex.host(build_with=ex.builders(compiler=compiler, ninja=ninja))
    decision = decide(machine, ex.build_info(host_files=()), AUTO, CPU)
    assert isinstance(decision, Refuse)
    jit = [r for r in decision.rejections if r.candidate == "jit"]
    assert [r.reason for r in jit] == reasons
    places = {Reason.NO_COMPILER: "g++ on PATH: not there", Reason.NO_NINJA: "not on PATH"}
    for rejection in jit:
        assert rejection.found == f"none that works (looked at {places[rejection.reason]})"
        assert ex.fix(rejection, machine)


def test_a_missing_nvrtc_is_named_with_the_package_that_has_it() -> None:
    for cuda, package in (("13.0", '"nvidia-cuda-nvrtc==13.*"'), ("12.8", "nvidia-cuda-nvrtc-cu12")):
        machine = ex.host(gpu="12.0", torch=ex.torch_info(cuda=cuda), build_with=ex.builders(None))
        rejection = only(decide(machine, ex.build_info("sm_90"), AUTO, CUDA), Reason.NO_NVRTC)
        assert rejection.found == "none that works (looked at torch's (/site/nvidia/cu13/lib): not there)"
        assert ex.fix(rejection, machine) == f"pip install {package}"


def test_a_host_library_may_be_built_while_the_device_code_is_prebuilt_and_the_reverse() -> None:
    machine = ex.host(build_with=ex.builders())
    decision = decide(machine, ex.build_info(host_files=()), AUTO, CUDA)
    assert isinstance(decision, BuildJit)
    assert isinstance(decision.host, BuildHost)
    assert decision.images == ((0, ex.device_file("sm_90")),)
    decision = decide(machine, ex.build_info("sm_75"), AUTO, CUDA)
    assert isinstance(decision, BuildJit)
    assert decision.host == FITTING


def test_the_driver_jit_is_announced() -> None:
    decision = decide(ex.host(gpu="12.0"), ex.build_info("sm_90 compute_90"), AUTO, CUDA)
    assert isinstance(decision, UsePrebuilt)
    (note,) = decision.notes
    assert note.startswith("cuda:0 runs device/rms_norm.compute_90.ptx through the driver's compiler")


def test_an_unknown_libstdcxx_is_noted_not_refused() -> None:
    decision = decide(ex.host(glibcxx=None), ex.build_info(), AUTO, CPU)
    assert isinstance(decision, UsePrebuilt)
    assert "GLIBCXX_3.4.22" in decision.notes[0]


def test_debug_builds() -> None:
    plain = ex.host_file(path="host/plain.so")
    debug = ex.host_file(path="host/debug.so", debug=True)
    for settings, path in ((AUTO, plain.path), (replace(AUTO, debug=True), debug.path)):
        for files in ((plain, debug), (debug, plain)):
            decision = decide(ex.host(), ex.build_info(host_files=files), settings, CPU)
            assert isinstance(decision, UsePrebuilt)
            assert decision.host.path == path
    # PRECAST_DEBUG alone does not throw a good file away; the decision says what would.
    decision = decide(ex.host(), ex.build_info(), replace(AUTO, debug=True), CPU)
    assert isinstance(decision, UsePrebuilt)
    assert "PRECAST_JIT=jit" in decision.notes[0]
    machine = ex.host(build_with=ex.builders())
    decision = decide(machine, ex.build_info(), Settings(jit=JitMode.JIT, debug=True), CPU)
    assert isinstance(decision, BuildJit)
    assert decision.notes == ()


def test_the_highest_floor_and_the_commit_are_preferred() -> None:
    torch = ex.torch_info("2.13.0", git="a" * 40)
    exact = ("torch-2.13-cxx1", f"torch-2.13-cxx1-git{'a' * 40}")
    abis = ("torch-table-1", "torch-stable-2.10", "torch-stable-2.12", *exact)
    for count in range(1, 6):
        files = tuple(
            replace(ex.host_file(abi), kind=HostKind.LIBRARY, families=FITTING.families) for abi in abis[:count]
        )
        for ordered in (files, files[::-1]):
            decision = decide(ex.host(torch=torch), ex.build_info(host_files=ordered), AUTO, CPU)
            assert isinstance(decision, UsePrebuilt)
            assert str(decision.host.abi) == abis[count - 1]


def test_hidden_gpus_are_told_from_absent_ones() -> None:
    hidden = Settings(visible_devices="")
    rejection = only(decide(ex.host(gpu=""), ex.build_info(), hidden, CUDA), Reason.NO_GPU)
    assert rejection.found == "none, with CUDA_VISIBLE_DEVICES=''"
    assert ex.fix(rejection, ex.host(gpu=""), settings=hidden) == "unset CUDA_VISIBLE_DEVICES"
    assert ex.fix(only(decide(ex.host(gpu=""), ex.build_info(), AUTO, CUDA), Reason.NO_GPU), ex.host(gpu="")) == ""


@pytest.mark.parametrize(
    ("driver", "gpu", "machine", "build"),
    [
        ("13.0", "9.0", "x86_64", "cu130"),
        ("12.4", "9.0", "x86_64", "cu126"),
        ("12.8", "12.0", "x86_64", "cu129"),  # cu126 has no code for Blackwell
        ("12.8", "12.0", "aarch64", "cu128"),  # torch's newest build of CUDA 12 there that has
        ("13.0", "7.0", "x86_64", "cu126"),  # CUDA 13 has none for Volta
        ("13.0", "9.0 7.0", "x86_64", "cu126"),
        ("12.8", "99.0", "x86_64", "cu126"),  # no build is known to serve it
    ],
)
def test_a_cpu_torch_is_sent_to_one_with_cuda_for_the_driver_and_every_gpu(
    driver: str, gpu: str, machine: str, build: str
) -> None:
    host = ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None), driver=driver, gpu=gpu, machine=machine)
    assert ex.fix(only(decide(host, ex.build_info(), AUTO, CUDA), Reason.TORCH_CPU), host).endswith(f"/{build}")


def test_a_cpu_level_that_the_machine_lacks_is_refused_whatever_would_be_loaded() -> None:
    machine = replace(ex.host(build_with=ex.builders()), cpu_levels=("neon", "sve256"))
    for need in (CPU, CUDA):
        for name in ("neon", "sve", "sve256"):
            assert not isinstance(decide(machine, ex.build_info(), Settings(cpu_level=name), need), Refuse)
        why = only(decide(machine, None, Settings(cpu_level="avx2"), need), Reason.CPU_LEVEL)
        assert why.found == "CPU level 'avx2' was asked for; this machine has neon, sve256"
        assert ex.fix(why, machine) == "unset PRECAST_CPU_LEVEL"


def test_another_system_is_refused_in_one_sentence() -> None:
    machine = ex.host(system="Windows", torch=None, build_with=None)
    decision = decide(machine, None, AUTO, CUDA)
    assert decision == Refuse((Rejection(Reason.SYSTEM, "Linux", "Windows", "all", "host"),))
    assert str(decision.rejections[0]) == "host: all: system: needs Linux; found Windows"


def test_every_reason_is_shown_refusing_somewhere_here() -> None:
    pure = BuildInfo("1.0", ex.build_info().label, BuildMode.PURE, None, False, "0" * 64)
    off, aot, jit = (replace(AUTO, jit=mode) for mode in (JitMode.NONE, JitMode.AOT, JitMode.JIT))
    none = ex.builders(None, compiler=False, ninja=False)
    unfit = tuple(file for file, _, reason, _, _ in UNFIT if reason is not Reason.TORCH_ABI)
    files = tuple(replace(file, path=f"host/{i}.so") for i, file in enumerate(unfit))
    bad_image = {"device/rms_norm.sm_75.cubin": damaged("x")}
    shown = [
        decide(ex.host(system="Windows"), None, AUTO, CPU),
        decide(ex.host(torch=None), None, off, CPU),
        decide(ex.host(torch=ex.torch_info(hip="7")), None, AUTO, CUDA),
        decide(ex.host(torch=ex.torch_info(cuda=None)), None, AUTO, CUDA),
        decide(ex.host(driver=None), None, AUTO, CUDA),
        decide(ex.host(gpu=""), None, AUTO, CUDA),
        decide(ex.host(build_with=none), pure, AUTO, CUDA),
        decide(ex.host(), None, jit, CUDA),
        decide(ex.host(glibc="2.17"), ex.build_info("sm_75", host_files=files), aot, CUDA),
        decide(ex.host(), ex.build_info(""), aot, CPU, {FITTING.path: Rejection(Reason.UNOPENED, "exec", "noexec")}),
        decide(ex.host(glibcxx="3.4.1"), ex.build_info("sm_75"), aot, CUDA, bad_image),
        decide(ex.host(torch=ex.torch_info("2.3.1")), ex.build_info(), AUTO, CUDA),
        decide(ex.host(torch=ex.torch_info("2.9.1")), ex.build_info(), AUTO, CUDA),
        decide(
            ex.host(), ex.build_info(), AUTO, CPU, {FITTING.path: Rejection(Reason.UNOPENED, "a policy", "another")}
        ),
        decide(ex.host(gpu="7.0", build_with=ex.builders()), None, AUTO, CUDA),
        decide(stale_host(), ex.build_info("sm_90"), aot, CUDA),
        decide(ex.host(gpu="10.3"), ex.build_info(host_files=(BAD,)), aot, CUDA),
        decide(replace(ex.host(), cpu_levels=("baseline",)), ex.build_info(), replace(AUTO, cpu_level="z9"), CPU),
        decide(replace(ex.host(), lzma_error="No module named '_lzma'"), ex.build_info("sm_90"), aot, CUDA),
    ]
    reasons = {rejection.reason for decision in shown for rejection in all_rejections(decision)}
    assert reasons == set(Reason) - {Reason.XPU}  # shown in test_plain.py


def test_a_refusal_names_each_missing_thing_once() -> None:
    old = ex.torch_info("2.9.1", git="a" * 40)
    none = ex.builders(None, compiler=False, ninja=False)
    decision = decide(ex.host(torch=old, build_with=none), ex.build_info(host_files=()), AUTO, CPU)
    assert isinstance(decision, Refuse)
    whys = [(why.piece, why.reason) for why in decision.rejections]
    assert whys == [("host", Reason.NO_PREBUILT), ("host", Reason.NO_COMPILER), ("host", Reason.NO_NINJA)]
    # clang++ can build the library, and no adapter
    clang = replace(ex.builders(None), compiler=replace(ex.builders().compiler, kind="clang++"))  # type: ignore[type-var]
    decision = decide(ex.host(torch=old, build_with=clang), ex.build_info(host_files=()), AUTO, CPU)
    assert isinstance(decision, Refuse)
    assert [(why.piece, why.reason) for why in decision.rejections] == [("torch", Reason.NO_COMPILER)]
    assert decision.rejections[0].needed == "g++, for torch 2.9.1"


def test_values_are_values() -> None:
    assert Need("a", "cpu") == Need("a", "cpu")
    assert hash(decide(ex.host(), ex.build_info(), AUTO, CUDA)) == hash(decide(ex.host(), ex.build_info(), AUTO, CUDA))
    assert len({Release(2, 10), Release(2, 10)}) == 1


@pytest.mark.parametrize(
    ("targets", "gpu", "best"),
    [
        ("sm_100 sm_100f sm_100a", "10.0", "sm_100a"),
        ("sm_100 sm_100f", "10.0", "sm_100f"),
        ("sm_100 sm_100f sm_100a", "10.3", "sm_100f"),
        ("sm_100 sm_103 sm_100f", "10.3", "sm_103"),
        ("sm_90 sm_90a", "9.0", "sm_90a"),
        ("sm_80 sm_86", "8.9", "sm_86"),
        ("sm_80 compute_86 compute_80", "8.6", "sm_80"),
        ("compute_80 compute_86", "8.9", "compute_86"),
        ("compute_90 compute_90a", "9.0", "compute_90a"),
    ],
)
def test_of_targets_that_run_the_best_is_taken_in_whatever_order_they_come(targets: str, gpu: str, best: str) -> None:
    for listed in itertools.permutations(targets.split()):
        decision = decide(ex.host(gpu=gpu), ex.build_info(" ".join(listed)), AUTO, CUDA)
        assert isinstance(decision, UsePrebuilt)
        assert [str(file.target) for _, file in decision.images] == [best]
