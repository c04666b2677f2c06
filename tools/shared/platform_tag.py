"""The platform tag of a wheel."""

from __future__ import annotations

import re

from precast.core.value import value

_PLATFORM = r"(?:manylinux_(0|[1-9][0-9]?)_(0|[1-9][0-9]{0,2})|linux)_([a-z0-9]+(?:_[a-z0-9]+)*)"


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
                f"not a platform tag: {text!r}; needed one such as 'manylinux_2_28_x86_64' or 'linux_x86_64'"
            )
        major, minor, machine = match.groups()
        return cls(machine, None if major is None else (int(major), int(minor)))

    def __str__(self) -> str:
        prefix = "linux" if self.policy is None else f"manylinux_{self.policy[0]}_{self.policy[1]}"
        return f"{prefix}_{self.machine}"
