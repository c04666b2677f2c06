"""The doctor's screen: in the docs as it is printed, short in every state, coloured on a terminal alone."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precast._abi.settings import Settings
from precast._builder import catalogue
from precast._cli import doctor, names, output, screen
from precast._cli.problem import Problem
from precast._load import cached, probe
from precast._version import __version__
from precast.core import gpus
from precast.core.capability import ComputeCapability
from precast.core.host import Gpu, Host
from precast.core.manifest import BuildMode
from tests.kit import fakes
from tests.kit import hosts as ex

PAGE = "docs/reference/doctor.md"
GPU = Gpu(0, ComputeCapability(9, 0), "NVIDIA H200")
HEALTHY = dataclasses.replace(ex.host(build_with=ex.builders("13.0.88")), gpus=(GPU,))
NO_GPU = dataclasses.replace(HEALTHY, torch=ex.torch_info("2.13.0+cpu", cuda=None), driver=None, gpus=())
Screen = Callable[[Host], str]


@pytest.fixture
def say(c_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """What ``precast doctor`` prints on a made-up host; the places of this test have the names of a user's."""
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    monkeypatch.delenv("PRECAST_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def say(host: Host) -> str:
        monkeypatch.setattr(probe, "probe_host", lambda *_, **__: dataclasses.replace(host, builders=None))
        monkeypatch.setattr(probe, "probe_builders", lambda settings: host.builders)
        monkeypatch.setattr(gpus, "forecast", lambda *_: gpus.Forecast(host.gpus, certain=True, note=""))
        text = doctor.to_text(doctor.examine())
        text = text.replace(f" {__version__}", " 1.0.0").replace(f"=={__version__}+", "==1.0.0+")  # one in all screens
        return text.replace(str(c_dir), ".../precast/_C").replace(str(tmp_path / "cache"), "~/.cache")

    return say


def install(c_dir: Path, library: Path) -> None:
    """Every family, prebuilt for compute capability 9.0."""
    families = tuple(family.name for family in catalogue.FAMILIES)
    device = [family.name for family in catalogue.FAMILIES if family.device is not None]
    fakes.write_installation(
        c_dir,
        library,
        {"sm_90": fakes.cubin(90)},
        label="cu130",
        nvrtc="13.0.88",
        families=families,
        device_families=device,
    )


def damage(c_dir: Path) -> None:
    file = c_dir / "device/softmax.sm_90.cubin.xz"
    file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.compiler
@pytest.mark.parametrize("state", ["from source", "damaged"])
def test_the_screens_in_the_docs_are_what_is_printed(
    state: str, say: Screen, c_dir: Path, toy_library: Path, checkout: Path, pytestconfig: pytest.Config
) -> None:
    if state == "damaged":
        install(c_dir, toy_library)
        damage(c_dir)
    else:
        fakes.write_installation(c_dir, None, mode=BuildMode.PURE, label="")
    # As somebody sees it whose environment is active and whose clone lies in the home folder.
    printed = say(HEALTHY).replace(f"{sys.executable} -m pip", "pip").replace(str(checkout), "~/precast")
    if state == "damaged":
        printed = printed.partition("\n\n")[0]  # the rest is as in the other screen
    page = checkout / PAGE
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {state} -->\n")
    shown, end, after = rest.partition("<!-- end -->\n")
    assert begin and end, f"{PAGE} has no place for {state}"
    made = f"\n```console\n$ precast doctor\n{printed}\n```\n\n"
    if pytestconfig.getoption("--update-snapshots"):
        page.write_text(before + begin + made + end + after, encoding="utf-8")
        shown = made
    assert shown == made, f"{PAGE} differs from what is printed: --update-snapshots writes it"


@pytest.mark.compiler
def test_a_healthy_machine_is_one_line_and_what_it_is(say: Screen, c_dir: Path, toy_library: Path) -> None:
    install(c_dir, toy_library)
    lines = say(HEALTHY).splitlines()
    assert lines[0] == screen.READY and len(lines) <= 1 + 12 + len(catalogue.FOLDERS) + 2
    assert not any("jit" in line or "first use" in line for line in lines)


@pytest.mark.compiler
def test_each_group_of_public_functions_has_a_row(say: Screen, c_dir: Path, toy_library: Path) -> None:
    install(c_dir, toy_library)
    _, rows = say(HEALTHY).split("  kernels ")
    assert sorted(row.split()[0] for row in rows.splitlines()[1:]) == sorted(f.name for f in catalogue.FOLDERS)
    assert all(names.families([folder.name]) for folder in catalogue.FOLDERS), "each is a name for a command"


def test_what_a_first_call_would_compile_is_said_and_the_command_works(say: Screen, c_dir: Path) -> None:
    fakes.write_installation(c_dir, None, mode=BuildMode.PURE, label="")
    families = len([family for family in catalogue.FAMILIES if "cpu" in family.devices])
    assert re.fullmatch(
        rf"OK, but {families} kernel families will be built at first use \(about \d+ s\): precast warm",
        say(NO_GPU).splitlines()[0],
    )
    part = doctor.to_text(doctor.examine(["silu_and_mul"])).splitlines()[0]
    assert part.endswith(": precast warm activations activations_backward")


def test_what_the_cache_has_is_ready(say: Screen, c_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.write_installation(c_dir, None, mode=BuildMode.PURE, label="")
    states = iter(["hit", "miss"])
    monkeypatch.setattr(cached, "describe", lambda family, choice: [{"state": next(states, "hit")}])
    assert "OK, but 1 kernel family will be built" in say(NO_GPU)
    text = say(NO_GPU)
    assert text.splitlines()[0] == screen.READY and "at first use" not in text
    assert re.search(r"^  norm +cached +-$", text, re.MULTILINE)


@pytest.mark.compiler
def test_a_part_of_the_kernels_is_not_called_all(say: Screen, c_dir: Path, toy_library: Path) -> None:
    install(c_dir, toy_library)
    say(HEALTHY)
    assert doctor.to_text(doctor.examine(["rms_norm"])).splitlines()[0] == screen.ASKED_FOR


@pytest.mark.parametrize(("details", "fixes"), [(3, 2), (20, 1), (20, 3), (0, 1), (2, 0), (20, 0), (5, 12)])
def test_of_a_long_problem_the_fix_is_never_cut_off(details: int, fixes: int) -> None:
    found = tuple(f"  host  file {number}  rejected" for number in range(details))
    fix = tuple(f"  {'   ' if number else 'fix'}  {number + 1}) a command" for number in range(fixes))
    body = screen._body(Problem(("a kernel cannot be loaded", *found, *fix)), 10)
    assert body[-fixes:] == list(fix) or not fixes
    assert len(body) <= max(10, fixes + 1) + 1 and ("  ..." in body) == (details > max(10 - fixes, 1))


def test_what_an_error_and_the_screen_both_have_is_said_once(say: Screen) -> None:
    nothing = dataclasses.replace(HEALTHY, builders=ex.builders(None, compiler=False))
    text = say(nothing)
    assert text.startswith("PROBLEM") and "\n  env " not in text and ") python -m precast doctor" not in text
    assert text.count("2.13.0+cu130") == 1


def test_many_gpus_of_one_kind_are_one_line(say: Screen) -> None:
    eight = tuple(dataclasses.replace(GPU, index=index) for index in range(8))
    line = next(line for line in say(dataclasses.replace(HEALTHY, gpus=eight)).splitlines() if line.startswith("  gpu"))
    assert line == "  gpu     0 1 2 3 4 5 6 7: NVIDIA H200, compute capability 9.0; driver for CUDA 13.0"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "settings", "coloured"),
    [
        (Terminal(), Settings(), True),
        (Terminal(), Settings(no_color=True), False),
        (io.StringIO(), Settings(), False),
    ],
)
def test_colours_are_for_a_terminal_and_no_color_is_respected(
    stream: io.StringIO, settings: Settings, coloured: bool, monkeypatch: pytest.MonkeyPatch, say: Screen
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    paint = output.painter(settings)
    assert (paint("ready", "green") == "\x1b[32mready\x1b[0m") == coloured
    assert paint("-", "") == "-"
    say(HEALTHY)
    facts: dict[str, Any] = doctor.examine()
    assert ("\x1b[" in doctor.to_text(facts, paint)) == coloured
