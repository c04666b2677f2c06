"""Device code from somebody's source, and what is checked of an image before it is kept."""

from __future__ import annotations

import pytest

from precast._builder import device
from precast.core.capability import GpuTarget
from precast.errors import BuildFailed


def test_definitions_are_sorted_lines_or_refused() -> None:
    assert device.define_lines({"N": "4", "A_1": "x y"}) == b"#define A_1 x y\n#define N 4\n"
    for name, value in (("1N", "4"), ("N M", "4"), ("N", "4\n#include <x>")):
        with pytest.raises(ValueError, match="not a definition"):
            device.define_lines({name: value})


@pytest.mark.parametrize(
    ("target", "named", "said"),
    [
        ("compute_90", "sm_90", None),
        ("compute_90", "sm_80", "NVRTC gave code for sm_80"),
        ("compute_90", "sm_90a", "NVRTC gave code for sm_90a"),
        ("compute_90a", "sm_90a", None),
        ("compute_90a", "sm_90", None),
        ("compute_90", None, "NVRTC gave code for nothing"),
        ("sm_90", "sm_90", "NVRTC gave no usable cubin"),  # PTX, where a cubin was asked for
    ],
)
def test_an_image_is_held_against_the_target(target: str, named: str | None, said: str | None) -> None:
    image = b".version 8.8\n" + (f".target {named}\n".encode() if named else b"")
    if said is None:
        device._check(image, GpuTarget.parse(target), "f")
        return
    with pytest.raises(BuildFailed, match=f"^f for {target}: {said}"):
        device._check(image, GpuTarget.parse(target), "f")
