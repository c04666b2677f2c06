"""The errors of a guard: what does not fit, and the command that helps. Imported when there is one to raise."""

from __future__ import annotations

import importlib.util
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

from . import explain, pip, unopened
from .errors import PrebuiltRefused
from .manifest import BuildInfo, NewerManifest
from .reasons import Reason, Rejection
from .torch_abi import CLASSIC_FLOOR, Exact, Stable

_POLICY = "none: only the administrator who set the policy (SELinux, seccomp) can change it"

if TYPE_CHECKING:
    from .host import Host
    from .opening import Wheel
    from .verify import BadManifest


def refused(headline: str, wheel: Wheel, host: Host, rejections: tuple[Rejection, ...]) -> PrebuiltRefused:
    """The error for a library of which no build fits, with the reason against each."""
    env = explain.environment(host, made_by(wheel.info))
    fixes = (*_other_torch(wheel.info, host, rejections), _again(wheel.package))
    return explain.explain(PrebuiltRefused, headline, rejections, env, fixes)


def no_torch(what: str, wheel: Wheel, host: Host) -> PrebuiltRefused:
    """The error where torch cannot be imported: a torch that a library was built for must be installed."""
    releases = sorted({one.abi.release for one in wheel.info.host if isinstance(one.abi, Exact)}, reverse=True)
    floors = sorted({one.abi.floor for one in wheel.info.host if isinstance(one.abi, Stable)})
    wanted = f"torch=={releases[0]}.*" if releases and not floors else f"torch>={(floors or [CLASSIC_FLOOR])[0]}"
    replaced = "--force-reinstall " if host.torch_error else ""  # pip replaces a broken torch only so
    fix = f'{pip.install_command()} {replaced}"{wanted}"'
    return PrebuiltRefused(f"{what} needs torch", found=host.torch_error or "no torch", needed=wanted, fix=fix)


def nothing_prebuilt(package: str, folders: list[Path]) -> PrebuiltRefused:
    """The error for a package whose prebuilt files were not built, or not installed."""
    return PrebuiltRefused(
        f"{package} has nothing prebuilt",
        found=f"no manifest in {', '.join(map(str, folders))}",
        needed=f"a wheel of {package}, or a setup.py with cmdclass={{'build_ext': precast.build.BuildExtension}}",
        fix=_again(package),
    )


def bad_manifest(package: str, error: BadManifest) -> PrebuiltRefused:
    """The error for a damaged manifest, or one of a later precast than the one that reads it."""
    needed, fix, why = f"the manifest that was built with {package}", _again(package), error.__cause__
    if isinstance(why, NewerManifest) and __name__.startswith("precast."):  # a copy is as new as its manifest
        needed = f"precast{why.readers or ' of a later version'}, as {package} was built with that"
        fix = f"{pip.install_command()} -U 'precast{why.readers}'"
    return PrebuiltRefused(
        f"the manifest of {package} cannot be used, so nothing prebuilt of it is loaded",
        found=str(error),
        needed=needed,
        fix=fix,
    )


def cannot_open(path: Path, what: str, error: Exception) -> PrebuiltRefused:
    """The error for a file that matches its manifest and should fit here, but that the dynamic linker refuses."""
    reason = unopened.why(path, str(error))
    if reason is not None:
        found = f"{path}: {reason.found}"
        fix = reason.fix or _POLICY
        return PrebuiltRefused(f"{what} cannot be opened now", found=found, needed=reason.needed, fix=fix)
    return PrebuiltRefused(
        f"{what} matches its manifest and fits this process, but cannot be opened",
        found=f"{path}: {error}",
        needed="a library that the dynamic linker of this machine opens",
        fix=f"report this error to the authors of {what}",
    )


def made_by(info: BuildInfo) -> str:
    """The precast whose copy proves a wheel, for a bug report."""
    return "" if info.core is None else f"precast {info.core[0]}"


def _other_torch(info: BuildInfo, host: Host, rejections: tuple[Rejection, ...]) -> list[str]:
    """The command for the torch nearest to this one, of those that refused libraries were built for."""
    bound = {why.candidate for why in rejections if why.reason is Reason.TORCH_ABI}
    releases = {one.abi.release for one in info.host if one.name in bound and isinstance(one.abi, Exact)}
    if host.torch is None or not releases:
        return []
    here = host.torch.version.release
    nearest = min(releases, key=lambda one: (one > here, abs(one.minor - here.minor)))
    return [f"{pip.install_command()} 'torch=={nearest}.*'  # the torch that it was built for"]


def _again(package: str) -> str:
    distributions = packages_distributions().get(package.partition(".")[0], ())
    name = distributions[0] if distributions else package.partition(".")[0]
    install, sources = pip.install_command(), _sources_of(name, package)
    if sources is not None:
        return f"{install} --no-build-isolation --no-cache-dir --force-reinstall --no-deps {sources}"
    return (
        f"{install} --no-build-isolation --no-cache-dir --force-reinstall --no-deps --no-binary {name} {name}"
        "  # builds it for this torch, or: pip install . in its sources"
    )


def _sources_of(distribution: str, package: str) -> str | None:
    """Where pip got the package from, if pip recorded it."""
    spec = importlib.util.find_spec(package.partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    return pip.origin(distribution, Path(spec.origin).parent)[0]
