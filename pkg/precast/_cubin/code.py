"""What a :class:`precast.extension.DeviceExtension` is in a ``setup.py``: a setuptools extension without host code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from setuptools import Extension

from precast.core.capability import GpuTarget


class DeviceCode(Extension):  # type: ignore[misc]  # setuptools has no types
    """The sources and the options of device code, which ``build_ext`` compiles by NVRTC, one image per target."""

    def __init__(
        self,
        name: str,
        sources: Sequence[str],
        *,
        targets: Sequence[str],
        include_dirs: Sequence[str],
        defines: Mapping[str, str],
        instances: Mapping[str, Sequence[str]],
        flags: Sequence[str],
        ops: Mapping[str, Sequence[str]],
    ) -> None:
        super().__init__(name, [_relative(one) for one in sources], include_dirs=list(include_dirs), language="c++")
        self.targets = tuple(GpuTarget.parse(target) for target in targets)
        self.defines = dict(defines)
        self.instances = {source: tuple(names) for source, names in instances.items()}
        self.flags = tuple(flags)
        self.ops = dict(ops)


def _relative(path: str) -> str:
    """A path below the folder of setup.py without that, as setuptools wants it; any other as it is."""
    whole = Path(path).resolve()
    return whole.relative_to(Path.cwd()).as_posix() if whole.is_relative_to(Path.cwd()) else path
