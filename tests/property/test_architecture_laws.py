"""The laws of ``runs_on`` and of the driver rule, for every target and every GPU."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from precast.core.capability import ComputeCapability, GpuTarget, TargetKind, min_driver
from precast.core.host import Nvrtc
from precast.core.version import CudaVersion
from tests.property import strategies as s

gpus = s.capabilities | s.any_capabilities
targets = s.targets() | s.targets(s.any_capabilities)


@given(targets)
def test_everything_runs_where_it_was_compiled_for(target: GpuTarget) -> None:
    assert target.runs_on(target.capability)


@given(gpus, gpus)
def test_base_sass_runs_on_newer_minors_of_its_major(of: ComputeCapability, gpu: ComputeCapability) -> None:
    runs = GpuTarget(TargetKind.SASS, of).runs_on(gpu)
    if of.is_tegra or gpu.is_tegra:
        assert runs is (of == gpu)
    else:
        assert runs is (of.major == gpu.major and gpu.minor >= of.minor)


@given(s.with_suffix("a"), gpus)
def test_a_runs_only_on_itself(target: GpuTarget, gpu: ComputeCapability) -> None:
    assert target.runs_on(gpu) is (gpu == target.capability)


@given(s.with_suffix("f"), gpus)
def test_f_stays_in_its_family(target: GpuTarget, gpu: ComputeCapability) -> None:
    base = GpuTarget(TargetKind.SASS, target.capability)
    assert target.runs_on(gpu) is base.runs_on(gpu)


@given(gpus, gpus, gpus)
def test_ptx_is_monotone(of: ComputeCapability, older: ComputeCapability, newer: ComputeCapability) -> None:
    assume(older <= newer)
    ptx = GpuTarget(TargetKind.PTX, of)
    assert not ptx.runs_on(older) or ptx.runs_on(newer)
    assert ptx.runs_on(older) is (older >= of)


@given(gpus, gpus, gpus)
def test_older_ptx_runs_wherever_newer_ptx_does(
    a: ComputeCapability, b: ComputeCapability, gpu: ComputeCapability
) -> None:
    assume(a <= b)
    assert not GpuTarget(TargetKind.PTX, b).runs_on(gpu) or GpuTarget(TargetKind.PTX, a).runs_on(gpu)


@given(targets, gpus)
def test_a_suffix_never_widens_and_ptx_never_narrows(target: GpuTarget, gpu: ComputeCapability) -> None:
    if target.runs_on(gpu):
        assert replace(target, suffix="").runs_on(gpu)
        assert replace(target, kind=TargetKind.PTX, suffix="").runs_on(gpu)


@given(targets, s.cuda_versions, s.cuda_versions)
def test_a_newer_toolkit_never_runs_on_older_drivers(target: GpuTarget, a: CudaVersion, b: CudaVersion) -> None:
    older, newer = sorted((a, b))
    assert min_driver(target, older) <= min_driver(target, newer) <= newer
    sass, ptx = (min_driver(replace(target, kind=kind), a) for kind in (TargetKind.SASS, TargetKind.PTX))
    assert sass <= ptx


@given(s.nvrtcs, gpus)
def test_nvrtc_builds_what_runs_and_what_it_knows(nvrtc: Nvrtc, gpu: ComputeCapability) -> None:
    found = nvrtc.targets_for(gpu)
    assert all(target.runs_on(gpu) and target.capability in nvrtc.targets for target in found)
    if gpu in nvrtc.targets:
        assert found == (GpuTarget(TargetKind.SASS, gpu),)
    else:
        assert all(target.capability != gpu for target in found)
        assert [target.kind for target in found] in ([], [TargetKind.PTX], [TargetKind.PTX, TargetKind.SASS])


@given(st.data())
def test_a_newer_nvrtc_never_serves_fewer_gpus(data: st.DataObject) -> None:
    nvrtc, gpu, more = data.draw(s.nvrtcs), data.draw(gpus), data.draw(s.capabilities)
    wider = replace(nvrtc, targets=(*nvrtc.targets, more))
    assert len(nvrtc.targets_for(gpu)) == 0 or len(wider.targets_for(gpu)) > 0
