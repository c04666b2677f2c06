"""Wheel labels (``+cu130``, ``+cpu``, none), platform tags, and which label serves which GPU."""

from __future__ import annotations

import re

from precast._abi import toolkits
from precast._abi.capability import MINIMUM_CAPABILITY, ComputeCapability
from precast._abi.value import value
from precast._abi.version import CudaVersion

# The CPU architectures that have wheels, as platform.machine() names them.
MACHINES = ("x86_64", "aarch64")

_PLATFORM = r"(?:manylinux_(0|[1-9][0-9]?)_(0|[1-9][0-9]{0,2})|linux)_([a-z0-9]+(?:_[a-z0-9]+)*)"


@value(frozen=True)
class Label:
    """The toolkit that compiled a wheel's device code, ``"cu130"``; ``"cpu"`` without such code; ``""`` unlabelled."""

    text: str

    def __post_init__(self) -> None:
        if self.text not in ("", "cpu") and _cuda(self.text) is None:
            raise ValueError(f"not a label: {self.text!r}; wanted 'cpu' or one such as 'cu130'")

    @classmethod
    def parse(cls, text: str) -> Label:
        """The inverse of ``str``; raises ValueError for any other text."""
        return cls(text)

    @property
    def cuda(self) -> CudaVersion | None:
        """The CUDA version of the label: 13.0 for ``cu130``; None for the other labels."""
        return _cuda(self.text)

    @property
    def local(self) -> str:
        """The local version part with its plus sign, ``"+cu130"``; empty without a label."""
        return f"+{self.text}" if self.text else ""

    def __str__(self) -> str:
        return self.text


def _cuda(text: str) -> CudaVersion | None:
    """``"cu130"`` -> 13.0 and ``"cu1210"`` -> 12.10: two digits for the major, then the minor without leading zeros."""
    major, minor = text[2:4], text[4:]
    digits = major + minor
    if not (text.startswith("cu") and digits.isdecimal() and digits.isascii() and len(major) == 2):
        return None
    if len(minor) not in (1, 2) or major[0] == "0" or (minor[0] == "0" and minor != "0"):
        return None
    return CudaVersion(int(major), int(minor))


@value(frozen=True)
class PlatformTag:
    """The platform part of a wheel's name; ``policy`` is the glibc of a manylinux tag, None for plain ``linux``."""

    machine: str
    policy: tuple[int, int] | None

    @classmethod
    def parse(cls, text: str) -> PlatformTag:
        """``"manylinux_2_28_x86_64"`` or ``"linux_aarch64"``; raises ValueError for anything else."""
        match = re.fullmatch(_PLATFORM, text)
        if match is None:
            raise ValueError(
                f"not a platform tag: {text!r}; wanted one such as 'manylinux_2_28_x86_64' or 'linux_x86_64'"
            )
        major, minor, machine = match.groups()
        return cls(machine, None if major is None else (int(major), int(minor)))

    def __str__(self) -> str:
        prefix = "linux" if self.policy is None else f"manylinux_{self.policy[0]}_{self.policy[1]}"
        return f"{prefix}_{self.machine}"


# The labels that fixes can recommend, oldest toolkit first.
LABELS = tuple(map(Label, toolkits.LABELS))
_SASS_FLOOR = {major: ComputeCapability.parse(gpu) for major, gpu in toolkits.SASS_FLOOR.items()}
_FIRST_TOOLKIT = {
    ComputeCapability.parse(gpu): CudaVersion.parse(toolkit) for gpu, toolkit in toolkits.FIRST_TOOLKIT.items()
}
_NEWEST_KNOWN = max(_FIRST_TOOLKIT)


def sass_floor(cuda: CudaVersion) -> ComputeCapability:
    """The oldest GPU that this toolkit's wheels serve."""
    return _SASS_FLOOR.get(cuda.major, MINIMUM_CAPABILITY)


def label_serves(label: Label, gpu: ComputeCapability, driver: CudaVersion | None) -> bool:
    """Whether a label's device code runs on this GPU as SASS under this driver; without a driver, under any."""
    cuda, first = label.cuda, _FIRST_TOOLKIT.get(gpu, CudaVersion(12, 1))
    if gpu > _NEWEST_KNOWN or cuda is None or cuda < first or gpu < sass_floor(cuda):
        return False
    return driver is None or driver.major >= cuda.major


def label_for(gpu: ComputeCapability, driver: CudaVersion | None) -> Label | None:
    """The newest label whose device code runs on this GPU as SASS under this driver, or None.

    Without a driver the label is chosen for the GPU alone.
    """
    return next((label for label in reversed(LABELS) if label_serves(label, gpu, driver)), None)
