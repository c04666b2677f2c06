"""Stand-ins compiled on the spot: a host library without kernels, NVML, libcuda; and files that look like images."""

from __future__ import annotations

import functools
import hashlib
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path

from precast._builder import packing, sources
from precast._version import __version__
from precast.core.capability import GpuTarget, TargetKind
from precast.core.manifest import BuildInfo, BuildMode, DeviceFile, HostFile, device_path, host_path
from precast.core.torch_abi import parse_torch_abi
from precast.core.version import CudaVersion, Label, Release

# Appends every call to the file named by TOY_LOG. The family "broken" fails; nothing is registered with torch.
HOST_LIBRARY = r"""
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int say(const char* family, char* err, size_t cap, const char* format, ...) {
  const char* path = getenv("TOY_LOG");
  FILE* file = path ? fopen(path, "a") : NULL;
  if (file) {
    va_list list;
    va_start(list, format);
    vfprintf(file, format, list);
    va_end(list);
    fputs("\n", file);
    fclose(file);
  }
  if (strcmp(family, "broken") != 0) return 0;
  if (err) snprintf(err, cap, "the family is broken");
  return 1;
}
#define API extern "C" __attribute__((visibility("default")))
API int precast_attach(const void* table, char* err, size_t cap) {
  const char* lacks = getenv("TOY_LACKS");
  if (!lacks || table) return 0;
  snprintf(err, cap, "libtorch_cpu.so lacks %s", lacks);
  return 1;
}
API const char* precast_build_id(void) { return "0.0 toy"; }
API const char* precast_families(void) { return "rms_norm cpu_adam"; }
API int precast_register(const char* family, const char* key, char* err, size_t cap) {
  return say(family, err, cap, "register %s %s", family, key);
}
API int precast_set_image(const char* family, int device, const void* data, size_t bytes, const char* target, int major,
                          int minor, char* err, size_t cap) {
  return say(family, err, cap, "set_image %s %d %zu %s %d.%d", family, device, bytes, target, major, minor);
}
API int precast_refuse(const char* family, int device, const char* message) {
  return say(family, NULL, 0, "refuse %s %d %s", family, device, message);
}
API int precast_prepare(const char* family, int device, char* err, size_t cap) {
  return say(family, err, cap, "prepare %s %d", family, device);
}
API int precast_entries(const char* family, char* out, size_t cap) {
  if (strcmp(family, "broken") == 0) { snprintf(out, cap, "no such family"); return 1; }
  snprintf(out, cap, "one two");
  return 0;
}
"""

# GPUS is "9.0/GPU-aaaa/0 8.0/GPU-bbbb/1": capability, UUID, and whether MIG is on.
NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct Gpu { int major, minor, mig; char uuid[64]; };
static struct Gpu gpus[16];
static unsigned count;
extern "C" int nvmlInit_v2(void) {
  count = 0;
  char text[512];
  snprintf(text, sizeof(text), "%s", getenv("GPUS") ? getenv("GPUS") : "");
  for (char* word = strtok(text, " "); word; word = strtok(NULL, " ")) {
    struct Gpu* gpu = &gpus[count++];
    if (sscanf(word, "%d.%d/%63[^/]/%d", &gpu->major, &gpu->minor, gpu->uuid, &gpu->mig) != 4) return 9;
  }
  return 0;
}
extern "C" int nvmlShutdown(void) { return 0; }
extern "C" int nvmlDeviceGetCount_v2(unsigned* out) { *out = count; return 0; }
extern "C" int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** out) { *out = &gpus[i]; return gpus[i].major ? 0 : 4; }
extern "C" int nvmlDeviceGetCudaComputeCapability(void* gpu, int* major, int* minor) {
  *major = ((struct Gpu*)gpu)->major;
  *minor = ((struct Gpu*)gpu)->minor;
  return 0;
}
extern "C" int nvmlDeviceGetName(void* gpu, char* out, unsigned bytes) {
  snprintf(out, bytes, "Model %d", ((struct Gpu*)gpu)->major);
  return 0;
}
extern "C" int nvmlDeviceGetUUID(void* gpu, char* out, unsigned bytes) {
  snprintf(out, bytes, "%s", ((struct Gpu*)gpu)->uuid);
  return 0;
}
extern "C" int nvmlDeviceGetMigMode(void* gpu, unsigned* now, unsigned* pending) {
  *now = *pending = ((struct Gpu*)gpu)->mig;
  return 0;
}
"""

LIBCUDA = r"""
#include <stdlib.h>
extern "C" int cuDriverGetVersion(int* out) { *out = atoi(getenv("DRIVER")); return 0; }
"""


def cubin(number: int, size: int = 512) -> bytes:
    """A well-formed ELF header of a cubin in the CUDA 13 layout, one empty section, and padding."""
    ident = b"\x7fELF\x02\x01\x01" + bytes((65, 8)) + bytes(7)
    rest = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, number << 8, 64, 0, 0, 64, 1, 0)
    return (ident + rest + bytes(64)).ljust(size, b"\1")


def ptx(number: int) -> bytes:
    return f"//\n.version 8.1\n.target sm_{number}\n.address_size 64\n".encode()


@functools.cache
def sources_digest() -> str:
    """The digest of the checkout's sources, of which the installations of the tests have copies."""
    return sources.source_digest(Path(__file__).resolve().parents[2] / "csrc")


def device_file(folder: Path, family: str, images: dict[GpuTarget, bytes], nvrtc: str) -> list[DeviceFile]:
    """Writes one file of device code, with the images in this order; its manifest entries."""
    path, kind = device_path(family, list(images)), next(iter(images)).kind
    packed = packing.pack(list(images.values()), kind)
    (folder / path).write_bytes(packed)
    driver = CudaVersion(12, 0) if kind is TargetKind.SASS else CudaVersion.parse(nvrtc)
    entries, offset = [], 0
    for target, content in images.items():
        digests = [hashlib.sha256(data).hexdigest() for data in (packed, content)]
        about = (path, digests[0], len(packed), family, target, nvrtc, driver)
        entries.append(DeviceFile(*about, offset, len(content), digests[1]))
        offset += len(content)
    return entries


def write_installation(
    folder: Path,
    library: Path | None,
    device: dict[str, bytes] | None = None,
    *,
    mode: BuildMode = BuildMode.RELEASE,
    label: str = "cu121",
    nvrtc: str = "12.1.105",
    families: tuple[str, ...] = ("rms_norm", "rms_norm_backward", "cpu_adam", "softmax", "softmax_backward"),
    device_families: Sequence[str] = ("rms_norm",),
) -> BuildInfo:
    """Fills ``folder`` like precast/_C: a host library, device files by target, and their manifest."""
    host_files, device_files = [], []
    for name in ("host", "device"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if library is not None:
        abi = parse_torch_abi("torch-table-1")
        content = library.read_bytes()
        (folder / host_path(abi, "x86_64")).write_bytes(content)
        host_files.append(
            HostFile(
                path=host_path(abi, "x86_64"),
                sha256=hashlib.sha256(content).hexdigest(),
                bytes=len(content),
                abi=abi,
                machine="x86_64",
                needed=("libc.so.6",),
                glibc=Release(2, 17),
                glibcxx="3.4.22",
                cpu_levels=("baseline",),
                families=families,
            )
        )
    images = {GpuTarget.parse(text): content for text, content in (device or {}).items()}
    groups = packing.arrange({target: len(content) for target, content in images.items()})
    for family, group in itertools.product(device_families, groups):
        device_files += device_file(folder, family, {target: images[target] for target in group}, nvrtc)
    info = BuildInfo(
        version=__version__,
        label=Label(label),
        mode=mode,
        commit="0123abc",
        dirty=False,
        source_digest=sources_digest(),
        host=tuple(host_files),
        device=tuple(device_files),
    )
    (folder / "build_info.json").write_text(info.to_json())
    return info
