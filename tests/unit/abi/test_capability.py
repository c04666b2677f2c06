from __future__ import annotations

import pytest

from precast._abi.arch_list import parse_arch_list
from precast.core.capability import ComputeCapability, GpuTarget, TargetKind, min_driver
from precast.core.version import CudaVersion


def cc(text: str) -> ComputeCapability:
    return ComputeCapability.parse(text)


def test_capability_numbers() -> None:
    assert cc("9.0").number == 90
    assert cc("12.1").number == 121
    assert ComputeCapability.from_number(103) == cc("10.3")
    assert cc("8.9") < cc("9.0") < cc("10.0")
    assert [text for text in ("7.0", "7.2", "8.6", "8.7", "10.0", "10.1", "11.0") if cc(text).is_tegra] == [
        "7.2",
        "8.7",
        "10.1",
        "11.0",
    ]


@pytest.mark.parametrize("text", ["90", "9", "9.10", "0.5", "9.0a", "", "sm_90"])
def test_what_is_not_a_capability_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a compute capability"):
        cc(text)


def test_architecture_numbers_have_two_or_three_digits() -> None:
    with pytest.raises(ValueError, match="not an architecture number"):
        ComputeCapability.from_number(9)


@pytest.mark.parametrize("text", ["sm_90", "sm_90a", "sm_100f", "compute_90", "compute_120a", "sm_75"])
def test_targets_are_written_as_compilers_write_them(text: str) -> None:
    target = GpuTarget.parse(text)
    assert str(target) == text
    assert target.kind.value == text.partition("_")[0]


@pytest.mark.parametrize("text", ["sm90", "90", "sm_9", "sm_90b", "compute_90 ", "SM_90", "sm_1000", "lto_90"])
def test_what_is_not_a_target_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a GPU target"):
        GpuTarget.parse(text)


@pytest.mark.parametrize("text", ["sm_80a", "sm_90f", "compute_89a"])
def test_suffixes_exist_from_hopper_and_blackwell_on(text: str) -> None:
    with pytest.raises(ValueError, match="no architecture before"):
        GpuTarget.parse(text)


def test_a_suffix_of_no_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="not a target suffix"):
        GpuTarget(TargetKind.SASS, cc("9.0"), "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("sm_80", "compute capability 8.0 or a newer 8.x"),
        ("sm_87", "compute capability 8.7 only"),
        ("sm_90a", "compute capability 9.0 only"),
        ("sm_100f", "compute capability 10.0 or a newer 10.x"),
        ("compute_87", "compute capability 8.7 or newer"),
        ("compute_90a", "compute capability 9.0 only"),
        ("compute_110f", "compute capability 11.0 only"),
    ],
)
def test_targets_say_whom_they_serve(target: str, words: str) -> None:
    assert GpuTarget.parse(target).serves == words


def test_the_oldest_driver() -> None:
    assert min_driver(GpuTarget.parse("sm_90"), CudaVersion(12, 6)) == CudaVersion(12, 0)
    assert min_driver(GpuTarget.parse("compute_90"), CudaVersion(12, 6)) == CudaVersion(12, 6)


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("", ""),
        (" ; ", ""),
        (";9.0;;8.0,", "sm_90 sm_80"),
        ("9.0", "sm_90"),
        ("8.0;9.0+PTX", "sm_80 sm_90 compute_90"),
        ("9.0 8.0", "sm_90 sm_80"),
        ("90;80, 121", "sm_90 sm_80 sm_121"),
        ("sm_90 compute_90", "sm_90 compute_90"),
        ("9.0a;10.0f+ptx", "sm_90a sm_100f compute_100f"),
        ("9.0+PTX;9.0;compute_90", "sm_90 compute_90"),
        ("12.1", "sm_121"),
        ("Hopper", "sm_90 compute_90"),
        ("Ampere;7.5", "sm_80 sm_86 compute_86 sm_75"),
    ],
)
def test_arch_lists(text: str, targets: str) -> None:
    assert " ".join(map(str, parse_arch_list(text))) == targets


@pytest.mark.parametrize("item", ["nine", "9", "9.0+", "sm_", "9.0b", "+PTX", "1000", "Kepler"])
def test_a_bad_item_of_an_arch_list_is_named(item: str) -> None:
    with pytest.raises(ValueError, match="not a GPU architecture") as caught:
        parse_arch_list(f"8.0;{item}")
    assert repr(item) in str(caught.value)
