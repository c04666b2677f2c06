"""Every canonical string and every manifest comes back as the value it was made from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast._abi.arch_list import parse_arch_list
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.manifest import BuildInfo
from precast.core.torch_abi import parse_torch_abi
from precast.core.version import CudaVersion, Label, Release, TorchVersion
from tests.property import strategies as s
from tools.shared.platform_tag import PlatformTag

PARSERS = {
    "release": (s.releases, Release.parse),
    "cuda": (s.cuda_versions, CudaVersion.parse),
    "capability": (s.any_capabilities, ComputeCapability.parse),
    "target": (s.targets(s.any_capabilities), GpuTarget.parse),
    "torch abi": (s.torch_abis, parse_torch_abi),
    "label": (s.labels, Label.parse),
    "platform tag": (s.platform_tags, PlatformTag.parse),
}


@pytest.mark.parametrize("kind", PARSERS)
@given(data=st.data())
def test_canonical_strings_come_back(kind: str, data: st.DataObject) -> None:
    values, parse = PARSERS[kind]
    value: Any = data.draw(values)
    assert parse(str(value)) == value


@pytest.mark.parametrize("kind", PARSERS)
@given(text=st.text(max_size=24))
def test_any_text_is_parsed_or_refused_with_itself_in_the_message(kind: str, text: str) -> None:
    parse = PARSERS[kind][1]
    value: Any = None
    message = ""
    try:
        value = parse(text)
    except ValueError as error:
        message = str(error)
    if message:
        assert repr(text) in message
    else:
        assert parse(str(value)) == value


@given(s.torch_versions)
def test_torch_versions_come_back(version: TorchVersion) -> None:
    assert TorchVersion.parse(str(version), version.git) == version


@given(s.cuda_versions)
def test_driver_numbers_come_back(version: CudaVersion) -> None:
    assert CudaVersion.from_driver(version.driver_number) == version


@given(s.any_capabilities)
def test_architecture_numbers_come_back(capability: ComputeCapability) -> None:
    assert ComputeCapability.from_number(capability.number) == capability


@given(st.lists(s.targets(), unique=True), st.sampled_from([";", ",", " ", "; "]))
def test_arch_lists_come_back(targets: list[GpuTarget], separator: str) -> None:
    assert parse_arch_list(separator.join(map(str, targets))) == tuple(targets)


@given(s.build_infos)
def test_manifests_come_back(info: BuildInfo) -> None:
    text = info.to_json()
    assert BuildInfo.from_json(text) == info
    assert BuildInfo.from_json(text).to_json() == text
