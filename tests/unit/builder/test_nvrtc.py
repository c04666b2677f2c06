"""Finding NVRTC in trees of every shape, and what happens when it refuses to compile. The libraries are made here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._builder import device, nvrtc, nvrtc_child
from precast._builder.cache import Cache
from precast._builder.catalogue import Family
from precast.core.capability import ComputeCapability, GpuTarget
from precast.errors import BuildFailed, KernelError
from tests.kit import spawn

pytestmark = pytest.mark.compiler

SOURCE = r"""
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <locale.h>
static const char* text = "device.cu(3): error: identifier \"x\" is undefined\n\n1 error detected\n";
#define E extern "C" __attribute__((visibility("default")))
E int nvrtcVersion(int* major, int* minor) { *major = MAJOR; *minor = MINOR; return 0; }
E int nvrtcGetNumSupportedArchs(int* count) { *count = 2; return 0; }
E int nvrtcGetSupportedArchs(int* archs) { archs[0] = 90; archs[1] = 121; return 0; }
E const char* nvrtcGetErrorString(int status) { return status == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
typedef const char** Texts;
E int nvrtcCreateProgram(void** p, const char*, const char*, int, Texts, Texts) { *p = malloc(1); return 0; }
E int nvrtcDestroyProgram(void** p) { free(*p); return 0; }
E int nvrtcCompileProgram(void*, int, const char**) {
  if (getenv("OUT_OF_MEMORY")) { fputs("LLVM ERROR: out of memory\n", stderr); abort(); }
  uselocale(newlocale(LC_ALL_MASK, "C", 0));
  return 6;
}
E int nvrtcGetProgramLogSize(void*, size_t* size) { *size = strlen(text) + 1; return 0; }
E int nvrtcGetProgramLog(void*, char* log) { strcpy(log, text); return 0; }
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Make a library that says it is that version of NVRTC, under a file name; each version is compiled once."""
    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.cpp").write_text(SOURCE)

    def make(version: str) -> Path:
        made = folder / f"libnvrtc-{version}.so"
        if not made.exists():
            major, minor = version.split(".")[:2]
            macros = [f"-DMAJOR={major}", f"-DMINOR={minor}"]
            spawn.library(made, folder / "fake.cpp", *macros)
        return made

    return make


@pytest.fixture
def put(library: Callable[[str], Path]) -> Callable[..., Path]:
    def place(folder: Path, version: str, name: str | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or f"libnvrtc.so.{version.partition('.')[0]}")
        path.write_bytes(library(version).read_bytes())
        return path

    return place


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No toolkit but those a test makes."""
    monkeypatch.setattr(nvrtc, "_TOOLKIT", tmp_path / "no-toolkit")
    monkeypatch.setattr(nvrtc, "_toolkit_of_nvcc", list)


def test_torchs_own_comes_before_a_package_before_a_toolkit(tmp_path: Path, put: Callable[..., Path]) -> None:
    toolkit = put(tmp_path / "cuda" / "lib64", "12.8.93")
    assert find(tmp_path).path == str(toolkit) and find(tmp_path).found_via == "toolkit"
    package = put(tmp_path / "other" / "nvidia" / "cu13" / "lib", "13.2.75")
    assert find(tmp_path).path == str(package) and find(tmp_path).found_via == "package"
    beside = put(tmp_path / "site" / "nvidia" / "cu13" / "lib", "13.0.88")
    assert find(tmp_path).path == str(beside) and find(tmp_path).found_via == "torch's own"
    bundled = put(tmp_path / "site" / "torch" / "lib", "12.1.105", "libnvrtc-0123abcd.so.12")
    assert find(tmp_path).path == str(bundled)


def test_the_package_tells_the_patch_level_and_the_builtins(tmp_path: Path, put: Callable[..., Path]) -> None:
    folder = tmp_path / "other" / "nvidia" / "cuda_nvrtc" / "lib"
    put(folder, "12.4.127")
    for name in ("libnvrtc-builtins.so.12.4", "libnvrtc-builtins.so.12.1", "libnvrtc-builtins.alt.so.12.4"):
        (folder / name).write_bytes(b"")
    (tmp_path / "other" / "nvidia_cuda_nvrtc_cu12-12.4.127.dist-info").mkdir()
    found = find(tmp_path)
    assert found.version == "12.4.127"
    assert found.builtins == str(folder / "libnvrtc-builtins.so.12.4")
    assert found.targets == (ComputeCapability(9, 0), ComputeCapability(12, 1))


def test_a_toolkit_tells_its_patch_level(tmp_path: Path, put: Callable[..., Path]) -> None:
    put(tmp_path / "cuda" / "lib64", "12.8.93")
    assert find(tmp_path).version == "12.8", "nobody says more"
    (tmp_path / "cuda" / "version.json").write_text('{"cuda_nvrtc": {"version": "12.8.93"}}')
    assert find(tmp_path).version == "12.8.93"


def test_a_label_takes_its_exact_version_only(tmp_path: Path, put: Callable[..., Path]) -> None:
    put(tmp_path / "other" / "nvidia" / "cu13" / "lib", "13.0.88")
    (tmp_path / "other" / "nvidia_cuda_nvrtc-13.0.88.dist-info").mkdir()
    assert find(tmp_path, "13.0.88").version == "13.0.88"
    found, looked_at = nvrtc.find_nvrtc(None, None, "13.0.89", site_dirs=[tmp_path / "other"])
    assert found is None and any("version 13.0.88, needed 13.0.89" in line for line in looked_at)


def test_every_place_is_named_when_there_is_none(tmp_path: Path) -> None:
    found, looked_at = nvrtc.find_nvrtc(tmp_path / "site" / "torch" / "lib", str(tmp_path / "cuda"), None, site_dirs=[])
    assert found is None
    assert looked_at == (
        f"nvrtc: torch's own ({tmp_path}/site/torch/lib): not there",
        f"nvrtc: toolkit ({tmp_path}/cuda/lib64): not there",
    )


def test_a_broken_library_is_passed_over_with_its_reason(tmp_path: Path, put: Callable[..., Path]) -> None:
    broken = tmp_path / "other" / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x7fELF cut short")
    put(tmp_path / "cuda" / "lib64", "12.8.93")
    found, looked_at = nvrtc.find_nvrtc(None, str(tmp_path / "cuda"), None, site_dirs=[tmp_path / "other"])
    assert found is not None and found.found_via == "toolkit"
    assert "cannot be used" in looked_at[0]


def test_a_failed_compile_tells_the_first_error_the_options_and_the_log(
    tmp_path: Path, put: Callable[..., Path]
) -> None:
    put(tmp_path / "other" / "nvidia" / "cu13" / "lib", "13.0.88")
    cache = Cache(tmp_path / "cache")
    with pytest.raises(BuildFailed) as caught:
        device.build_images("rms_norm", [GpuTarget.parse("sm_90")], find(tmp_path), cache=cache, debug=True, jobs=2)
    message = str(caught.value)
    assert message.splitlines()[1] == '  found   device.cu(3): error: identifier "x" is undefined'
    assert "--gpu-architecture=sm_90 --std=c++17 -G" in message
    log = Path(message.rpartition(": ")[2])
    assert log.is_relative_to(tmp_path / "cache") and "1 error detected" in log.read_text()


def test_an_nvrtc_that_ends_its_process_ends_a_child_and_is_a_failed_build(
    tmp_path: Path, put: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "other" / "nvidia" / "cu13" / "lib", "13.0.88")
    monkeypatch.setenv("OUT_OF_MEMORY", "1")
    with pytest.raises(BuildFailed) as caught:
        device.build_images(
            "rms_norm", [GpuTarget.parse("sm_90")], find(tmp_path), cache=Cache(tmp_path / "c"), debug=False, jobs=1
        )
    assert str(caught.value).splitlines()[1] == "  found   LLVM ERROR: out of memory"


def test_a_child_runs_no_code_of_the_current_directory(
    tmp_path: Path, put: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = put(tmp_path / "other" / "nvidia" / "cu13" / "lib", "13.0.88")
    for name in ("json", "struct", "ctypes", "signal", "sitecustomize", "precast"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of the current directory was run')")
    monkeypatch.chdir(tmp_path)
    found = nvrtc.Nvrtc(str(library), None, "13.0.88", (), "package")
    assert nvrtc_child.open_nvrtc(found).compile(b"", "device.cu", {}, [], ptx=False).error == "NVRTC_ERROR_COMPILATION"


def test_a_compile_leaves_the_locale_of_its_thread_alone(tmp_path: Path, put: Callable[..., Path]) -> None:
    uselocale = ctypes.CDLL(None).uselocale
    uselocale.argtypes, uselocale.restype = [ctypes.c_void_p], ctypes.c_void_p
    before = uselocale(None)
    compiler = nvrtc.Compiler(str(put(tmp_path, "12.1.105")), None)
    compiler.compile(b"", "device.cu", {}, [], ptx=False)
    assert uselocale(None) == before


def test_a_family_without_device_code_is_refused(tmp_path: Path, put: Callable[..., Path]) -> None:
    with pytest.raises(KernelError, match="cpu_adam"):
        device.read_program(Family("cpu_adam", None, (), (), (), ("cpu",)))


def test_device_code_may_include_files_of_csrc_only(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "device.cu").write_text("#include <cuda_bf16.h>\n")
    with pytest.raises(KernelError, match=r"cuda_bf16\.h"):
        device.read_program(Family("a", "a/device.cu", (), (), (), ("cuda",)), csrc=tmp_path)


def test_includes_are_handed_over_as_they_are_spelled(tmp_path: Path) -> None:
    for name, text in {
        "a/device.cu": '#include "../common/device.cuh"\n',
        "common/device.cuh": '#include "inner.cuh"\n',
        "common/inner.cuh": "// inner\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    program = device.read_program(Family("a", "a/device.cu", (), (), (), ("cuda",)), csrc=tmp_path)
    assert dict(program.headers) == {"../common/device.cuh": b'#include "inner.cuh"\n', "inner.cuh": b"// inner\n"}
    assert set(program.digests) == {"csrc/a/device.cu", "csrc/common/device.cuh", "csrc/common/inner.cuh"}


def find(tmp_path: Path, exact: str | None = None) -> nvrtc.Nvrtc:
    found, looked_at = nvrtc.find_nvrtc(
        tmp_path / "site" / "torch" / "lib", str(tmp_path / "cuda"), exact, site_dirs=[tmp_path / "other"]
    )
    assert found is not None, looked_at
    return found
