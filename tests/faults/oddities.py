"""Files that nobody would expect: they hang a careless reader, take its memory, or let others in."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.damage import built_again, refusal_without_build
from tests.faults.hosts import LOAD_CUDA
from tests.faults.lab import BUILD, LOAD, Lab, fault, library, line
from tests.kit import fakes, odd

# What a load may take of memory. Nothing may come near it, and torch is not imported here.
BOUNDED = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n" + BUILD
# The same for a process with torch, which maps much more than it uses: what the load adds to it.
PEAK = """
import resource, torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    import precast; precast.load('adam_')
finally:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10, f"{grown} kB"
"""


def odd_in_cache(lab: Lab, name: str, kind: str) -> str:
    site = lab.site(warm="all")
    entry = library(site).parent
    odd.put(kind, entry / name)
    done = site.run(BOUNDED)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    assert site.run(BUILD).stdout == "cache\n"
    return line(done.stderr, "is not used", name)


@fault("fifo-meta", "a FIFO as the marker of a cached build", how="mkfifo meta.json", lost="one build")
def fifo_meta(lab: Lab) -> str:
    return odd_in_cache(lab, "meta.json", "fifo")


@fault("device-meta", "a device as that marker", how="meta.json is a link to /dev/zero", lost="one build")
def device_meta(lab: Lab) -> str:
    return odd_in_cache(lab, "meta.json", "device")


@fault("sparse-meta", "a marker of 64 GiB", how="meta.json is a sparse file", lost="one build")
def sparse_meta(lab: Lab) -> str:
    return odd_in_cache(lab, "meta.json", "sparse")


@fault("fifo-cached", "a FIFO as a cached library", how="mkfifo cpu_adam.so", lost="one build")
def fifo_cached(lab: Lab) -> str:
    return odd_in_cache(lab, "cpu_adam.so", "fifo")


@fault("sparse-cached", "a cached library of 64 GiB", how="a sparse file", lost="one build")
def sparse_cached(lab: Lab) -> str:
    return odd_in_cache(lab, "cpu_adam.so", "sparse")


@fault("lying-cached", "a cached library of 64 GiB, as its marker says", how="bytes in meta.json too", lost="one build")
def lying_cached(lab: Lab) -> str:
    site = lab.site(warm="all")
    meta = library(site).parent / "meta.json"
    odd.put("sparse", library(site))
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"bytes": odd.HUGE}))
    done = site.run(BOUNDED)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    return line(done.stderr, "is not used", "bytes")


@fault("fifo-manifest", "a FIFO as the manifest", how="mkfifo build_info.json", lost="what is prebuilt")
def fifo_manifest(lab: Lab) -> str:
    site = lab.wheel()
    odd.put("fifo", site.c_dir / "build_info.json")
    return line(site.refusal(LOAD), "found", "a FIFO, not a regular file")


@fault("sparse-manifest", "a manifest of 64 GiB", how="a sparse build_info.json", lost="what is prebuilt")
def sparse_manifest(lab: Lab) -> str:
    site = lab.wheel()
    odd.put("sparse", site.c_dir / "build_info.json")
    return line(site.refusal(PEAK), "found", "bytes, more than")


@fault("device-library", "a device as the prebuilt library", how="a link to /dev/zero", lost="the op")
def device_library(lab: Lab) -> str:
    site = lab.wheel()
    odd.put("device", site.library)
    return line(refusal_without_build(site, PEAK), "damaged", "a device, not a regular file")


@fault("fifo-cubin", "a FIFO as prebuilt device code", how="mkfifo in its place", lost="the op on that GPU")
def fifo_cubin(lab: Lab) -> str:
    site = lab.wheel({"sm_90": fakes.cubin(90)})
    odd.put("fifo", site.c_dir / "device" / "rms_norm.sm_90.cubin.xz")
    return line(refusal_without_build(site, LOAD_CUDA, **lab.gpus("9.0")), "damaged", "a FIFO, not a regular file")


@fault("umask-0", "a build under umask 0", how="os.umask(0) before it")
def umask_0(lab: Lab) -> str:
    site = lab.site()
    assert site.ok("import os; os.umask(0)\n" + BUILD) == "jit\n"
    kept = [path for path in (site.cache, *site.cache.rglob("*")) if path.is_relative_to(library(site).parent)]
    folders = [site.cache / "v1", library(site).parents[1]]
    modes = {str(path): path.stat().st_mode & 0o777 for path in (*kept, *folders)}
    assert all(mode == (0o700 if Path(path).is_dir() else 0o600) for path, mode in modes.items()), modes
    assert site.run(BUILD).stdout == "cache\n"
    return "nothing: folders have mode 0700 and files 0600 all the same"


@fault("group-writable", "a cached library that a group can write", how="chmod g+w", lost="one build")
def group_writable(lab: Lab) -> str:
    site = lab.site(warm="all")
    library(site).chmod(0o660)
    return built_again(site, BUILD)


@fault("open-meta", "a marker that everybody can write", how="chmod 666 meta.json", lost="one build")
def open_meta(lab: Lab) -> str:
    site = lab.site(warm="all")
    (library(site).parent / "meta.json").chmod(0o666)
    return built_again(site, BUILD)


@fault("admin-cache", "a cache that everybody can read", how="files 0644, folders 0755, in PRECAST_CACHE_PATH")
def admin_cache(lab: Lab) -> str:
    site = lab.site(warm="all")
    for path in (site.cache, *site.cache.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    env = {"PRECAST_CACHE_PATH": str(site.cache), "PRECAST_CACHE_DIR": str(site.home / "own")}
    done = site.run(BUILD, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cache\n", "")
    return "nothing: it is used as it is"
