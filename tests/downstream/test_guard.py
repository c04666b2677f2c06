"""``python -m precast.build guard``: finished wheels of any build system behind guards, and several merged into one."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import platform
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precast._builder import wheel_file
from precast._cli.main import main as cli_main
from precast.build import answering, merging, platforms
from precast.build.finished import Finished, Folder
from precast.build.wheel import MODULE_MARK
from precast.core import opening
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.host import Gpu
from precast.core.manifest import DeviceFile, HostFile
from precast.core.torch_abi import Exact, Stable
from precast.core.version import CudaVersion, Label, Release, TorchVersion
from precast.errors import KernelError, PrebuiltRefused
from tests.downstream.finished import (
    HERE,
    INIT,
    MODULE,
    OPS,
    PLATFORM,
    SUFFIX,
    Make,
    guarded,
    library,
    manifest,
    named_after,
    on_torch,
    other_torch,
    pretend,
    refused,
    this_torch,
)
from tests.kit import elves, spawn
from tests.unit.builder.test_fatbin import LZ4, PLAIN, PTX, SASS, entry, fat

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.usefixtures("quick_trials")]

# The three ways in which packages look for a library.
FINDERS = {
    "spec.origin": "import importlib.machinery, os\n"
    "torch.ops.load_library(importlib.machinery.PathFinder().find_spec('_ops', [os.path.dirname(__file__)]).origin)\n",
    "file finder": "import os\nfrom importlib import machinery as m\n"
    "f = m.FileFinder(os.path.dirname(__file__), (m.ExtensionFileLoader, m.EXTENSION_SUFFIXES))\n"
    "torch.ops.load_library(f.find_spec('_ops').origin)\n",
    "a fixed name": "from pathlib import Path\ntorch.ops.load_library(Path(__file__).parent / '_ops.so')\n",
}
FOREIGN_PYTHON = "cp399"


def with_code(folder: Path, data: bytes, *targets: bytes) -> bytes:
    """The library with device code, as nvcc puts it in."""
    (folder / "plain.so").write_bytes(data)
    (folder / "fat").write_bytes(fat(*targets))
    spawn.run("objcopy", "--add-section", ".nv_fatbin=fat", "plain.so", "coded.so", cwd=folder)
    return (folder / "coded.so").read_bytes()


def test_a_module_of_any_build_system_is_guarded_and_works(
    tmp_path: Path, make: Make, site: Callable[[Path], Path]
) -> None:
    plain = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": library(tmp_path, MODULE.format(name="_C", mark=7))})
    wheel = guarded(tmp_path / "out", plain, torch=this_torch())
    folder = site(wheel)
    assert importlib.import_module("ops._C").built() == 7
    (file,) = manifest(wheel).host
    assert (
        file.python == HERE
        and str(file.abi).startswith("torch-2.")
        and "/ops/_C.torch-2" in sys.modules["ops._C"].__file__
    )  # type: ignore[operator]
    release = TorchVersion.parse(this_torch()).release
    metadata = (folder / f"ops-1.0{named_after(this_torch())}.dist-info" / "METADATA").read_text()
    assert f"Requires-Dist: torch>={release},<2.{release.minor + 1}\n" in metadata and "precast" not in metadata
    assert metadata.endswith("\n\nText.\n") and (folder / "ops" / "__init__.py").read_text().startswith(
        '"""Ops."""\nfrom __f'
    )


@pytest.mark.parametrize("finder", FINDERS)
def test_a_library_is_found_as_packages_look_for_it(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    monkeypatch.setenv("GUARDED_OPS", "")
    code = library(tmp_path, OPS.format(mark=finder))
    site(
        guarded(
            tmp_path / "out", make({"ops/__init__.py": INIT + FINDERS[finder], "ops/_ops.so": code}), torch=this_torch()
        )
    )
    importlib.import_module("ops")
    import torch

    assert cli_main(["xray", str(next((tmp_path / "out").iterdir()))]) == 0, "a guard is no library"
    (opened,) = [path for path in torch.ops.loaded_libraries if str(tmp_path) in path]
    assert "/ops/_ops.torch-2." in opened
    assert not hasattr(torch.ops.load_library, "__wrapped__"), "nothing of the process is patched"
    assert opening.resolve(tmp_path / "nothing.so") == tmp_path / "nothing.so" and opening.resolve(None) is None


def test_a_module_that_is_loaded_from_its_path_under_another_name_works(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = INIT + (
        "import importlib.util, pathlib\n"
        "spec = importlib.util.spec_from_file_location('other', pathlib.Path(__file__).with_name('_ops.so'))\n"
        "other = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(other)\n"
    )
    code = library(tmp_path, MODULE.format(name="other", mark=8))
    wheel = guarded(tmp_path / "out", make({"ops/__init__.py": source, "ops/_ops.so": code}), torch=this_torch())
    site(wheel)
    package = importlib.import_module("ops")
    assert package.other.built() == 8 and "/ops/_ops.torch-" in package.other.__file__
    pretend(monkeypatch, on_torch("2.99.0"))
    del sys.modules["ops"]
    with pytest.raises(PrebuiltRefused, match=r"found torch 2\.99\.0"):
        importlib.import_module("ops")


def test_a_library_that_does_not_fit_is_refused_by_its_path(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = library(tmp_path, OPS.format(mark=1))
    source = INIT + FINDERS["a fixed name"]
    site(guarded(tmp_path / "out", make({"ops/__init__.py": source, "ops/_ops.so": code}), torch=this_torch()))
    pretend(monkeypatch, on_torch("2.99.0"))
    with pytest.raises(PrebuiltRefused, match=r"rejected \(torch-abi\): needs torch 2\.\d+ with .*found torch 2.99.0"):
        importlib.import_module("ops")


def test_a_library_of_a_folder_inside_a_package_is_refused_by_the_name_of_its_distribution(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = library(tmp_path, OPS.format(mark=1))
    source = INIT + FINDERS["a fixed name"].replace("parent /", "parent / 'lib' /")
    wheel = make({"ops/__init__.py": source, "ops/lib/_ops.so": code}, name="ops_dist")
    site(guarded(tmp_path / "out", wheel, torch=this_torch()))
    pretend(monkeypatch, on_torch("2.99.0"))
    with pytest.raises(PrebuiltRefused) as caught:
        importlib.import_module("ops")
    said = str(caught.value)
    assert said.startswith("ops.lib._ops does not fit this process") and " --no-binary ops_dist ops_dist " in said


def test_a_module_of_no_package_becomes_one(tmp_path: Path, make: Make, site: Callable[[Path], Path]) -> None:
    code = library(tmp_path, MODULE.format(name="lone", mark=5))
    wheel = guarded(tmp_path / "out", make({f"lone{SUFFIX}": code}, name="lone_dist"), torch=this_torch())
    site(wheel)
    assert importlib.import_module("lone").built() == 5
    assert opening.resolve(tmp_path / "site" / "lone" / "__init__.py").endswith(".guarded")


def test_wheels_for_several_torches_are_one_in_which_the_guard_chooses(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    torches = {1: this_torch(), 2: other_torch(-2)}
    single = []
    for mark, torch in torches.items():
        plain = make(
            {"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": library(tmp_path, MODULE.format(name="_C", mark=mark))}
        )
        single.append(guarded(tmp_path / f"single{mark}", plain, torch=torch))
    merged = guarded(tmp_path / "out", *single)
    again = guarded(tmp_path / "again", *reversed(single))
    assert merged.read_bytes() == again.read_bytes(), "the same bytes in any order"
    for torch, answer in ((torches[1], 0), (torches[2], 0), (other_torch(-1), 1)):
        assert cli_main(["xray", str(merged), "--torch", torch]) == answer, "xray judges what the guard chooses from"
    folder = site(merged)
    release = TorchVersion.parse(this_torch()).release
    wanted = f"torch>=2.{release.minor - 2},<2.{release.minor + 1},!=2.{release.minor - 1}.*"
    assert f"Requires-Dist: {wanted}\n" in (folder / "ops-1.0.dist-info" / "METADATA").read_text()
    assert importlib.import_module("ops._C").built() == 1
    pretend(monkeypatch, on_torch(torches[2]))
    other = opening.library_file("ops", "_C")
    assert f"torch-2.{release.minor - 2}" in other.name
    pretend(monkeypatch, on_torch(other_torch(-1)))
    with pytest.raises(PrebuiltRefused) as caught:
        opening.library_file("ops", "_C")
    assert f" 'torch==2.{release.minor - 2}.*'  # the torch that it was built for" in str(caught.value)
    for minor in (release.minor, release.minor - 2):  # it says which torches it is for
        assert f"torch 2.{minor}" in str(caught.value) or f"torch-2.{minor}" in str(caught.value)


def test_libraries_of_wheels_that_were_guarded_when_built_keep_apart(tmp_path: Path, make: Make) -> None:
    """A build names a library after its module alone, so two torches have the same name for different bytes."""
    single = []
    for mark, torch in ((1, this_torch()), (2, other_torch(-2))):
        code = library(tmp_path, MODULE.format(name="_C", mark=mark))
        wheel = guarded(
            tmp_path / f"single{mark}", make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code}), torch=torch
        )
        with zipfile.ZipFile(wheel) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        (file,) = manifest(wheel).host
        built = replace(manifest(wheel), host=(replace(file, path="host/_C.so"),)).to_json()
        files["ops/_C/host/_C.so"] = files.pop(f"ops/{file.path[3:]}")
        files["ops/_C/build_info.json"] = built.encode()
        named = next(name.partition("/")[0] for name in files if name.endswith("/METADATA"))
        wheel_file.write_wheel(wheel, named, {n: c for n, c in files.items() if "RECORD" not in n}, 0)
        single.append(wheel)
    merged = manifest(guarded(tmp_path / "out", *single))
    assert len({file.path for file in merged.host}) == 2 and {file.path for file in merged.host} == set(merged.files)


def test_wheels_for_several_pythons_and_gpus_are_one(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = library(tmp_path, MODULE.format(name="_C", mark=1))
    older = with_code(tmp_path, code, entry(SASS, 80, LZ4), entry(PTX, 80, LZ4))
    newer = with_code(tmp_path, code, entry(SASS, 90, LZ4))
    init = {"ops/__init__.py": INIT}
    wheels = [
        make({**init, f"ops/_C{SUFFIX}": older}),
        make({**init, f"ops/_C{SUFFIX}": newer}),
        make({**init, f"ops/_C{SUFFIX.replace(HERE[2:], FOREIGN_PYTHON[2:])}": code}, python=FOREIGN_PYTHON),
    ]
    merged = guarded(tmp_path / "out", *wheels, torch=this_torch())
    assert (
        merged.name
        == f"ops-1.0{named_after(this_torch())}-{HERE}.{FOREIGN_PYTHON}-{HERE}.{FOREIGN_PYTHON}-{PLATFORM}.whl"
    )
    site(merged)
    by_hash = {file.sha256: file.path for file in manifest(merged).host}

    def chosen(gpu: str, driver: str = "13.0") -> str:
        named = Gpu(0, ComputeCapability.parse(gpu), "a GPU")
        with monkeypatch.context() as patch:
            pretend(patch, lambda host: replace(host, gpus=(named,), driver=CudaVersion.parse(driver)))
            return "../" + opening.library_file("ops", "_C").name

    assert chosen("9.0") == by_hash[hashlib.sha256(newer).hexdigest()]
    assert chosen("8.6") == chosen("10.0") == by_hash[hashlib.sha256(older).hexdigest()]
    for gpu, driver, why in (("7.5", "13.0", r"arch"), ("10.0", "12.0", r"driver.*CUDA 12.9")):
        with pytest.raises(PrebuiltRefused, match=rf"rejected \({why}"):
            chosen(gpu, driver)
    with monkeypatch.context() as patch:
        pretend(patch, lambda host: replace(host, python=Release(3, 99)))
        assert opening.library_file("ops", "_C").name.startswith(
            f"_C.torch-2.{TorchVersion.parse(this_torch()).release.minor}"
        )


def test_the_audit_refuses_a_known_bad_build_or_warns_of_it(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name = "causal_conv1d_cuda"
    code = library(tmp_path, MODULE.format(name=name, mark=1))
    noted = [with_code(tmp_path, code, entry(SASS, arch, PLAIN, payload=elves.cubin("13.0.88"))) for arch in (103, 120)]
    refusing = make({"ops/__init__.py": INIT, f"ops/{name}{SUFFIX}": noted[0]})
    said = refused(capsys, tmp_path / "no", refusing, "--torch", this_torch())
    assert "refused" in said and "known-bad: needs " in said and "causal-conv1d/issues/105" in said
    warned = make({"ops/__init__.py": INIT, f"ops/{name}{SUFFIX}": noted[1]})
    wheel = guarded(tmp_path / "out", warned, torch=this_torch())
    assert "known-bad: needs " in (said := capsys.readouterr().out) and " 0 violations" in said
    assert [str(one) for one in manifest(wheel).host[0].compiled] == ["sm_120:nvcc:13.0.88"]
    site(wheel)
    gpu = Gpu(0, ComputeCapability(12, 0), "a GPU")
    pretend(monkeypatch, lambda host: replace(host, gpus=(gpu,), driver=CudaVersion(13, 0)))
    with pytest.warns(UserWarning, match=rf"^ops\.{name} may be wrong on this GPU: .* CuTe"):
        opening.library_file("ops", name)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are those of x86_64")
def test_a_processor_without_the_instructions_is_refused(
    tmp_path: Path, make: Make, site: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MODULE.format(name="_C", mark=1) + "void f(double* a) { for (int i = 0; i < 64; i++) a[i] += 1; }"
    code = library(tmp_path, source, "-O3", "-mavx512f", "-mprefer-vector-width=512")
    wheel = guarded(tmp_path / "out", make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": code}), torch=this_torch())
    assert "avx512f" in manifest(wheel).host[0].cpu
    site(wheel)
    monkeypatch.setattr("precast.core.probe.cpu_features", lambda: frozenset({"avx", "avx2"}))
    with pytest.raises(PrebuiltRefused, match=r"rejected \(cpu-level\): needs a processor with .*avx512f"):
        opening.library_file("ops", "_C")


def test_what_no_guard_can_stand_for_is_refused(tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    module = library(tmp_path, MODULE.format(name="_C", mark=1))
    alone = library(tmp_path, "int f;", torch_linked=False)
    absent = library(
        tmp_path, "namespace at { int no_such(); }\n" + OPS.format(mark=1).replace("get_num", "no_such_num")
    )
    init: dict[str, bytes | str] = {"ops/__init__.py": INIT}
    cases: list[tuple[dict[str, bytes | str], tuple[str, ...], str]] = [
        ({f"ops/_C{SUFFIX}": module}, (), "the C++ API of torch"),
        ({"ops/_plain.so": alone}, ("--torch", this_torch()), "has nothing to guard"),
        ({"ops/_ops.so": absent}, ("--torch", this_torch()), "which torch 2"),
        (
            {f"ops/_C{SUFFIX}": module},
            ("--torch", "2.1.0"),
            "found   a build for torch 2.1\n  needed  a build for torch 2.4 or newer",
        ),
        (
            {f"ops/_C{SUFFIX}": module, "ops/_C.py": "x = 1"},
            ("--torch", this_torch()),
            "no room for the guard ops/_C",
        ),
        ({f"ops/_C{SUFFIX}": module, "stray.txt": "x"}, ("--torch", this_torch()), "stray.txt: ownership: "),
        ({"ops/libtorch_cpu.so": module}, ("--torch", this_torch()), "a copy of torch's"),
    ]
    for files, options, why in cases:
        assert why in refused(capsys, tmp_path / "out", make({**init, **files}), *options)
    wheel = make({**init, f"ops/_C{SUFFIX}": module})
    assert f" {wheel} -o out\n" in refused(capsys, tmp_path / "out", wheel), "from any folder"


def test_wheels_that_differ_in_more_are_not_merged(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (library(tmp_path, MODULE.format(name="_C", mark=mark)) for mark in (1, 2))
    first = make({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": one})
    for files, why in (
        ({"ops/__init__.py": INIT + "x = 1\n", f"ops/_C{SUFFIX}": one}, "ops/__init__.py"),
        ({"ops/__init__.py": INIT, "ops/more.py": "", f"ops/_C{SUFFIX}": one}, "ops/more.py"),
        ({"ops/__init__.py": INIT, f"ops/_C{SUFFIX}": two}, "_C for torch-2"),
    ):
        said = refused(capsys, tmp_path / "out", first, make(dict(files)), "--torch", this_torch())
        assert " cannot be merged" in said and why in said


def test_the_line_goes_behind_docstring_and_future_imports() -> None:
    for before, after in (("", "x = 1\n"), ('"""Doc."""\n', "import a\n"), ("from __future__ import annotations", "")):
        made = answering.answering((before + after).encode(), "here")
        assert (
            answering.LINE.encode() in made
            and made.startswith(before.encode())
            and answering.answering(made, "here") == made
        )
        compile(made, "made", "exec")


LIBRARY = HostFile(
    "host/a.so",
    "a" * 64,
    1,
    Exact(Release(2, 13), True),
    "x86_64",
    ("libc10.so", "libc.so.6"),
    Release(2, 17),
    "3.4.21",
    (),
    ("a",),
)


@pytest.mark.parametrize(
    ("glibc", "glibcxx", "wanted"),
    [
        (5, "3.4", "2_17"),
        (17, "3.4.22", "2_24"),
        (28, "3.4.24", "2_28"),
        (29, "3.4.30", "2_35"),
        (38, "3.4.29", "2_38"),
    ],
)
def test_the_manylinux_tag_is_what_the_libraries_need(glibc: int, glibcxx: str, wanted: str) -> None:
    file = replace(LIBRARY, glibc=Release(2, glibc), glibcxx=glibcxx)
    assert platforms.manylinux("linux_aarch64", [file]) == f"manylinux_{wanted}_aarch64"
    assert platforms.manylinux("manylinux_2_41_x86_64", [file]) == "manylinux_2_41_x86_64", "a promise is kept"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"needed": ("libopenblas.so.0",)}, "found   libopenblas.so.0\n"),
        ({"glibcxx": "3.4.99"}, "found   GLIBCXX_3.4.99"),
    ],
)
def test_a_library_outside_of_every_policy_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(KernelError, match=why):
        platforms.manylinux("linux_x86_64", [replace(LIBRARY, **change)])


def test_of_two_builds_on_the_stable_abi_either_one_serves(tmp_path: Path) -> None:
    other = replace(LIBRARY, path="host/b.so", sha256="b" * 64)
    with pytest.raises(KernelError, match=r"a for torch-2\.13-cxx1, Python none, not the same in one and two"):
        merging._twin(other, Path("two"), {LIBRARY.path: (LIBRARY, Path("one"))})
    stable = [replace(file, abi=Stable(Release(2, 10))) for file in (LIBRARY, other)]
    one, two = (
        Finished(tmp_path, "a", "1", "linux_x86_64", Label(""), {}, {"a/_C": Folder((file,), (), {file.path: b""})})
        for file in stable
    )
    for group in ([one, two], [two, one]):
        info, data = merging._merged(group, "a/_C")
        assert info.host == (stable[0],) and set(data) == {"host/a.so"}, "the same in any order"


def image(target: str, nvrtc: str, digest: str) -> DeviceFile:
    driver, path = CudaVersion.parse(nvrtc.rpartition(".")[0]), f"device/a.{target}.ptx.xz"
    return DeviceFile(path, digest * 64, 1, "a", GpuTarget.parse(target), nvrtc, driver, 0, 1, digest * 64)


def of_device(folder: Path, name: str, *images: DeviceFile) -> Finished:
    module = f"{MODULE_MARK}{name}. {images[0].nvrtc}".encode()
    data = {one.path: one.nvrtc.encode() for one in images}
    return Finished(
        folder / name, "ops", "1", "linux_x86_64", Label(""), {"ops/a.py": module}, {"ops/_C": Folder((), images, data)}
    )


def test_of_two_nvrtcs_the_one_that_serves_more_drivers_serves(tmp_path: Path) -> None:
    new = of_device(tmp_path, "new", image("compute_80", "13.0.88", "a"))
    old = of_device(tmp_path, "old", image("compute_80", "12.8.93", "b"), image("compute_90", "12.8.93", "c"))
    for group in ([new, old], [old, new]):
        info, data = merging._merged(group, "ops/_C")
        assert info.device == old.folders["ops/_C"].device and set(data.values()) == {b"12.8.93"}
        assert merging.same_files(group)[0] == old.rest, "the module has the numbers of these images"
    more = of_device(tmp_path, "more", *new.folders["ops/_C"].device, image("compute_100", "13.0.88", "d"))
    with pytest.raises(KernelError, match=r"compute_100.ptx in .*more, and not in .*old\n  needed  .* more drivers"):
        merging._merged([old, more], "ops/_C")
    apart = of_device(tmp_path, "apart", image("compute_70", "13.0.88", "e"))
    assert len(merging._merged([new, apart], "ops/_C")[0].device) == 2, "other targets are joined"


def test_a_wheel_with_a_damaged_file_is_refused_in_words(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    module = library(tmp_path, MODULE.format(name="fused", mark=1))
    wheel = make({"ops/__init__.py": "damaged = 1\n", f"ops/fused{SUFFIX}": module})
    wheel.write_bytes(wheel.read_bytes().replace(b"damaged", b"changed", 1))
    assert "Bad CRC-32" in refused(capsys, tmp_path / "out", wheel, "--torch", this_torch())
