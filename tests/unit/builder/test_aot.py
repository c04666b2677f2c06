"""What setup.py asks: the mode, the version, the requirements, and the refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from setuptools import Distribution

from precast._abi.settings import Settings
from precast._builder import aot, binaries, catalogue, commands, elf, headers, machine, matrix, provenance
from precast._builder.cache import Cache
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.host import Compiler
from precast.core.manifest import BuildMode, DeviceFile, HostFile, device_path, host_path
from precast.core.torch_abi import ANY_TORCH
from precast.core.version import CudaVersion, Label, Release
from precast.errors import KernelError
from tests.kit import spawn

CU130 = Settings(label=Label("cu130"))
FILE = HostFile(
    "host/x.so", "0" * 64, 1, ANY_TORCH, "x86_64", (), Release(2, 28), "3.4.22", ("baseline",), ("rms_norm",)
)


def test_the_environment_names_the_mode() -> None:
    assert aot.mode_of(Settings()) is BuildMode.PURE
    assert aot.mode_of(Settings(cuda_ext=True)) is BuildMode.MACHINE
    assert aot.mode_of(CU130) is BuildMode.RELEASE
    with pytest.raises(KernelError, match="ask for different wheels"):
        aot.mode_of(replace(CU130, cuda_ext=True))
    with pytest.raises(KernelError, match="PRECAST_LABEL not set"):
        aot.mode_of(Settings(parts="parts"))


def test_another_architecture_takes_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert aot.mode_of(Settings(arch="x86_64")) is BuildMode.PURE
    assert aot.mode_of(replace(CU130, arch="aarch64")) is BuildMode.RELEASE
    for settings in (Settings(arch="aarch64"), Settings(arch="aarch64", cuda_ext=True)):
        with pytest.raises(KernelError, match="PRECAST_ARCH=aarch64 is for release wheels, and this build is not one"):
            aot.mode_of(settings)


def test_a_missing_cross_compiler_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError) as caught:
        binaries.host_tools(replace(CU130, arch="aarch64"))
    assert "found   compiler: aarch64-linux-gnu-g++ on PATH: not there" in str(caught.value)
    assert "needed  a C++ compiler for aarch64 and ninja" in str(caught.value)
    assert "apt-get install -y g++-aarch64-linux-gnu" in str(caught.value)


def test_the_tag_of_a_wheel_names_what_it_was_built_for(checkout: Path, tmp_path: Path) -> None:
    settings = Settings(label=Label("cpu"), arch="aarch64", cache_dir=str(tmp_path))
    command = commands.for_setup(settings, checkout)["cmdclass"]
    assert isinstance(command, dict)
    assert command["bdist_wheel"](Distribution()).get_tag() == ("py3", "none", "linux_aarch64")


def test_the_label_is_the_local_version() -> None:
    assert [aot.version_of(settings) for settings in (Settings(), CU130)] == ["0.1.0", "0.1.0+cu130"]


@pytest.mark.parametrize(
    ("settings", "shipped", "wanted"),
    [
        (Settings(), True, []),
        (Settings(), False, ["pip"]),
        (Settings(cuda_ext=True), True, ["ninja"]),
        (CU130, True, ["ninja", "nvidia-cuda-nvrtc==13.0.88", "pip"]),
        (Settings(label=Label("cu121")), True, ["ninja", "nvidia-cuda-nvrtc-cu12==12.1.105", "pip"]),
        (Settings(label=Label("cpu")), True, ["ninja", "pip"]),
        (
            Settings(label=Label("")),
            True,
            ["ninja", "nvidia-cuda-nvrtc-cu12==12.8.93", "nvidia-cuda-nvrtc==13.0.88", "pip"],
        ),
        (replace(CU130, parts="parts"), True, []),
    ],
)
def test_requirements_follow_the_mode(
    settings: Settings,
    shipped: bool,
    wanted: list[str],
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headers, "complete", lambda folder, pins: shipped and folder.name == "torch_stable")
    assert aot.requirements(replace(settings, cache_dir=str(tmp_path)), checkout) == wanted


def test_an_unknown_label_stops_the_build_at_once(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(matrix.MatrixError, match="cu125"):
        aot.requirements(Settings(label=Label("cu125"), cache_dir=str(tmp_path)), checkout)


def test_a_minor_of_torch_that_there_is_not_stops_the_build_at_once(checkout: Path, tmp_path: Path) -> None:
    slim = replace(CU130, cache_dir=str(tmp_path), only_torch=Release(9, 9))
    with pytest.raises(KernelError) as caught:
        aot.requirements(slim, checkout)
    said = str(caught.value)
    assert said.startswith("PRECAST_ONLY_TORCH=9.9 selects no torch for ")
    assert "needed  one of 2.4, 2.5, 2.6, " in said and "fix     1) export PRECAST_ONLY_TORCH=2." in said
    with pytest.raises(KernelError, match="selects no torch"):
        aot.requirements(replace(slim, parts="parts"), checkout)
    assert "ninja" not in aot.requirements(replace(slim, only_torch=Release(2, 6), parts="parts"), checkout)


def test_a_slim_wheel_takes_a_label() -> None:
    with pytest.raises(KernelError, match=r"PRECAST_ONLY_TORCH=2\.6 is for release wheels"):
        aot.mode_of(Settings(only_torch=Release(2, 6)))


def test_a_list_of_gpus_that_names_none_is_refused() -> None:
    with pytest.raises(ValueError, match="TORCH_CUDA_ARCH_LIST=' ; ' is not accepted: it names no GPU architecture"):
        Settings(arch_list=" ; ").targets()


def promised(folder: Path, known: matrix.Matrix, label: str) -> binaries.Made:
    """Made-up files for all that a label promises on x86_64."""
    (folder / "x").write_bytes(b"1")
    hosts = [replace(FILE, path=host_path(abi, "x86_64"), abi=abi) for abi in known.hosts("x86_64")]
    devices = [
        DeviceFile(path, "0" * 64, 1, family.name, target, "13.0.88", CudaVersion(13, 0), 0, 1, "0" * 64)
        for family in catalogue.FAMILIES
        for target in known.label(Label(label)).targets
        if family.device is not None
        for path in [device_path(family.name, [target])]
    ]
    return binaries.Made(tuple((f, folder / "x") for f in hosts), tuple((f, folder / "x") for f in devices))


@pytest.mark.parametrize("label", ["cu130", "cpu", ""])
def test_a_wheel_that_is_not_what_its_label_promises_is_refused(label: str, checkout: Path, tmp_path: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    whole = promised(tmp_path, known, label)

    def check(made: binaries.Made) -> None:
        aot.check_promise(made, known, Label(label), "x86_64", None)

    check(whole)
    with pytest.raises(KernelError, match=r"found   no host/kernels-x86_64\.so, no host/torch-2\.4-cxx0\.so"):
        check(replace(whole, host=whole.host[2:]))
    with pytest.raises(KernelError, match=r"found   no .*, and [0-9]+ more"):
        check(binaries.Made())
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(KernelError, match=r"found   no host/torch-2\.9-cxx1\.so\n"):
        check(replace(whole, host=(*whole.host[:-1], (whole.host[-1][0], empty))))
    foreign = promised(tmp_path, known, "cu121").device  # CUDA 13 has no sm_70
    if label:
        with pytest.raises(KernelError, match=r"sm_70\.cubin, which the label does not promise"):
            check(replace(whole, device=(*whole.device, *(pair for pair in foreign if "sm_70" in pair[0].path))))
    if whole.device:
        with pytest.raises(KernelError, match=f"found   no {whole.device[-1][0].name}\n"):
            check(replace(whole, device=whole.device[:-1]))


@pytest.mark.parametrize(("missing", "more"), [(4, ""), (5, ""), (6, ", and 1 more")])
def test_five_of_the_missing_files_are_named(missing: int, more: str, checkout: Path, tmp_path: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    whole = promised(tmp_path, known, "cpu")
    names = sorted(file.path for file, _ in whole.host)
    kept = tuple(pair for pair in whole.host if pair[0].path in names[missing:])
    with pytest.raises(KernelError) as caught:
        aot.check_promise(replace(whole, host=kept), known, Label("cpu"), "x86_64", None)
    found = ", ".join(f"no {name}" for name in names[:missing][:5])
    assert str(caught.value).splitlines()[1] == f"  found   {found}{more}"


@pytest.mark.parametrize(
    ("glibc", "glibcxx", "recorded"),
    [
        ((2, 28), (3, 4, 22), ("2.28", "3.4.22")),
        ((2, 2, 5), (3, 4), ("2.2", "3.4")),
        ((2,), (), ("2.0", "3.4")),
        ((), (), ("0.0", "3.4")),
    ],
)
def test_a_host_library_is_recorded_with_what_it_needs(
    glibc: tuple[int, ...],
    glibcxx: tuple[int, ...],
    recorded: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "library.so").write_bytes(b"a library")
    facts = elf.ElfInfo("x86_64", None, ("libc.so.6",), glibc, glibcxx, frozenset(), frozenset())
    built = SimpleNamespace(path=tmp_path / "library.so", sha256="a" * 64)
    monkeypatch.setattr(binaries, "host_tools", lambda settings: (Compiler("/usr/bin/g++", "12.2.0", "g++"), "ninja"))
    monkeypatch.setattr(binaries, "build_library", lambda *arguments: built)
    monkeypatch.setattr(binaries.host, "verify_library", lambda *arguments, **options: facts)
    monkeypatch.setattr(binaries.toolchain, "target_machine", lambda settings: "x86_64")
    made = binaries.make_host(ANY_TORCH, Settings(), Cache(tmp_path / "cache"))
    ((file, path),) = made.host
    assert (str(file.glibc), file.glibcxx) == recorded
    assert (path, file.sha256, file.bytes, file.machine) == (tmp_path / "library.so", "a" * 64, 9, "x86_64")
    assert (file.needed, file.debug, made.compilers) == (("libc.so.6",), False, (("g++", "12.2.0"),))


def test_a_release_above_the_ceilings_is_refused() -> None:
    binaries.check_ceilings(FILE)
    for bad in (replace(FILE, glibc=Release(2, 29)), replace(FILE, glibcxx="3.4.29")):
        with pytest.raises(KernelError, match="too new for manylinux_2_28"):
            binaries.check_ceilings(bad)


def test_an_editable_install_and_an_sdist_have_no_label(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="editable install cannot be built for a label"):
        aot.warm_cache(CU130)
    with pytest.raises(KernelError, match="an sdist cannot be built for one label"):
        aot.stage_sdist(tmp_path, provenance.Provenance(None, True), CU130)


def test_an_sdist_gets_the_pinned_headers_and_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = headers.load_pins()
    names = [*(f"include/{name}" for name in pins.headers), *pins.notices]
    for name in names:
        (tmp_path / "fetched" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fetched" / name).write_text(f"// {name}")
    (tmp_path / "fetched" / "include" / "not_pinned.h").touch()
    monkeypatch.setattr(headers, "pinned", lambda cache: tmp_path / "fetched" / "include")
    facts = provenance.Provenance("a" * 40, False)
    (tmp_path / "tree").mkdir()
    aot.stage_sdist(tmp_path / "tree", facts, Settings())
    folder = tmp_path / "tree" / "csrc" / headers.FOLDER
    assert {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()} == {
        name: f"// {name}" for name in names
    }
    assert json.loads((tmp_path / "tree" / provenance.FACTS_FILE).read_text()) == {
        "commit": "a" * 40,
        "dirty": False,
        "epoch": None,
    }


def test_headers_that_lie_in_their_place_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    aot._copy_headers(tmp_path / "there", tmp_path / "link")
    assert list((tmp_path / "there").iterdir()) == []
    with pytest.raises(FileNotFoundError):
        aot._copy_headers(tmp_path / "there", tmp_path / "elsewhere")


def test_the_commit_comes_from_git_else_from_the_sdist(tmp_path: Path) -> None:
    assert provenance.of(tmp_path) == provenance.Provenance(None, True), "nobody knows it"
    (tmp_path / provenance.FACTS_FILE).write_text(json.dumps({"commit": "abc1234", "dirty": False}))
    assert provenance.of(tmp_path) == provenance.Provenance("abc1234", False)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    spawn.run(*git, "init", "-q")
    spawn.run(*git, "commit", "-q", "--allow-empty", "-m", "m")
    facts = provenance.of(tmp_path)
    assert facts.dirty and facts.commit is not None and len(facts.commit) == 40
    inside = tmp_path / "unpacked"
    inside.mkdir()
    assert provenance.of(inside).commit is None, "an unpacked sdist inside somebody's checkout is not that checkout"


def test_a_gpu_gets_sass_or_the_newest_ptx_below() -> None:
    known = [ComputeCapability(8, 0), ComputeCapability(9, 0)]
    assert machine.target_for(ComputeCapability(9, 0), known) == GpuTarget.parse("sm_90")
    assert machine.target_for(ComputeCapability(12, 0), known) == GpuTarget.parse("compute_90")


def test_without_a_driver_there_are_no_gpus() -> None:
    assert machine.visible_gpus("libnot-there.so.1") == ()


def test_other_build_plugins_find_what_they_append_to(checkout: Path) -> None:
    """Plugins of setuptools that lie in the same environment extend the list of build steps."""
    code = (
        "from setuptools.command.build import build; from pathlib import Path; "
        "from precast._abi.settings import Settings; from precast._builder.commands import for_setup; "
        f"command = for_setup(Settings(), Path({str(checkout)!r}))['cmdclass']['build']; "
        "command.sub_commands.append(('x', None)); assert ('x', None) not in build.sub_commands"
    )
    spawn.python("-c", code)  # fails if an assertion in it does
