from __future__ import annotations

import pytest

from precast.core.torch_abi import AnyTorch, Exact, Stable, fits, is_git_version, needed, parse_torch_abi
from precast.core.version import Release, TorchVersion

GIT = "b4e4ee81d3" + "0" * 30


@pytest.mark.parametrize(
    "text", ["torch-table-1", "torch-stable-2.10", "torch-2.6-cxx0", "torch-2.9-cxx1", f"torch-2.10-cxx1-git{GIT}"]
)
def test_abi_strings_come_back(text: str) -> None:
    assert str(parse_torch_abi(text)) == text


def test_abi_values() -> None:
    assert parse_torch_abi("torch-table-12") == AnyTorch(12)
    assert parse_torch_abi("torch-stable-2.10") == Stable(Release(2, 10))
    assert parse_torch_abi("torch-2.6-cxx0") == Exact(Release(2, 6), cxx11=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "torch-table",
        "torch-table-",
        "torch-table-01",
        "torch-table-\u0661",
        "torch-2.6",
        "torch-stable-2",
        "torch-2.6-cxx2",
        "stable-2.10",
        "torch-2.6-cxx1-gitXY",
    ],
)
def test_what_is_not_an_abi_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse_torch_abi(text)


def test_a_git_version_is_hexadecimal() -> None:
    assert is_git_version(GIT)
    assert not is_git_version("Unknown")
    assert not is_git_version(None)
    with pytest.raises(ValueError, match="not a git version"):
        Exact(Release(2, 10), True, "Unknown")


@pytest.mark.parametrize(
    ("abi", "torch", "cxx11", "found"),
    [
        ("torch-table-1", "2.4.1", False, None),
        ("torch-table-1", "2.10.0a0", True, None),
        ("torch-stable-2.10", "2.9.1", True, "torch 2.9.1"),
        ("torch-stable-2.10", "2.10.0a0+x.nv25.12", True, "torch 2.10.0a0+x.nv25.12, a pre-release of 2.10"),
        ("torch-stable-2.10", "2.10.0", False, None),
        ("torch-stable-2.10", "2.11.0a0", True, None),
        ("torch-2.9-cxx1", "2.9.1+cu128", True, None),
        ("torch-2.9-cxx1", "2.9.0", False, "torch 2.9.0 with cxx11 ABI 0"),
        ("torch-2.9-cxx1", "2.10.0", True, "torch 2.10.0"),
        ("torch-2.9-cxx1", "2.9.0a0", True, "torch 2.9.0a0, a pre-release of 2.9"),
        (f"torch-2.10-cxx1-git{GIT}", "2.10.0a0", True, f"torch 2.10.0a0 of git {'f' * 10}"),
    ],
)
def test_what_does_not_fit_says_what_was_found(abi: str, torch: str, cxx11: bool, found: str | None) -> None:
    assert fits(parse_torch_abi(abi), TorchVersion.parse(torch, git="f" * 40), cxx11) == found


def test_a_commit_fits_itself_in_its_own_cxx_abi() -> None:
    abi = parse_torch_abi(f"torch-2.10-cxx1-git{GIT}")
    same = TorchVersion.parse("2.10.0a0+b4e4ee81d3.nv25.12", git=GIT)
    assert fits(abi, same, cxx11=True) is None
    assert fits(abi, same, cxx11=False) == "torch 2.10.0a0+b4e4ee81d3.nv25.12 with cxx11 ABI 0"
    assert fits(abi, TorchVersion.parse("2.10.0a0"), cxx11=True) == "torch 2.10.0a0 of git unknown"


def test_abis_say_what_they_want() -> None:
    assert needed(parse_torch_abi("torch-table-1")) == "any torch"
    assert needed(parse_torch_abi("torch-stable-2.10")) == "torch 2.10 or newer"
    assert needed(parse_torch_abi("torch-2.6-cxx0")) == "torch 2.6 with cxx11 ABI 0"
    assert needed(parse_torch_abi(f"torch-2.10-cxx1-git{GIT}")) == "the torch 2.10 of git b4e4ee81d3"
