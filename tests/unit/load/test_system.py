"""One sentence on systems there are no kernels for, and settings that cannot be read."""

from __future__ import annotations

import pytest

from precast._load import probe
from precast._load.system import require_linux
from precast.errors import KernelError, KernelUnavailable


@pytest.mark.parametrize("platform", ["win32", "darwin", "freebsd14"])
def test_other_systems_get_one_sentence(platform: str) -> None:
    with pytest.raises(KernelUnavailable) as caught:
        require_linux(platform)
    assert str(caught.value) == f"precast has kernels for Linux only, and this is '{platform}'; nothing was loaded"


def test_linux_gets_none() -> None:
    require_linux("linux")


def test_a_setting_that_cannot_be_read_is_a_kernel_error_that_names_it() -> None:
    with pytest.raises(KernelError, match=r"PRECAST_JIT='always'.*auto, aot, jit, off"):
        probe.read_settings({"PRECAST_JIT": "always"})
