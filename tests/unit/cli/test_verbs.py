"""The verbs that look at the cache or at nothing: what they print, what they leave, and their exit statuses."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from precast import kernel_loader
from precast._builder import catalogue, public, python
from precast._builder.cache import BuildKey, Cache
from precast._cli import doctor, names, output, report
from tests.kit import spawn, used_families
from tests.unit.cli.conftest import Precast


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The cache of these commands, with a library, an object and some device code."""
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    cache = Cache(tmp_path / "cache")
    for name, inputs, file in (
        ("cpu_adam", {"kind": "host", "abi": "torch-table-1"}, "cpu_adam.so"),
        ("objects", {"kind": "object", "name": "host.api"}, "host.api.o"),
        ("softmax", {"kind": "device", "target": "sm_90"}, "softmax.sm_90.cubin"),
    ):
        (tmp_path / file).write_bytes(name.encode())
        cache.store(BuildKey(name, inputs), tmp_path / file, 2.0)
    return cache


def entry(cache: Cache, name: str) -> Path:
    (folder,) = (cache.root / "v1" / name).iterdir()
    return folder


def damage(cache: Cache, name: str) -> Path:
    (file,) = (path for path in entry(cache, name).iterdir() if path.name != "meta.json")
    file.write_bytes(b"other")
    return file


def test_list_names_every_family_and_its_loader(precast: Precast) -> None:
    status, out, _ = precast("list", "--json")
    rows = json.loads(out)
    assert status == 0
    assert {row["family"] for row in rows} - {None} == {family.name for family in catalogue.FAMILIES}
    assert {(row["extension"], row["loader"]) for row in rows} >= {("cpu_adam_x86", "CPUAdamLoader")}
    assert {row["extension"] for row in rows} >= {name for one in kernel_loader.loaders() for name in one.names()}
    assert {row["from"] for row in rows} == {"precast"}
    out = precast("list")[1]
    assert "softmax_backward" in out and "\nprecast.optim.FusedAdamW " in out
    assert "precast.ops.silu_and_mul" in next(row["names"] for row in rows if row["family"] == "activations")


def test_cache_dir_makes_nothing(precast: Precast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "nowhere"))
    assert precast("cache", "dir") == (0, f"{tmp_path / 'nowhere'}\n", "")
    assert precast("cache", "list")[0] == 0 and precast("cache", "verify")[0] == 0
    assert precast("cache", "prune")[0] == 0 and precast("cache", "clear")[0] == 0
    assert not (tmp_path / "nowhere").exists()


def test_cache_list_shows_what_was_built_for_what(precast: Precast, cache: Cache) -> None:
    _, out, _ = precast("cache", "list")
    assert "host torch-table-1" in out and "device sm_90" in out and "objects/" not in out
    assert "3 entries, 1 not shown" in out and str(cache.root) in out
    assert "object host.api" in precast("cache", "list", "--all")[1]
    listed = json.loads(precast("cache", "list", "--json")[1])
    assert {item["inputs"]["kind"] for item in listed} == {"host", "object", "device"}
    assert all(item["problem"] is None and Path(item["path"]).is_file() for item in listed)


def test_cache_verify_names_what_is_damaged(precast: Precast, cache: Cache) -> None:
    assert precast("cache", "verify")[:2] == (0, "3 entries, 0 damaged\n")
    file = damage(cache, "softmax")
    status, out, _ = precast("cache", "verify")
    assert status == 1 and str(file.parent) in out and "3 entries, 1 damaged" in out
    found = json.loads(precast("cache", "verify", "--json")[1])
    assert found["entries"] == 3 and "has 5 bytes; meta.json says 7" in found["damaged"][0]["problem"]
    assert file.exists(), "verify removes nothing"


def test_a_size_beyond_every_number_is_refused(precast: Precast, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        precast("cache", "prune", "--max-size", "9" * 400 + "G")
    assert "is not a size" in capsys.readouterr().err


def test_cache_prune_and_clear(precast: Precast, cache: Cache) -> None:
    damage(cache, "softmax")
    old = entry(cache, "cpu_adam") / "meta.json"
    os.utime(old, (time.time() - 9 * 86400,) * 2)
    assert (
        "1 would go" in precast("cache", "prune", "--dry-run")[1]
        and "2 would go" in precast("cache", "prune", "--older-than", 7, "--dry-run")[1]
    )
    assert old.exists()
    assert "2 removed" in precast("cache", "prune", "--older-than", "7")[1]
    assert [item["entry"].split("/")[0] for item in json.loads(precast("cache", "list", "--json")[1])] == ["objects"]
    assert "0 removed" in precast("cache", "prune", "--max-size", "1M")[1]
    assert "1 removed" in precast("cache", "prune", "--max-size", "0")[1]
    assert "0 removed" in precast("cache", "clear")[1]


@pytest.mark.parametrize("arguments", [("--older-than", "soon"), ("--older-than", "nan"), ("--max-size", "1X")])
def test_a_limit_that_is_none_is_wrong_usage(precast: Precast, arguments: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as ended:
        precast("cache", "prune", *arguments)
    assert ended.value.code == 2


def test_export_and_import(precast: Precast, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "cache.tar.gz"
    assert "2 entries" in precast("export-cache", archive)[1]
    assert "1 entries" in precast("export-cache", archive, "scaled_softmax")[1]
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "other"))
    assert precast("import-cache", archive)[1].splitlines()[-1].startswith("1 entries added, 0 there already")
    assert "0 entries added, 1 there already" in precast("import-cache", archive)[1]
    status, _, err = precast("export-cache", tmp_path / "none.tar", "rms_norm")
    assert status == 3 and "nothing to export" in err and "precast warm rms_norm" in err
    assert not (tmp_path / "none.tar").exists()
    archive.write_bytes(b"no tar")
    status, _, err = precast("import-cache", archive)
    assert status == 3 and err.startswith("precast: KernelError: ") and "nothing was changed" in err


@pytest.mark.parametrize(
    ("verb", "name", "meant"),
    [
        ("why", "rms_nrom", "precast why rms_norm"),
        ("why", "silu_mul", "precast why silu_and_mul"),
        ("warm", "fusedadamw", "precast warm FusedAdamW"),
        ("doctor", "layernorm", "precast doctor LayerNorm"),
        ("why", "CPUAdamLoder", "precast why CPUAdamLoader"),
        ("why", "xyzzy", "precast list"),
    ],
)
def test_a_name_that_is_none_is_wrong_usage_with_the_command_that_was_meant(
    precast: Precast, capsys: pytest.CaptureFixture[str], verb: str, name: str, meant: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        precast(verb, name)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-3].endswith(f"argument KERNEL: there is no kernel {name!r}") and said[-1] == f"  fix     1) {meant}"


NAMES = {
    "silu_and_mul": ("activations", "activations_backward"),
    "precast.ops.silu_and_mul": ("activations", "activations_backward"),
    "clip_grad_norm_": ("multi_tensor",),
    "get_cos_and_sin": ("rotary",),
    "FusedAdamW": ("multi_tensor",),
    "CPUAdam": ("cpu_optim",),
    "HybridAdam": ("cpu_optim", "multi_tensor"),
    "CPUAdamOptimizer": ("cpu_adam",),
    "LayerNorm": ("layer_norm", "layer_norm_backward"),
    "RMSNorm": ("rms_norm", "rms_norm_backward"),
    "FusedScaleMaskSoftmax": ("softmax", "softmax_backward"),
    "CPUAdamLoader": ("cpu_adam", "cpu_optim"),
    "rms_norm": ("rms_norm",),  # a family of this name comes first
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_the_kernels_it_may_load(name: str) -> None:
    assert tuple(family.name for family in names.families([names.kernel("why")(name)])) == NAMES[name]


@pytest.mark.torch
def test_every_public_name_is_known_and_nothing_else_is_called_one() -> None:
    from precast import kernel_loader, nn, ops, optim

    modules = {"precast.ops": ops, "precast.optim": optim, "precast.nn": nn}
    assert public.rooms() == {name: room for room, module in modules.items() for name in module.__all__}
    for module in modules.values():
        assert set(module.__all__) <= set(dir(module)), "also what is imported at its first use"
        assert all(hasattr(module, name) for name in dir(module))
    assert {*public.rooms(), *(one.__name__ for one in kernel_loader.loaders())} <= set(names.known())


@pytest.mark.parametrize("name", sorted(public.rooms()))
def test_the_families_of_a_public_name_are_those_that_its_source_uses(name: str) -> None:
    assert public.families_of(name) == used_families.families_of(name)


def test_the_program_alone_prints_its_help(precast: Precast) -> None:
    status, out, err = precast()
    assert status == 0 and err == "" and out.startswith("usage: precast ") and "doctor" in out


def test_a_setting_that_cannot_be_read_is_wrong_usage(precast: Precast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "many")
    status, _, err = precast("cache", "dir")
    assert status == 2 and "MAX_JOBS='many'" in err


def test_a_reader_that_has_had_enough_is_no_error(precast: Precast, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    command = f"{sys.executable} -m precast list | head -n 1; exit ${{PIPESTATUS[0]}}"
    assert spawn.run("bash", "-c", command).stderr == ""


def test_ctrl_c_has_its_own_status(precast: Precast, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("precast._cli.listing.rows", interrupt)
    assert precast("list")[0] == 130


def test_a_report_holds_what_an_issue_needs_and_no_secret(
    precast: Precast, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    damage(cache, "softmax")
    log = cache.failure_log(BuildKey("cpu_adam", {}))
    log.write_text(
        "g++ -c x.cpp https://user:hunter2@host/\n\nx.cpp:1: error: no such thing at https://u:hunter2@host\n"
    )
    facts: dict[str, Any] = json.loads(precast("report", "--json")[1])
    assert facts["variables"]["TORCH_CUDA_ARCH_LIST"] == "9.0" and "HOME" not in facts["variables"]
    assert (
        facts["cache"]["root"] == "~/cache" and facts["cache"]["entries"] == 3 and len(facts["cache"]["damaged"]) == 1
    )
    assert facts["failures"][0]["error"] == "x.cpp:1: error: no such thing at https://***@host"
    assert facts["doctor"]["host"]["cache"]["path"] == "~/cache" and "torch" in facts["packages"]
    status, text, _ = precast("report")
    assert status == 0 and "x.cpp:1: error" in text and "TORCH_CUDA_ARCH_LIST=9.0" in text
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == len(set(lines)) and text.count("~/cache,") == 1, "nothing is said twice"
    assert text.startswith(doctor.to_text(facts["doctor"], verbose=True)), "all that the doctor says, and more"
    for said in (text, json.dumps(facts)):
        assert "hunter2" not in said and str(tmp_path) not in said
    out = tmp_path / "report.txt"
    assert precast("report", "--out", out)[0] == 0 and "x.cpp:1: error" in out.read_text()
    status, _, err = precast("report", "--out", out)
    assert status == 3 and "File exists" in err, "no file is replaced"


def test_the_home_is_a_whole_folder_name() -> None:
    assert report.redacted({"a": ["/home/me/x", "/home/meg/x", "in /home/me: no"]}, "/home/me") == {
        "a": ["~/x", "/home/meg/x", "in ~: no"]
    }
    assert report.redacted("/x", "") == "/x" and report.redacted("/x", None) == "/x"


def test_sizes() -> None:
    assert [output.size(n) for n in (0, 999, 1500, 2_000_000, 3 * 10**9)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.0 MB",
        "3.0 GB",
    ]


@pytest.mark.parametrize("reason", ["No module named 'numpy'", "it is broken"])
@pytest.mark.parametrize("start", ["precast doctor", "precast.build --cflags --classic", "child of ours"])
def test_nothing_stands_above_an_answer_without_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, reason: str
) -> None:
    (tmp_path / "numpy.py").write_text(f"raise ModuleNotFoundError({reason!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    command = (
        [sys.executable, "-m", *start.split()]
        if start.startswith("precast")
        else python.command("precast._cli.numbers")
    )
    done = spawn.run(*command, env=spawn.environ("PYTHONPATH", PYTHONPATH=spawn.search_path(tmp_path)))
    warned = [line for line in done.stderr.splitlines() if "NumPy" in line]
    assert len(warned) == (reason == "it is broken"), "a NumPy that does not work is told"
