"""The C interface by ctypes: what goes over, and how a failure comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast._load.library import HostLibrary
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.verify import CannotOpen
from precast.errors import KernelError, KernelIncompatible
from tests.kit import fakes, spawn


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.mark.compiler
def test_every_call_reaches_the_library_with_its_arguments(toy_library: Path, calls: Path) -> None:
    library = HostLibrary(toy_library)
    assert library.build_id() == "0.0 toy"
    assert library.families() == ("rms_norm", "cpu_adam")
    assert library.entries("rms_norm") == ("one", "two")
    library.set_image("rms_norm", 3, b"1234567", GpuTarget.parse("sm_90a"), ComputeCapability(9, 0))
    library.refuse("rms_norm", 4, "no")
    library.register("rms_norm", "CUDA")
    library.prepare("rms_norm", 3)
    assert calls.read_text().splitlines() == [
        "set_image rms_norm 3 7 sm_90a 9.0",
        "refuse rms_norm 4 no",
        "register rms_norm CUDA",
        "prepare rms_norm 3",
    ]


@pytest.mark.compiler
def test_a_failure_is_an_error_with_the_librarys_own_words(toy_library: Path) -> None:
    library = HostLibrary(toy_library)
    for call in (lambda: library.register("broken", "CPU"), lambda: library.prepare("broken", 0)):
        with pytest.raises(KernelIncompatible, match="the family is broken") as caught:
            call()
        assert str(toy_library) in str(caught.value)
    with pytest.raises(KernelIncompatible, match="no such family"):
        library.entries("broken")
    with pytest.raises(KernelError, match=r"precast_refuse\(broken, 1\) of .* failed\n  found   status 1"):
        library.refuse("broken", 1, "text")


@pytest.mark.compiler
def test_what_the_linker_refuses_or_is_no_library_of_ours_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(CannotOpen, match=r"text\.so"):
        HostLibrary(tmp_path / "text.so")
    other = spawn.library(tmp_path / "other.so", 'extern "C" int something() { return 1; }')
    with pytest.raises(CannotOpen, match="precast_build_id"):
        HostLibrary(other)


@pytest.mark.compiler
@pytest.mark.parametrize("lacks", [False, True])
def test_what_the_running_torch_lacks_is_none(tmp_path: Path, lacks: bool) -> None:
    source = fakes.HOST_LIBRARY + (
        f"API int precast_thread_keys(unsigned long long* keys) {{ keys[0] = 5; keys[1] = 7; return {int(lacks)}; }}\n"
        "API const void* precast_operator(const char* name, unsigned long long* size) {\n"
        f"  *size = strlen(name); return {int(lacks)} ? NULL : name; }}\n"
    )
    library = HostLibrary(spawn.library(tmp_path / "toy.so", source))
    assert library.thread_keys() == (None if lacks else (5, 7))
    found = library.operator("rms_norm")
    assert found is None if lacks else (found is not None and found[1] == 8)
