"""``precast why`` and ``warm`` on made-up hosts: the whole trace, the cache beside it, and what would be built."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from precast._builder.cache import BuildKey, Cache
from precast._builder.catalogue import FAMILIES
from precast._load import cached, jit, probe
from precast._load.source import Source
from precast.core import gpus
from precast.core.capability import ComputeCapability, GpuTarget
from precast.core.host import Host
from tests.kit import fakes
from tests.kit import hosts as ex
from tests.unit.cli.conftest import Precast

Pretend = Callable[[Host], None]


@pytest.fixture
def pretend(c_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Makes this process believe that it is on a host; the build cache is empty."""
    monkeypatch.delenv("PRECAST_JIT", raising=False)
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))

    def pretend(host: Host) -> None:
        monkeypatch.setattr(probe, "probe_host", lambda *_, **__: dataclasses.replace(host, builders=None))
        monkeypatch.setattr(probe, "probe_builders", lambda settings: host.builders or ex.builders())
        monkeypatch.setattr(gpus, "forecast", lambda *_: gpus.Forecast(host.gpus, certain=True, note=""))

    return pretend


def test_a_trace_names_every_candidate_with_wanted_found_and_fix(
    precast: Precast, pretend: Pretend, c_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECAST_JIT", "aot")
    pretend(ex.host(gpu="12.1", build_with=ex.builders(None)))
    fakes.write_installation(c_dir, None, {"sm_75": fakes.cubin(75), "sm_90": fakes.cubin(90)})
    status, out, _ = precast("why", "rms_norm", "--device", "cuda")
    assert status == 1 and "rms_norm on cuda: refused" in out
    for target in ("sm_75", "sm_90"):
        assert f"cuda:0  device/rms_norm.{target}.cubin  passed over (arch)" in out
    assert "cuda:0  jit  passed over (no-nvrtc)" in out and "found   compute capability 12.1" in out
    facts = json.loads(precast("why", "rms_norm", "--device", "cuda", "--json")[1])
    assert not facts["ok"] and all(r["needed"] and r["found"] for r in facts["traces"][0]["rejections"])


def test_a_miss_tells_what_differs_from_the_nearest_build_and_then_a_hit(
    precast: Precast, pretend: Pretend, tmp_path: Path
) -> None:
    pretend(ex.host(gpu="12.1"))
    ask = ("why", "softmax", "--device", "cuda")
    assert "nothing like it was built here before" in precast(*ask)[1]
    trace = json.loads(precast(*ask, "--json")[1])["traces"][0]
    (piece,) = (piece for piece in trace["cache"] if piece["piece"] == "cuda:0")
    assert piece["state"] == "miss" and piece["nearest"] is None
    key = device_key("softmax", "sm_121")
    assert piece["key"] == str(key)

    (tmp_path / "softmax.cubin").write_bytes(b"code")
    cache = Cache(tmp_path / "cache")
    older = {**key.inputs, "nvrtc": "12.9.86", "sources": {**key.inputs["sources"], "csrc/gpu/device.cuh": "0" * 64}}
    cache.store(BuildKey("softmax", older), tmp_path / "softmax.cubin", 1.0)
    status, out, _ = precast(*ask)
    assert status == 0 and f"cache miss: {key}" in out and "the nearest entry, softmax/" in out
    assert "nvrtc: needed 13.0.88; found 12.9.86" in out and "sources/csrc/gpu/device.cuh: needed " in out

    cache.store(key, tmp_path / "softmax.cubin", 1.0)
    assert f"cuda:0  cache hit: {cache.lookup(key)}" in precast(*ask)[1]
    found = cache.lookup(key)
    assert found is not None
    found.write_bytes(b"other")
    out = precast(*ask)[1]
    assert "its entry is damaged and will be made again: softmax.cubin has 5 bytes; meta.json says 4" in out


def device_key(family: str, target: str) -> BuildKey:
    from precast._builder import device

    known = next(f for f in FAMILIES if f.name == family)
    program = device.read_program(known)
    return device.image_key(program, GpuTarget.parse(target), ex.nvrtc("13.0.88"), debug=False)


def test_nothing_is_fetched_to_tell_the_key_of_a_library(
    precast: Precast, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(ex.host(gpu=""))
    monkeypatch.setattr("precast._builder.torch_wheel.find_wheel", lambda torch: pytest.fail("the index was asked"))
    status, out, _ = precast("why", "cpu_adam")
    assert status == 0 and "cpu_adam on cpu: jit" in out


def test_a_device_that_is_not_here_counts_only_when_asked_for(precast: Precast, pretend: Pretend) -> None:
    pretend(ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None), driver=None, gpu=""))
    status, out, _ = precast("why", "rms_norm")
    assert status == 0 and "rms_norm on cpu: jit" in out and "rms_norm on cuda: refused" in out
    assert precast("why", "rms_norm", "--device", "cuda")[0] == 1
    assert precast("why", "cpu_adam", "--device", "cuda")[0] == 1, "there is no such kernel"


def test_a_damaged_manifest_is_the_whole_answer(precast: Precast, pretend: Pretend, c_dir: Path) -> None:
    pretend(ex.host())
    (c_dir / "build_info.json").write_text("{")
    status, out, _ = precast("why", "cpu_adam")
    assert status == 1 and str(c_dir / "build_info.json") in out and "refused" in out


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What warm has asked the builders for; nothing is compiled."""
    asked: list[str] = []

    def host(family: str, builders: Any, settings: Any, why: str) -> Source:
        asked.append(f"{family} -j{settings.max_jobs}")
        return Source("jit", Path(f"/{family}.so"), why)

    def images(family: str, targets: Sequence[GpuTarget], *_: Any) -> Mapping[GpuTarget, Source]:
        asked.append(f"{family} {' '.join(map(str, targets))}")
        return {target: Source("jit", Path("/x.cubin"), "") for target in targets}

    monkeypatch.setattr(jit, "build_host", host)
    monkeypatch.setattr(jit, "build_images", images)
    return asked


def test_warm_builds_what_this_machine_would(precast: Precast, pretend: Pretend, built: list[str]) -> None:
    pretend(ex.host(gpu="9.0 12.1"))
    status, out, _ = precast("warm", "softmax", "cpu_adam", "--jobs", "3")
    assert status == 0 and out.endswith("2 of 2 kernel families are ready\n")
    assert built == ["cpu_adam -j3", "softmax -j3", "softmax -j3", "softmax sm_90 sm_121"]


def test_warm_builds_for_gpus_elsewhere_without_a_gpu(
    precast: Precast, pretend: Pretend, built: list[str], c_dir: Path
) -> None:
    pretend(ex.host(torch=ex.torch_info("2.13.0+cpu", cuda=None), driver=None, gpu=""))
    fakes.write_installation(c_dir, None, {"sm_90": fakes.cubin(90)})
    status, out, _ = precast("warm", "rms_norm", "cpu_adam", "--arch", "sm_90 sm_121")
    assert status == 0 and "rms_norm: sm_90: prebuilt" in out
    assert built == ["cpu_adam -jNone", "rms_norm -jNone", "rms_norm sm_121"]


@pytest.mark.parametrize(
    ("nvrtc", "arch", "said"),
    [
        (None, "sm_121", "needed  NVRTC, the library"),
        ("12.6.85", "sm_121", "which knows 5.0"),
        ("13.0.88", "sm_70", "sm_70 cannot"),
        (None, "sm_999", "there is no GPU target sm_999 to build for"),
        ("13.0.88", "sm_81", "there is no GPU target sm_81 to build for"),
        ("12.6.85", "9.0 sm_50", "there is no GPU target sm_50 to build for"),
    ],
)
def test_warm_refuses_what_nvrtc_cannot_before_it_builds(
    precast: Precast, pretend: Pretend, built: list[str], nvrtc: str | None, arch: str, said: str
) -> None:
    pretend(ex.host(gpu="", build_with=ex.builders(nvrtc)))
    status, _, err = precast("warm", "--arch", arch)
    assert status == 3 and said in err and built == []


def test_warm_offers_the_nvrtc_of_this_torch(precast: Precast, pretend: Pretend) -> None:
    pretend(ex.host(gpu="", torch=ex.torch_info(cuda="12.8"), build_with=ex.builders(None)))
    assert "fix     1) pip install nvidia-cuda-nvrtc-cu12\n" in precast("warm", "--arch", "sm_90")[2]


def test_a_gpu_that_only_its_nvrtc_knows_is_built_for(
    precast: Precast, pretend: Pretend, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = dataclasses.replace(ex.nvrtc("13.0.88"), targets=(ComputeCapability(14, 0),))
    pretend(ex.host(gpu="", build_with=dataclasses.replace(ex.builders(), nvrtc=newest)))
    assert precast("warm", "softmax", "--arch", "sm_140")[0] == 0 and built[-1] == "softmax sm_140"


@pytest.mark.parametrize("mode", ["aot", "none"])
def test_warm_respects_that_nothing_may_be_built(
    precast: Precast, pretend: Pretend, built: list[str], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    pretend(ex.host())
    monkeypatch.setenv("PRECAST_JIT", mode)
    status, _, err = precast("warm")
    assert status == 3 and "JitDisabled" in err and f"PRECAST_JIT={mode}" in err and built == []


def test_warm_says_what_cannot_be_ready(precast: Precast, pretend: Pretend, built: list[str]) -> None:
    pretend(ex.host(gpu="", build_with=ex.builders(None, compiler=False)))
    status, out, _ = precast("warm", "cpu_adam")
    assert status == 1 and "no-compiler" in out and "0 of 1 kernel families are ready" in out


@pytest.mark.parametrize(
    "arguments", [("--arch", "sm_x"), ("--arch", ""), ("--jobs", "0"), ("--jobs", "many"), ("nothing",)]
)
def test_warm_refuses_what_it_cannot_read(precast: Precast, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        precast("warm", *arguments)
    assert ended.value.code == 2


@pytest.mark.torch
@pytest.mark.compiler
def test_the_key_that_why_shows_is_the_key_of_the_build() -> None:
    """The trace computes keys beside the builders; both must say the same."""
    from precast import ops
    from precast._abi.decision import BuildHost
    from precast._load.loader import ensure

    assert ops is not None
    loaded = ensure("cpu_adam", "cpu")
    settings = probe.read_settings()
    builders = probe.probe_builders(settings)
    info = probe.probe_host(settings, gpus=False).torch
    assert info is not None

    family = next(f for f in FAMILIES if f.name == "cpu_adam")
    cache = Cache(loaded.host.path.parents[3])
    key = cached._key(family, BuildHost(), builders, settings, cache)
    assert isinstance(key, BuildKey) and cache.lookup(key) == loaded.host.path


ROCM = ex.host(
    torch=ex.torch_info("2.13.0+rocm6.4", cuda=None, hip="6.4"), driver=None, gpu="", build_with=ex.builders(None)
)


@pytest.mark.parametrize("family", ["rms_norm", "bias_act"])
def test_plain_torch_that_stands_in_is_named_with_what_was_passed_over(
    precast: Precast, pretend: Pretend, family: str
) -> None:
    pretend(ROCM)
    status, out, _ = precast("why", family, "--device", "cuda")
    assert status == 0
    assert f"{family} on cuda: torch" in out and "  cuda  torch  plain torch" in out
    assert "cuda  all  passed over (hip)" in out and "plain torch stands in" in out
    facts = json.loads(precast("why", family, "--device", "cuda", "--json")[1])
    assert facts["ok"] and facts["traces"][0]["verdict"] == "torch"


def test_for_intel_gpus_there_is_plain_torch_or_the_reason_why_not(precast: Precast, pretend: Pretend) -> None:
    pretend(dataclasses.replace(ROCM, torch=ex.torch_info("2.13.0+xpu", cuda=None, xpu="20250300")))
    status, out, _ = precast("why", "softmax", "--device", "xpu")
    assert status == 0 and "softmax on xpu: torch" in out and "passed over (xpu)" in out
    pretend(ROCM)
    status, out, _ = precast("why", "softmax", "--device", "xpu")
    assert status == 1 and "xpu  all  passed over (xpu)" in out and "needed  an XPU build of torch" in out


def test_a_family_for_the_cpu_alone_is_not_told_of_plain_torch(precast: Precast, pretend: Pretend) -> None:
    pretend(ROCM)
    status, out, _ = precast("why", "cpu_adam", "--device", "xpu")
    assert status == 1 and "stands in" not in out


def test_warm_has_nothing_to_build_for_plain_torch(precast: Precast, pretend: Pretend) -> None:
    pretend(ex.host(gpu="9.0", build_with=ex.builders(None, compiler=False)))
    status, out, _ = precast("warm", "rms_norm")
    assert "rms_norm: plain torch stands in" in out
    assert status == 1 and "rms_norm cannot be loaded for cpu" in out and "for cuda" not in out
