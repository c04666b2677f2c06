"""What the doctor says and what loading does agree, state by state: same verdict, same words.

Nothing is compiled: a build that is asked for counts as loading. tests/load/test_hostile_world.py asks real processes
about CPU levels and caches.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precast._abi.decision import Refuse
from precast._builder import catalogue, sources
from precast._cli import doctor
from precast._load import choose, probe, verdict
from precast.core import gpus
from precast.core.host import Host
from precast.core.manifest import BuildMode
from precast.errors import KernelError
from tests.kit import fakes
from tests.kit import hosts as ex

FAMILY = "rms_norm"
CPU = ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None), driver=None, gpu="", build_with=ex.builders(None))


@dataclasses.dataclass(frozen=True)
class State:
    """A machine, an installation, and what the doctor is to say of it."""

    verdict: str
    host: Host = CPU
    device: str = "cpu"
    installed: dict[str, Any] | None = None
    damaged: str = ""
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    ok: bool | None = None  # where it is not what the verdict says


def built_with(host: Host, **changes: Any) -> Host:
    return dataclasses.replace(host, builders=ex.builders(**{"nvrtc_version": None, **changes}))


GPU = ex.host(build_with=ex.builders("13.0.88"))
NO_TOOLS = built_with(CPU, compiler=False, ninja=False)
WHEEL: dict[str, Any] = {"device": {"sm_90": fakes.cubin(90)}}

STATES = {
    "prebuilt": State("prebuilt", installed=WHEEL, host=NO_TOOLS),
    "prebuilt on the GPU": State("prebuilt", installed=WHEEL, host=GPU, device="cuda"),
    "pure wheel": State("jit", installed={"mode": BuildMode.PURE, "label": ""}),
    "no manifest": State("jit"),
    "no compiler": State("refused", host=built_with(CPU, compiler=False)),
    "no ninja": State("refused", host=built_with(CPU, ninja=False)),
    "no torch": State("refused", host=dataclasses.replace(CPU, torch=None)),
    "torch too old": State("refused", host=dataclasses.replace(CPU, torch=ex.torch_info("2.3.1+cpu", cuda=None))),
    "torch pre-release": State(
        "prebuilt",
        installed=WHEEL,
        host=dataclasses.replace(CPU, torch=ex.torch_info("2.16.0.dev20261101+cpu", cuda=None)),
    ),
    "a damaged file that a build replaces": State("jit", installed=WHEEL, damaged="host", ok=False),
    "a damaged file and no compiler": State("refused", installed=WHEEL, damaged="host", host=NO_TOOLS),
    "damaged device code": State("jit", installed=WHEEL, host=GPU, device="cuda", damaged="device", ok=False),
    "a damaged manifest": State("refused", installed=WHEEL, damaged="manifest"),
    "a label for older drivers": State("prebuilt", installed=WHEEL | {"label": "cu121"}, host=GPU, device="cuda"),
    "a label without code for this GPU": State(
        "torch", installed=WHEEL, host=built_with(ex.host(gpu="12.1")), device="cuda"
    ),
    "aot without code for this GPU": State(
        *("refused", built_with(ex.host(gpu="12.1")), "cuda", WHEEL), env={"PRECAST_JIT": "aot"}
    ),
    "the CPU label on a GPU": State(
        *("refused", built_with(GPU), "cuda", {"label": "cpu"}), env={"PRECAST_JIT": "aot"}
    ),
    "another CPU": State("jit", installed=WHEEL, host=dataclasses.replace(CPU, machine="aarch64")),
    "JIT off": State("refused", installed=WHEEL, env={"PRECAST_JIT": "none"}),
    "aot with nothing prebuilt": State("refused", env={"PRECAST_JIT": "aot"}),
    "aot with a wheel": State("prebuilt", installed=WHEEL, host=NO_TOOLS, env={"PRECAST_JIT": "aot"}),
    "jit with a damaged wheel": State("jit", installed=WHEEL, damaged="manifest", env={"PRECAST_JIT": "jit"}, ok=False),
}


@pytest.fixture
def look(
    c_dir: Path, toy_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[State], dict[str, Any]]:
    """The doctor's facts in a state."""
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))

    def look(state: State) -> dict[str, Any]:
        host = state.host
        for name, value in state.env.items():
            monkeypatch.setenv(name, value)
        if state.installed is not None:
            library = None if state.installed.get("mode") is BuildMode.PURE else toy_library
            fakes.write_installation(c_dir, library, **state.installed)
        if state.damaged == "manifest":
            (c_dir / "build_info.json").write_text("{")
        elif state.damaged:
            (file,) = (c_dir / state.damaged).iterdir()
            file.write_bytes(b"other")
        monkeypatch.setattr(probe, "probe_host", lambda *_, **__: dataclasses.replace(host, builders=None))
        monkeypatch.setattr(probe, "probe_builders", lambda settings: host.builders)
        monkeypatch.setattr(gpus, "forecast", lambda *_: gpus.Forecast(host.gpus, certain=True, note=""))
        return doctor.examine([FAMILY])

    return look


def load(device: str) -> str:
    """What a first use would do, up to the build: its verdict, or its error."""
    need = choose.need_of(FAMILY, device)
    try:
        choice = choose.choose(need, probe.read_settings(), {}, certain=True)
        if choice.plain:
            return "torch"
        if isinstance(choice.decision, Refuse):
            raise verdict.refusal(choice)
    except KernelError as error:
        return str(error)
    return "jit" if type(choice.decision).__name__ == "BuildJit" else "prebuilt"


@pytest.mark.compiler
@pytest.mark.parametrize("name", STATES)
def test_the_doctor_says_what_loading_does(name: str, look: Callable[[State], dict[str, Any]]) -> None:
    state = STATES[name]
    facts = look(state)
    (kernel,) = (k for k in facts["kernels"] if k["family"] == FAMILY and k["device"] == state.device)
    loaded = load(state.device)
    assert kernel["verdict"] == state.verdict
    assert loaded == (kernel["error"] if state.verdict == "refused" else state.verdict)
    if state.device == "cpu" or state.verdict == "refused":
        assert facts["ok"] == (state.verdict != "refused" if state.ok is None else state.ok)
    first = doctor.to_text(facts).splitlines()[0]
    assert first.startswith(("OK: ", "OK, but ") if facts["ok"] else "PROBLEM")
    if facts["ok"]:
        assert first.startswith("OK, but ") == (state.verdict == "jit" and not kernel["cached"])


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_cache_without_room_is_a_problem_before_the_build(
    why: int, look: Callable[[State], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "posix_fallocate", full)
    facts = look(State("refused"))
    text = doctor.to_text(facts)
    assert not facts["ok"] and not facts["host"]["cache"]["writable"]
    assert "the build cache cannot be written" in text and os.strerror(why) in text and "PRECAST_CACHE_DIR=" in text
    assert look(State("prebuilt", installed=WHEEL))["ok"], "a cache that is not needed does not matter"


def test_a_file_system_without_unnamed_files_is_asked_for_its_mode(
    look: Callable[[State], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = os.open

    def nfs(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", nfs)
    assert look(State("jit"))["ok"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not look(State("jit"))["ok"]


def test_looking_for_room_leaves_nothing(look: Callable[[State], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    assert look(State("jit"))["ok"] and list((tmp_path / "cache").iterdir()) == []


def test_without_its_sources_nothing_can_be_built(
    look: Callable[[State], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "csrc_candidates", lambda: (tmp_path / "a", tmp_path / "b"))
    facts = look(State("refused"))
    assert not facts["ok"] and "the kernel sources are missing" in doctor.to_text(facts)
    assert catalogue.get(FAMILY).sources
