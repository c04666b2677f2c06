"""The bill of materials: valid, true, and refused when it lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from precast._abi.build_info import BuildInfo
from precast._build import headers, matrix
from tools import audit as tools_audit
from tools.wheel import read_wheel

from .conftest import CHECKOUT, LABELS
from .tampering import HOST, INFO, LABEL, SBOM, Change, Files, drop_components, edit, tampered

pytestmark = [pytest.mark.wheel, pytest.mark.compiler]

MATRIX = matrix.load(CHECKOUT / "matrix.toml")


def component(name: str, key: str, value: object) -> Change:
    """Change what the document says of one component."""

    def change(files: Files) -> None:
        document = json.loads(files[SBOM])
        (entry,) = (entry for entry in document["components"] if entry["name"] == name)
        entry[key] = value
        files[SBOM] = json.dumps(document).encode()

    return change


def another(files: Files) -> None:
    document = json.loads(files[SBOM])
    document["components"].append({"type": "library", "name": "libgomp", "version": "1.0"})
    files[SBOM] = json.dumps(document).encode()


def twice(files: Files) -> None:
    document = json.loads(files[SBOM])
    document["components"].append(document["components"][0])
    files[SBOM] = json.dumps(document).encode()


ZEROS = [{"alg": "SHA-256", "content": "0" * 64}]
LIES: dict[str, tuple[Change, str]] = {
    "none at all": (lambda files: files.pop(SBOM), SBOM),
    "no JSON": (lambda files: files.update({SBOM: b"{"}), "JSON"),
    "no CycloneDX": (edit("components.0.type", "potion", SBOM), "$.components[0].type"),
    "another format": (edit("bomFormat", "SPDX", SBOM), "bomFormat"),
    "another document beside it": (
        lambda files: files.update({f"{INFO}/sboms/auditwheel.cdx.json": b"{}"}),
        "auditwheel",
    ),
    "another hash of a library": (component(HOST, "hashes", ZEROS), HOST),
    "a file kept quiet": (lambda files: drop_components(files, [HOST]), HOST),
    "a component that is not there": (another, "libgomp"),
    "a component twice": (twice, "more than once"),
    "another version of the headers": (component("torch", "version", "2.9.1"), "2.9.1"),
    "another licence of the headers": (
        component("torch", "licenses", [{"license": {"id": "GPL-3.0-only"}}]),
        "pkg:pypi/torch@2.15.0",
    ),
    "another NVRTC": (component("nvidia-cuda-nvrtc", "version", "12.1.105"), "pkg:pypi/nvidia-cuda-nvrtc@13.0.88"),
    "an NVRTC that is shipped": (component("nvidia-cuda-nvrtc", "scope", "required"), "required"),
    "another compiler": (component("g++", "version", "4.8.5"), "4.8.5"),
    "another version of precast": (edit("metadata.component.version", "9.9", SBOM), "9.9"),
    "another moment": (edit("metadata.timestamp", "2001-01-01T00:00:00+00:00", SBOM), "$.metadata.timestamp"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(repaired: Mapping[str, Path], tmp_path: Path, lie: str) -> None:
    change, named = LIES[lie]
    found = tools_audit.audit(tampered(repaired[LABEL], tmp_path, change), MATRIX)
    assert found and any(named in f"{v.where} {v.wanted} {v.found}" for v in found), found


@pytest.mark.parametrize("label", LABELS)
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
