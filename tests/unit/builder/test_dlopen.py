"""What the dynamic loader refuses, and which versions of the system's libraries are known."""

from __future__ import annotations

import pytest

from precast._builder import dlopen, elf, xray
from tests.kit.elves import Library

RELR = ("libc.so.6", "GLIBC_ABI_DT_RELR", False)


def opening(library: Library) -> dlopen.Opening:
    data = library.to_bytes()
    return dlopen.read(data, elf.read_shared_object(data).versions)


def test_a_right_library_is_not_refused() -> None:
    assert opening(Library()) == opening(Library(relative=True, versions=(RELR,))) == dlopen.Opening()


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (Library(loads=False), "no segment that could be loaded"),
        (Library(dynamic=False), "no dynamic segment"),
        (Library(os_abi=9), "OS ABI 9"),
        (Library(padding=1), "must be zero"),
        (Library(entry_size=0), "has 0 bytes, not 56"),
        (Library(flags_1=0x40), "must not be opened"),
        (Library(flags_1=0x8000000), "a program"),
        (Library(relative=True, versions=(("libc.so.6", "GLIBC_2.17", False),)), "DT_RELR"),
    ],
)
def test_what_the_loader_refuses(library: Library, why: str) -> None:
    assert why in opening(library).refused


def test_two_tables_that_do_not_agree_make_it_unsure() -> None:
    assert "do not agree" in opening(Library(sections_move=True, needed=("libnowhere.so",))).unsure
    assert "alignment of 1 bytes" in opening(Library(align=1)).unsure


@pytest.mark.parametrize(("stack", "executable"), [(6, False), (7, True), (None, True)])
def test_a_library_says_whether_its_stack_is_executable(stack: int | None, executable: bool) -> None:
    assert opening(Library(stack=stack)).executable_stack is executable


def test_relative_relocations_need_a_newer_glibc() -> None:
    assert elf.read_shared_object(Library(relative=True, versions=(RELR,)).to_bytes()).glibc == (2, 36)
    assert elf.read_shared_object(Library(versions=(RELR,)).to_bytes()).glibc == (2, 36)


def test_every_need_of_a_version_is_read() -> None:
    needs = (("libstdc++.so.6", "CXXABI_1.3.5", False), ("libgomp.so.1", "OMP_4.5", False), ("libc.so.6", "X", True))
    info = elf.read_shared_object(Library(versions=needs, offered=("own.so", "OWN_2")).to_bytes())
    assert info.versions == (("libstdc++.so.6", "CXXABI_1.3.5"), ("libgomp.so.1", "OMP_4.5"), ("libc.so.6", ""))
    assert info.offered == {"own.so", "OWN_2"}


@pytest.mark.parametrize(
    ("file", "version", "known"),
    [
        ("libc.so.6", "GLIBC_2.99", True),  # the user names the glibc
        ("libc.so.6", "GLIBC_PRIVATE", False),
        ("libc.so.6", "GLIBC_ABI_DT_RELR", True),
        ("libc.so.6", "GLIBC_ABI_OTHER", False),
        ("libstdc++.so.6", "CXXABI_1.3.5", True),
        ("libstdc++.so.6", "CXXABI_1.3.99", False),
        ("libstdc++.so.6", "CXXABI_TM_1", True),
        ("libstdc++.so.6", "GLIBCXX_3.4.99", False),
        ("libgcc_s.so.1", "GCC_7.0.0", True),
        ("libgcc_s.so.1", "GCC_99.0.0", False),
        ("libgomp.so.1", "OMP_5.0", True),
        ("libgomp.so.1", "GOMP_4.0", True),
        ("libgomp.so.1", "OMP_9.0", False),
        ("libcudart.so.12", "libcudart.so.12", True),
        ("libcudart.so.12", "libcudart.so.13", False),
        ("libcrypto.so.3", "OPENSSL_3.0.0", False),
    ],
)
def test_an_unknown_version_is_not_known(file: str, version: str, known: bool) -> None:
    assert dlopen.known(file, version) is known


def test_a_name_without_a_version_that_nothing_offers_is_found() -> None:
    info = xray.library("a.so", Library(undefined=("nowhere",)).to_bytes(), None).info
    assert info.anywhere == {"nowhere"}
    assert not dlopen.offers("libc.so.6", "nowhere") and dlopen.offers("libc.so.6", "dlopen")
    assert dlopen.offers("libcuda.so.1", "cuInit")
