"""``precast xray``: every seeded defect of a wheel is found, and a verdict says what would happen on a machine."""

from __future__ import annotations

import json
import platform
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import precast
from precast._builder import verdicts
from precast._cli import xray as command
from precast._cli.main import main
from precast.core.manifest import BuildInfo, BuildMode
from precast.core.reasons import Rejection
from precast.core.version import Label
from precast.errors import KernelError
from tests.kit import elves, hosts, spawn
from tests.unit.builder.test_fatbin import LZ4, PLAIN, PTX, SASS, entry, fat

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="a defect is seeded in machine code of x86_64"),
]

CLASSIC = "namespace at { int get_num_threads(); }\nint threads() { return at::get_num_threads(); }\n"
MODULE = (
    'extern "C" void* PyModule_Create2(void*, int);\nextern "C" void* PyInit__C() { return PyModule_Create2(0, 0); }\n'
)
TORCH = ("-Wl,--no-as-needed", "-ltorch_cpu")


def library(folder: Path, source: str, *options: str, name: str = "_C.so") -> Path:
    """Compile a library; a stub stands for each one that it links."""
    stubs = [option[2:] for option in options if option.startswith("-l")]
    for stub in stubs:
        soname = stub.partition("@")[0]
        version = stub.partition("@")[2]
        linked = ["-Wl,-soname," + f"lib{soname}.so{'.' + version if version else ''}"]
        spawn.library(folder / f"lib{stub}.so", "", "-nostdlib", *linked)
    return spawn.library(folder / name, source, "-O2", "-L.", *options)


def device(folder: Path, path: Path, content: bytes) -> None:
    """Put device code into a library, as nvcc does."""
    (folder / "fat").write_bytes(content)
    spawn.run("objcopy", "--add-section", f".nv_fatbin={folder / 'fat'}", path)


def wheel(
    folder: Path, libraries: dict[str, Path], name: str = "ops-1.0-py3-none-linux_x86_64", requires: str = "torch"
) -> Path:
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for where, file in libraries.items():
            archive.write(file, where)
        archive.writestr("ops-1.0.dist-info/METADATA", f"Name: ops\nVersion: 1.0\nRequires-Dist: {requires}\n\n")
    return path


def xray(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    code = main(["xray", *map(str, arguments), "--json"])
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, facts


DEFECTS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "AVX-512 with no question": ("void f(double* a) { for (int i = 0; i < 64; i++) a[i] += 1; }",
                                 ("-O3", "-mavx512f", "-mprefer-vector-width=512"), "py3-none-linux_x86_64", "CPU"),
    "a name that no torch has": ("namespace at { int no_such(); }\nint f() { return at::no_such(); }", TORCH,
                                 "py3-none-linux_x86_64", "torch"),
    "a stable function that no torch has": ('extern "C" int torch_no_such();\nint f() { return torch_no_such(); }',
                                            TORCH, "py3-none-linux_x86_64", "torch"),
    "a C++ runtime in it": ('extern "C" void __cxa_throw() {}', (), "py3-none-linux_x86_64", "C++ runtime"),
    "a module in a wheel for every Python": (MODULE, (), "py3-none-linux_x86_64", "tag"),
    "another machine": ("int f;", (), "py3-none-linux_aarch64", "tag"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_seeded_defect_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], defect: str) -> None:
    source, options, tag, check = DEFECTS[defect]
    made = library(tmp_path, source, *options)
    code, facts = xray(capsys, wheel(tmp_path, {"ops/_C.so": made}, f"ops-1.0-{tag}"))
    assert code == 1 and [one["reason"] for one in facts["problems"]] == [check]


def test_a_newer_c_library_than_the_tag_says_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "versions").write_text("GLIBC_2.40 { global: fresh; };\n")
    library(tmp_path, 'extern "C" int fresh() { return 1; }', "-Wl,--version-script=versions", name="libfresh.so")
    source = 'extern "C" int fresh();\nint f() { return fresh(); }'
    spawn.library(tmp_path / "_C.so", source, "-L.", "-lfresh")
    name = "ops-1.0-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64"
    code, facts = xray(capsys, wheel(tmp_path, {"ops/_C.so": tmp_path / "_C.so"}, name))
    assert code == 1 and [(one["reason"], one["found"]) for one in facts["problems"]] == [("glibc", "2.40")] * 2


def test_copies_and_mixtures_of_libraries_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twelve = library(tmp_path, CLASSIC, *TORCH, "-lcudart@12", name="a.so")
    thirteen = library(tmp_path, CLASSIC, *TORCH, "-lcudart@13", name="b.so")
    files = {"ops/a.so": twelve, "ops/b.so": thirteen, "ops.libs/libtorch_cpu.so": twelve}
    code, facts = xray(capsys, wheel(tmp_path, files, "ops-1.0+cu130-py3-none-linux_x86_64"))
    found = {(one["reason"], one["candidate"].rpartition("/")[2]) for one in facts["problems"]}
    assert code == 1 and found == {
        ("CUDA runtime", "ops-1.0+cu130-py3-none-linux_x86_64.whl"), ("label", "a.so"), ("bundled", "libtorch_cpu.so")
    }  # fmt: skip


def test_code_for_old_gpus_alone_and_damaged_code_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = library(tmp_path, "int f;")
    device(tmp_path, made, fat(entry(SASS, 80, LZ4)))
    code, facts = xray(capsys, made)
    assert code == 1 and [one["reason"] for one in facts["problems"]] == ["GPU"]
    broken = library(tmp_path, "int f;", name="broken.so")
    device(tmp_path, broken, b"no fat binary")
    assert [one["reason"] for one in xray(capsys, broken)[1]["problems"]] == ["code"]


def test_a_folder_is_read_and_what_is_no_library_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    made = library(tmp_path, MODULE, name="_C.cpython-312-x86_64-linux-gnu.so")
    made.rename(folder / made.name)
    (folder / "text.so").write_text("no library")
    code, facts = xray(capsys, folder)
    assert code == 1 and facts["libraries"][0]["python"] == "cp312" and facts["libraries"][0]["module"] == "_C"
    assert [one["candidate"] for one in facts["problems"]] == ["text.so"]
    for path in (tmp_path / "nothing", tmp_path / "code.cpp", tmp_path / "x.whl"):
        assert main(["xray", str(path)]) in (1, 3)


def texts(facts: dict[str, Any]) -> list[str]:
    return [str(Rejection(**why)) for why in facts["why"]]


VERDICTS = [
    (("--torch", "2.13.0"), "unknown", "its C++ has no stable ABI"),
    (("--python", "3.11"), "no", "python: needs cp312"),
    (("--glibc", "2.1"), "no", "glibc"),
    (("--gpu", "9.0", "--driver", "580"), "yes", ""),
    (("--gpu", "7.5"), "no", "arch: needs a GPU for compute_90, sm_80"),
    (("--gpu", "12.0", "--driver", "550"), "no", "driver: needs a driver for CUDA 12.9"),
    (("--gpu", "8.6", "--driver", "12.0"), "yes", ""),
]


@pytest.mark.parametrize(("machine", "answer", "why"), VERDICTS, ids=lambda value: str(value)[:30])
def test_a_verdict_is_about_the_machine_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: tuple[str, ...], answer: str, why: str
) -> None:
    made = library(tmp_path, CLASSIC + MODULE, *TORCH, name="_C.cpython-312-x86_64-linux-gnu.so")
    device(tmp_path, made, fat(entry(SASS, 80, LZ4), entry(PTX, 90, LZ4)))
    code, facts = xray(capsys, made, *machine)
    (verdict,) = [one["verdict"] for one in facts["libraries"]]
    assert (facts["answer"], verdict["answer"]) == (answer, answer) and why in "".join(texts(verdict))
    assert code == (1 if answer == "no" else 0)
    main(["xray", str(made), *machine])
    assert "sm_80" in capsys.readouterr().out


def test_a_name_that_python_lacks_is_found_where_a_tag_promises_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a library that was compiled for the limited API of Python 3.12 and tagged for 3.10."""
    here, absent = ".".join(map(str, sys.version_info[:2])), MODULE.replace("PyModule_Create2", "PyModule_OfTomorrow")
    name = "ops-1.0-cp310-abi3-linux_x86_64"
    for source, python, answer in (
        (MODULE, here, "yes"),
        (absent, here, "no"),
        (absent, "3.99", "unknown"),
        (f"{absent}#pragma weak PyModule_OfTomorrow\n", here, "yes"),
    ):
        path = wheel(tmp_path, {"ops/_C.abi3.so": library(tmp_path, source, name="_C.abi3.so")}, name)
        _, facts = xray(capsys, path, "--python", python)
        found = f"Python {platform.python_version()}, which does not have it"
        why = [f"python: needs PyModule_OfTomorrow; found {found}"]
        assert (facts["answer"], texts(facts)) == (answer, [] if answer == "yes" else why)


@pytest.mark.parametrize(
    ("version", "requires", "torch", "answer"),
    [
        ("1.0", "torch==2.13.*", "2.13.0", "yes"),
        ("1.0", "torch (==2.12.1)", "2.13.0", "no"),
        ("1.0+pt213cu130", "torch", "2.13.0", "yes"),
        ("1.0+cpu.torch2.12", "torch", "2.13.0", "no"),
    ],
)
def test_metadata_say_which_torch_built_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, requires: str, torch: str, answer: str
) -> None:
    made = library(tmp_path, CLASSIC, *TORCH)
    path = wheel(tmp_path, {"ops/_C.so": made}, f"ops-{version}-py3-none-linux_x86_64", requires)
    assert xray(capsys, path, "--torch", torch)[1]["answer"] == answer


@pytest.mark.parametrize(
    ("text", "cuda"), [("580", "13.0"), ("580.65.06", "13.0"), ("560.1", "12.6"), ("12.4", "12.4"), ("999", "13.2")]
)
def test_a_driver_is_named_by_its_branch_or_its_cuda_version(text: str, cuda: str) -> None:
    assert str(verdicts.driver_version(text)) == cuda


def test_a_driver_before_cuda_12_and_no_number_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("470", "new"):
        with pytest.raises(SystemExit):
            main(["xray", "x.whl", "--driver", text])
    assert "older than CUDA 12" in capsys.readouterr().err


def test_a_library_is_judged_with_those_that_it_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = library(tmp_path, CLASSIC, *TORCH, "-lc10_cuda", name="libinner.so")
    outer = library(tmp_path, "int f;", "-Wl,--no-as-needed", "-linner", name="_C.so")
    lost = library(tmp_path, "int f;", "-Wl,--no-as-needed", "-lelsewhere", name="lost.so")
    library(tmp_path, CLASSIC, *TORCH, "-lc10_cuda", name="libinner.so")
    path = wheel(
        tmp_path, {"ops/_C.so": outer, "ops/libinner.so": inner, "ops/lost.so": lost}, requires="torch==2.13.*"
    )
    _, facts = xray(capsys, path, "--torch", "2.13.0+cpu")
    said = {one["path"]: (one["verdict"]["answer"], texts(one["verdict"])) for one in facts["libraries"]}
    assert said["ops/libinner.so"][0] == "no"
    assert said["ops/_C.so"] == (
        "no", ["ops/libinner.so: cuda-runtime: needs torch's CUDA libraries; found torch 2.13.0+cpu"]
    )  # fmt: skip
    assert said["ops/lost.so"] == (
        "unknown",
        ["libelsewhere.so: linked: needs libelsewhere.so; found neither in the wheel nor among torch's libraries"],
    )
    assert xray(capsys, path, "--torch", "2.13.0")[1]["answer"] == "unknown"


def test_the_function_and_the_command_give_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suffix = "_C.cpython-312-x86_64-linux-gnu.so"
    module = library(tmp_path, CLASSIC + MODULE, *TORCH, name=suffix)
    device(tmp_path, module, fat(entry(SASS, 80, LZ4), entry(PTX, 90, LZ4)))
    old, plain = library(tmp_path, CLASSIC, *TORCH, name="old.so"), library(tmp_path, "int f;", name="plain.so")
    absent = library(tmp_path, "namespace at { int no_such(); }\nint f() { return at::no_such(); }", *TORCH)
    several = {"ops/torch-2.12/lib/libops.so": old, "ops/torch-2.13/lib/libops.so": old}
    asked: tuple[dict[str, str], ...] = ({}, {"torch": "2.13.0"}, {"gpu": "9.0", "driver": "13.0"},
                                         {"python": "3.11", "glibc": "2.28"})  # fmt: skip
    answers = set[str | None]()
    for files in ({f"ops/{suffix}": module}, several, {"ops/_C.so": absent}, {"ops/plain.so": plain}):
        path = wheel(tmp_path, files)
        for machine in asked:
            said = xray(capsys, path, *(word for name, text in machine.items() for word in (f"--{name}", text)))[1]
            found = precast.xray(path, **machine)
            answers.add(found.answer)
            assert json.loads(json.dumps(command.to_json(found))) == said
            assert said["answer"] == found.answer and texts(said) == list(map(str, found.why))
    assert answers == {None, "yes", "no", "unknown"}
    assert precast.xray(str(module)) == precast.xray(module) and hash(precast.xray(module))


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ({"torch": "two"}, "torch: not a torch version: 'two'"),
        ({"gpu": "9"}, "gpu: not a compute capability: '9'; needed one such as '9.0'"),
        ({"gpu": 9.0}, "gpu is no text: 9.0; needed a compute capability, such as 9.0"),
        ({"driver": "470"}, "driver: driver 470 is older than CUDA 12"),
        ({"python": "3"}, "python: not a release"),
        ({"glibc": (2, 28)}, r"glibc is no text: \(2, 28\)"),
    ],
)
def test_what_is_said_of_a_machine_is_read_before_the_file(machine: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        precast.xray("/there/is/no/such.whl", **machine)
    with pytest.raises(KernelError, match="no file or folder of that name"):
        precast.xray("/there/is/no/such")


def test_the_core_of_a_wheel_and_what_it_patches_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wheel(tmp_path, {"ops/_C.so": library(tmp_path, "int f;")})
    bare = precast.xray(path)
    assert (bare.core, bare.patches_loader) == (None, False)
    main(["xray", str(path)])
    assert not re.search("core of precast|patches", capsys.readouterr().out)
    for patches in (False, True):
        info = BuildInfo(
            "1.0", Label(""), BuildMode.RELEASE, None, False, "0" * 64,
            core=("0.1.0", "a" * 64), patches_loader=patches,
        )  # fmt: skip
        made = wheel(tmp_path, {"ops/_C.so": tmp_path / "_C.so"})
        with zipfile.ZipFile(made, "a") as archive:
            archive.writestr("ops/_C/build_info.json", info.to_json())
        found = precast.xray(made)
        assert (found.core, found.patches_loader) == ("0.1.0", patches)
        main(["xray", str(made)])
        said = capsys.readouterr().out.splitlines()
        assert said.count("  takes along the core of precast 0.1.0") == 1
        assert said.count("  patches torch.ops.load_library and importlib for the whole process") == patches


def test_a_known_bad_build_is_a_problem_or_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = library(tmp_path, "int f;", name="causal_conv1d_cuda.so")
    codes = [entry(SASS, arch, PLAIN, payload=elves.cubin("13.0.88")) for arch in (100, 103, 120)]
    device(tmp_path, made, fat(*codes, entry(SASS, 90, LZ4), entry(PTX, 90, LZ4)))
    plain = made.with_name("_C.so")
    plain.write_bytes(made.read_bytes())
    found = precast.xray(made)
    said = [(one.reason, one.found.partition(":")[0]) for one in (*found.problems, *found.warnings)]
    assert said == [("known-bad", "sm_103 by nvcc 13.0.88"), ("known-bad", "sm_120 by nvcc 13.0.88")]
    assert [(gpu.target, gpu.compiler) for gpu in found.libraries[0].gpus][:3] == [
        ("compute_90", None), ("sm_90", None), ("sm_100", "nvcc 13.0.88")
    ]  # fmt: skip
    answers = {gpu: precast.xray(made, gpu=gpu).answer for gpu in ("9.0", "10.0", "10.3", "12.0")}
    assert answers == {"9.0": "yes", "10.0": "yes", "10.3": "no", "12.0": "yes"}
    assert main(["xray", str(made), "--gpu", "10.3"]) == 1
    text = capsys.readouterr().out
    assert "sm_100 sm_103 sm_120 by nvcc 13.0.88" in text and "sm_90 by an unknown compiler" in text
    assert "\nproblem  known-bad: causal_conv1d_cuda.so\n" in text and "\nwarning  known-bad: " in text
    assert main(["xray", str(plain), "--gpu", "10.3"]) == 0 and "issues/105" not in capsys.readouterr().out


def test_device_code_of_a_bad_nvrtc_behind_a_manifest_is_found(tmp_path: Path) -> None:
    for nvrtc, count in (("12.6.20", 1), ("12.6.85", 0), ("13.0.88", 0)):
        info = hosts.build_info("sm_90", nvrtc_version=nvrtc)
        made = wheel(tmp_path, {"ops/_C.so": library(tmp_path, "int f;")})
        with zipfile.ZipFile(made, "a") as archive:
            archive.writestr("ops/_C/build_info.json", info.to_json())
        assert [one.candidate for one in precast.xray(made).warnings] == ["device/rms_norm.sm_90.cubin"] * count
