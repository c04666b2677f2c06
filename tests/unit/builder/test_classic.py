"""Adapters to one torch: their headers, what they share, and what is refused; one for the torch here, which works."""

from __future__ import annotations

import importlib.util
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from precast._builder import catalogue, classic_headers, flags, host, matrix, torch_wheel
from precast._builder.cache import Cache
from precast._builder.classic_headers import ROOTS, ClassicPins
from precast.core.host import Compiler
from precast.core.torch_abi import STABLE_FLOOR, Exact
from precast.core.version import Release
from precast.errors import KernelError, KernelUnavailable
from tests.kit import spawn

GCC = Compiler("/usr/bin/g++", "12.2.0", "g++")
OLD, NEW = Exact(Release(2, 4), cxx11=False), Exact(Release(2, 9), cxx11=True)
COMMIT = "5811a8d7da" + "0" * 30
TEXTS = {**dict.fromkeys(ROOTS, "#pragma once\n#include <c10/core.h>\n"), "c10/core.h": '#include "beside.h"\n'}
TEXTS |= {"c10/beside.h": "", "c10/nobody_includes.h": ""}


def make_wheel(path: Path, texts: dict[str, str] = TEXTS) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(f"torch/include/{name}", text)
    return path


def pinned(path: Path) -> ClassicPins:
    with zipfile.ZipFile(path) as wheel:
        return classic_headers.pin(wheel, "2.4.1")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel that pip would find."""
    wheel = make_wheel(tmp_path / "torch.whl")
    monkeypatch.setattr(torch_wheel, "find_wheel", lambda torch: wheel.as_uri())
    return wheel


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., host.Plan]:
    """A plan of an adapter with headers of two lines; nothing is compiled."""

    def torch_headers(abi: Exact, cache: Cache) -> Path:
        folder = tmp_path / str(abi)
        for name in ROOTS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"// {abi.release}\n")
        return folder

    monkeypatch.setattr(host, "torch_headers_dir", torch_headers)

    def make(abi: Exact, compiler: Compiler = GCC) -> host.Plan:
        return host.make_adapter_plan(abi, compiler, cache=Cache(tmp_path / "cache"), debug=False)

    return make


def test_headers_are_those_that_the_adapter_includes_and_theirs(tmp_path: Path, index: Path) -> None:
    pins = pinned(index)
    assert pins.files == len(ROOTS) + 2
    include = classic_headers.ensure(tmp_path / "kept", OLD, pins)
    assert classic_headers.complete(include, pins)
    assert (include / "c10/beside.h").is_file() and not (include / "c10/nobody_includes.h").exists()


def test_kept_headers_are_not_asked_for_again_until_one_is_damaged(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = pinned(index)
    include = classic_headers.ensure(tmp_path / "kept", OLD, pins)
    asked: list[str] = []
    monkeypatch.setattr(torch_wheel, "find_wheel", lambda torch: asked.append(torch) or index.as_uri())
    classic_headers.ensure(tmp_path / "kept", OLD, pins)
    assert not asked
    (include / "c10/beside.h").write_text("// edited\n")
    classic_headers.ensure(tmp_path / "kept", OLD, pins)
    assert asked == ["2.4.1"] and classic_headers.complete(include, pins)


def test_two_libraries_of_one_minor_fetch_its_headers_once(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock one would remove the folder that the other has just filled and compiles with."""
    pins = pinned(index)
    asked: list[str] = []

    def slowly(torch: str) -> str:
        asked.append(torch)
        time.sleep(0.2)
        return index.as_uri()

    monkeypatch.setattr(torch_wheel, "find_wheel", slowly)
    monkeypatch.setattr(classic_headers, "_pins_for", lambda abi: pins)
    cache = Cache(tmp_path / "cache")
    found: list[Path] = []
    abis = [Exact(OLD.release, cxx11=bool(number % 2)) for number in range(6)]
    threads = [
        threading.Thread(target=lambda abi=abi: found.append(host.torch_headers_dir(abi, cache)))  # type: ignore[misc]
        for abi in abis
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == ["2.4.1"] and len(found) == 6 and len(set(found)) == 1
    assert classic_headers.complete(found[0], pins)


def test_another_header_than_the_pinned_one_is_refused(tmp_path: Path, index: Path) -> None:
    pins = pinned(index)
    make_wheel(index, {**TEXTS, "c10/beside.h": "// another\n"})
    with pytest.raises(KernelError, match="not those that precast was written against"):
        classic_headers.ensure(tmp_path / "kept", OLD, pins)
    assert not (tmp_path / "kept").exists()


def test_without_an_index_the_error_names_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(torch: str) -> str:
        raise FileNotFoundError(f"no wheel of torch {torch} on https://index")

    monkeypatch.setattr(torch_wheel, "find_wheel", nowhere)
    with pytest.raises(KernelError, match=r"C\+\+ headers of torch 2\.4\.1 are missing") as caught:
        classic_headers.ensure(tmp_path, OLD)
    assert "no wheel of torch 2.4.1 on https://index" in str(caught.value)


def test_a_minor_without_pins_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"torch-2\.3-cxx0[^$]*pinned headers of torch 2\.4, 2\.5"):
        classic_headers.ensure(tmp_path, Exact(Release(2, 3), cxx11=False))


def test_every_classic_release_of_the_matrix_is_pinned(checkout: Path) -> None:
    known = matrix.load(checkout / "matrix.toml")
    wanted = {release.release: release.version for release in known.releases if release.release < STABLE_FLOOR}
    assert {minor: pins.torch for minor, pins in classic_headers.load_pins().items()} == wanted


def test_a_build_at_run_time_takes_the_headers_of_that_very_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = tmp_path / "torch"
    (torch / "include/torch").mkdir(parents=True)
    (torch / "version.py").write_text(f"__version__ = '2.9.1+cu128'\ngit_version = '{COMMIT}'\n")
    spec = SimpleNamespace(submodule_search_locations=[str(torch)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(KernelError, match="without its headers"):
        classic_headers.installed(COMMIT)
    (torch / "include/torch/library.h").write_text("")
    assert host.torch_headers_dir(replace(NEW, git=COMMIT), Cache(tmp_path)) == torch / "include"
    with pytest.raises(KernelError, match=f"a torch of git {COMMIT}"):
        classic_headers.installed("1" * 40)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KernelError, match="no torch"):
        classic_headers.installed(COMMIT)


def test_an_adapter_is_compiled_for_its_torch_alone(plan: Callable[..., host.Plan]) -> None:
    one, other = (plan(abi) for abi in (OLD, NEW))
    assert [unit.source for unit, _ in one.units] == list(catalogue.ADAPTER) and one.stubs == flags.TORCH
    assert one.key != other.key
    new = plan(replace(NEW, release=Release(2, 13)))
    assert [unit.options.count("-std=c++20") for unit, _ in new.units] == [1, 1, 1], "its headers need it"
    assert not any("-std=c++20" in unit.options for unit, _ in one.units)


def test_the_cxx11_abi_and_the_commit_are_in_the_key(plan: Callable[..., host.Plan]) -> None:
    six = [Exact(Release(2, 6), cxx11) for cxx11 in (False, True)]
    abis = [*six, NEW, replace(NEW, git=COMMIT), replace(NEW, git="1" * 40)]
    assert len({plan(abi).key.digest for abi in abis}) == len(abis)


def test_clang_is_refused_as_its_openmp_is_another(plan: Callable[..., host.Plan]) -> None:
    with pytest.raises(KernelUnavailable, match=r"adapter to torch-2\.9-cxx1 can be built by clang\+\+"):
        plan(NEW, Compiler("/usr/bin/clang++", "19.1.0", "clang++"))


_COUNTED = """
#include <exception>
#include <stdexcept>
int live = 0;
struct Error : std::runtime_error {
  Error() : std::runtime_error("") { ++live; }
  Error(const Error& other) : std::runtime_error(other) { ++live; }
  ~Error() { --live; }
};
int main() {
  for (int i = 0; i < 100; ++i) {
    std::exception_ptr one;
    try { throw Error(); } catch (...) { one = std::current_exception(); }
    std::exception_ptr two = one, three;
    three = two;
    if (live < 1) return 100;
    try { std::rethrow_exception(three); } catch (const Error&) {}
  }
  return live;
}
"""


@pytest.mark.compiler
def test_exceptions_are_counted_right_by_what_old_systems_have(checkout: Path, tmp_path: Path) -> None:
    """What at::parallel_for inlines asks gcc 11's libstdc++ for; manylinux_2_28 has CXXABI 1.3.11."""
    (tmp_path / "counted.cpp").write_text(_COUNTED)
    sources = (tmp_path / "counted.cpp", checkout / "csrc/host/glibc_compat.cpp")
    program = spawn.program(tmp_path / "counted", "-O2", *sources)
    spawn.run(program)
    assert b"CXXABI_1.3.3" in program.read_bytes() and b"CXXABI_1.3.13" not in program.read_bytes()
