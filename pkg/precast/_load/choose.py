"""Make one decision whose files are known to be intact. The loader acts on it; the doctor prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from precast._abi.decide import decide
from precast._abi.decision import Decision, Refuse, needs_builders
from precast._abi.settings import JitMode, Settings
from precast._builder import catalogue
from precast._load import prebuilt, probe
from precast.core import files, verify
from precast.core.host import Builders, Host
from precast.core.manifest import BuildInfo, DeviceFile, HostFile
from precast.core.reasons import Need, Rejection, damaged
from precast.core.value import value


@value(frozen=True)
class Choice:
    """A decision, the facts behind it, and the verified content of each prebuilt file it uses, by name."""

    need: Need
    settings: Settings
    host: Host
    build_info: BuildInfo | None
    decision: Decision
    contents: Mapping[str, bytes]
    bad: Mapping[str, Rejection]
    plain: bool = False  # plain torch stands in, because the decision is to refuse

    @property
    def builders(self) -> Builders:
        """The builders found on this host. A decision to build is made only after the builders have been probed."""
        if self.host.builders is None:
            raise AssertionError(f"{self.decision} was decided without a look at the builders")
        return self.host.builders


def need_of(family: str, device: str) -> Need:
    """The need for a family on a device type as torch names it."""
    return Need(family, "cuda" if device == "cuda" else "xpu" if device == "xpu" else "cpu")


def choose(need: Need, settings: Settings, bad: Mapping[str, Rejection], *, certain: bool) -> Choice:
    """Probe, decide, verify. ``certain`` allows torch.cuda to be initialised if nothing cheaper can order the GPUs.

    The builders are probed only if something has to be built.
    """
    info = None if settings.jit is JitMode.JIT else prebuilt.load_build_info()
    host = prebuilt.judged(probe.probe_host(settings, gpus=need.device == "cuda", certain=certain), info)
    return choose_on(host, info, settings, need, bad)


def choose_on(
    host: Host,
    info: BuildInfo | None,
    settings: Settings,
    need: Need,
    bad: Mapping[str, Rejection] = MappingProxyType({}),
) -> Choice:
    """Decide for a host that has been probed. An error that will be raised is decided with the builders known.

    Reading the files adds facts for the next decision: a file that is damaged or cannot be opened (``bad``), or a
    Python that cannot unpack device files.
    """
    bad = dict(bad)
    while True:  # ends: each later turn knows the builders, one more bad file, or that no device file can be unpacked
        decision = decide(host, info, settings, need, bad)
        plain = isinstance(decision, Refuse) and _stands_in(host, need, decision)
        raises = not plain and (isinstance(decision, Refuse) or bool(decision.refused))
        if host.builders is None and host.system == "Linux" and (raises or needs_builders(decision)):
            host = replace(host, builders=probe.probe_builders(settings))
            continue
        try:
            contents, unfit = _verify(decision)
        except prebuilt.NoLzma as error:
            host = replace(host, lzma_error=str(error))
            continue
        if not unfit:
            return Choice(need, settings, host, info, decision, contents, bad, plain)
        bad |= unfit


def _stands_in(host: Host, need: Need, refusal: Refuse) -> bool:
    """Whether the family's ops in plain torch stand in for kernels that were refused."""
    if need.device not in catalogue.get(need.family).plain:
        return False
    from precast._abi import plain  # imported here because most calls are served by a kernel

    return plain.stands_in(host, need, refusal)


def _shipped(decision: Decision) -> Iterator[tuple[str, HostFile | DeviceFile]]:
    """The prebuilt files a decision uses, with the names that they have in decisions."""
    if isinstance(decision, Refuse):
        return
    for file in (decision.host, decision.binding):
        if isinstance(file, HostFile):
            yield file.path, file
    for _, image in decision.images:
        if isinstance(image, DeviceFile):
            yield image.name, image


def _verify(decision: Decision) -> tuple[dict[str, bytes], dict[str, Rejection]]:
    contents: dict[str, bytes] = {}
    bad: dict[str, Rejection] = {}
    for name, file in dict(_shipped(decision)).items():
        try:
            contents[name] = prebuilt.verified_bytes(file)
        except verify.Damaged as error:
            bad[name] = damaged(str(error))
            continue
        if isinstance(file, HostFile) and files.is_noexec(prebuilt.C_DIR / file.path):
            from precast.core import unopened  # an intact file that cannot be opened is rare

            bad[name] = unopened.noexec(prebuilt.C_DIR / file.path)
    return contents, bad
