"""Versions that meet: in one installation, in one cache, and in a process that runs while its files change."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from precast._version import __version__
from precast.core.manifest import BuildInfo
from tests.faults.disks import MEET, start
from tests.faults.lab import BUILD, LOAD, Lab, fault, library, line
from tests.kit import fakes
from tests.load.conftest import Site

NEW = "9.9.9"
DOCTOR = "import sys; from precast.__main__ import main; sys.exit(main(['doctor', 'adam_']))"


def prebuilt_site(lab: Lab, **changes: object) -> Site:
    """An installation with sources and a warm cache, and a prebuilt library whose manifest differs in this."""
    site = lab.site(warm="all")
    info = fakes.write_installation(site.c_dir, library(site), families=("cpu_adam",))
    (site.c_dir / "build_info.json").write_text(dataclasses.replace(info, **changes).to_json())
    return site


def upgraded(site: Site, cache: Path, version: str = NEW) -> Site:
    """Another environment, with another version and the same cache."""
    other = Site(site.folder.with_name("newer"), site.home, cache)
    shutil.copytree(site.folder, other.folder, symlinks=True)
    set_version(other, version)
    return other


def set_version(site: Site, version: str) -> None:
    (site.folder / "precast" / "_version.py").write_text(f'__version__ = "{version}"\n')


def stale(site: Site, found: str) -> str:
    """Built under ``auto`` with one message, refused under ``aot`` with a fix, and the doctor agrees with both."""
    code = LOAD + "; precast.load('adam_')"
    done = site.run(code)
    assert (done.returncode, done.stdout) == (0, "cache\n"), done.stdout + done.stderr
    assert done.stderr.count(found) == 1, done.stderr
    assert found in site.ok(DOCTOR)
    refused = site.refusal(LOAD, env={"PRECAST_JIT": "aot"})
    assert (
        refused.startswith("JitDisabled: ")
        and "rejected (stale)" in refused
        and "pip install --force-reinstall" in refused
    )
    asked = site.run(DOCTOR, env={"PRECAST_JIT": "aot"})
    assert asked.returncode == 1 and "rejected (stale)" in asked.stdout
    return line(done.stderr, found)


@fault("stale-version", "prebuilt files of another version", how="a manifest that says 9.9.9", lost="one build")
def stale_version(lab: Lab) -> str:
    return stale(prebuilt_site(lab, version=NEW, source_digest="0" * 64), f"found those of precast {NEW}")


@fault("stale-digest", "prebuilt files of other sources", how="a digest of zeros", lost="one build")
def stale_digest(lab: Lab) -> str:
    return stale(prebuilt_site(lab, source_digest="0" * 64), "found those of 000000000000")


@fault("stale-sources", "sources newer than what is prebuilt", how="as by git pull: a header edited", lost="one build")
def stale_sources(lab: Lab) -> str:
    site = prebuilt_site(lab)
    csrc = site.folder / "precast" / "csrc"
    (csrc / "DIGEST").unlink()  # a checkout states none
    assert site.ok(LOAD) == "prebuilt\n"
    with (csrc / "host" / "family.h").open("a") as header:
        header.write("// edited\n")
    done = site.run(LOAD)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    return line(done.stderr, "is out of date", "of the sources")


@fault("stated-digest", "a wheel of one build over another", how="a csrc that states another digest", lost="one build")
def stated_digest(lab: Lab) -> str:
    site = prebuilt_site(lab)
    (site.folder / "precast" / "csrc" / "DIGEST").write_text("7" * 64 + "\n")
    return stale(site, "files of the sources 777777777777")


@fault("old-manifest", "a manifest of an older form", how="schema 1", lost="what is prebuilt")
def old_manifest(lab: Lab) -> str:
    site = lab.wheel()
    manifest = site.c_dir / "build_info.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": 1}))
    said = site.refusal(LOAD)
    assert "--force-reinstall" in said
    return line(said, "found", "older than the first release")


@fault("old-cache", "a cache of an older version", how=f"built by {__version__}, used by {NEW}", lost="one build")
def old_cache(lab: Lab) -> str:
    site = lab.site(warm="all")
    newer = upgraded(site, site.cache)
    done = newer.run(BUILD)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    assert not (site.cache / "v1" / ".damaged").exists() and "is not used" not in done.stderr
    assert [one.ok(BUILD) for one in (newer, site)] == ["cache\n", "cache\n"], "each has its own"
    return line(done.stderr, "built the host library")


@fault("new-cache", "a cache of a newer version", how="another layout, and a marker of schema 2", lost="one build")
def new_cache(lab: Lab) -> str:
    site = lab.site(warm="all")
    (site.cache / "v2" / "cpu_adam" / "0123").mkdir(parents=True)
    meta = library(site).parent / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"schema": 2}))
    done = site.run(BUILD)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    assert site.ok(BUILD) == "cache\n" and (site.cache / "v2" / "cpu_adam" / "0123").is_dir()
    return line(done.stderr, "is not used", "needed 1 for this version of precast, found 2")


@fault("two-versions", "two versions share one cache", how="both start cold at the same moment", lost="nothing")
def two_versions(lab: Lab) -> str:
    site = lab.site()
    newer = upgraded(site, site.cache)
    code = MEET.format(folder=str(site.home)) + BUILD
    children = [start(one, code, {}) for one in (site, newer)]
    answers = [child.communicate(timeout=120) for child in children]
    assert [(child.returncode, out) for child, (out, _) in zip(children, answers, strict=True)] == [(0, "jit\n")] * 2, (
        answers
    )
    assert len(list(site.cache.glob("v1/cpu_adam/*/cpu_adam.so"))) == 2
    assert [one.ok(BUILD) for one in (newer, site)] == ["cache\n", "cache\n"]
    return "nothing: each builds and finds its own"


STEPS = """
import torch, precast
from precast.ops import adam_
tensors = [[torch.ones(8)] for _ in range(4)]
def step():
    adam_(*tensors, lr=0.5, beta1=0.9, beta2=0.9, eps=1e-8, weight_decay=0.0,
          bias_correction1=1.0, bias_correction2=1.0)
"""


@fault("uninstalled", "uninstalled while a process runs", how="its files removed after a first op", lost="other ops")
def uninstalled(lab: Lab) -> str:
    code = f"""
{STEPS}
import shutil
step()
shutil.rmtree({{folder!r}})
step()
from precast.errors import KernelUnavailable
try:
    precast.load("rms_norm")
except KernelUnavailable as error:
    print(error)
"""
    site = lab.wheel()
    said = site.ok(code.format(folder=str(site.folder / "precast")))
    assert "restart this process" in said
    return line(said, "removed or replaced while this process ran")


@fault("upgraded", "upgraded while a process runs", how="its files replaced before its first op", lost="the op")
def upgraded_meanwhile(lab: Lab) -> str:
    site = lab.wheel()
    info = BuildInfo.from_json((site.c_dir / "build_info.json").read_text())
    newer = site.home / "build_info.json"
    newer.write_text(dataclasses.replace(info, version=NEW, source_digest="7" * 64).to_json())
    code = f"""
import pathlib, shutil, precast
precast.load
shutil.copy({str(newer)!r}, {str(site.c_dir / "build_info.json")!r})
pathlib.Path({str(site.folder / "precast" / "_version.py")!r}).write_text('__version__ = "{NEW}"')
precast.load("adam_")
"""
    said = site.refusal(code, env={"PRECAST_JIT": "aot"})
    assert "fix     1) restart this process" in said
    return line(said, "stale", "upgraded while this process ran")
