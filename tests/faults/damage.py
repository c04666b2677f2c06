"""Files that are not what they were: nothing damaged is ever mapped, and everything that can be is made again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from precast._builder import packing
from precast.core.capability import TargetKind
from tests.faults.hosts import LOAD_CUDA
from tests.faults.lab import BUILD, LOAD, STEP, Lab, fault, library, line
from tests.kit import fakes
from tests.load.conftest import Site


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)


def refusal_without_build(site: Site, code: str, **env: str) -> str:
    return site.refusal(code, env={"PRECAST_JIT": "aot", **env})


@fault(
    "damaged-so", "a bit of the prebuilt library flipped", how="one bit in the middle", lost="the op, until reinstalled"
)
def damaged_so(lab: Lab) -> str:
    site = lab.wheel()
    flip(site.library)
    said = refusal_without_build(site, LOAD)
    assert "--force-reinstall" in said
    return line(said, "damaged", "checksum mismatch")


@fault("damaged-cubin", "a bit of prebuilt device code flipped", how="one bit in the middle", lost="the op on that GPU")
def damaged_cubin(lab: Lab) -> str:
    site = lab.wheel({"sm_90": fakes.cubin(90)})
    flip(site.c_dir / "device" / "rms_norm.sm_90.cubin.xz")
    return line(refusal_without_build(site, LOAD_CUDA, **lab.gpus("9.0")), "damaged", "checksum mismatch")


@fault("lying-cubin", "device code for another GPU than said", how="hash right, header wrong", lost="the op")
def lying_cubin(lab: Lab) -> str:
    site = lab.wheel({"sm_90": fakes.cubin(80)})
    return line(refusal_without_build(site, LOAD_CUDA, **lab.gpus("9.0")), "damaged", "built for sm_80")


@fault("bomb", "device code that unpacks without end", how="hash right, 32 MiB of zeros inside", lost="the op")
def bomb(lab: Lab) -> str:
    site = lab.wheel({"sm_90": fakes.cubin(90)})
    file, manifest = site.c_dir / "device" / "rms_norm.sm_90.cubin.xz", site.c_dir / "build_info.json"
    document = json.loads(manifest.read_text())
    endless = packing.pack([bytes(32 << 20)], TargetKind.SASS)
    file.write_bytes(endless)
    document["device"][0] |= {"sha256": hashlib.sha256(endless).hexdigest(), "bytes": len(endless)}
    manifest.write_text(json.dumps(document))
    return line(
        refusal_without_build(site, LOAD_CUDA, **lab.gpus("9.0")), "damaged", "checksum mismatch of the unpacked image"
    )


@fault("damaged-manifest", "the manifest is cut", how="its second half removed", lost="what is prebuilt")
def damaged_manifest(lab: Lab) -> str:
    site = lab.wheel()
    manifest = site.c_dir / "build_info.json"
    manifest.write_text(manifest.read_text()[: manifest.stat().st_size // 2])
    return line(site.refusal(LOAD), "found", "build_info.json")


@fault("no-descriptions", "no file says which kernels there are", how="csrc and its list removed", lost="all kernels")
def no_descriptions(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    shutil.rmtree(site.folder / "precast" / "csrc")
    (site.folder / "precast" / "_builder" / "families.json").unlink()
    return line(site.refusal("from precast import ops"), "the kernel sources are missing")


@fault("damaged-descriptions", "the list of kernels is cut", how="its second half removed", lost="all kernels")
def damaged_descriptions(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    listed = site.folder / "precast" / "_builder" / "families.json"
    listed.write_text(listed.read_text()[: listed.stat().st_size // 2])
    return line(site.refusal("from precast import ops"), "families.json is corrupted")


@fault("no-sources", "the sources are missing", how="csrc removed", lost="what would be built")
def no_sources(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    shutil.rmtree(site.folder / "precast" / "csrc")
    return line(site.refusal(BUILD), "the kernel sources are missing")


def built_again(site: Site, code: str) -> str:
    done = site.run(code)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    assert len(list((site.cache / "v1" / ".damaged").iterdir())) == 1
    assert site.run(BUILD).stdout == "cache\n"
    return line(done.stderr, "is not used")


@fault("damaged-cache", "a bit of a cached library flipped", how="one bit in the middle", lost="one build")
def damaged_cache(lab: Lab) -> str:
    site = lab.site(warm="all")
    flip(library(site))
    return built_again(site, STEP)


@fault("damaged-meta", "the marker of a cached build is cut", how="meta.json emptied", lost="one build")
def damaged_meta(lab: Lab) -> str:
    site = lab.site(warm="all")
    (library(site).parent / "meta.json").write_bytes(b"")
    return built_again(site, BUILD)


@fault("open-cache", "a cache that everybody can write", how="chmod 777", lost="the op, until it is closed")
def open_cache(lab: Lab) -> str:
    site = lab.site(warm="all")
    site.cache.chmod(0o777)
    said = site.refusal(BUILD)
    assert "chmod go-w" in said
    return line(said, "found", "others can write")


@fault("planted-module", "code in the current directory", how="modules that raise, under common names")
def planted_module(lab: Lab) -> str:
    site = lab.site()
    for name in ("json", "hashlib", "ninja", "tempfile", "shlex"):
        (site.home / f"{name}.py").write_text("raise SystemExit('code of the current directory was run')")
    code = "import sys; sys.path.remove('')\n" + BUILD
    done = site.run(code)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    return "nothing: no child process looks there"


@fault("header-edited", "a header edited under a warm cache", how="a line added to host/family.h", lost="one build")
def header_edited(lab: Lab) -> str:
    site = lab.site(warm="all")
    before = library(site)
    with (site.folder / "precast" / "csrc" / "host" / "family.h").open("a") as header:
        header.write("// edited\n")
    done = site.run(BUILD)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    assert before.is_file() and len(list(site.cache.glob("v1/cpu_adam/*/cpu_adam.so"))) == 2
    return line(done.stderr, "built the host library")
