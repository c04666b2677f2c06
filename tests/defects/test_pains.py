"""The fifteen pains that users of built kernels report most, each shown not to hurt here. Each test bears its name."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from precast._abi.decide import decide
from precast._abi.decision import Refuse, UsePrebuilt, all_rejections
from precast._abi.settings import JitMode, Settings
from precast._builder import matrix, toolchain
from precast._builder.cache import BuildKey, Cache
from precast._load import loader
from precast.core.manifest import HostFile
from precast.core.reasons import Need, Reason
from precast.errors import JitDisabled, KernelUnavailable
from tests.defects.conftest import Pretend
from tests.kit import fakes
from tests.kit import hosts as ex

CPU, CUDA = Need(ex.FAMILY, "cpu"), Need(ex.FAMILY, "cuda")
KEY = BuildKey("family", {"kind": "host"})

CHILD = """
import sys, time
from pathlib import Path
from precast._builder.cache import BuildKey, Cache
root, log, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
def build(staging):
    with open(log, "a") as file:
        file.write("built\\n")
    time.sleep(seconds)
    (staging / "out.so").write_text("payload")
    return staging / "out.so"
print(Cache(root).obtain(BuildKey("family", {"kind": "host"}), build).path.read_text())
"""


def child(tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "cache"), str(tmp_path / "log"), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_pain_01_a_killed_build_leaves_no_lock_that_anybody_waits_for(tmp_path: Path) -> None:
    first = child(tmp_path, 600)
    deadline = time.monotonic() + 30
    while not (tmp_path / "log").exists():
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    started = time.monotonic()
    second = child(tmp_path, 0)
    assert second.communicate(timeout=60)[0] == "payload\n"
    assert time.monotonic() - started < 30, "it did not wait"


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("torch", "needed"),
    [("2.9.1", "a torch 2.10 or newer with all of its functions"), ("2.3.0", "torch 2.4 or newer to build an adapter")],
)
def test_pain_02_another_torch_is_refused_before_any_symbol_is_looked_up(
    pretend: Pretend,
    calls: Path,
    c_dir: Path,
    toy_library: Path,
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    needed: str,
) -> None:
    fakes.write_installation(c_dir, toy_library)
    pretend(ex.host(torch=ex.torch_info(torch)))
    monkeypatch.setattr(loader, "_open", lambda path: pytest.fail("it was opened"))
    with pytest.raises(KernelUnavailable, match=rf"needs {re.escape(needed)}.*found torch {re.escape(torch)}"):
        loader.ensure("cpu_adam", "cpu")
    for later in ("2.11.0", "2.15.0"):
        assert isinstance(decide(ex.host(torch=ex.torch_info(later)), ex.build_info(), Settings(), CPU), UsePrebuilt)


@pytest.mark.parametrize("gpu", ["8.7", "10.0", "10.3", "12.0", "12.1"])
def test_pain_03_a_gpu_newer_than_the_wheel_is_served_or_refused_by_name_never_launched(gpu: str) -> None:
    sass = ex.build_info("sm_75 sm_80 sm_90")
    refused = decide(ex.host(gpu=gpu, build_with=ex.builders(None)), sass, Settings(), CUDA)
    assert isinstance(refused, Refuse)
    assert all(gpu in r.found for r in refused.rejections if r.reason is Reason.ARCH)
    ptx = decide(ex.host(gpu=gpu), ex.build_info("sm_75 compute_80"), Settings(), CUDA)
    assert isinstance(ptx, UsePrebuilt) and str(ptx.images[0][1].target) == "compute_80"
    built = decide(ex.host(gpu=gpu, build_with=ex.builders()), sass, Settings(), CUDA)
    assert not isinstance(built, Refuse) and str(built.images[0][1].target) == f"sm_{gpu.replace('.', '')}"
    mixed = decide(ex.host(gpu=f"9.0 {gpu}", build_with=ex.builders(None)), sass, Settings(), CUDA)
    assert isinstance(mixed, UsePrebuilt) and [index for index, _ in mixed.refused] == [1]


@pytest.mark.parametrize("cuda", ["12.6", "13.0", "13.2"])
def test_pain_04_no_version_of_cuda_is_compared_where_none_matters(cuda: str) -> None:
    """A wheel compiled by NVRTC 12.1 serves a torch of any CUDA: only the driver and the GPU count."""
    info = ex.build_info("sm_90", nvrtc_version="12.1.105", label="cu121")
    decision = decide(ex.host(torch=ex.torch_info(cuda=cuda), driver="13.0"), info, Settings(), CUDA)
    assert isinstance(decision, UsePrebuilt) and decision.rejections == ()


def test_pain_06_ranks_of_one_node_build_once(tmp_path: Path) -> None:
    ranks = [child(tmp_path, 0.3) for _ in range(4)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["payload\n"] * 4
    assert (tmp_path / "log").read_text() == "built\n"


def test_pain_07_a_shared_file_system_without_locks_costs_a_compile_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    cache, inner = Cache(tmp_path), []

    def build(staging: Path) -> Path:
        (staging / "out.so").write_text("payload")
        if not inner:  # while we build, another node does so as well, and is faster
            inner.append(1)
            inner.append(Cache(tmp_path).obtain(KEY, build))
        return staging / "out.so"

    artifact = cache.obtain(KEY, build)
    assert len(inner) == 2 and artifact.path.read_text() == "payload"
    os.utime(artifact.path, (0, 0))  # a time that lies
    assert cache.obtain(KEY, build).cached


def test_pain_08_an_edit_is_a_new_build_and_a_move_is_none(tmp_path: Path) -> None:
    from precast._builder.sources import Tree

    real = tmp_path / "csrc"
    real.mkdir()
    (real / "a.cu").write_text('#include "b.cuh"\n')
    (real / "b.cuh").write_text("// one\n")
    (tmp_path / "link").symlink_to(real)

    def digest(root: Path) -> list[str]:
        return [file.sha256 for file in Tree({"csrc": root}).reachable(["csrc/a.cu"])]

    before = digest(real)
    os.utime(real / "b.cuh", (0, 0))
    assert digest(tmp_path / "link") == before, "neither another spelling of the path nor another time"
    (real / "b.cuh").write_text("// two\n")
    assert digest(real) != before, "an edited header is seen, though the file that includes it is the same"


def test_pain_11_compilers_are_no_more_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(128)))
    monkeypatch.setattr(toolchain, "_cgroup_cpus", lambda path: None)
    monkeypatch.setattr(toolchain, "free_memory", lambda *_: 4 * toolchain.COMPILE_BYTES)
    assert toolchain.default_jobs(Settings()) == 3
    assert toolchain.default_jobs(Settings(max_jobs=64)) == 64


def test_pain_13_aarch64_has_every_label_and_never_takes_a_file_for_x86(checkout: Path) -> None:
    assert set(matrix.load(checkout / "matrix.toml").machines) == {"x86_64", "aarch64"}
    files: tuple[HostFile, ...] = (ex.host_file(),)
    grace = ex.host(machine="aarch64", gpu="9.0")
    refused = decide(grace, ex.build_info(host_files=files), Settings(jit=JitMode.AOT), CUDA)
    assert isinstance(refused, Refuse)
    (why,) = (r for r in refused.rejections if r.reason is Reason.MACHINE)
    assert (why.needed, why.found) == ("x86_64", "aarch64")
    both = (*files, replace(files[0], path="host/arm.so", machine="aarch64"))
    taken = decide(grace, ex.build_info(host_files=both), Settings(), CUDA)
    assert isinstance(taken, UsePrebuilt) and taken.host.path == "host/arm.so"
    assert taken.images[0][1].path == "device/rms_norm.sm_90.cubin.xz", "device code is the same for both"


def test_pain_14_an_older_glibc_is_a_reason_and_not_a_crash() -> None:
    old = ex.host(glibc="2.17", build_with=ex.builders())
    decision = decide(old, ex.build_info(), Settings(), CPU)
    assert not isinstance(decision, Refuse | UsePrebuilt), "it is built here instead"
    (why,) = (r for r in all_rejections(decision) if r.reason is Reason.GLIBC)
    assert (why.needed, why.found) == ("glibc 2.28", "2.17")


@pytest.mark.compiler
def test_pain_15_what_is_prebuilt_is_used_and_offline_nothing_is_tried(
    pretend: Pretend, calls: Path, c_dir: Path, toy_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("the network was asked"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    fakes.write_installation(c_dir, toy_library, {"sm_90": fakes.cubin(90)})
    looked = pretend(ex.host(gpu="9.0"))
    assert loader.ensure("rms_norm", "cuda").host.kind == "prebuilt" and looked == []
    monkeypatch.setenv("PRECAST_JIT", "aot")
    with pytest.raises(JitDisabled, match="layer_norm cannot be loaded for cpu") as refused:
        loader.ensure("layer_norm", "cpu")
    assert "PRECAST_JIT=aot" in str(refused.value)
    assert looked == ["builders"], "only for the fix: allowing a build would not help without a compiler"


def test_the_fifteen_are_here(checkout: Path) -> None:
    """Those about whole processes stand in tests/load, beside the installations they use."""
    files = ("tests/defects/test_pains.py", "tests/load/test_pains.py")
    names = [re.findall(r"^def test_pain_(\d\d)_", (checkout / name).read_text(), re.MULTILINE) for name in files]
    assert sorted(int(number) for found in names for number in found) == list(range(1, 16))
