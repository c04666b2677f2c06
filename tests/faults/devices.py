"""The side of the GPU: device code that is not what it should be, and drivers, contexts and GPUs that change or go.

What a driver does is played by the one of tests/unit/csrc, under the launch protocol as it is shipped; what only a GPU
can show is in tests/gpu/attacks.py.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import textwrap
from collections.abc import Callable
from typing import Any

from tests.faults.hosts import CUDA, LOAD_CUDA
from tests.faults.lab import BUILD, Lab, fault, line
from tests.kit import fakes, spawn
from tests.load.conftest import Site
from tests.unit.csrc import test_launch as protocol

# What the loader would hand over for a machine with one GPU, and what it says of the files that it passes over.
CHOOSE = (
    CUDA
    + """
from precast._abi.decision import all_rejections
from precast.core.reasons import Need
from precast._load import probe
from precast._load.choose import choose
choice = choose(Need("rms_norm", "cuda"), probe.read_settings(), {}, certain=False)
print([image.path for _, image in choice.decision.images])
for rejection in all_rejections(choice.decision):
    print(rejection.candidate, rejection.reason.value, rejection.found)
"""
)
AOT = {"PRECAST_JIT": "aot"}


def shipped(lab: Lab, **images: bytes) -> Site:
    return lab.wheel(images or {"sm_90": fakes.cubin(90), "compute_90": fakes.ptx(90)})


def replace(site: Site, name: str, change: Callable[[bytes], bytes], *, honest: bool, size: int | None = None) -> None:
    """Changes a packed image where it lies; ``honest``: the manifest then has its hash, and ``size`` if given."""
    path, manifest = site.c_dir / "device" / f"rms_norm.{name}.xz", site.c_dir / "build_info.json"
    made = change(path.read_bytes())
    path.write_bytes(made)
    if honest:
        document = json.loads(manifest.read_text())
        (entry,) = (one for one in document["device"] if one["path"].endswith(f"{name}.xz"))
        entry |= {"sha256": hashlib.sha256(made).hexdigest(), "bytes": len(made)}
        entry |= {} if size is None else {"content_bytes": size}
        manifest.write_text(json.dumps(document))


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@fault("cut-cubin", "prebuilt machine code is cut", how="its second half removed; PTX beside it", lost="some speed")
def cut_cubin(lab: Lab) -> str:
    site = shipped(lab)
    replace(site, "sm_90.cubin", half, honest=False)
    said = site.ok(CHOOSE, env=lab.gpus("9.0") | AOT)
    assert said.startswith("['device/rms_norm.compute_90.ptx.xz']\n"), said
    return line(said, "sm_90.cubin damaged", "bytes")


@fault("cut-ptx", "the only device code is cut", how="its second half removed", lost="the op, until reinstalled")
def cut_ptx(lab: Lab) -> str:
    site = shipped(lab, compute_90=fakes.ptx(90))
    replace(site, "compute_90.ptx", half, honest=False)
    said = site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT)
    assert "--force-reinstall" in said
    return line(said, "damaged", "bytes")


@fault("no-xz", "device code that is no .xz", how="hash right, 100 bytes of text", lost="the op")
def no_xz(lab: Lab) -> str:
    site = shipped(lab, sm_90=fakes.cubin(90))
    replace(site, "sm_90.cubin", lambda data: b"text" * 25, honest=True)
    return line(site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT), "damaged", "not an .xz that precast packed")


@fault("cut-xz", "an .xz that ends early", how="hash right, half of the stream", lost="the op")
def cut_xz(lab: Lab) -> str:
    site = shipped(lab, sm_90=fakes.cubin(90))
    replace(site, "sm_90.cubin", half, honest=True)
    return line(site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT), "damaged", "the .xz ends early")


@fault("greedy-xz", "an .xz that asks for memory", how="hash right, a dictionary of 256 MB", lost="the op")
def greedy_xz(lab: Lab) -> str:
    site = shipped(lab, sm_90=fakes.cubin(90))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 256 << 20}]
    greedy = lzma.compress(fakes.cubin(90), format=lzma.FORMAT_XZ, filters=filters)
    replace(site, "sm_90.cubin", lambda data: greedy, honest=True)
    return line(site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT), "damaged", "Memory usage limit")


@fault("claimed-size", "a manifest that claims a gigabyte", how="content_bytes of one image", lost="what is prebuilt")
def claimed_size(lab: Lab) -> str:
    site = shipped(lab, sm_90=fakes.cubin(90))
    replace(site, "sm_90.cubin", lambda data: data, honest=True, size=1 << 30)
    return line(site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT), "content_bytes")


@fault("other-image", "an image beside the one that is meant", how="hashes right, offset of another", lost="the op")
def other_image(lab: Lab) -> str:
    site = shipped(lab, sm_90=fakes.cubin(90), sm_80=fakes.cubin(80))
    manifest = site.c_dir / "build_info.json"
    document = json.loads(manifest.read_text())
    first, second = document["device"]
    assert first["path"] == second["path"] and first["content_bytes"] == second["content_bytes"]
    first["target"], second["target"] = second["target"], first["target"]
    manifest.write_text(json.dumps(document))
    return line(site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT), "damaged", "built for sm_80")


@fault(
    "overlapping-images", "images that overlap in their file", how="an offset in the manifest", lost="what is prebuilt"
)
def overlapping_images(lab: Lab) -> str:
    site = shipped(lab, sm_90=fakes.cubin(90), sm_80=fakes.cubin(80))
    manifest = site.c_dir / "build_info.json"
    document = json.loads(manifest.read_text())
    document["device"][1]["offset"] -= 1
    manifest.write_text(json.dumps(document))
    return line(site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT), "needed at offset")


@fault("lying-ptx", "PTX for another GPU than said", how="hash right, .target sm_80 for compute_90", lost="the op")
def lying_ptx(lab: Lab) -> str:
    site = shipped(lab, compute_90=fakes.ptx(80))
    return line(site.refusal(LOAD_CUDA, env=lab.gpus("9.0") | AOT), "damaged", "built for sm_80")


def probe(lab: Lab, code: str, *words: str) -> Any:
    """Code under the launch protocol and a driver that can be told what to answer; what it left in ``out``."""
    folder = lab.folder / "probe"
    if not folder.exists():
        folder.mkdir()
        protocol.build(folder)
    return protocol.scenario(folder, textwrap.dedent(code), *words)


def answers(lab: Lab, setting: str, result: int) -> str:
    """The words of a call while the driver answers so; the next call, when it does no more, must be served."""
    code = f"setting('{setting}', {result})\nimage(0)\nout['bad'] = [launch(), launch()]\n"
    out = probe(lab, code + f"setting('{setting}', 0)\nout['good'] = launch()")
    assert out["good"] == 0 and len(set(out["bad"])) == 1, out
    return str(out["bad"][0])


@fault("driver-no-image", "the driver refuses machine code", how="cuLibraryLoadData gives 200", lost="the op")
def driver_no_image(lab: Lab) -> str:
    return line(answers(lab, "load_result", 200), "CUDA_ERROR_INVALID_IMAGE", "install precast again")


@fault("driver-no-ptx", "the driver refuses PTX", how="cuLibraryLoadData gives 218", lost="the op")
def driver_no_ptx(lab: Lab) -> str:
    return line(answers(lab, "load_result", 218), "CUDA_ERROR_INVALID_PTX", "PRECAST_JIT=jit")


@fault("gpu-full", "no memory on the GPU for the code", how="cuLibraryLoadData gives 2", lost="that call")
def gpu_full(lab: Lab) -> str:
    return line(answers(lab, "load_result", 2), "CUDA_ERROR_OUT_OF_MEMORY", "free memory of the GPU")


@fault("driver-dies", "a driver that dies between probe and load", how="cuInit gives 999", lost="the calls until then")
def driver_dies(lab: Lab) -> str:
    return line(answers(lab, "init_result", 999), "the CUDA driver does not start")


@fault("driver-stub", "a libcuda.so.1 that is no driver", how="one with cuDriverGetVersion alone", lost="the op")
def driver_stub(lab: Lab) -> str:
    folder = lab.folder / "stub"
    folder.mkdir()
    stub = spawn.library(folder / "libcuda.so.1", fakes.LIBCUDA, "-Wl,-soname,libcuda.so.1")
    code = f"ctypes.CDLL({str(stub)!r})\nimage(0)\nout['said'] = launch()"
    return line(probe(lab, code, "no driver")["said"], "libcuda.so.1) has no function cuInit")


@fault("nvml-stub", "an NVML without functions", how="an empty libnvidia-ml.so.1", lost="the op")
def nvml_stub(lab: Lab) -> str:
    folder = lab.folder / "nvml"
    folder.mkdir()
    spawn.library(folder / "libnvidia-ml.so.1", "")
    spawn.library(folder / "libcuda.so.1", fakes.LIBCUDA)
    env = lab.gpus("9.0") | AOT | {"LD_LIBRARY_PATH": str(folder)}
    return line(shipped(lab).refusal(LOAD_CUDA, env=env), "no-gpu")


@fault("context-gone", "another library resets the GPU", how="cuLaunchKernel gives 709", lost="the process's CUDA")
def context_gone(lab: Lab) -> str:
    return line(answers(lab, "launch_result", 709), "destroyed or reset the CUDA context", "restart the process")


@fault("fork-live", "a child forked from a process that uses CUDA", how="cuCtxGetCurrent gives 3", lost="the child")
def fork_live(lab: Lab) -> str:
    return line(answers(lab, "context_result", 3), "start it with spawn, not with fork")


@fault("fork-loading", "a fork while a thread loads device code", how="a load of 3 s, and a fork in it")
def fork_loading(lab: Lab) -> str:
    code = """
        import os, select, time
        image(0)
        setting('load_seconds', 3)
        thread = threading.Thread(target=launch)
        thread.start()
        time.sleep(0.5)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            setting('load_seconds', 0)
            os.write(writing, b'served' if launch() == 0 else b'refused')
            os._exit(0)
        ready = select.select([reading], [], [], 20)[0]
        out['child'] = os.read(reading, 100).decode() if ready else 'hangs'
        if not ready:
            os.kill(child, 9)
        os.waitpid(child, 0)
        thread.join()
        out['parent'] = launch()
    """
    assert (out := probe(lab, code)) == {"child": "served", "parent": 0}, out
    return "nothing: the child takes the lock of a thread that it does not have"


@fault("one-gpu-refused", "two GPUs, one of which nothing serves", how="an image for one, a refusal for the other")
def one_gpu_refused(lab: Lab) -> str:
    code = """
        image(0)
        c.precast_refuse(b'probe', 1, b'probe cannot run on cuda:1: no code for it')
        out['before'] = [launch(0), launch(1), launch(0), launch(1)]
        image(1, 'sm_80', (8, 0))
        out['after'] = launch(1)
    """
    out = probe(lab, code)
    assert out["before"][::2] == [0, 0] and out["before"][1] == out["before"][3] and out["after"] == 0, out
    return line(out["before"][1], "cannot run on cuda:1")


@fault("gpus-reordered", "CUDA_VISIBLE_DEVICES changed after the look", how="the driver has another GPU", lost="the op")
def gpus_reordered(lab: Lab) -> str:
    out = probe(lab, "setting('capability0', 80)\nimage(0)\nout['said'] = [launch(), launch()]")
    assert len(set(out["said"])) == 1
    return line(out["said"][0], "CUDA_VISIBLE_DEVICES", "the driver says 8.0")


@fault("gpus-fewer", "a GPU that is gone when it is used", how="code for cuda:5 of a driver with two", lost="that GPU")
def gpus_fewer(lab: Lab) -> str:
    return line(probe(lab, "image(5)\nout['said'] = launch(5)")["said"], "cuda:5", "cuDeviceGet failed")


@fault("gpus-hidden", "CUDA_VISIBLE_DEVICES emptied while CUDA runs", how="os.environ, after another library's cuInit")
def gpus_hidden(lab: Lab) -> str:
    folder = lab.folder / "running"
    folder.mkdir()
    spawn.library(folder / "libcuda.so.1", RUNNING)
    spawn.library(folder / "libnvidia-ml.so.1", fakes.NVML)
    code = "import ctypes, os\nctypes.CDLL('libcuda.so.1').cuInit(0)\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
    env = lab.gpus("9.0") | AOT | {"LD_LIBRARY_PATH": str(folder)}
    said = shipped(lab).ok(code + CHOOSE, env=env)
    assert said.startswith("['device/rms_norm.sm_90.cubin.xz']\n"), said
    return "nothing: the driver that runs is asked, not the environment"


# A driver that knows its GPUs once it is started, as a process of its own would see them.
RUNNING = (
    fakes.LIBCUDA
    + r"""
#include <string.h>
static int started;
extern "C" int cuInit(unsigned) { started = 1; return 0; }
extern "C" int cuDeviceGetCount(int* count) { *count = 1; return started ? 0 : 3; }
extern "C" int cuDeviceGet(int* device, int index) { *device = index; return 0; }
extern "C" int cuDeviceGetAttribute(int* value, int attribute, int) { *value = attribute == 75 ? 9 : 0; return 0; }
extern "C" int cuDeviceGetName(char* name, int, int) { strcpy(name, "Model 9"); return 0; }
extern "C" int cuDeviceGetUuid(char* uuid, int) { memset(uuid, 1, 16); return 0; }
"""
)


@fault(
    "build-memory",
    "memory runs out inside a compiler",
    how="24 MB of data for each process of the build",
    lost="the build",
)
def build_memory(lab: Lab) -> str:
    site = lab.site(warm="nothing")
    starved = "from precast._builder import process\nrun = process.run\ndef less(*a, **k):\n" + textwrap.indent(
        "import resource\nbefore = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (24 << 20, before[1]))\n"
        "try:\n    return run(*a, **k)\nfinally:\n    resource.setrlimit(resource.RLIMIT_DATA, before)\n",
        "    ",
    )
    said = site.refusal(starved + "process.run = less\n" + BUILD)
    assert said.startswith("BuildFailed: "), said
    done = site.run(BUILD)
    assert (done.returncode, done.stdout) == (0, "jit\n"), done.stderr
    return line(said, "found", "memory")


@fault("nvrtc-dies", "NVRTC ends its process: no memory", how="a library that says so and aborts", lost="the build")
def nvrtc_dies(lab: Lab) -> str:
    folder = lab.folder / "nvrtc"
    folder.mkdir()
    spawn.library(folder / "libnvrtc.so.13", DYING)
    code = f"""
        from pathlib import Path
        from precast.core.capability import GpuTarget
        from precast.core.host import Nvrtc
        from precast._builder import device
        from precast._builder.cache import Cache
        from precast._builder.catalogue import get
        found = Nvrtc({str(folder / "libnvrtc.so.13")!r}, None, "13.0.88", (), "package")
        device.build_images("rms_norm", [GpuTarget.parse("sm_90")], found, cache=Cache(Path("c")), debug=False, jobs=1)
    """
    said = lab.site(warm="nothing").refusal(code)
    assert said.startswith("BuildFailed: rms_norm for sm_90"), said
    return line(said, "found", "LLVM ERROR: out of memory")


DYING = r"""
#include <stdio.h>
#include <stdlib.h>
#define E extern "C"
E const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR"; }
E int nvrtcCreateProgram(void** p, const char*, const char*, int, const char**, const char**) { *p = 0; return 0; }
E int nvrtcCompileProgram(void*, int, const char**) { fputs("LLVM ERROR: out of memory\n", stderr); abort(); }
"""


@fault("many-ask-damaged", "16 threads ask for damaged code", how="a gate that all wait at", lost="the op")
def many_ask_damaged(lab: Lab) -> str:
    site = shipped(lab, sm_90=fakes.cubin(90))
    replace(site, "sm_90.cubin", half, honest=False)
    code = (
        CUDA
        + """
import threading, precast
from precast.errors import KernelError
said, gate = [], threading.Barrier(16)
def ask():
    gate.wait()
    try:
        precast.load('rms_norm', 'cuda')
    except KernelError as error:
        said.append(str(error))
threads = [threading.Thread(target=ask) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(said) == 16 and len(set(said)) == 1, said
print(said[0])
"""
    )
    return line(site.ok(code, env=lab.gpus("9.0") | AOT), "damaged", "bytes")
