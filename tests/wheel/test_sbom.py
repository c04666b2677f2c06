"""The bill of materials: valid, true, and refused when it lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from precast._builder import headers
from precast.core.manifest import BuildInfo
from tools.shared.wheel import read_wheel
from tools.verbs import audit as tools_audit

from .conftest import EACH_LABEL, MATRIX, ONLY_TORCH
from .tampering import HOST, PTX, SBOM, Change, drop_components, edit_sbom, named, set_in, tampered, without

pytestmark = [pytest.mark.wheel, pytest.mark.compiler, pytest.mark.usefixtures("each_file_once")]


def component(name: str, key: str, value: object) -> Change:
    """Change what the document says of one component."""

    def change(document: Any) -> None:
        (entry,) = (entry for entry in document["components"] if entry["name"] == name)
        entry[key] = value

    return edit_sbom(change)


def said(path: str, value: object) -> Change:
    return edit_sbom(lambda document: set_in(document, path, value))


def written(data: bytes, name: str = SBOM) -> Change:
    """Another file in the place of the document, or beside it."""
    return lambda files: files.update({named(files, SBOM).replace(SBOM, name): data})


GOMP = {"type": "library", "name": "libgomp", "version": "1.0"}
ZEROS = [{"alg": "SHA-256", "content": "0" * 64}]
LIES: dict[str, tuple[Change, str]] = {
    "none at all": (without(SBOM), SBOM),
    "no JSON": (written(b"{"), "JSON"),
    "no CycloneDX": (said("components.0.type", "potion"), "$.components[0].type"),
    "another format": (said("bomFormat", "SPDX"), "bomFormat"),
    "another document beside it": (written(b"{}", "sboms/auditwheel.cdx.json"), "auditwheel.cdx.json"),
    "another hash of a library": (component(HOST, "hashes", ZEROS), HOST),
    "a file kept quiet": (drop_components([HOST]), HOST),
    "a component that is not there": (edit_sbom(lambda d: d["components"].append(GOMP)), "libgomp"),
    "a component twice": (edit_sbom(lambda d: d["components"].append({**GOMP, "name": HOST})), "more than once"),
    "another version of the headers": (component("torch", "version", "2.9.1"), "2.9.1"),
    "another licence": (component("torch", "licenses", [{"license": {"id": "GPL-3.0-only"}}]), "pkg:pypi/torch@2.15.0"),
    "another compiler": (component("g++", "version", "4.8.5"), "4.8.5"),
    "a compiler that is shipped": (component("g++", "scope", "required"), "required"),
    "another version of precast": (said("metadata.component.version", "9.9"), "9.9"),
    "another moment": (said("metadata.timestamp", "2001-01-01T00:00:00+00:00"), "$.metadata.timestamp"),
}
DEVICE_LIES: dict[str, tuple[Change, str]] = {
    "another NVRTC": (component("nvidia-cuda-nvrtc", "version", "12.1.105"), "pkg:pypi/nvidia-cuda-nvrtc@13.0.88"),
    "another hash of a cubin": (component(PTX, "hashes", ZEROS), PTX),
}


@pytest.mark.parametrize("lie", [*LIES, *DEVICE_LIES])
def test_a_lie_is_refused(repaired: Mapping[str, Path], tmp_path: Path, lie: str) -> None:
    label = "cpu" if lie in LIES else "cu130"
    change, wrong = (LIES | DEVICE_LIES)[lie]
    found = tools_audit.audit(tampered(repaired[label], tmp_path, change), MATRIX, only_torch=ONLY_TORCH)
    assert any(wrong in f"{v.candidate} {v.needed} {v.found}" for v in found), found


@pytest.mark.parametrize("label", EACH_LABEL)
def test_it_lists_what_is_in_the_wheel_and_what_compiled_it(repaired: Mapping[str, Path], label: str) -> None:
    wheel = read_wheel(repaired[label])
    info = BuildInfo.from_json(wheel.files["precast/_C/build_info.json"].decode())
    document = json.loads(wheel.files[f"{wheel.dist_info}/sboms/precast.cdx.json"])
    by_name = {entry["name"]: entry for entry in document["components"]}
    assert {name for name in by_name if name.startswith("precast/")} == {
        f"precast/_C/{path}" for path in (*(file.path for file in info.host), *(file.path for file in info.device))
    }
    assert len(by_name["torch"]["components"]) == len(headers.load_pins().headers) + len(headers.load_pins().notices)
    spec = MATRIX.label(info.label)
    compilers = {name for name, entry in by_name.items() if entry.get("scope") == "excluded"}
    assert compilers == {"g++", *filter(None, [spec.package])}
    if spec.package is not None:
        assert by_name[spec.package]["version"] == spec.nvrtc
