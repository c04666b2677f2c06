from __future__ import annotations

import pytest

from precast.core.version import CudaVersion, Release, TorchVersion, dotted

NINE, TEN = "9" * 9, "1" + "0" * 9


def test_numbers_have_up_to_nine_digits() -> None:
    """Python refuses to convert numbers of thousands of digits with another error, so the length is ours to bound."""
    assert Release.parse(f"{NINE}.{NINE}") == Release(999999999, 999999999)
    assert dotted(f"3.{NINE}") == (3, 999999999)
    assert TorchVersion.parse(f"2.{NINE}.{NINE}").patch == 999999999
    assert TorchVersion.parse(f"2.4.1.post{NINE}").post == 999999999
    assert CudaVersion.parse(f"12.{NINE}.{NINE}") == CudaVersion(12, 999999999)
    for read in (Release.parse, TorchVersion.parse, CudaVersion.parse, dotted):
        for text in (f"2.{TEN}", f"{TEN}.2"):
            with pytest.raises(ValueError, match=r"^not a "):
                read(text)
    for text in (f"2.4.{TEN}", f"2.4.1.post{TEN}", f"2.4.1rc{TEN}", f"2.4.1.dev{TEN}"):
        with pytest.raises(ValueError, match="not a torch version"):
            TorchVersion.parse(text)
    with pytest.raises(ValueError, match="not a CUDA version"):
        CudaVersion.parse(f"12.1.{TEN}")


def test_release_orders_by_number() -> None:
    assert Release.parse("2.9") < Release.parse("2.10") < Release.parse("3.0")
    assert str(Release.parse("2.10")) == "2.10"


@pytest.mark.parametrize("text", ["", "2", "2.", "2.10.0", "02.1", "2.01", "2.x", " 2.1", "2.1\n", "-1.0", "2.٣"])
def test_what_is_not_a_release_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a release"):
        Release.parse(text)


@pytest.mark.parametrize(
    ("text", "release", "pre", "local", "post"),
    [
        ("2.13.0+cu130", "2.13", None, "cu130", None),
        ("2.4.1", "2.4", None, None, None),
        ("2.10.0a0+b4e4ee81d3.nv25.12", "2.10", "a0", "b4e4ee81d3.nv25.12", None),
        ("2.9.0a0+gitdeadbee", "2.9", "a0", "gitdeadbee", None),
        ("2.15.0.dev20261101+cpu", "2.15", "dev20261101", "cpu", None),
        ("2.11.0rc3", "2.11", "rc3", None, None),
        ("2.4.1.post303", "2.4", None, None, 303),
        ("2.9.0+cpu.cxx11.abi", "2.9", None, "cpu.cxx11.abi", None),
    ],
)
def test_torch_versions_seen_in_the_wild(
    text: str, release: str, pre: str | None, local: str | None, post: int | None
) -> None:
    version = TorchVersion.parse(text, git="abc")
    assert (str(version.release), version.pre, version.local, version.post) == (release, pre, local, post)
    assert version.is_prerelease is (pre is not None)
    assert version.git == "abc"
    assert str(version) == text


def test_a_torch_version_without_its_third_number_counts_as_zero() -> None:
    assert str(TorchVersion.parse("2.10")) == "2.10.0"


@pytest.mark.parametrize("text", ["", "torch", "2", "2.10.0-rc1", "2.10.0+", "2.10.0+cu 130", "v2.10.0", "2.10.0a"])
def test_what_is_not_a_torch_version_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a torch version"):
        TorchVersion.parse(text)


def test_cuda_versions() -> None:
    assert CudaVersion.parse("12.1.105") == CudaVersion.parse("12.1") == CudaVersion(12, 1)
    assert CudaVersion(12, 9) < CudaVersion(13, 0)
    assert CudaVersion.from_driver(12040) == CudaVersion(12, 4)
    assert CudaVersion(13, 0).driver_number == 13000
    for text in ("", "13", "cu130", "13.x"):
        with pytest.raises(ValueError, match="not a CUDA version"):
            CudaVersion.parse(text)
    with pytest.raises(ValueError, match="driver's CUDA version"):
        CudaVersion.from_driver(0)


def test_dotted_versions_compare_by_number() -> None:
    assert dotted("3.4.9") < dotted("3.4.22") < dotted("3.4.30")
    with pytest.raises(ValueError, match="not a dotted version"):
        dotted("3")
