"""What the shipped headers say of torch's stable ABI, and whether somebody else reads the same in torch's history."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from precast._abi.version import Release
from tools.guards.symbols import INCLUDE, declared_shims
from tools.wheel import read_wheel

pytestmark = [pytest.mark.wheel, pytest.mark.compiler]


@pytest.fixture(scope="module")
def shims(repaired: Mapping[str, Path]) -> dict[str, Release | None]:
    return declared_shims(read_wheel(repaired["cpu"]).below(INCLUDE))


def test_the_headers_declare_what_each_torch_brought(shims: dict[str, Release | None]) -> None:
    assert len(shims) > 200
    assert shims["torch_call_dispatcher"] == Release(2, 10)
    assert shims["torch_from_blob"] == Release(2, 11)
    assert shims["aoti_torch_device_type_cpu"] == Release(0, 0)
    assert shims["aoti_torch_get_current_cuda_stream"] is None


if sys.version_info >= (3, 11):  # as torch-abi-audit asks for

    def test_torch_abi_audit_is_of_the_same_opinion(shims: dict[str, Release | None]) -> None:
        """By name alone: of a library it does not tell a weak reference from one that has to be there."""
        from torch_abi_audit import BASELINE_VERSION, minimum_version

        differing, agreed = {}, 0
        for name, since in shims.items():
            version, _, unknown = minimum_version([name])
            if since is None or unknown or version is None:
                continue  # of CUDA builds alone, or newer than its table
            theirs = Release(0, 0) if version == BASELINE_VERSION else Release(*version[:2])
            agreed += theirs == since
            if theirs != since:
                differing[name] = (str(since), str(theirs))
        assert differing == {} and agreed > 200
