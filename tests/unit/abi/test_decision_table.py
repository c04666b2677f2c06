"""``decide`` against the table, for every combination; the page against the table; and what follows a decision."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from precast._abi.decide import decide
from precast._abi.decision import BuildAdapter, Decision, Refuse, all_rejections, needs_builders
from precast._abi.settings import JitMode, Settings
from precast.core.manifest import DeviceFile, HostFile
from precast.core.reasons import Need
from precast.core.version import Release
from precast.errors import KernelUnavailable
from precast.extension import Extension
from precast.kernel_loader import KernelLoader
from tests.kit import hosts as ex
from tests.unit.abi import decision_table as table

CODE = {"SASS": "sm_90", "PTX": "compute_90", "none": "sm_75"}
PAGE = "docs/reference/decision.md"


def outcome(decision: Decision) -> str:
    if isinstance(decision, Refuse):
        return "refuse"
    built = {
        "library": not isinstance(decision.host, HostFile),
        "adapter": isinstance(decision.binding, BuildAdapter),
        "code": any(not isinstance(image, DeviceFile) for _, image in decision.images),
    }
    return f"build {', '.join(piece for piece, is_ in built.items() if is_)}" if any(built.values()) else "prebuilt"


def decided(case: tuple[str, ...]) -> tuple[Decision, bool]:
    """What is decided, as the loader asks: builders are looked for only when that is asked for. And whether it was."""
    prebuilt, library, gpu, builders, mode = case
    file = ex.host_file(glibc=Release(2, 99 if library == "does not" else 28))
    info = ex.build_info(CODE[gpu], host_files=(file, ex.host_file("torch-2.8-cxx1"))) if prebuilt == "yes" else None
    torch = ex.torch_info("2.9.1" if library == "no adapter" else "2.13.0", git="a" * 40)
    found = ex.builders() if builders == "yes" else ex.builders(None, compiler=False, ninja=False)
    need, settings = Need(ex.FAMILY, "cuda"), Settings(jit=JitMode(mode))
    decision = decide(ex.host(torch=torch), info, settings, need)
    if not needs_builders(decision):
        return decision, False
    return decide(ex.host(torch=torch, build_with=found), info, settings, need), True


@pytest.mark.parametrize("case", list(table.cases()), ids="-".join)
def test_every_combination_is_decided_as_its_row_says(case: tuple[str, ...]) -> None:
    (row,) = [row for row in table.ROWS if row.covers(case)]
    decision, looked = decided(case)
    assert outcome(decision) == row.outcome
    rejections = all_rejections(decision)
    assert set(row.reasons.split()) <= {rejection.reason.value for rejection in rejections}
    assert all(rejection.needed and rejection.found for rejection in rejections)
    assert bool(rejections) or row.outcome == "prebuilt"
    if row.mode in ("auto, aot", "aot", "none"):
        assert not looked, "no compiler is looked for"
    notes = () if isinstance(decision, Refuse) else decision.notes
    ptx_is_used = case[2] == "PTX" and "code" not in row.outcome and row.outcome != "refuse"
    assert len(notes) == ptx_is_used


def test_every_row_is_needed() -> None:
    for row in table.ROWS:
        assert any(row.covers(case) for case in table.cases()), row


@pytest.mark.parametrize("name", ["decision_table"])
def test_the_page_shows_the_table(checkout: Path, pytestconfig: pytest.Config, name: str) -> None:
    page = checkout / PAGE
    begin, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    shown, found, after = rest.partition(end)
    assert found, f"{PAGE} has no place for {name}"
    made = getattr(table, name)()
    if pytestconfig.getoption("--update-snapshots"):
        page.write_text(before + begin + made + end + after, encoding="utf-8")
        shown = made
    assert shown == made, f"{PAGE} differs from {name}: read the difference, then --update-snapshots if it is meant"


def extension(name: str, priority: int, error: Exception | None = None) -> type[Extension]:
    class Made(Extension):
        def __init__(self) -> None:
            super().__init__(name, support_aot=False, support_jit=False, priority=priority)

        def is_available(self) -> bool:
            return True

        def assert_compatible(self) -> None:
            if error is not None:
                raise error

        def build_aot(self) -> Any:
            raise NotImplementedError

        def build_jit(self) -> Any:
            raise NotImplementedError

        def load(self) -> Any:
            return name

    return Made


def test_row_10_an_extension_of_lower_priority_serves_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Loader(KernelLoader):
        pass

    Loader.register_extension(extension("fast", 2, KernelUnavailable("fast cannot be loaded\n  host  jit  no g++")))
    Loader.register_extension(extension("plain", 1))
    with caplog.at_level(logging.WARNING, "precast"):
        assert Loader().load() == Loader().load() == "plain"
    assert caplog.messages == ["Loader: plain is used, as fast cannot be: fast cannot be loaded: host  jit  no g++"]
    caplog.clear()
    Loader.unregister_extension("fast")
    with caplog.at_level(logging.WARNING, "precast"):
        assert Loader().load() == "plain"
    assert caplog.messages == []


def test_off_leaves_the_extensions_that_have_no_kernels_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.kernel_loader import CPUAdamLoader

    class Loader(CPUAdamLoader):
        pass

    monkeypatch.setenv("PRECAST_JIT", "none")
    assert Loader().load().source.kind == "torch"
    with pytest.raises(KernelUnavailable, match="PRECAST_JIT=none"):
        Loader().load(ext_name="cpu_adam_x86")
    Loader.register_extension(extension("plain torch", 0))
    assert Loader().load() == "plain torch"
