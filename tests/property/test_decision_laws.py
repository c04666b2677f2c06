"""The laws of ``decide``: what it chooses fits, what it refuses has reasons, and more choice never makes it worse."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import assume, given

from precast._abi import fixes
from precast._abi.decide import decide
from precast._abi.decision import BuildHost, BuildJit, Decision, Refuse, UsePrebuilt, all_rejections, needs_builders
from precast._abi.settings import JitMode, Settings
from precast.core import explain
from precast.core.capability import ComputeCapability, TargetKind
from precast.core.host import Builders, Host
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile
from precast.core.reasons import Need, Reason, Rejection, damaged
from precast.core.torch_abi import fits
from precast.errors import KernelError
from tests.property import strategies as s

CUDA = Need("rms_norm", "cuda")
CPU = Need("rms_norm", "cpu")

REFUSED, BUILT, PTX, SAME_MAJOR, EXACT = range(5)


@dataclass(frozen=True)
class Rank:
    """How good a decision is, piece by piece: host library, then each GPU. Higher is better."""

    pieces: tuple[int, ...]

    def no_worse_than(self, other: Rank) -> bool:
        return all(mine >= theirs for mine, theirs in zip(self.pieces, other.pieces, strict=True))


def rank(decision: Decision, host: Host, need: Need) -> Rank:
    gpus = host.gpus if need.device == "cuda" else ()
    if isinstance(decision, Refuse):
        return Rank((REFUSED,) * (1 + len(gpus)))
    images = dict(decision.images)
    library = BUILT if isinstance(decision.host, BuildHost) else EXACT
    return Rank((library, *(rank_image(images.get(gpu.index), gpu.capability) for gpu in gpus)))


def rank_image(image: object, gpu: ComputeCapability) -> int:
    if image is None:
        return REFUSED
    if not isinstance(image, DeviceFile):
        return BUILT
    if image.target.kind is TargetKind.PTX:
        return PTX
    return EXACT if image.target.capability == gpu else SAME_MAJOR


@given(s.hosts, s.near_build_infos, s.settings, s.usual_device_files() | s.device_files())
def test_one_more_device_file_never_makes_it_worse(
    host: Host, info: BuildInfo, settings: Settings, extra: DeviceFile
) -> None:
    assume(info.mode is not BuildMode.PURE and extra.path not in {file.path for file in info.device})
    before = decide(host, info, settings, CUDA)
    after = decide(host, replace(info, device=(*info.device, extra)), settings, CUDA)
    assert rank(after, host, CUDA).no_worse_than(rank(before, host, CUDA))


@given(s.hosts, s.near_build_infos, s.settings, s.near_host_files)
def test_one_more_host_library_never_makes_it_worse(
    host: Host, info: BuildInfo, settings: Settings, extra: HostFile
) -> None:
    assume(info.mode is not BuildMode.PURE and extra.path not in {file.path for file in info.host})
    for need in (CPU, CUDA):
        before = decide(host, info, settings, need)
        after = decide(host, replace(info, host=(*info.host, extra)), settings, need)
        assert rank(after, host, need).no_worse_than(rank(before, host, need))


@given(s.hosts, s.near_build_infos, s.settings, s.builders)
def test_finding_builders_never_makes_it_worse(
    host: Host, info: BuildInfo, settings: Settings, builders: Builders
) -> None:
    unknown = replace(host, builders=None)
    known = replace(host, builders=builders)
    before, after = (decide(machine, info, settings, CUDA) for machine in (unknown, known))
    assert rank(after, host, CUDA).no_worse_than(rank(before, host, CUDA))
    assert not needs_builders(after)
    if not needs_builders(before):  # then looking for them would have changed nothing
        assert rank(after, host, CUDA) == rank(before, host, CUDA)


@given(s.hosts, s.near_build_infos, s.settings)
def test_a_file_found_damaged_is_not_chosen_again(host: Host, info: BuildInfo, settings: Settings) -> None:
    bad: dict[str, Rejection] = {}
    for _ in range(len(info.host) + len(info.device) + 1):
        decision = decide(host, info, settings, CUDA, bad)
        used = files_of(decision)
        assert not used & bad.keys()
        if not used:
            break
        bad[min(used)] = damaged("cut short")
    else:
        raise AssertionError("more files were chosen than there are")
    if isinstance(decision, Refuse) and settings.jit is not JitMode.NONE and bad:
        assert Reason.DAMAGED in {rejection.reason for rejection in decision.rejections}


def files_of(decision: Decision) -> set[str]:
    if isinstance(decision, Refuse):
        return set()
    pieces = (decision.host, *(image for _, image in decision.images))
    return {piece.name for piece in pieces if isinstance(piece, HostFile | DeviceFile)}


@given(s.hosts, s.near_build_infos, s.settings)
def test_what_is_chosen_fits(host: Host, info: BuildInfo, settings: Settings) -> None:
    for need in (CPU, CUDA):
        decision = decide(host, info, settings, need)
        if isinstance(decision, Refuse):
            continue
        assert host.torch is not None and host.system == "Linux" and settings.jit is not JitMode.NONE
        if isinstance(decision.host, HostFile):
            assert fits(decision.host.abi, host.torch.version, host.torch.cxx11) is None
            assert decision.host.machine == host.machine
            assert need.family in decision.host.families
        if need.device == "cuda":
            assert host.torch.hip is None and host.driver is not None
        for index, image in decision.images:
            assert image.target.runs_on(host.gpus[index].capability)
            if isinstance(image, DeviceFile):
                assert host.driver is not None and host.driver >= image.min_driver
                assert host.lzma_error is None, "nothing could unpack it"
                assert image.family == need.family


@given(s.hosts, s.near_build_infos, s.settings)
def test_every_gpu_is_judged_once(host: Host, info: BuildInfo, settings: Settings) -> None:
    decision = decide(host, info, settings, CUDA)
    if isinstance(decision, Refuse):
        return
    judged = [index for index, _ in decision.images] + [index for index, _ in decision.refused]
    assert sorted(judged) == [gpu.index for gpu in host.gpus]
    assert decision.images
    assert all(rejections for _, rejections in decision.refused)


@given(s.hosts, s.near_build_infos, s.settings)
def test_every_refusal_has_a_reason_with_wanted_and_found(host: Host, info: BuildInfo, settings: Settings) -> None:
    for need in (CPU, CUDA):
        decision = decide(host, info, settings, need)
        rejections = all_rejections(decision)
        for rejection in rejections:
            assert isinstance(rejection.reason, Reason)
            assert rejection.piece and rejection.candidate and rejection.needed and rejection.found
            assert not {"None", "Reason", "GpuTarget"} & set(rejection.needed.split() + rejection.found.split())
        if isinstance(decision, Refuse):
            assert rejections
            facts = fixes.Facts(host, info, settings, {})
            actions = fixes.actions_for(rejections, lambda why: fixes.of(why, facts))  # noqa: B023 - called at once
            judge = explain.environment(host, fixes.judge(info))
            text = str(explain.explain(KernelError, "no", rejections, judge, actions))
            assert all(rejection.reason.value in text for rejection in rejections)


@given(s.hosts, s.near_build_infos, s.settings)
def test_modes_mean_what_they_say(host: Host, info: BuildInfo, settings: Settings) -> None:
    for need in (CPU, CUDA):
        aot, jit, off = (decide(host, info, replace(settings, jit=mode), need) for mode in list(JitMode)[1:])
        assert isinstance(aot, UsePrebuilt | Refuse) and not needs_builders(aot)
        assert not files_of(jit)
        assert isinstance(off, Refuse)
        auto = decide(host, info, replace(settings, jit=JitMode.AUTO), need)
        assert rank(auto, host, need).no_worse_than(rank(aot, host, need))
        assert rank(auto, host, need).no_worse_than(rank(jit, host, need))


@given(s.hosts, s.near_build_infos, s.settings)
def test_the_order_of_the_files_does_not_matter_to_how_good_it_is(
    host: Host, info: BuildInfo, settings: Settings
) -> None:
    turned = replace(info, host=info.host[::-1], device=info.device[::-1])
    one, other = (decide(host, each, settings, CUDA) for each in (info, turned))
    assert rank(one, host, CUDA) == rank(other, host, CUDA)
    if not isinstance(one, Refuse) and not isinstance(other, Refuse):
        assert one.images == other.images


@given(s.hosts, s.near_build_infos, s.settings)
def test_a_decision_is_a_function(host: Host, info: BuildInfo, settings: Settings) -> None:
    one, other = (decide(host, info, settings, CUDA) for _ in range(2))
    assert one == other
    assert isinstance(one, BuildJit) is (not isinstance(one, Refuse) and needs_building(one))


def needs_building(decision: UsePrebuilt | BuildJit) -> bool:
    pieces = (decision.host, *(image for _, image in decision.images))
    return any(not isinstance(piece, HostFile | DeviceFile) for piece in pieces)
