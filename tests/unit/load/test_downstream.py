"""What is found of somebody else's package before any library of it is opened."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from precast._version import __version__
from precast.core import opening, probe, refusals, verify
from precast.core.manifest import BuildInfo, BuildMode, HostFile, host_path
from precast.core.torch_abi import STABLE_FLOOR, Stable
from precast.core.version import Label, Release
from precast.errors import KernelError, PrebuiltRefused

pytestmark = pytest.mark.torch
DATA = b"a library"
ABI = Stable(STABLE_FLOOR)
FILE = HostFile(
    path=host_path(ABI, "x86_64"),
    sha256=hashlib.sha256(DATA).hexdigest(),
    bytes=len(DATA),
    abi=ABI,
    machine=platform.machine(),
    needed=("libtorch_cpu.so",),
    glibc=Release(2, 14),
    glibcxx="3.4.19",
    cpu_levels=("baseline",),
    families=("scale",),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package ``their_ops``, which is importable and holds one library."""
    package = tmp_path / "their_ops"
    (package / "_C" / "host").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_C" / FILE.path).write_bytes(DATA)
    monkeypatch.syspath_prepend(tmp_path)
    write(package, FILE)
    return package


def write(package: Path, *files: HostFile) -> None:
    info = BuildInfo(__version__, Label(""), BuildMode.MACHINE, None, False, "0" * 64, (("g++", "12.2.0"),), files)
    (package / "_C" / verify.MANIFEST).write_text(info.to_json())


def test_a_library_that_fits_and_is_whole_is_named(folder: Path) -> None:
    assert opening.library_file("their_ops", "scale") == folder / "_C" / FILE.path


def test_the_folder_of_a_manifest_is_below_its_package_or_is_the_package_itself() -> None:
    assert opening.inside("their_ops") == opening.inside("their_ops.more") == ("_C",)
    assert opening.inside("_C") == opening.inside("their_ops._C") == ()


def test_a_changed_library_is_damaged(folder: Path) -> None:
    (folder / "_C" / FILE.path).write_bytes(b"a_library")
    with pytest.raises(PrebuiltRefused, match=r"^their_ops\.scale is damaged\n") as caught:
        opening.library_file("their_ops", "scale")
    assert isinstance(caught.value.__cause__, verify.Damaged)
    assert FILE.path in str(caught.value)


def test_a_library_for_another_machine_is_refused_with_the_reason(folder: Path) -> None:
    write(folder, replace(FILE, machine="riscv64"))
    with pytest.raises(PrebuiltRefused, match=r"^their_ops\.scale does not fit this process") as caught:
        opening.library_file("their_ops", "scale")
    assert "riscv64" in str(caught.value)


def test_a_library_of_another_name_is_refused(folder: Path) -> None:
    with pytest.raises(PrebuiltRefused, match=r"^their_ops\.wave does not fit this process"):
        opening.library_file("their_ops", "wave")


@pytest.mark.parametrize(("error", "said"), [(None, "no torch"), ("ImportError: libc10.so", "ImportError: libc10.so")])
def test_without_torch_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch, error: str | None, said: str) -> None:
    host = replace(probe.host(with_gpus=False), torch=None, torch_error=error)
    monkeypatch.setattr(probe, "host", lambda with_gpus: host)
    with pytest.raises(
        PrebuiltRefused,
        match=rf"^their_ops\.scale needs torch\n  found   {said}\n  needed  torch.*\n  fix     1\) .*pip",
    ):
        opening.library_file("their_ops", "scale")


def test_a_package_without_a_manifest_has_nothing(folder: Path) -> None:
    (folder / "_C" / verify.MANIFEST).unlink()
    with pytest.raises(PrebuiltRefused, match=r"^their_ops has nothing prebuilt\n  found   no manifest in \S+/_C"):
        opening.library_file("their_ops", "scale")


def test_a_damaged_manifest_is_refused_and_blamed_on_its_package(folder: Path) -> None:
    (folder / "_C" / verify.MANIFEST).write_text("{")
    with pytest.raises(PrebuiltRefused, match=r"^the manifest of their_ops cannot be used, so nothing") as caught:
        opening.library_file("their_ops", "scale")
    assert "--no-binary their_ops their_ops" in str(caught.value)


@pytest.mark.parametrize("package", ["there_is_no_such_package", ""])
def test_a_package_that_is_not_there_is_named(package: str) -> None:
    with pytest.raises(KernelError, match=f"^there is no package '{package}'\n"):
        opening.library_file(package, "scale")


def test_a_package_in_a_checkout_is_built_from_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pkg" / "their_ops" / "_C").mkdir(parents=True)
    (tmp_path / "pkg" / "their_ops" / "__init__.py").touch()
    (tmp_path / "setup.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "pkg")
    assert refusals._sources_of("their-ops", "their_ops.deep") == str(tmp_path)
    assert refusals._again("their_ops").endswith(f" --force-reinstall --no-deps {tmp_path}")
    (tmp_path / "setup.py").unlink()
    assert refusals._sources_of("their-ops", "their_ops") is None
    (tmp_path / "pkg" / "their_ops" / "__init__.py").unlink()  # now a namespace package, which has no file
    assert refusals._sources_of("their-ops", "their_ops") is None
    assert refusals._sources_of("their-ops", "there_is_no_such_package") is None
