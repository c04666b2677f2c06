"""The bill of materials of a wheel: its contents, its compilers and their licences. CycloneDX 1.6, PEP 770.

It depends only on the manifest, the pinned headers, the matrix and one time: not on the machine, and on no random
number. The audit compares it with the same manifest, with a separate reader (``guards/sbom.py``).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from datetime import datetime

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from precast._builder.headers import Pins
from precast._builder.matrix import Matrix
from precast.core.manifest import BuildInfo
from precast.core.torch_abi import Exact

NAME = "sboms/precast.cdx.json"  # below .dist-info
# SPDX identifiers, or a name if SPDX has none.
LICENCES = {
    "precast": "Apache-2.0",
    "torch": "BSD-3-Clause",
    "nvrtc": "NVIDIA CUDA Toolkit End User License Agreement",
    "g++": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "clang++": "Apache-2.0 WITH LLVM-exception",
}
_LICENCE = LicenseFactory()


def sbom(info: BuildInfo, pins: Pins | None, matrix: Matrix, moment: datetime) -> bytes:
    """The document of one wheel; ``pins`` are those of its headers, None if it has no headers."""
    version = f"{info.version}{info.label.local}"
    whole = _component("precast", version, ComponentType.LIBRARY, "precast", purl=("precast", version))
    shipped = [_file(f"precast/_C/{path}", sha256) for path, sha256 in info.files.items()]
    shipped += [] if pins is None else [_headers(pins)]
    tools = list(_compilers(info, matrix))
    bom = Bom(components=[*shipped, *tools], serial_number=_serial(info))
    bom.metadata.component = whole
    bom.metadata.timestamp = moment
    bom.register_dependency(whole, shipped)
    text: str = JsonV1Dot6(bom).output_as_string(indent=1)
    return f"{text}\n".encode()


def _serial(info: BuildInfo) -> uuid.UUID:
    """The serial number, derived from the manifest, so that two builds of the same wheel have the same one."""
    return uuid.UUID(bytes=hashlib.sha256(info.to_json().encode("utf-8")).digest()[:16], version=5)


def _headers(pins: Pins) -> Component:
    """The headers that the wheel ships for extensions, as a part of torch."""
    torch = _component("torch", pins.torch, ComponentType.LIBRARY, "torch", purl=("torch", pins.torch))
    folder = "precast/csrc/torch_stable"
    torch.components.update(_file(f"{folder}/include/{name}", sha) for name, sha in pins.headers.items())
    torch.components.update(_file(f"{folder}/{name}", sha) for name, sha in pins.notices.items())
    return torch


def _compilers(info: BuildInfo, matrix: Matrix) -> Iterator[Component]:
    """Build inputs that are not in the wheel: the C++ compiler, NVRTC, the headers of torch's classic ABI."""
    for name, version in info.compilers:
        if name != "nvrtc":
            yield _component(name, version, ComponentType.APPLICATION, name, scope=ComponentScope.EXCLUDED)
    packages = {spec.nvrtc: spec.package for spec in matrix.labels if spec.package is not None}
    for nvrtc in sorted({file.nvrtc for file in info.device}):
        package = packages.get(nvrtc, "nvrtc")  # a build for one machine may use an NVRTC that the matrix lacks
        purl = (package, nvrtc) if nvrtc in packages else None
        yield _component(package, nvrtc, ComponentType.APPLICATION, "nvrtc", purl=purl, scope=ComponentScope.EXCLUDED)
    classic = {file.abi.release for file in info.host if isinstance(file.abi, Exact)}
    for release in matrix.releases:
        if release.release in classic:
            purl = ("torch", release.version)
            yield _component(
                "torch", release.version, ComponentType.LIBRARY, "torch", purl=purl, scope=ComponentScope.EXCLUDED
            )


def _component(
    name: str,
    version: str,
    kind: ComponentType,
    licence: str,
    *,
    purl: tuple[str, str] | None = None,
    scope: ComponentScope | None = None,
) -> Component:
    text = LICENCES[licence]
    return Component(
        name=name,
        version=version,
        type=kind,
        bom_ref=f"{name}@{version}",
        purl=None if purl is None else PackageURL("pypi", None, *purl),
        licenses=[_LICENCE.make_from_string(text)],
        scope=scope,
    )


def _file(path: str, sha256: str) -> Component:
    return Component(
        name=path, type=ComponentType.FILE, bom_ref=path, hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)]
    )
