"""Wheel labels: ``+cu130``, ``+cpu``, none."""

from __future__ import annotations

from .value import value
from .version import CudaVersion

# The CPU architectures that have wheels, as platform.machine() names them.
MACHINES = ("x86_64", "aarch64")


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
