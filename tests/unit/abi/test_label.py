from __future__ import annotations

import pytest

from precast._abi.served import LABELS, label_for, label_serves, sass_floor
from precast.core.capability import ComputeCapability
from precast.core.version import CudaVersion, Label
from tools.shared.platform_tag import PlatformTag


@pytest.mark.parametrize(("text", "cuda", "local"), [("cu130", "13.0", "+cu130"), ("cu129", "12.9", "+cu129")])
def test_cuda_labels(text: str, cuda: str, local: str) -> None:
    label = Label.parse(text)
    assert label.cuda == CudaVersion.parse(cuda)
    assert label.local == local
    assert str(label) == text


def test_labels_without_cuda() -> None:
    assert (Label("cpu").cuda, Label("cpu").local) == (None, "+cpu")
    assert (Label("").cuda, Label("").local) == (None, "")


@pytest.mark.parametrize("text", ["cuda130", "cu13", "cu1300", "CU130", "13.0", "+cu130", "cu013", "rocm7", " "])
def test_what_is_not_a_label_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a label"):
        Label.parse(text)


def test_platform_tags() -> None:
    assert PlatformTag.parse("manylinux_2_28_x86_64") == PlatformTag("x86_64", (2, 28))
    assert PlatformTag.parse("linux_aarch64") == PlatformTag("aarch64", None)
    for text in ("manylinux_2_28_x86_64", "manylinux_2_34_aarch64", "linux_x86_64"):
        assert str(PlatformTag.parse(text)) == text
    for text in ("win_amd64", "manylinux2014_x86_64", "manylinux_2_28", "any", "linux_", "manylinux_2_28_x86-64"):
        with pytest.raises(ValueError, match="not a platform tag"):
            PlatformTag.parse(text)


@pytest.mark.parametrize(
    ("gpu", "driver", "label"),
    [
        ("7.0", "13.0", "cu129"),
        ("7.0", None, "cu129"),
        ("7.5", "13.0", "cu132"),
        ("9.0", "12.2", "cu129"),
        ("12.1", "12.9", "cu129"),
        ("11.0", "13.0", "cu132"),
        ("11.0", "12.8", None),
        ("6.1", "13.0", None),
        ("13.0", "13.0", None),
        ("9.0", "11.8", None),
    ],
)
def test_which_label_serves_a_gpu(gpu: str, driver: str | None, label: str | None) -> None:
    found = label_for(ComputeCapability.parse(gpu), None if driver is None else CudaVersion.parse(driver))
    assert (None if found is None else str(found)) == label


# What NVIDIA's release notes say: the first toolkit that compiles for a GPU; beside it one that does not.
@pytest.mark.parametrize(
    ("gpu", "first", "before"),
    [
        ("7.0", "12.1", None),
        ("8.7", "12.1", None),
        ("8.8", "13.0", "12.9"),
        ("9.0", "12.1", None),
        ("10.0", "12.8", "12.7"),
        ("10.1", "12.8", "12.7"),
        ("10.3", "12.9", "12.8"),
        ("11.0", "13.0", "12.9"),
        ("12.0", "12.8", "12.7"),
        ("12.1", "12.9", "12.8"),
    ],
)
def test_the_first_toolkit_that_compiles_for_a_gpu(gpu: str, first: str, before: str | None) -> None:
    for cuda, serves in ((first, True), (before, False)):
        if cuda is not None:
            assert label_serves(Label(f"cu{cuda.replace('.', '')}"), ComputeCapability.parse(gpu), None) is serves


def test_a_gpu_newer_than_those_that_are_known_is_served_by_none() -> None:
    assert label_serves(Label("cu132"), ComputeCapability(12, 1), None)
    assert not label_serves(Label("cu132"), ComputeCapability(12, 2), None)


def test_labels_are_ordered_and_have_floors() -> None:
    versions = [label.cuda for label in LABELS if label.cuda is not None]
    assert versions == sorted(versions) and len(versions) == len(LABELS)
    assert str(sass_floor(CudaVersion(12, 9))) == "7.0"
    assert str(sass_floor(CudaVersion(13, 0))) == "7.5"
