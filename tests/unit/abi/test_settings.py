from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from precast._abi.settings import VARIABLES, JitMode, Settings, Variable
from precast.core.version import Label, Release

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "settings.md"


def test_nothing_set_gives_the_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings().jit is JitMode.AUTO


def test_every_variable_reaches_its_field() -> None:
    env = {
        "PRECAST_JIT": "aot",
        "PRECAST_CACHE_DIR": "/cache",
        "PRECAST_CACHE_PATH": "/site:/image",
        "PRECAST_JIT_WAIT": "60",
        "PRECAST_CUDA_ARCH_LIST": "9.0",
        "TORCH_CUDA_ARCH_LIST": "8.0",
        "MAX_JOBS": "3",
        "PRECAST_CPU_LEVEL": "avx2",
        "PRECAST_DEBUG": "1",
        "PRECAST_QUIET": "1",
        "NO_COLOR": "1",
        "PRECAST_LABEL": "cu130",
        "PRECAST_INDEX_URL": "https://host/precast/",
        "PRECAST_PARTS": "/parts",
        "PRECAST_ONLY_TORCH": "2.6",
        "PRECAST_ARCH": "aarch64",
        "CUDA_EXT": "1",
        "CXX": "clang++",
        "CUDA_HOME": "/cuda",
        "XDG_CACHE_HOME": "/xdg",
        "HOME": "/home/u",
        "CUDA_VISIBLE_DEVICES": "1,0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TRITON_INTERPRET": "1",
    }
    assert env.keys() == {variable.name for variable in VARIABLES}
    assert Settings.from_env(env) == Settings(
        jit=JitMode.AOT,
        cache_dir="/cache",
        cache_path="/site:/image",
        jit_wait_s=60,
        arch_list="9.0",
        max_jobs=3,
        cpu_level="avx2",
        debug=True,
        quiet=True,
        no_color=True,
        label=Label("cu130"),
        index_url="https://host/precast",
        parts="/parts",
        only_torch=Release(2, 6),
        arch="aarch64",
        cuda_ext=True,
        cxx="clang++",
        cuda_home="/cuda",
        xdg_cache_home="/xdg",
        home="/home/u",
        visible_devices="1,0",
        device_order="PCI_BUS_ID",
        triton_interpret=True,
    )


def test_every_field_has_a_variable_and_the_reverse() -> None:
    assert {variable.field for variable in VARIABLES} == {field.name for field in fields(Settings)}


def test_empty_counts_as_unset_except_for_visible_devices() -> None:
    empty = {variable.name: "" for variable in VARIABLES}
    assert Settings.from_env(empty) == Settings(visible_devices="")


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("PRECAST_JIT", "never", "auto, aot, jit, none"),
        ("PRECAST_DEBUG", "maybe", "1 or 0"),
        ("CUDA_EXT", "2", "1 or 0"),
        ("PRECAST_JIT_WAIT", "-1", "whole number of seconds"),
        ("PRECAST_JIT_WAIT", "soon", "whole number of seconds"),
        ("MAX_JOBS", "0", "whole number"),
        ("MAX_JOBS", "-1", "whole number"),
        ("MAX_JOBS", "many", "whole number"),
        ("MAX_JOBS", "²", "whole number"),
        ("PRECAST_LABEL", "cuda13", "cu130"),
        ("PRECAST_ARCH", "arm64", "x86_64 or aarch64"),
        ("PRECAST_ONLY_TORCH", "newest", "a minor version such as '2.6'"),
        ("PRECAST_CACHE_DIR", "/a\nb", "without a line break"),
        ("PRECAST_CACHE_PATH", "/a:/b\0", "without a line break"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_what_is_accepted(name: str, value: str, accepted: str) -> None:
    with pytest.raises(ValueError, match="is not accepted") as caught:
        Settings.from_env({name: value})
    message = str(caught.value)
    assert message.startswith(f"{name}={value!r}")
    assert accepted in message


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_switches(value: str) -> None:
    assert Settings.from_env({"CUDA_EXT": value}).cuda_ext
    assert not Settings.from_env({"CUDA_EXT": "0"}).cuda_ext
    assert Settings.from_env({"PRECAST_JIT": "AOT"}).jit is JitMode.AOT


def test_the_arch_list_of_torch_is_second_and_judged_at_use() -> None:
    settings = Settings.from_env({"TORCH_CUDA_ARCH_LIST": "8.0+PTX"})
    assert " ".join(map(str, settings.targets())) == "sm_80 compute_80"
    assert Settings().targets() == ()
    for name in ("TORCH_CUDA_ARCH_LIST", "PRECAST_CUDA_ARCH_LIST"):
        strange = Settings.from_env({name: "Kepler+Tesla"})
        with pytest.raises(ValueError, match="TORCH_CUDA_ARCH_LIST='Kepler\\+Tesla' is not accepted"):
            strange.targets()


OF_A_BUILD = [variable for variable in VARIABLES if variable.when == "build"]


@pytest.mark.parametrize("variable", OF_A_BUILD, ids=lambda variable: variable.name)
def test_what_only_a_build_reads_is_not_read_at_run_time(variable: Variable) -> None:
    assert Settings.from_env({variable.name: "garbage"}, at_run=True) == Settings()


def test_what_is_read_at_run_time_is_judged_there() -> None:
    assert len(OF_A_BUILD) == 5
    with pytest.raises(ValueError, match="MAX_JOBS='many' is not accepted"):
        Settings.from_env({"MAX_JOBS": "many", "PRECAST_LABEL": "bogus"}, at_run=True)


def test_the_page_in_the_docs_has_a_row_for_each() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(variable.name, variable.when) for variable in VARIABLES]


@pytest.mark.parametrize(
    "url", ["host/precast", "https://host/$(reboot)", "https://host/a b", "ftp://host", "https://h/'"]
)
def test_an_index_is_printed_in_commands_so_nothing_but_a_url_is_one(url: str) -> None:
    with pytest.raises(ValueError, match="PRECAST_INDEX_URL"):
        Settings.from_env({"PRECAST_INDEX_URL": url})
    assert Settings.from_env({"PRECAST_INDEX_URL": "none"}).index_url is None
    assert Settings.from_env({"PRECAST_INDEX_URL": "file:///srv/a%20b/"}).index_url == "file:///srv/a%20b"
