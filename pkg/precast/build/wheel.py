"""A wheel's label and tag, and the guard that takes the place of each module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from precast._abi.build_info import BuildInfo, DeviceFile, HostFile
from precast._abi.host import TorchInfo
from precast._abi.label import Label
from precast._abi.torch_abi import AbiKind
from precast._abi.version import CudaVersion
from precast._builder import sources

# The whole text of a guard. `import` reaches the compiled module only through it, so no import bypasses the checks.
GUARD = '''"""Made by precast.build: gives way to the compiled module of this name, once that is known to fit here."""

from precast.build import guard

guard(__name__)
'''


def is_guard(text: str) -> bool:
    """Whether a file is a guard, perhaps of another version of precast."""
    return text.startswith('"""Made by precast.build')


# The oldest Python that precast supports: the tag of a wheel for the limited API.
_OLDEST = "cp310"


def label_of(hosts: Sequence[HostFile], images: Sequence[DeviceFile], torch: TorchInfo | None) -> Label:
    """The CUDA version that a package is bound to, "cpu" if it is bound only to one torch, else the empty label."""
    bound = any(file.cuda_major is not None for file in hosts)
    if bound and torch is not None and torch.cuda is not None:
        return Label(f"cu{torch.cuda.major}{torch.cuda.minor}")
    if images:
        cuda = CudaVersion.parse(images[0].nvrtc)
        return Label(f"cu{cuda.major}{cuda.minor}")
    return Label("cpu" if any(file.abi.kind is AbiKind.EXACT for file in hosts) else "")


def tag_of(infos: Iterable[BuildInfo]) -> tuple[str, str]:
    """The Python and ABI tags of the most restrictive library."""
    pythons = {file.python for info in infos for file in info.host} - {"none"}
    exact = sorted(pythons - {"abi3"})
    if exact:
        return exact[0].removesuffix("t"), exact[0]
    return (_OLDEST, "abi3") if pythons else ("py3", "none")


def retag(distribution: Any, tag: tuple[str, str]) -> None:
    """Give the wheel under construction, if any, the tag of its contents; setuptools still sets the platform tag."""
    command = distribution.get_command_obj("bdist_wheel", create=False)
    if command is not None:
        usual = command.get_tag
        command.get_tag = lambda: (*tag, usual()[2])


def digest(paths: Iterable[str]) -> str:
    """One digest over all compiled sources, by their names relative to the project."""
    known = sorted(set(paths))
    return sources.digest_of(sources.SourceFile(name, Path(name), Path(name).read_bytes()) for name in known)
