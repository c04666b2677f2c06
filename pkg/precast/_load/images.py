"""The device code of another package's DeviceExtension, chosen and verified for each GPU, for a launch from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from precast._abi.decide import Case, choose_image
from precast._abi.settings import JitMode
from precast._load import prebuilt, probe
from precast.core import opening, verify
from precast.core.capability import GpuTarget
from precast.core.manifest import DeviceFile
from precast.core.reasons import JIT_CANDIDATE, Need, Rejection, damaged
from precast.core.value import value
from precast.errors import PrebuiltRefused


@value(frozen=True)
class Image:
    """The device code that serves one GPU, read and verified."""

    target: GpuTarget
    content: bytes
    path: Path
    nvrtc: str  # the version that compiled it


def images(package: str, name: str) -> Mapping[int, Image]:
    """The device code of a DeviceExtension for each visible GPU, by index. PrebuiltRefused if it serves none of them.

    Creates no CUDA context.
    """
    wheel = opening.wheel_of(package)
    settings = replace(probe.read_settings(), jit=JitMode.AOT)  # PRECAST_JIT governs precast's own builds
    host = probe.probe_host(settings, gpus=True)
    found: dict[int, Image] = {}
    refused: list[Rejection] = []
    bad: dict[str, Rejection] = {}
    for gpu in host.gpus:
        while gpu.index not in found:  # ends: each turn adds a file to `bad`
            pick = choose_image(Case(host, wheel.info, settings, Need(name, "cuda"), bad), gpu)
            if not isinstance(pick.chosen, DeviceFile):
                refused += [why for why in pick.rejections if why.candidate != JIT_CANDIDATE]
                break
            file = pick.chosen
            try:
                content = prebuilt.verified_bytes(file, wheel.folder)
                found[gpu.index] = Image(file.target, content, wheel.folder / file.path, file.nvrtc)
            except verify.Damaged as error:
                bad[file.name] = damaged(str(error))
            except prebuilt.NoLzma as error:
                raise PrebuiltRefused(
                    f"{package}.{name} cannot be unpacked",
                    found=f"a Python without lzma: {error}",
                    needed="a Python that was compiled with liblzma",
                    fix="uv venv --managed-python  # a Python with lzma; then install there",
                ) from error
    if not found:
        from precast.core import refusals

        raise refusals.refused(f"{package}.{name} has device code for no GPU here", wheel, host, tuple(refused))
    return MappingProxyType(found)
