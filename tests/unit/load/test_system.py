"""One sentence on systems there are no kernels for, and settings that cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from precast._abi.settings import JitMode
from precast._load import probe
from precast._load.system import require_linux, require_main_interpreter
from precast.errors import KernelError, KernelUnavailable
from tests.kit import spawn


@pytest.mark.parametrize("platform", ["win32", "darwin", "freebsd14"])
def test_other_systems_get_one_sentence(platform: str) -> None:
    with pytest.raises(KernelUnavailable) as caught:
        require_linux(platform)
    assert caught.value.what == f"precast has kernels for Linux only, and this is '{platform}'; nothing was loaded"
    assert str(caught.value.fix).startswith("none on this system")


def test_linux_gets_none() -> None:
    # fails if Linux is refused: that raises
    require_linux("linux")


def test_an_interpreter_that_refuses_ctypes_is_a_subinterpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    require_main_interpreter()
    monkeypatch.setitem(sys.modules, "ctypes", None)  # its import then raises ImportError
    with pytest.raises(KernelUnavailable, match=r"^precast works in the main interpreter only\n  found   a subinter"):
        require_main_interpreter()


def test_a_setting_that_cannot_be_read_is_a_kernel_error_that_names_it() -> None:
    with pytest.raises(KernelError, match=r"(?s)PRECAST_JIT='always'.*auto, aot, jit, none"):
        probe.read_settings({"PRECAST_JIT": "always"})


def test_the_former_name_of_a_mode_works_and_the_warning_has_the_one_for_no_compiling() -> None:
    with pytest.warns(FutureWarning, match=r"PRECAST_JIT=none: no kernel is loaded.*PRECAST_JIT=aot"):
        assert probe.read_settings({"PRECAST_JIT": "Off"}).jit is JitMode.NONE
    assert probe.read_settings({"PRECAST_JIT": "none"}).jit is JitMode.NONE, "without a warning"


# The parts of another system that a module of ours could trip over. torch has to be imported before it is one.
PRETEND = """
import os, platform, sys
import torch
name, sys.platform = sys.argv[1:3]
platform.system = lambda: name
for module in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[module] = None
for gone in ("getuid", "register_at_fork", "confstr", "fchmod", "killpg", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW"):
    if name == "Windows" and hasattr(os, gone):
        delattr(os, gone)
import precast
from precast.errors import KernelUnavailable

def ops():
    import precast.ops

for use in (ops, lambda: precast.load("rms_norm"), lambda: precast.prebuild()):
    try:
        use()
    except KernelUnavailable as error:
        print(error.what)
from precast._cli.main import main
print("status", main(["doctor"]))
try:
    main(["warm"])
except SystemExit as done:
    print("status", done.code)
"""


@pytest.mark.torch
@pytest.mark.parametrize(("name", "platform"), [("Windows", "win32"), ("Darwin", "darwin")])
def test_another_system_imports_the_package_and_is_told_the_rest_in_one_sentence(
    name: str, platform: str, tmp_path: Path
) -> None:
    done = spawn.python("-W", "error", "-c", PRETEND, name, platform, cwd=tmp_path)
    sentence = f"precast has kernels for Linux only, and this is '{platform}'; nothing was loaded"
    of_verbs = sentence.replace(platform, name)
    first, second, third, environment, blank, doctor, *rest = done.stdout.splitlines()
    assert {first, second, third} == {sentence}
    assert environment.startswith("precast ") and f", {name} " in environment
    assert (blank, doctor, rest) == ("", of_verbs, ["status 1", "status 2"])
    assert f"{of_verbs}; the one verb here is doctor" in done.stderr
