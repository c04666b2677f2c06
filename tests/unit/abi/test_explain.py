from __future__ import annotations

from precast._abi.decide import decide
from precast._abi.decision import all_rejections
from precast._abi.fixes import actions_for
from precast._abi.settings import Settings
from precast.core.explain import environment, explain, rejection_lines, top_reason
from precast.core.reasons import Need, Reason, Rejection
from precast.errors import KernelUnavailable
from tests.kit import hosts as ex

MACHINE = ex.host(gpu="7.0", build_with=ex.builders())
INFO = ex.build_info("sm_75 sm_90 compute_90")
DECISION = decide(MACHINE, INFO, Settings(), Need(ex.FAMILY, "cuda"))


def test_a_refusal_in_words() -> None:
    rejections = all_rejections(DECISION)
    error = explain(
        KernelUnavailable,
        "on cuda: nothing serves it",
        rejections,
        environment(MACHINE, "precast 1.0+cu130"),
        actions_for(rejections, fix),
        about="rms_norm",
    )
    assert str(error).splitlines() == [
        "rms_norm on cuda: nothing serves it",
        (
            "  cuda:0  3 files (sm_75, sm_90, compute_90)  rejected (arch): "
            "needs compute capability 7.5 or a newer 7.x, 9.0 or a newer 9.x, 9.0 or newer; found "
            "compute capability 7.0 (GPU model 7.0); cu130 serves 7.5 and newer, labels below CUDA 13 serve this GPU"
        ),
        (
            "  cuda:0  jit                                 rejected (nvrtc-arch): "
            "needs an NVRTC that compiles for 7.0; found "
            "NVRTC 13.0.88 (oldest 7.5); compute capability 7.0 (GPU model 7.0)"
        ),
        (
            "  env     precast 1.0+cu130, torch 2.13.0+cu130 (CUDA 13.0, cxx11 ABI 1), driver for CUDA 13.0, "
            "GPU 0 is 7.0 (GPU model 7.0), Python 3.12, Linux x86_64, glibc 2.36"
        ),
        f"  fix     1) {ex.from_index('cu129')}",
    ]


def fix(why: Rejection) -> str:
    return ex.fix(why, MACHINE, INFO)


def test_at_most_three_actions_and_each_once() -> None:
    error = explain(KernelUnavailable, "no", [glibc("do 0")], "", ["do 0", "do 1", "do 2", "do 3"], more="the doctor")
    text = str(error)
    assert text.splitlines()[-4:] == [
        "  fix     1) do 0",
        "          2) do 1",
        "          3) do 2",
        "  more    the doctor",
    ]
    assert "env" not in text
    assert error.brief("do 1").splitlines()[-2:] == ["  fix     1) do 0", "          2) do 2"]
    assert offered(glibc("do 0"), glibc("do 1"), glibc("do 0")) == ("do 0",), "one file that fits is enough"


def glibc(fix: str = "", piece: str = "host") -> Rejection:
    return Rejection(Reason.GLIBC, "a", fix or "b", f"{piece}/a.so", piece)


def jit(reason: Reason, fix: str = "", piece: str = "host") -> Rejection:
    return Rejection(reason, "a", fix or "b", "jit", piece)


def offered(*rejections: Rejection) -> tuple[str, ...]:
    """The actions if what was found, unless it is "b", is the command."""
    return actions_for(rejections, lambda why: "" if why.found == "b" else why.found)


def test_a_fix_removes_everything_that_is_in_one_way() -> None:
    tools = [jit(Reason.NO_COMPILER, "get g++"), jit(Reason.NO_NINJA, "get ninja")]
    assert offered(glibc("a wheel"), *tools) == ("a wheel", "get g++ && get ninja")
    nvrtc = jit(Reason.NO_NVRTC, "get nvrtc", "cuda:0")
    gpu = glibc("a wheel", "cuda:0")
    assert offered(glibc("a wheel"), *tools, gpu, nvrtc) == ("a wheel", "get g++ && get ninja && get nvrtc")


def test_a_way_with_something_that_no_command_removes_is_not_offered() -> None:
    dead = jit(Reason.DRIVER, "", "cuda:0")
    assert offered(jit(Reason.NO_COMPILER, "get g++"), dead) == ()
    assert offered(glibc(), jit(Reason.NO_COMPILER, "get g++")) == ("get g++",)
    assert offered(glibc("a wheel", "cuda:0"), glibc()) == (), "the wheel would not serve the host"
    blocked = [Rejection(Reason.JIT_OFF, "a", "allow", "all", "host"), jit(Reason.NO_NINJA, "get ninja")]
    assert offered(*blocked) == ("allow",)
    assert offered(*blocked, Rejection(Reason.NO_GPU, "a", "b", "all", "cuda")) == ()


def test_pieces_are_not_mixed_up() -> None:
    alike = [Rejection(Reason.NO_NVRTC, "NVRTC", "none", "jit", piece) for piece in ("cuda:0", "cuda:1")]
    assert len(rejection_lines(alike)) == 2
    assert rejection_lines([]) == ()


def test_files_are_named_by_what_tells_them_apart() -> None:
    unfit = [
        Rejection(Reason.TORCH_ABI, name, "torch 2.9.0", f"host/{name}.so", "host")
        for name in ("torch-stable-2.10", "torch-2.8-cxx1")
    ]
    (line,) = rejection_lines(unfit)
    assert line == (
        "host  2 files (torch-stable-2.10, torch-2.8-cxx1)  rejected (torch-abi): "
        "needs torch-stable-2.10, torch-2.8-cxx1; found torch 2.9.0"
    )


def test_the_reason_for_a_log_line() -> None:
    arch = Rejection(Reason.ARCH, "7.5", "9.0", "device/rms_norm.sm_75.cubin", "cuda:0")
    damaged = Rejection(Reason.DAMAGED, "the file that was built", "2 bytes", "device/rms_norm.sm_90.cubin", "cuda:0")
    library = Rejection(Reason.GLIBC, "glibc 2.28", "2.17", "host/a.so", "host")
    assert top_reason([arch, damaged, library], "cuda:0") == ("device/rms_norm.sm_90.cubin is corrupted (2 bytes)")
    assert top_reason([arch], "cuda:0") == "device/rms_norm.sm_75.cubin needs 7.5; found 9.0"
    assert top_reason([library, arch]) == "host/a.so needs glibc 2.28; found 2.17"
    assert top_reason([library], "cuda:0") == ""


def test_the_environment_of_a_bare_machine() -> None:
    bare = ex.host(torch=None, driver=None, gpu="", glibc=None, machine="aarch64")
    assert (
        environment(bare, "precast 1.0")
        == "precast 1.0, no torch, no NVIDIA driver, Python 3.12, Linux aarch64, no glibc"
    )
    broken = ex.host(torch=None, torch_error="OSError", gpu="")
    assert "a torch that fails to import" in environment(broken, "")
    rocm = ex.host(torch=ex.torch_info("2.13.0", cuda=None, hip="7.0"), gpu="")
    assert "torch 2.13.0 (ROCm 7.0, cxx11 ABI 1)" in environment(rocm, "")
    plain = ex.host(torch=ex.torch_info("2.13.0", cuda=None), gpu="")
    assert "torch 2.13.0 (no CUDA, cxx11 ABI 1)" in environment(plain, "")
