"""What classic libraries ask of torch: against recorded lists, and a library that asks for too much."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from precast._abi.settings import Settings
from precast._builder import catalogue, classic_headers, flags, matrix
from precast._builder.cache import Cache, default_root
from precast.core.torch_abi import Exact, parse_torch_abi
from precast.errors import KernelError
from tools.shared import torch_symbols
from tools.verbs import prove_classic

NEWEST = parse_torch_abi("torch-2.9-cxx1")


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., Path]:
    """A shared library from C++ source."""

    def make(source: str, *options: str) -> Path:
        (tmp_path / "source.cpp").write_text(source)
        out = tmp_path / "library.so"
        command = ["g++", "-shared", "-fPIC", "-o", str(out), str(tmp_path / "source.cpp"), *options]
        subprocess.run(command, check=True)
        return out

    return make


@pytest.mark.compiler
def test_what_torch_lacks_is_named(library: Callable[..., Path]) -> None:
    asking = library('extern "C" int at_gone(); extern "C" int at_there(); int f() { return at_gone() + at_there(); }')
    assert torch_symbols.read(asking).asked == {"at_gone", "at_there"}
    with pytest.raises(KernelError, match="at_gone") as caught:
        torch_symbols.check(asking, frozenset({"at_there"}), "torch 2.9.1")
    assert "1 of 2" in str(caught.value) and "torch 2.9.1" in str(caught.value)
    assert torch_symbols.check(asking, frozenset({"at_there", "at_gone"}), "") == {"at_there", "at_gone"}


@pytest.mark.compiler
def test_the_system_and_weak_references_are_not_asked_of_torch(library: Callable[..., Path]) -> None:
    text = '#include <stdio.h>\nextern "C" __attribute__((weak)) int maybe();\n'
    assert torch_symbols.read(library(f'{text}int f() {{ return maybe ? 0 : puts(""); }}')).asked == set()


def test_a_folder_that_is_no_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="needed  libtorch_cpu"):
        torch_symbols.of_torch(tmp_path)


def test_every_list_is_of_an_abi_that_is_built(checkout: Path) -> None:
    known = {str(abi) for abi in matrix.load(checkout / "matrix.toml").classic_built}
    found = {path.stem for path in torch_symbols.LISTS.glob("*.txt")}
    assert found and found <= known
    for name in found:
        symbols = torch_symbols.recorded(parse_torch_abi(name))
        assert symbols is not None and "GOMP_parallel" in symbols
        old = any("Ss" in symbol for symbol in symbols)
        assert old == name.endswith("cxx0"), "the mangled std::string of the old ABI"


def test_a_list_reads_back_what_was_recorded(tmp_path: Path) -> None:
    torch_symbols.record(NEWEST, "2.9.1+cu128", {"b", "a"}, tmp_path)
    assert torch_symbols.recorded(NEWEST, tmp_path) == {"a", "b"}
    assert torch_symbols.recorded(parse_torch_abi("torch-2.8-cxx1"), tmp_path) is None


@pytest.mark.compiler
@pytest.mark.headers
def test_the_adapter_asks_for_nothing_but_what_was_seen_in_torch(checkout: Path, tmp_path: Path) -> None:
    """The one unit that calls torch's C++, compiled as for a wheel."""
    assert isinstance(NEWEST, Exact)
    include = classic_headers.ensure(Cache(default_root(Settings.from_env(os.environ))).root / "headers", NEWEST)
    options = (*flags.host_options("g++", debug=False), *flags.adapter_options(NEWEST))
    out, source = tmp_path / "adapter.so", checkout / "csrc" / catalogue.ADAPTER[0]
    command = ["g++", *options, "-isystem", str(include), "-c", str(source), "-o", str(tmp_path / "adapter.o")]
    subprocess.run(command, check=True)
    rest = str(tmp_path / "rest.cpp")
    Path(rest).write_text("namespace precast { void fail(const char*, ...) { __builtin_trap(); } }\n")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(out), str(tmp_path / "adapter.o"), rest], check=True)
    offered = torch_symbols.recorded(NEWEST)
    assert offered is not None
    own = torch_symbols.read(out).defined  # `fail` stands in for the rest of the library
    assert torch_symbols.check(out, offered | own, "the recorded torch 2.9")


def test_a_pre_release_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove_classic, "_run", lambda command, site: '["2.9.0a0", true, "/torch/__init__.py", null]')
    with pytest.raises(KernelError, match="needed a release"):
        prove_classic.prove("python", Settings(), record=False)
