"""From the world to one decision whose files are known to be intact; the loader acts on it, the doctor prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from precast._abi.build_info import BuildInfo, DeviceFile, HostFile
from precast._abi.decide import Decision, Need, Refuse, decide, needs_builders
from precast._abi.host import Builders, Host
from precast._abi.settings import JitMode, Settings
from precast._abi.value import value
from precast._load import prebuilt, probe


@value(frozen=True)
class Choice:
    """What to do, the facts it was decided from, and the verified content of each prebuilt file it uses, by path."""

    need: Need
    settings: Settings
    host: Host
    build_info: BuildInfo | None
    decision: Decision
    contents: Mapping[str, bytes]
    bad: Mapping[str, str]

    @property
    def builders(self) -> Builders:
        """What builds here; a decision to build is only made once they have been looked for."""
        if self.host.builders is None:
            raise AssertionError(f"{self.decision} was decided without a look at the builders")
        return self.host.builders


def choose(need: Need, settings: Settings, bad: Mapping[str, str], *, certain: bool) -> Choice:
    """Probe, decide, verify. ``certain`` allows to initialise torch.cuda where nothing less tells one GPU from another.

    Builders are looked for only when something has to be built.
    """
    info = None if settings.jit is JitMode.JIT else prebuilt.load_build_info()
    host = probe.probe_host(settings, gpus=need.device == "cuda", certain=certain)
    return choose_on(host, info, settings, need, bad)


def choose_on(
    host: Host, info: BuildInfo | None, settings: Settings, need: Need, bad: Mapping[str, str] = MappingProxyType({})
) -> Choice:
    """Decide for a host that has been probed.

    What reading the files shows is one more fact for the next decision: a file that is damaged (``bad``), a Python that
    cannot unpack any.
    """
    bad = dict(bad)
    while True:  # ends: every turn after the first has a shipped file more in `bad`, or device files no more
        decision = decide(host, info, settings, need, bad)
        if host.builders is None and needs_builders(decision):
            host = replace(host, builders=probe.probe_builders(settings))
            decision = decide(host, info, settings, need, bad)
        try:
            contents, damaged = _verify(decision)
        except prebuilt.NoLzma as error:
            host = replace(host, lzma_error=str(error))
            continue
        if not damaged:
            return Choice(need, settings, host, info, decision, contents, bad)
        bad |= damaged


def shipped(decision: Decision) -> Iterator[HostFile | DeviceFile]:
    """The prebuilt files a decision uses."""
    if isinstance(decision, Refuse):
        return
    if isinstance(decision.host, HostFile):
        yield decision.host
    for _, image in decision.images:
        if isinstance(image, DeviceFile):
            yield image


def _verify(decision: Decision) -> tuple[dict[str, bytes], dict[str, str]]:
    contents: dict[str, bytes] = {}
    damaged: dict[str, str] = {}
    for file in shipped(decision):
        if file.path in contents:
            continue
        try:
            contents[file.path] = prebuilt.verified_bytes(file)
        except prebuilt.Damaged as error:
            damaged[file.path] = str(error)
    return contents, damaged
