"""What each error says, as a person reads it: one file per situation in tests/snapshots/errors.

The shape of all of them: what was asked and the verdict; a line for each candidate with what it wanted and what was
found; the machine in one line; at most three commands. The paths and versions of this machine are replaced.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from precast import __version__, errors
from precast._abi.settings import JitMode, Settings
from precast._builder import failure
from precast._builder.cache import BuildKey, Cache
from precast._load import loader, probe, verdict
from precast._load.choose import choose_on
from precast._load.source import Source
from precast.core import gpus
from precast.core.host import Host
from precast.errors import KernelError
from precast.kernel_loader import CPUAdamLoader, RMSNormLoader
from tests.kit import hosts as ex
from tests.unit.load import error_table

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md"
Snapshot = Callable[[str, str], None]
AUTO = Settings()


def refused(host: Host, device: str = "cuda", *, wheel: str | None = "sm_75 sm_90", settings: Settings = AUTO) -> str:
    """What loading a family there says for which plain torch does not stand in."""
    info = None if wheel is None else ex.build_info(wheel, family="rotary")
    need = verdict.Need("rotary", "cuda" if device == "cuda" else "cpu")
    error = verdict.refusal(choose_on(host, info, settings, need))
    return f"{type(error).__name__}: {error}"


NOTHING_BUILDS = ex.builders(None, compiler=False, ninja=False)
REFUSALS: dict[str, Callable[[], str]] = {
    "unavailable-arch": lambda: refused(ex.host(gpu="12.1", build_with=ex.builders(None))),
    "unavailable-volta": lambda: refused(ex.host(gpu="7.0", build_with=ex.builders())),
    "unavailable-driver": lambda: refused(ex.host(driver="12.4", build_with=ex.builders())),
    "unavailable-no-driver": lambda: refused(ex.host(driver=None, gpu="")),
    "unavailable-cpu-torch": lambda: refused(ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None))),
    "unavailable-rocm": lambda: refused(
        ex.host(torch=ex.torch_info("2.13.0+rocm7.0", cuda=None, hip="7.0"), build_with=ex.builders())
    ),
    "unavailable-no-torch": lambda: refused(ex.host(torch=None, gpu="", driver=None), "cpu"),
    "unavailable-broken-torch": lambda: refused(ex.host(torch=None, torch_error="OSError: libc10.so"), "cpu"),
    "unavailable-no-compiler": lambda: refused(ex.host(gpu="", build_with=NOTHING_BUILDS), "cpu", wheel=None),
    "unavailable-old-torch": lambda: refused(
        ex.host(torch=ex.torch_info("2.3.0"), gpu="", build_with=ex.builders()), "cpu"
    ),
    "unavailable-another-system": lambda: refused(ex.host(system="Darwin", machine="arm64"), "cpu"),
    "jit-disabled-aot": lambda: refused(
        ex.host(gpu="12.0", build_with=ex.builders()), settings=Settings(jit=JitMode.AOT)
    ),
    "jit-disabled-none": lambda: refused(ex.host(), settings=Settings(jit=JitMode.NONE)),
}


@pytest.fixture
def _nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up manifests have no files behind them, and none of these decisions uses one."""
    monkeypatch.setattr("precast._load.prebuilt.verified_bytes", lambda file: b"")


@pytest.mark.usefixtures("_nothing_is_verified")
@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str, snapshot: Snapshot) -> None:
    text = REFUSALS[name]()
    keep(snapshot, name, text)
    assert len(re.findall(r"^ +(?:fix)? *\d\) ", text, re.MULTILINE)) in (0, 1, 2, 3)
    assert "  env     precast " in text and text.endswith("  more    python -m precast doctor")
    assert len(text.splitlines()[0]) < 100


def raised(call: Callable[[], object]) -> KernelError:
    with pytest.raises(KernelError) as caught:
        call()
    return caught.value


@pytest.mark.usefixtures("_nothing_is_verified")
def test_one_gpu_of_two(snapshot: Snapshot) -> None:
    host = ex.host(gpu="9.0 12.1", build_with=ex.builders(None))
    choice = choose_on(host, ex.build_info("sm_90"), AUTO, verdict.Need(ex.FAMILY, "cuda"))
    assert not isinstance(choice.decision, verdict.Refuse)
    ((index, why),) = choice.decision.refused
    keep(snapshot, "one-gpu-of-two", str(verdict.gpu_refusal(choice, index, why)))


@pytest.mark.usefixtures("_nothing_is_verified")
def test_a_library_built_here_that_will_not_open(snapshot: Snapshot) -> None:
    choice = choose_on(ex.host(gpu=""), ex.build_info(), AUTO, verdict.Need(ex.FAMILY, "cpu"))
    source = Source("jit", Path("/cache/v1/rms_norm/0123456789abcdef/rms_norm.so"), "")
    error = verdict.cannot_open(choice, source, "undefined symbol: aoti_torch_nowhere")
    # fails if the text differs from the kept one
    keep(snapshot, "incompatible-built-here", f"{type(error).__name__}: {error}")


def test_names_that_do_not_exist(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    calls: dict[str, Callable[[], object]] = {
        "unavailable-no-such-op": lambda: loader.load("rms_nrom"),
        "unavailable-no-such-device": lambda: loader.ensure("cpu_adam", "cuda"),
        "unavailable-no-such-extension": lambda: CPUAdamLoader().load(ext_name="cpu_adam_x68"),
        "unavailable-another-machine": lambda: CPUAdamLoader().load(ext_name="cpu_adam_arm"),
        "setting": lambda: probe.read_settings({"PRECAST_JIT": "always"}),
    }
    for name, call in calls.items():
        error = raised(call)
        # fails if the text differs from the kept one
        keep(snapshot, name, f"{type(error).__name__}: {error}")


def test_every_extension_of_a_loader_refuses(snapshot: Snapshot, c_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ex.host(gpu="12.1")
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    monkeypatch.setattr(probe, "probe_host", lambda *_, **__: dataclasses.replace(host, builders=None))
    monkeypatch.setattr(probe, "probe_builders", lambda settings: NOTHING_BUILDS)
    monkeypatch.setattr(gpus, "forecast", lambda *_: gpus.Forecast(host.gpus, certain=True, note=""))

    class Loader(RMSNormLoader):
        pass

    Loader.unregister_extension("rms_norm_torch")  # which would serve
    error = raised(lambda: Loader().load())
    assert isinstance(error.__cause__, errors.KernelUnavailable), "the first one is chained"
    keep(snapshot, "unavailable-every-extension", f"{type(error).__name__}: {error}")


LOG = """\
[1/3] /usr/bin/g++ -c host/api.cpp
FAILED: rms_norm.host.o
/usr/bin/g++ -O3 -c csrc/norm/rms_norm.cpp -o rms_norm.host.o
csrc/norm/rms_norm.cpp: In function 'void run()':
csrc/norm/rms_norm.cpp:12:3: error: 'no_such_thing' was not declared in this scope
csrc/norm/rms_norm.cpp:14:3: error: a second one, which follows from the first
ninja: build stopped: subcommand failed.
"""


def test_a_failed_build_shows_the_first_error_and_where_the_rest_is(
    snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.13.0+cpu"))
    monkeypatch.setattr(failure.platform, "python_version", lambda: "3.11.7")
    monkeypatch.setattr(failure.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(failure.os, "confstr", lambda name: "glibc 2.36")
    log = tmp_path / "rms_norm.log"
    command = "/usr/bin/g++ -O3 -c csrc/norm/rms_norm.cpp"
    error = failure.build_failed("rms_norm", LOG, command, log, tool="g++ 12.2.0")
    assert isinstance(error, errors.BuildFailed) and "second one" not in str(error)
    assert "second one" in log.read_text()
    keep(snapshot, "build-failed", f"{type(error).__name__}: {error}".replace(str(tmp_path), "/cache/v1/.failed"))


def test_a_cache_that_cannot_be_written(snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr("precast._builder.trust._places", lambda: iter([tmp_path / "file", tmp_path / "cache"]))
    error = raised(lambda: Cache(tmp_path / "file").obtain(BuildKey("rms_norm", {}), lambda staging: staging))
    # fails if the text differs from the kept one
    keep(snapshot, "cache", f"{type(error).__name__}: {error}".replace(str(tmp_path), "/home/me"))


def keep(snapshot: Snapshot, name: str, text: str) -> None:
    snapshot(f"errors/{name}.txt", text.replace(__version__, "1.2.3") + "\n")


# Errors that pass on a text, which has its fix in it.
PASSED_ON = {
    "_NO_SUBINTERPRETER",
    "dangling.refusal(f'{one.namespace}::{one.name}', meant, one.place, library)",
    "f'rank {rank} could not prepare the kernels of its node\\n{failure}'",
    "f'{_text(error.value)}\\n  from    {function} of {self.path}'",
    "fixes.needs_torch('a model', replace(host, installer=probe.probe_installer()))",
    "fixes.needs_torch(self.name, host)",
    "refusal(op, meant, place, str(path))",
}


def test_each_text_has_found_needed_and_a_fix_or_says_that_there_is_none() -> None:
    """``python -m tests.unit.load.error_table`` prints them all."""
    texts = list(error_table.texts())
    assert len(texts) > 150
    for part in ("found", "needed", "fix"):
        without = {text.place: text.what for text in texts if part not in text.parts and text.what not in PASSED_ON}
        assert without == {}, part
    assert {text.what for text in texts} >= PASSED_ON
    assert {text.place for text in texts if text.parts.get("fix") in ("''", "[]", "()")} == set()


def test_a_command_of_precast_that_a_fix_offers_is_one_that_there_is() -> None:
    verbs = set(re.findall(r"^## `precast ([a-z-]+(?: [a-z]+)?)`", REFERENCE.read_text(), re.MULTILINE))
    offered = {
        command
        for text in error_table.texts()
        for command in re.findall(
            r"(?<![\w.])(?<!install )(?:python -m )?precast ([a-z-]{2,}(?: [a-z]{4,})?)", text.parts.get("fix", "")
        )
    }
    assert {"cache clear", "doctor", "list"} <= offered | {"list"}
    assert {one for one in offered if not {one, one.split()[0]} & verbs} == set()
