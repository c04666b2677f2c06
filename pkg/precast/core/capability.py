"""Compute capabilities of GPUs, the targets that device code is compiled for, and which target runs on which GPU.

The rules are NVIDIA's (CUDA C++ Programming Guide, "Compute Capabilities", and the compatibility guides of Ampere,
Hopper and Blackwell). SASS runs on its own major with the same or a higher minor. SASS for an integrated Tegra GPU runs
only on that capability, and a Tegra GPU runs no other SASS. Suffix ``a`` binds to one architecture, suffix ``f`` to its
family. Plain PTX runs on anything newer.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, cast

from .value import Words, value
from .version import CudaVersion, dotted

Suffix = Literal["", "a", "f"]

_CAPABILITY = r"([1-9][0-9]?)\.([0-9])"

# The first architecture with suffix `a` is Hopper, the first with `f` is Blackwell (PTX ISA, `.target`).
_FIRST_WITH_SUFFIX = {"a": 9, "f": 10}


@value(frozen=True, order=True)
class ComputeCapability:
    """The compute capability of a GPU, ``9.0`` or ``12.1``; never a float."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> ComputeCapability:
        """``"9.0"`` -> ``ComputeCapability(9, 0)``; raises ValueError for anything else."""
        match = re.fullmatch(_CAPABILITY, text)
        if match is None:
            raise ValueError(f"not a compute capability: {text!r}; needed one such as '9.0'")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_number(cls, number: int) -> ComputeCapability:
        """90 -> 9.0 and 121 -> 12.1, as in ``sm_121``."""
        if not 10 <= number <= 999:
            raise ValueError(f"not an architecture number: {number}; needed one such as 90 or 121")
        return cls(number // 10, number % 10)

    @property
    def number(self) -> int:
        """9.0 -> 90, as in ``sm_90``."""
        return self.major * 10 + self.minor

    @property
    def is_tegra(self) -> bool:
        """True for Xavier (7.2), Orin (8.7) and Thor (10.1; 11.0 since CUDA 13)."""
        return self in _TEGRA

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


_TEGRA = frozenset(
    {ComputeCapability(7, 2), ComputeCapability(8, 7), ComputeCapability(10, 1), ComputeCapability(11, 0)}
)

# No kernel of this package supports an older GPU.
MINIMUM_CAPABILITY = ComputeCapability(7, 0)


class TargetKind(Words):
    """SASS is machine code in a cubin; PTX is the virtual instruction set that the driver compiles."""

    SASS = "sm"
    PTX = "compute"


@value(frozen=True)
class GpuTarget:
    """A target that device code is compiled for: ``sm_90``, ``sm_90a``, ``sm_100f``, ``compute_90``."""

    kind: TargetKind
    capability: ComputeCapability
    suffix: Suffix = ""

    def __post_init__(self) -> None:
        if self.suffix not in ("", "a", "f"):
            raise ValueError(f"not a target suffix: {self.suffix!r}; needed '', 'a' or 'f'")
        if self.suffix and self.capability.major < _FIRST_WITH_SUFFIX[self.suffix]:
            raise ValueError(f"{self}: no architecture before {_FIRST_WITH_SUFFIX[self.suffix]}.0 has '{self.suffix}'")

    @classmethod
    @functools.lru_cache(maxsize=64)  # a manifest repeats each target for every family
    def parse(cls, text: str) -> GpuTarget:
        """``"sm_90a"`` or ``"compute_90"``; raises ValueError for anything else."""
        kind, _, rest = text.partition("_")
        suffix = rest[-1:] if rest.endswith(("a", "f")) else ""
        number = rest.removesuffix(suffix)
        digits = number.isdecimal() and number.isascii() and len(number) in (2, 3) and number[0] != "0"
        if kind not in ("sm", "compute") or not digits:
            raise ValueError(f"not a GPU target: {text!r}; needed one such as 'sm_90', 'sm_90a' or 'compute_90'")
        return cls(TargetKind(kind), ComputeCapability.from_number(int(number)), cast("Suffix", suffix))

    def runs_on(self, gpu: ComputeCapability) -> bool:
        """Whether the architecture allows it; the age of the driver is checked elsewhere."""
        if self.suffix == "a":
            return gpu == self.capability
        if self.kind is TargetKind.PTX and not self.suffix:
            return gpu >= self.capability
        if gpu.is_tegra or self.capability.is_tegra:
            return gpu == self.capability
        return gpu.major == self.capability.major and gpu.minor >= self.capability.minor

    @property
    def serves(self) -> str:
        """A description of the GPUs that :meth:`runs_on` accepts."""
        exact = self.suffix == "a" or (
            self.capability.is_tegra and (self.kind is TargetKind.SASS or self.suffix == "f")
        )
        if exact:
            return f"compute capability {self.capability} only"
        if self.kind is TargetKind.PTX and not self.suffix:
            return f"compute capability {self.capability} or newer"
        return f"compute capability {self.capability} or a newer {self.capability.major}.x"

    def __str__(self) -> str:
        return f"{self.kind.value}_{self.capability.number}{self.suffix}"


@value(frozen=True)
class DeviceCode:
    """Device code inside a library: its target, and the oldest driver that loads it."""

    target: GpuTarget
    min_driver: CudaVersion

    @classmethod
    @functools.lru_cache(maxsize=64)
    def parse(cls, text: str) -> DeviceCode:
        """``"sm_90a:12.0"``; raises ValueError for anything else."""
        target, _, driver = text.partition(":")
        code = cls(GpuTarget.parse(target), CudaVersion.parse(driver))
        if str(code) != text:
            raise ValueError(f"not device code: {text!r}; needed a target and a driver, such as 'sm_90:12.0'")
        return code

    def runs_on(self, gpu: ComputeCapability, driver: CudaVersion | None) -> bool:
        """Whether the GPU and its driver run it; without a driver, whether some driver does."""
        return self.target.runs_on(gpu) and (driver is None or driver >= self.min_driver)

    def __str__(self) -> str:
        return f"{self.target}:{self.min_driver}"


@value(frozen=True)
class CompiledCode:
    """Machine code whose compiler is known: its target, ``"nvcc"`` or ``"nvrtc"``, and the compiler's version."""

    target: GpuTarget
    compiler: str
    version: str

    @classmethod
    def parse(cls, text: str) -> CompiledCode:
        """``"sm_90a:nvcc:13.0.88"``; raises ValueError for anything else."""
        parts = text.split(":")
        if len(parts) != 3 or parts[1] not in ("nvcc", "nvrtc"):
            raise ValueError(f"not compiled code: {text!r}; needed one such as 'sm_90:nvcc:13.0.88'")
        dotted(parts[2])
        return cls(GpuTarget.parse(parts[0]), parts[1], parts[2])

    def __str__(self) -> str:
        return f"{self.target}:{self.compiler}:{self.version}"


def min_driver(target: GpuTarget, toolkit: CudaVersion) -> CudaVersion:
    """The oldest driver that loads code compiled with this toolkit.

    Within one CUDA major every driver loads every toolkit's SASS (minor version compatibility). PTX needs a driver that
    knows the toolkit's PTX ISA, because each toolkit writes its newest PTX version.
    """
    return CudaVersion(toolkit.major, 0) if target.kind is TargetKind.SASS else toolkit
