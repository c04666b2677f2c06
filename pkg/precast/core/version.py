"""The version numbers of binaries and hosts and the labels of wheels, each with its parser and canonical string."""

from __future__ import annotations

import functools
import re

from .value import value

# Compiling a pattern takes 0.1 ms, 0.3 ms for the longest here, and a first call would need a dozen. So everything that
# is read at each start is parsed by hand, here and in the rest of this package. Patterns stay text; ``re`` compiles and
# caches them on use.
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_CUDA = rf"({_NUMBER})\.({_NUMBER})(?:\.[0-9]{{1,9}})*"
_TORCH = (
    rf"({_NUMBER})\.({_NUMBER})(?:\.({_NUMBER}))?"
    rf"((?:(?:a|b|rc){_NUMBER})?(?:\.dev{_NUMBER})?)"
    rf"(?:\.post({_NUMBER}))?"
    r"(?:\+([A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*))?"
)


def _numbers(text: str) -> tuple[int, ...] | None:
    """``"3.4.22"`` -> ``(3, 4, 22)``: at most nine digits each, no leading zeros; None for anything else."""
    parts = text.split(".")
    for part in parts:
        if not (part.isdecimal() and part.isascii() and len(part) <= 9) or (part[0] == "0" and part != "0"):
            return None
    return tuple(map(int, parts))


@value(frozen=True, order=True)
class Release:
    """The first two numbers of a version: ``2.10`` of torch, ``2.28`` of glibc, ``3.12`` of Python."""

    major: int
    minor: int

    @classmethod
    @functools.lru_cache(maxsize=64)  # a manifest repeats a few releases for each of its files
    def parse(cls, text: str) -> Release:
        """``"2.10"`` -> ``Release(2, 10)``; raises ValueError for anything else."""
        numbers = _numbers(text)
        if numbers is None or len(numbers) != 2:
            raise ValueError(f"not a release: {text!r}; needed two numbers such as '2.10'")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@value(frozen=True)
class TorchVersion:
    """``torch.__version__`` as a value, with the git version of that torch if it is known.

    ``pre`` is the pre-release part as written, ``"a0"`` or ``"dev20261101"``. NVIDIA's containers have pre-releases
    such as ``2.10.0a0+b4e4ee81d3.nv25.12``: commits between two releases, with the ABI of neither.
    """

    release: Release
    patch: int
    pre: str | None
    local: str | None
    git: str | None = None
    post: int | None = None

    @classmethod
    def parse(cls, text: str, git: str | None = None) -> TorchVersion:
        """Read a version as torch writes it; raises ValueError for anything else."""
        public, plus, local = text.partition("+")
        numbers = _numbers(public)
        if numbers is not None and len(numbers) == 3 and (local.isalnum() and local.isascii() if plus else True):
            return cls(Release(*numbers[:2]), numbers[2], None, local or None, git)  # quick path for nearly every torch
        match = re.fullmatch(_TORCH, text)
        if match is None:
            raise ValueError(f"not a torch version: {text!r}; needed one such as '2.13.0+cu130'")
        major, minor, patch, pre, post, label = match.groups()
        return cls(
            release=Release(int(major), int(minor)),
            patch=int(patch or 0),
            pre=pre.removeprefix(".") or None,
            local=label,
            git=git,
            post=None if post is None else int(post),
        )

    @property
    def is_prerelease(self) -> bool:
        """True for alphas, betas, release candidates and nightlies; a ``.post`` build is a release."""
        return self.pre is not None

    def __str__(self) -> str:
        pre = "" if self.pre is None else f".{self.pre}" if self.pre.startswith("dev") else self.pre
        post = "" if self.post is None else f".post{self.post}"
        local = "" if self.local is None else f"+{self.local}"
        return f"{self.release}.{self.patch}{pre}{post}{local}"


@value(frozen=True, order=True)
class CudaVersion:
    """A CUDA version, major and minor: of a toolkit, of NVRTC, of torch's runtime, or the newest a driver supports."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> CudaVersion:
        """``"13.0"`` and ``"13.0.88"`` both give ``CudaVersion(13, 0)``; further numbers are ignored."""
        match = re.fullmatch(_CUDA, text)
        if match is None:
            raise ValueError(f"not a CUDA version: {text!r}; needed one such as '13.0' or '12.1.105'")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_driver(cls, number: int) -> CudaVersion:
        """Convert the result of ``cuDriverGetVersion``: 13000 is 13.0, 12040 is 12.4."""
        if number < 1000:
            raise ValueError(f"not a driver's CUDA version: {number}; needed one such as 13000")
        return cls(number // 1000, number % 1000 // 10)

    @property
    def driver_number(self) -> int:
        """The inverse of :meth:`from_driver`."""
        return self.major * 1000 + self.minor * 10

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@functools.lru_cache(maxsize=64)
def dotted(text: str) -> tuple[int, ...]:
    """``"3.4.22"`` -> ``(3, 4, 22)``, so that GLIBCXX versions compare as numbers."""
    numbers = _numbers(text)
    if numbers is None or len(numbers) < 2:
        raise ValueError(f"not a dotted version: {text!r}; needed one such as '3.4.22'")
    return numbers


# The CPU architectures that have wheels, as platform.machine() names them.
MACHINES = ("x86_64", "aarch64")


@value(frozen=True)
class Label:
    """The toolkit that compiled a wheel's device code, ``"cu130"``; ``"cpu"`` without such code; ``""`` unlabelled."""

    text: str

    def __post_init__(self) -> None:
        if self.text not in ("", "cpu") and _cuda(self.text) is None:
            raise ValueError(f"not a label: {self.text!r}; needed 'cpu' or one such as 'cu130'")

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
