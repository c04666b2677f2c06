"""What the doctor says on made-up machines, whatever is missing or damaged there; and its exit status."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from precast import __main__
from precast._abi.settings import Settings
from precast._builder import catalogue, lock
from precast._builder.cache import BuildKey, Cache
from precast._cli import deep, doctor, fault
from precast._load import probe
from precast._version import __version__
from precast.core import gpus
from precast.core.host import Host
from precast.core.manifest import BuildMode
from precast.errors import KernelError
from tests.kit import fakes
from tests.kit import hosts as ex

CHECKOUT = Path(__file__).resolve().parents[3]
SCREEN = 12 + 12 + len(catalogue.FOLDERS) + 2  # the first problem, the machine, a line for each group, two empty ones
DEEP = [{"op": "adam_", "device": "cpu", "ok": False, "wrong": "result 0: 3 of 33 values are wrong, by up to 0.1"}]


@pytest.fixture
def examine(c_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The doctor's facts on a made-up host; nothing may be built or loaded, and no other process fills its cache."""
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the doctor builds and loads nothing")

    monkeypatch.setattr("precast._load.loader.ensure", forbidden)
    monkeypatch.setattr("ctypes.CDLL", forbidden)

    def run(host: Host) -> dict[str, Any]:
        builders = host.builders or ex.builders()
        monkeypatch.setattr(probe, "probe_host", lambda *_, **__: dataclasses.replace(host, builders=None))
        monkeypatch.setattr(probe, "probe_builders", lambda settings: builders)
        monkeypatch.setattr(gpus, "forecast", lambda *_: gpus.Forecast(host.gpus, certain=True, note=""))
        facts = doctor.examine()
        assert json.loads(json.dumps(facts)) == facts, "the report is plain JSON"
        assert len(doctor.to_text(facts).splitlines()) <= SCREEN
        return facts

    return run


def kernels(facts: dict[str, Any]) -> dict[str, str]:
    """The verdict on the first family of each extension."""
    return {kernel["extension"]: kernel["verdict"] for kernel in reversed(facts["kernels"])}


def reasons(facts: dict[str, Any], extension: str) -> set[str]:
    kernel = next(kernel for kernel in facts["kernels"] if kernel["extension"] == extension)
    return {rejection["reason"] for rejection in kernel["rejections"]}


@pytest.mark.compiler
def test_a_release_wheel_on_a_machine_it_is_for(examine: Any, c_dir: Path, toy_library: Path) -> None:
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    facts = examine(ex.host())
    wanted = {  # what the made-up wheel holds
        "cpu_adam_x86": "prebuilt",
        "cpu_adam_arm": "not-here",
        "rms_norm_cuda": "prebuilt",
        "rms_norm_cpu": "prebuilt",
    }
    verdicts = kernels(facts)
    assert facts["ok"] and {name: verdicts[name] for name in wanted} == wanted
    cuda = next(kernel for kernel in facts["kernels"] if kernel["extension"] == "rms_norm_cuda")
    assert cuda["pieces"] == [
        {"piece": "host", "source": "prebuilt", "what": "host/kernels-x86_64.so"},
        {"piece": "torch", "source": "torch", "what": "libtorch_cpu.so"},
        {"piece": "cuda:0", "source": "prebuilt", "what": "device/rms_norm.sm_90.cubin"},
    ]
    assert facts["build"]["label"] == "cu121" and facts["build"]["mode"] == "release"


@pytest.mark.compiler
def test_damaged_files_are_named_and_what_would_happen_instead(examine: Any, c_dir: Path, toy_library: Path) -> None:
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    (c_dir / "device/rms_norm.sm_90.cubin.xz").write_bytes(b"")
    facts = examine(ex.host())
    assert kernels(facts)["rms_norm_cuda"] == "jit" and "damaged" in reasons(facts, "rms_norm_cuda")
    first, file, found, _, fix, *_ = doctor.to_text(facts).splitlines()
    assert not facts["ok"], "a build hides the damage from a caller, not from the doctor"
    assert first == "PROBLEM: device/rms_norm.sm_90.cubin is corrupted, so it is not used"
    assert file == f"  file    {c_dir}/device/rms_norm.sm_90.cubin.xz" and found.startswith("  found   ")
    assert "0 bytes" in found and re.match(r"  fix +1\) \w", fix)
    (c_dir / "device/rms_norm.sm_90.cubin.xz").unlink()
    assert "rms_norm.sm_90.cubin is missing" in doctor.to_text(examine(ex.host())).splitlines()[0]


def test_a_damaged_manifest_is_part_of_the_report(examine: Any, c_dir: Path) -> None:
    (c_dir / "build_info.json").write_text("{")
    facts = examine(ex.host())
    assert not facts["ok"] and str(c_dir / "build_info.json") in facts["build"]["manifest_error"]
    assert kernels(facts)["cpu_adam_x86"] == "refused" and facts["build"]["mode"] is None
    assert str(c_dir / "build_info.json") in doctor.to_text(facts)


def test_a_pure_wheel_says_that_the_switch_was_not_seen(examine: Any, c_dir: Path) -> None:
    fakes.write_installation(c_dir, None, mode=BuildMode.PURE, label="")
    facts = examine(ex.host())
    assert facts["build"]["note"] == "pure wheel: CUDA_EXT was not seen at build time"
    assert facts["build"]["note"] in doctor.to_text(facts)
    assert facts["ok"] and kernels(facts)["rms_norm_cuda"] == "jit"


def test_a_switch_that_had_no_effect_is_said_with_the_command_that_has(
    examine: Any, c_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.write_installation(c_dir, None, mode=BuildMode.PURE, label="")
    monkeypatch.setenv("CUDA_EXT", "1")
    facts = examine(ex.host())
    assert "CUDA_EXT=1 is set now and was without effect" in facts["build"]["note"]
    assert "pip install --force-reinstall --no-deps --no-cache-dir" in facts["build"]["fix"]
    assert facts["build"]["fix"] in doctor.to_text(facts)


@pytest.mark.parametrize(
    ("torch_error", "found"), [(None, "no torch"), ("OSError: libtorch.so", "OSError: libtorch.so")]
)
def test_without_a_working_torch_nothing_resolves_and_it_says_so(
    examine: Any, torch_error: str | None, found: str
) -> None:
    facts = examine(ex.host(torch=None, torch_error=torch_error, gpu=""))
    assert not facts["ok"] and reasons(facts, "cpu_adam_x86") == {"torch-missing"}
    assert found in doctor.to_text(facts)


def test_without_a_gpu_the_cuda_kernels_are_not_expected(examine: Any) -> None:
    cpu_torch = ex.torch_info("2.13.0+cpu", cuda=None)
    facts = examine(ex.host(torch=cpu_torch, driver=None, gpu=""))
    assert facts["ok"] and kernels(facts)["rms_norm_cuda"] == "not-here"


def test_with_a_gpu_and_a_torch_that_cannot_use_it_they_are_missed(examine: Any) -> None:
    facts = examine(ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None)))
    assert not facts["ok"] and reasons(facts, "rms_norm_cuda") == {"torch-cpu"}
    assert kernels(facts)["rms_norm_cpu"] == "jit"


def test_a_rocm_torch_is_not_asked_for_cuda_kernels(examine: Any) -> None:
    facts = examine(ex.host(torch=ex.torch_info("2.13.0+rocm6.4", cuda=None, hip="6.4"), driver=None, gpu=""))
    assert facts["ok"] and reasons(facts, "rms_norm_cuda") == {"hip"}


def test_a_gpu_that_nothing_serves_fails_the_report_while_others_are_served(examine: Any) -> None:
    facts = examine(ex.host(gpu="9.0 6.1"))
    assert not facts["ok"] and kernels(facts)["rms_norm_cuda"] == "partly"
    cuda = next(kernel for kernel in facts["kernels"] if kernel["extension"] == "rms_norm_cuda")
    assert "rms_norm cannot run on cuda:1" in cuda["error"]


def test_without_builders_and_without_prebuilt_files_the_places_looked_at_are_named(examine: Any) -> None:
    facts = examine(ex.host(build_with=ex.builders(None, compiler=False)))
    assert not facts["ok"] and "no-compiler" in reasons(facts, "cpu_adam_x86")
    assert "no C++ compiler" in doctor.to_text(facts)
    assert "g++ on PATH: not there" in doctor.to_text(facts, verbose=True)
    assert facts["host"]["compiler"] is None and facts["host"]["looked_at"]


def test_another_system_is_one_reason(examine: Any) -> None:
    facts = examine(ex.host(system="Darwin", machine="arm64"))
    assert not facts["ok"] and reasons(facts, "rms_norm_cpu") == {"system"}


def test_settings_that_change_the_outcome_are_shown(examine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_JIT", "none")
    facts = examine(ex.host())
    assert facts["settings"]["jit"] == "none" and not facts["ok"]
    assert facts["variables"]["PRECAST_JIT"] == "none" and "PRECAST_JIT=none" in doctor.to_text(facts)
    assert "  variable  PRECAST_JIT=none\n" in doctor.to_text(facts, verbose=True)
    assert not {"HOME", "XDG_CACHE_HOME"} & set(facts["variables"])
    assert reasons(facts, "cpu_adam_x86") == {"jit-off"}


def test_the_command_line_gives_the_status_and_either_form(
    examine: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = examine(ex.host())
    assert __main__.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == facts
    assert __main__.main(["doctor"]) == 0
    assert capsys.readouterr().out == doctor.to_text(facts) + "\n"
    assert __main__.main(["doctor", "--verbose"]) == 0
    assert capsys.readouterr().out == doctor.to_text(facts, verbose=True) + "\n"
    monkeypatch.setenv("PRECAST_JIT", "aot")
    assert __main__.main(["doctor"]) == 1
    monkeypatch.setenv("PRECAST_JIT", "nonsense")
    assert __main__.main(["doctor"]) == 2
    assert "PRECAST_JIT='nonsense'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        __main__.main(["docter"])


def test_the_cache_folder_is_named_and_not_made(examine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "not" / "yet"))
    facts = examine(ex.host())
    nothing = {"entries": 0, "bytes": 0, "locks": []}
    assert facts["host"]["cache"] == {"path": str(tmp_path / "not/yet"), "writable": True, **nothing}
    assert not (tmp_path / "not").exists()


def test_the_size_of_the_cache_and_who_builds_into_it_are_told(
    examine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path))
    (tmp_path / "payload").write_bytes(b"x" * 1500)
    Cache(tmp_path).store(BuildKey("rms_norm", {}), tmp_path / "payload", seconds=1.0)
    path = lock.lock_file(tmp_path, "rms_norm-0123456789abcdef")
    another = lock.lock_file(tmp_path / "another", "softmax-0123456789abcdef")
    with lock.exclusive(path, "x") as turn, lock.exclusive(another, "y"):
        turn.tell(Path("/the/log"))
        facts = examine(ex.host())
    (held,) = facts["host"]["cache"]["locks"]
    assert held["name"] == "rms_norm-0123456789abcdef" and f"process {os.getpid()} on " in held["holder"]
    assert facts["host"]["cache"]["entries"] == 1 and facts["host"]["cache"]["bytes"] > 1500
    assert "1 build running now" in doctor.to_text(facts)
    text = doctor.to_text(facts, verbose=True)
    assert f"{tmp_path}, 1 entries, 1." in text and "lock      rms_norm-0123456789abcdef: held by process" in text
    assert examine(ex.host())["host"]["cache"]["locks"] == [], "a lock file alone is no lock"


def keys_of(value: Any) -> dict[str, Any]:
    """The keys of an object, or of the objects of a list, each with those below it."""
    objects = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
    found: dict[str, Any] = {}
    for one in objects:
        for key, below in one.items():
            found.setdefault(key, {}).update(keys_of(below))
    return found


def keys_in(lines: list[tuple[int, str]]) -> dict[str, Any]:
    """The keys of a nested list, given as the indent and the key of each line."""
    found: dict[str, Any] = {}
    for number, (indent, key) in enumerate(lines):
        if indent == lines[0][0]:
            below = itertools.takewhile(lambda line: line[0] > lines[0][0], lines[number + 1 :])
            found[key] = keys_in(list(below))
    return found


def test_the_document_has_every_key_in_its_place(examine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "examine", lambda kernels: DEEP)
    examine(ex.host())
    facts = doctor.examine(deeply=True)
    facts["host"]["cache"]["locks"] = [{"name": "", "holder": ""}]
    for name in ("settings", "variables"):  # their keys are those of another page
        facts[name] = {}
    facts["build"] |= {name: {} for name in ("compilers", "device_paths")}
    text = (CHECKOUT / "docs/reference/doctor.md").read_text()
    lines = [
        (len(spaces), key)
        for spaces, keys in re.findall(r"^( *)\* ((?:`\w+`(?:, )?)+):", text, re.MULTILINE)
        for key in re.findall(r"\w+", keys)
    ]
    assert keys_in(lines) == keys_of(facts)
    told = re.search(r"`verdict`: ([^*]+)", text)
    assert told and {"prebuilt", "jit", "torch", "partly", "refused", "not-here"} <= {
        *re.findall(r"`([\w-]+)`", told[1])
    }


def test_wrong_numbers_fail_the_report(examine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(deep, "examine", lambda kernels: asked.extend(kernels) or DEEP)
    examine(ex.host())
    assert asked == [], "without --deep nothing is loaded"
    facts = doctor.examine(["adam_"], deeply=True)
    assert not facts["ok"] and facts["deep"] == DEEP
    assert asked == [(catalogue.get("cpu_adam"), "cpu")] and {k["family"] for k in facts["kernels"]} == {"cpu_adam"}
    assert doctor.to_text(facts).splitlines()[:2] == [
        "PROBLEM: adam_ on cpu does not compute what plain torch computes",
        "  found   result 0: 3 of 33 values are wrong, by up to 0.1",
    ]
    assert "adam_  cpu     result 0: 3 of 33 values are wrong" in doctor.to_text(facts, verbose=True)


def test_every_family_is_reported_for_every_device_it_has(examine: Any) -> None:
    reported = {(kernel["family"], kernel["device"]) for kernel in examine(ex.host())["kernels"]}
    assert reported == {(family.name, device) for family in catalogue.FAMILIES for device in family.devices}


def test_no_default_setting_is_shown() -> None:
    from precast._load import report

    assert report.describe_settings(Settings(home="/root", xdg_cache_home="/x")) == {}


def test_stale_files_are_told_apart_from_the_code_that_does_not_use_them(
    examine: Any, c_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)}, label="cu130")
    old = dataclasses.replace(info, version="9.9.9")
    (c_dir / "build_info.json").write_text(old.to_json())
    facts = examine(ex.host())
    text = doctor.to_text(facts, verbose=True)
    assert f"\n\nprecast {__version__}+cu130, torch " in text, "this line is about the code"
    assert "\n  build     9.9.9+cu130, release" in text, "and this one about what was built"
    wanted = f"needed files of precast {__version__}; found those of precast 9.9.9"
    assert f"\n  note      the prebuilt files are not used: {wanted}\n" in text
    assert facts["build"]["fix"].startswith("CUDA_EXT=1 ")
    assert facts["ok"] and kernels(facts)["cpu_adam_x86"] == "jit" and "stale" in reasons(facts, "cpu_adam_x86")
    monkeypatch.setenv("PRECAST_JIT", "aot")
    refused = examine(ex.host())
    assert not refused["ok"] and kernels(refused)["cpu_adam_x86"] == "refused"
    assert f"\n  note    the prebuilt files are not used: {wanted}\n" in doctor.to_text(facts)
    assert "rejected (stale): " in doctor.to_text(refused) and "found those of precast 9.9.9" in doctor.to_text(refused)


def test_a_rocm_build_of_torch_is_named_in_one_line(examine: Any) -> None:
    rocm = ex.host(torch=ex.torch_info("2.13.0+rocm7.0", cuda=None, hip="7.0"))
    (line,) = [line for line in doctor.to_text(examine(rocm)).splitlines() if line.startswith("  torch")]
    assert line == "  torch   2.13.0+rocm7.0 for ROCm 7.0, which CUDA kernels cannot serve"
    said = "  rocm      torch is a ROCm build, which CUDA kernels cannot serve"
    assert said in doctor.to_text(examine(rocm), verbose=True).splitlines()
    assert "ROCm" not in doctor.to_text(examine(ex.host()), verbose=True)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_no_error_of_an_examination_leaves_the_doctor(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KernelError("the kernel sources are missing", found="no csrc", fix="make them")

    monkeypatch.setattr(doctor, "examine", broken)
    assert __main__.main(["doctor", *options]) == 1
    said = capsys.readouterr().out
    text = "the kernel sources are missing\n  found   no csrc\n  fix     1) make them"
    assert (json.loads(said) == {"schema": 2, "ok": False, "error": text}) if options else said == f"PROBLEM: {text}\n"


def test_a_verb_that_cannot_begin_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    error = KernelError("nothing says which kernels there are")
    assert fault.tell(["doctor"], error) == 1 and fault.tell(["list"], error) == 3
    said = capsys.readouterr()
    assert said.out == "PROBLEM: nothing says which kernels there are\n"
    assert said.err.endswith("KernelError: nothing says which kernels there are\n")
