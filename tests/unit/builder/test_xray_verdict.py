"""Verdicts over libraries that stand for each other, and over device code behind a manifest."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from precast._builder import alternatives, verdicts, xray, xray_problems, xray_verdict
from precast._builder.verdicts import Machine
from precast._cli.main import main
from precast.core.capability import ComputeCapability
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.version import Label, Release, TorchVersion
from tests.kit import hosts
from tests.kit.elves import Library

CLASSIC = "_ZN2at15get_num_threadsEv"


def wheel(folder: Path, files: dict[str, Library | str], name: str = "ops-1.0-py3-none-linux_x86_64") -> xray.Contents:
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for where, content in files.items():
            archive.writestr(where, content if isinstance(content, str) else content.to_bytes())
    return xray.read(path)


def of_torch(*needed: str, exported: tuple[str, ...] = ("run",)) -> Library:
    return Library(needed=("libtorch_cpu.so", *needed), undefined=(CLASSIC,), exported=exported)


def groups(contents: xray.Contents) -> list[list[str]]:
    return [[one.path for one in group.libraries] for group in alternatives.groups(contents)]


def test_libraries_for_each_torch_are_one_and_the_answer_names_it(tmp_path: Path) -> None:
    """As in vesin-torch and metatensor-torch."""
    paths = [f"ops/torch-{release}/lib/libops.so" for release in ("2.3", "2.10", "2.11")]
    contents = wheel(tmp_path, dict.fromkeys(paths, of_torch()))
    assert groups(contents) == [sorted(paths)]
    found = xray_verdict.overall(contents, Machine(torch=TorchVersion.parse("2.10.0+cpu")))
    assert (found.answer, found.by) == ("yes", ("ops/torch-2.10/lib/libops.so",))
    none = xray_verdict.overall(contents, Machine(torch=TorchVersion.parse("2.12.0+cpu")))
    assert none.answer == "no" and "as its path says" in str(none.why[0])
    assert list(xray_problems.problems(contents)) == []


@pytest.mark.parametrize("name", ["ops_torch211.so", "libops-pt2.11.so", "pytorch_2.11/ops.so", "ops.torch2_11.so"])
def test_a_path_names_the_torch_of_its_library(name: str) -> None:
    assert xray.library(name, Library().to_bytes(), None).stated == Release(2, 11)


@pytest.mark.parametrize("name", ["libtorch.so", "torch/ops2.so", "ops_torch.so", "adept-2.11/ops.so", "torch12345.so"])
def test_another_path_names_none(name: str) -> None:
    assert xray.library(name, Library().to_bytes(), None).stated is None


def test_libraries_for_each_cuda_are_one_and_no_problem(tmp_path: Path) -> None:
    """As in torch-memory-saver, whose library without a suffix is one of them too."""
    twelve, thirteen = of_torch("libcudart.so.12"), of_torch("libcudart.so.13")
    files = {"hook.abi3.so": twelve, "hook_cu12.abi3.so": twelve, "hook_cu13.abi3.so": thirteen}
    contents = wheel(tmp_path, {**files, "other_cu12.so": twelve, "other_cu13.so": thirteen})
    assert groups(contents) == [sorted(files), ["other_cu12.so", "other_cu13.so"]]
    assert [one.reason for one in xray_problems.problems(contents)] == []
    both = wheel(tmp_path, {"one.so": twelve, "two.so": thirteen})
    assert [one.reason for one in xray_problems.problems(both)] == ["CUDA runtime"]


def test_libraries_that_differ_in_more_or_define_other_names_are_all_needed(tmp_path: Path) -> None:
    files = {
        "ops/_C.so": Library(exported=("a", "b")),
        "ops/_C_cuda.so": Library(exported=("c", "d")),
        "ops/cpu/fast.so": Library(exported=("e", "f", "g", "h")),
        "ops/cuda/fast.so": Library(exported=("e", "f", "g", "i")),
        "ops/sm80.so": Library(),
        "ops/sm80_more.so": Library(),
    }
    assert groups(wheel(tmp_path, dict(files))) == [
        ["ops/_C.so"],
        ["ops/_C_cuda.so"],
        ["ops/cpu/fast.so", "ops/cuda/fast.so"],
        ["ops/sm80.so"],
        ["ops/sm80_more.so"],
    ]


def test_a_merged_wheel_of_ours_for_two_cudas_has_no_problem(tmp_path: Path) -> None:
    """A guard chooses between the libraries of its manifest."""
    files: dict[str, Library | str] = {}
    entries = []
    for major in (12, 13):
        path = f"host/ops.cu{major}.so"
        files[f"ops/_C/{path}"] = of_torch(f"libcudart.so.{major}")
        entries.append(hosts.host_file("torch-2.13-cxx1", path=path, families=("ops",), cuda_major=major))
    info = BuildInfo("1.0", Label(""), BuildMode.MACHINE, None, False, "0" * 64, host=tuple(entries))
    contents = wheel(tmp_path, {**files, "ops/_C/build_info.json": info.to_json()})
    assert groups(contents) == [["ops/_C/host/ops.cu12.so", "ops/_C/host/ops.cu13.so"]]
    assert [one.reason for one in xray_problems.problems(contents)] == []


DEVICES = [
    (("sm_90",), "13.0.88", "9.0", "580", "yes", ""),
    (("sm_90",), "13.0.88", "8.0", "580", "no", "arch: needs compute capability 9.0"),
    (("sm_90",), "13.0.88", "9.0", "535", "no", "driver: needs"),
    (("sm_90",), "12.9.86", "12.0", "550", "no", "arch: needs compute capability 9.0"),
    (("sm_90", "compute_90"), "12.9.86", "12.0", "580", "yes", ""),
    (("sm_90",), "13.0.88", None, "535", "no", "driver: needs CUDA 13.0 or newer; found 12.2"),
    (("sm_90",), "13.0.88", None, None, "yes", ""),
]


@pytest.mark.parametrize(("targets", "nvrtc", "gpu", "driver", "answer", "why"), DEVICES)
def test_device_code_behind_a_manifest_is_judged(
    tmp_path: Path, targets: tuple[str, ...], nvrtc: str, gpu: str | None, driver: str | None, answer: str, why: str
) -> None:
    images = tuple(hosts.device_file(target, nvrtc) for target in targets)
    info = BuildInfo("1.0", Label("cu130"), BuildMode.MACHINE, None, False, "0" * 64, device=images)
    contents = wheel(tmp_path, {"ops/_C/build_info.json": info.to_json(), "ops/_C.so": Library()})
    machine = Machine(
        gpu=None if gpu is None else ComputeCapability.parse(gpu),
        driver=None if driver is None else verdicts.driver_version(driver),
    )
    found = xray_verdict.overall(contents, machine)
    assert found.answer == answer and why in "".join(map(str, found.why))


NEEDS = [
    (Library(versions=(("libc.so.6", "GLIBC_2.17", False),)), "yes"),
    (Library(versions=(("libc.so.6", "GLIBC_2.99", False),)), "no"),
    (Library(needed=("libstdc++.so.6",), versions=(("libstdc++.so.6", "CXXABI_1.3.99", False),)), "unknown"),
    (Library(needed=("libgomp.so.1",), versions=(("libgomp.so.1", "OMP_9.0", False),)), "unknown"),
    (Library(versions=(("libc.so.6", "GLIBC_PRIVATE", False),)), "unknown"),
    (Library(versions=(("libm.so.6", "GLIBC_2.17", False),)), "unknown"),  # not linked
    (Library(undefined=("nowhere",)), "unknown"),
    (Library(stack=7), "yes"),
    (Library(loads=False), "no"),
]


@pytest.mark.parametrize(("library", "answer"), NEEDS)
def test_a_need_that_is_not_known_makes_the_answer_unknown(tmp_path: Path, library: Library, answer: str) -> None:
    contents = wheel(tmp_path, {"a.so": library})
    assert xray_verdict.overall(contents, Machine(glibc=Release(2, 36))).answer == answer
    if library.stack == 7:
        assert xray_verdict.overall(contents, Machine(glibc=Release(2, 41))).answer == "no"
        assert xray_verdict.overall(contents, Machine(python=Release(3, 12))).answer == "unknown"
        assert [one.reason for one in xray_problems.problems(contents)] == ["stack"]


def test_a_version_of_another_library_of_the_wheel_is_looked_for_there(tmp_path: Path) -> None:
    inner = Library(soname="libinner.so", offered=("libinner.so", "OWN_1"))
    for version, answer in (("OWN_1", "yes"), ("OWN_2", "no")):
        outer = Library(needed=("libinner.so",), versions=(("libinner.so", version, False),))
        contents = wheel(tmp_path, {"a.so": outer, "libinner.so": inner})
        assert xray_verdict.overall(contents, Machine(glibc=Release(2, 36))).answer == answer


def test_what_another_library_of_the_wheel_defines_is_not_torchs_to_have(tmp_path: Path) -> None:
    own = "_ZN5torch3ops3runEv"
    outer = Library(needed=("libinner.so", "libtorch_cpu.so"), undefined=(own, CLASSIC))
    contents = wheel(tmp_path, {"a.so": outer, "libinner.so": Library(exported=(own,))})
    assert not contents.libraries[0].missing()[Release(2, 13)]


def test_what_cannot_be_read_makes_the_answer_unknown(tmp_path: Path) -> None:
    contents = wheel(tmp_path, {"a.so": Library(), "b.so": "no library"})
    assert xray_verdict.overall(contents, Machine(glibc=Release(2, 36))).answer == "unknown"


@pytest.mark.parametrize(("tag", "answer"), [("cp310-abi3", "unknown"), ("cp310-cp310", "no")])
def test_a_module_for_another_python_in_a_wheel_for_several(tmp_path: Path, tag: str, answer: str) -> None:
    """As in sgl-kernel: nothing says whether a Python for which the module is missing needs it."""
    files = {
        "_x.cpython-310-x86_64-linux-gnu.so": Library(undefined=("PyModule_Create2",), exported=("PyInit__x",)),
        "ops.abi3.so": Library(undefined=("PyModule_Create2",), exported=("PyInit_ops",)),
    }
    contents = wheel(tmp_path, dict(files), f"ops-1.0-{tag}-linux_x86_64")
    assert xray_verdict.overall(contents, Machine(python=Release(3, 11))).answer == answer


@pytest.mark.parametrize(
    ("torch", "answer"), [("2.6.0+cu124", "no"), ("2.6.0+cu126", "unknown"), ("2.16.0", "unknown")]
)
def test_the_abi_of_strings_is_that_of_the_build(tmp_path: Path, torch: str, answer: str) -> None:
    name = "_ZN3c1011OperandInfoERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    contents = wheel(tmp_path, {"a.so": Library(needed=("libtorch_cpu.so",), undefined=(name,))})
    found = xray_verdict.overall(contents, Machine(torch=TorchVersion.parse(torch)))
    assert found.answer in (answer, "no") and (answer != "no" or found.answer == "no")


@pytest.mark.parametrize(
    ("torch", "answer"), [("2.14.1+cu130", "no"), ("2.14.1", "no"), ("2.14.0+xpu", "unknown")], ids=str
)
def test_the_names_of_builds_that_are_not_recorded_are_unknown(tmp_path: Path, torch: str, answer: str) -> None:
    """As in torchcodec-xpu."""
    library = Library(needed=("libc10_xpu.so",), undefined=("_ZN3c103xpu14get_raw_deviceEa",))
    contents = wheel(tmp_path, {"a.so": library})
    assert xray_verdict.overall(contents, Machine(torch=TorchVersion.parse(torch))).answer == answer
    assert list(xray_problems.problems(contents)) == []


def test_a_library_without_torch_may_find_a_cuda_runtime_of_its_own(tmp_path: Path) -> None:
    """As in bartorch-cuda12, which requires NVIDIA's packages and has a path to them."""
    contents = wheel(tmp_path, {"a.so": Library(needed=("libcudart.so.12",))})
    for torch, answer in (("2.14.1+cu130", "unknown"), ("2.13.0+cpu", "unknown"), ("2.8.0+cu128", "yes")):
        assert xray_verdict.overall(contents, Machine(torch=TorchVersion.parse(torch))).answer == answer


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("libcudart.so.12", True),
        ("libnvrtc-builtins.so.13.0", True),
        ("libcublasLt.so.12", True),
        ("libcudnn_ops.so.9", True),
        ("libnccl.so.2", True),
        ("libtorch_cpu.so", True),
        ("libgomp-a34b3233.so.1.0.0", True),
        ("libcudart-0123abcd.so.12", False),
        ("libcurl-6afc9505.so.4", False),
        ("libnvfuser_codegen.so", False),
        ("libcue_ops.so", False),
        ("libnuma.so.1", False),
    ],
)
def test_a_copy_of_torchs_or_cudas_libraries_is_told_from_others(name: str, foreign: bool) -> None:
    assert xray_verdict.is_foreign(name) is foreign


def test_the_command_says_which_library_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"ops/torch-{release}/libops.so" for release in ("2.10", "2.11")]
    path = tmp_path / wheel(tmp_path, dict.fromkeys(paths, of_torch())).name
    assert main(["xray", str(path), "--torch", "2.11.0+cpu"]) == 0
    said = capsys.readouterr().out
    assert f"one is enough of {', '.join(paths)}: their paths differ only in versions" in said
    assert f"on that machine: works by {paths[1]}" in said
    assert main(["xray", str(path), "--torch", "2.12.0+cpu"]) == 1
    assert "on that machine: does not work\n  torch-abi: needs torch 2.1" in capsys.readouterr().out
