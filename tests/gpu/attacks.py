"""Attacks that only a GPU can answer: each in a process of its own, which must end by itself and with the right words.

Usage: python tests/gpu/attacks.py WHEEL [--json FILE] [NAME ...]. The wheel is installed into a clean folder. One
process imports torch and precast without touching the GPU, and is forked for each attack. An attack fails by a signal,
a timeout, a wrong number, or an exception other than the documented ones. Exit status 0 only if none fails.

One thing is the driver's alone: machine code that is damaged behind its header, under a manifest that has the hash of
the damage. Its author may run code in the process anyway; what the driver does with it is written down, and no failure.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import logging
import lzma
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 90
AT_ONCE = 4
Facts = dict[str, Any]
ATTACKS: dict[str, Callable[[], Facts]] = {}


def attack(name: str) -> Callable[[Callable[[], Facts]], Callable[[], Facts]]:
    def register(function: Callable[[], Facts]) -> Callable[[], Facts]:
        ATTACKS[name] = function
        return function

    return register


def norm(rows: int = 64) -> None:
    """One call of the op, held against torch in float64."""
    import torch

    from precast import ops

    x, weight = torch.randn(rows, 1024, device="cuda"), torch.randn(1024, device="cuda")
    y = ops.rms_norm(x, weight, 1e-6)
    wide = x.double()
    wanted = weight.double() * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    assert torch.allclose(y.double(), wanted, rtol=1e-5, atol=1e-6), "a wrong number"


def refused(call: Callable[[], object] = norm) -> str:
    """The documented error of a call, its first two lines; anything else goes on as it is."""
    from precast.errors import KernelError

    try:
        call()
    except (KernelError, RuntimeError, MemoryError) as error:
        return f"{type(error).__name__}: {' / '.join(str(error).splitlines()[:3])}"[:400]
    raise AssertionError("it was not refused")


@contextmanager
def warnings() -> Iterator[list[str]]:
    """What precast logs."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("precast").addHandler(handler)
    yield said


def tamper(change: Callable[[bytes], bytes], *kinds: str, honest: bool, inside: bool = False) -> None:
    """Changes the device code of rms_norm in a copy of the installation, which the loader then takes.

    Each image gets a file of its own. ``honest``: the manifest has the hash of what lies there. ``inside``: what is
    changed is the image in the .xz.
    """
    from precast._builder import packing
    from precast._load import prebuilt
    from precast.core.capability import GpuTarget
    from precast.core.manifest import device_path

    copy = Path(tempfile.mkdtemp(prefix="precast-attack-")) / "_C"
    shutil.copytree(prebuilt.C_DIR, copy)
    document = json.loads((copy / "build_info.json").read_text())
    for entry in document["device"]:
        if entry["family"] != "rms_norm" or not entry["path"].endswith(tuple(f"{kind}.xz" for kind in kinds)):
            continue
        content = lzma.decompress((prebuilt.C_DIR / entry["path"]).read_bytes())
        image, target = content[entry["offset"] :][: entry["content_bytes"]], GpuTarget.parse(entry["target"])
        image = change(image) if inside else image
        packed = packing.pack([image], target.kind)
        made = packed if inside else change(packed)
        stated = made if honest else packed
        digests = [hashlib.sha256(data).hexdigest() for data in (stated, image)]
        entry |= {"path": device_path("rms_norm", [target]), "sha256": digests[0], "bytes": len(stated)}
        entry |= {"offset": 0, "content_bytes": len(image), "content_sha256": digests[1]}
        (copy / entry["path"]).write_bytes(made)
    (copy / "build_info.json").write_text(json.dumps(document))
    prebuilt.C_DIR = copy
    os.environ["PRECAST_JIT"] = "aot"


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def garbage(seed: int, skip: int) -> Callable[[bytes], bytes]:
    """Replaces 64 bytes anywhere behind the first ones."""

    def change(data: bytes) -> bytes:
        made, dice = bytearray(data), random.Random(seed)
        for _ in range(64):
            made[dice.randrange(skip, len(made))] = dice.randrange(256)
        return bytes(made)

    return change


@attack("nothing")
def nothing() -> Facts:
    norm()
    return {}


@attack("flipped-cubin")
def flipped_cubin() -> Facts:
    """PTX takes its place."""
    tamper(flipped, "cubin", honest=False)
    with warnings() as said:
        norm()
    assert any("is not used" in line and "checksum mismatch" in line for line in said), said
    return {"said": said[0]}


@attack("cut-cubin-and-ptx")
def cut_both() -> Facts:
    tamper(cut, "cubin", "ptx", honest=False)
    said = refused()
    assert "KernelError" in said or "JitDisabled" in said or "KernelUnavailable" in said, said
    return {"said": said, "again": refused()}


@attack("cut-and-asked-by-16-threads")
def cut_threads() -> Facts:
    tamper(cut, "cubin", "ptx", honest=False)
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.append(refused())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 16 and len(set(said)) == 1, said
    return {"said": said[0]}


@attack("no-xz")
def no_xz() -> Facts:
    tamper(lambda data: b"\x7fELF" + data[4:], "cubin", "ptx", honest=True)
    return {"said": refused()}


@attack("cut-xz")
def cut_xz() -> Facts:
    tamper(cut, "cubin", "ptx", honest=True)
    return {"said": refused()}


@attack("xz-bomb")
def xz_bomb() -> Facts:
    bomb = lzma.compress(bytes(1 << 30), preset=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tamper(lambda data: bomb, "cubin", "ptx", honest=True)
    said = refused()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"said": said, "grown_kb": grown}


def at_the_driver(change: Callable[[bytes], bytes], kind: str) -> Facts:
    """Damage that no check of ours sees, as hash and header are right: the driver's answer is passed on, or numbers."""
    tamper(change, kind, honest=True, inside=True)
    if kind == "ptx":  # without machine code
        tamper_away("cubin")
    try:
        return {"said": refused()}
    except AssertionError as error:
        return {"said": f"the driver took it: {error}"}


def tamper_away(kind: str) -> None:
    from precast._load import prebuilt

    document = json.loads((prebuilt.C_DIR / "build_info.json").read_text())
    document["device"] = [entry for entry in document["device"] if not entry["path"].endswith(f"{kind}.xz")]
    (prebuilt.C_DIR / "build_info.json").write_text(json.dumps(document))


for number in range(12):
    attack(f"garbage-in-cubin-{number}")(lambda seed=number: at_the_driver(garbage(seed, 64), "cubin"))
    if number < 6:
        attack(f"garbage-in-ptx-{number}")(lambda seed=number: at_the_driver(garbage(seed, 400), "ptx"))
attack("cut-ptx")(lambda: at_the_driver(cut, "ptx"))
attack("ptx-without-end")(lambda: at_the_driver(lambda data: data + b"/*" + b"x" * 1_000_000, "ptx"))


@attack("context-reset")
def context_reset() -> Facts:
    """Another library resets the device, as cudaDeviceReset does."""
    import torch

    norm()
    torch.cuda.synchronize()
    x, weight = torch.randn(64, 1024, device="cuda"), torch.randn(1024, device="cuda")
    from precast import ops

    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxReset_v2(device) == 0
    said = [refused(lambda: (ops.rms_norm(x, weight, 1e-6), torch.cuda.synchronize())) for _ in range(2)]
    return {"said": said}


@attack("other-context-destroyed")
def other_context() -> Facts:
    """A context of its own that another library made current, used and destroyed."""
    import torch

    norm()
    torch.cuda.synchronize()
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, current = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    made = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    assert made == 0, made
    assert cuda.cuCtxDestroy_v2(context) == 0
    cuda.cuCtxGetCurrent(ctypes.byref(current))
    norm()
    return {"current_after_destroy": current.value}


@attack("visible-devices-emptied-before-cuda-starts")
def hidden_before() -> Facts:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return {"said": refused()}


@attack("visible-devices-changed-after-cuda-started")
def hidden_after() -> Facts:
    import torch

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    for value in ("", "7", "nonsense"):
        os.environ["CUDA_VISIBLE_DEVICES"] = value
        norm()
    return {}


@attack("visible-devices-changed-behind-torch")
def hidden_behind() -> Facts:
    """Another library has started CUDA; torch has not."""
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    os.environ["CUDA_VISIBLE_DEVICES"] = "0,0"
    try:
        norm()
    except (RuntimeError, AssertionError) as error:
        return {"said": str(error).splitlines()[0]}
    return {"said": "served"}


@attack("gpu-memory-full-at-the-first-call")
def memory_full() -> Facts:
    import torch

    from precast import ops

    x, weight = torch.randn(64, 1024, device="cuda"), torch.randn(1024, device="cuda")
    out = [torch.empty(64, 1024, device="cuda")]
    out.clear()  # the op finds room in torch's cache, the driver none
    held: list[torch.Tensor] = []
    size = 1 << 36
    while size >= 1 << 20:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:  # noqa: PERF203
            size //= 2
    cuda = ctypes.CDLL("libcuda.so.1")
    more = []
    pointer = ctypes.c_uint64()
    while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 16)) == 0 and len(more) < 100_000:
        more.append(pointer.value)
    try:
        ops.rms_norm(x, weight, 1e-6)
        torch.cuda.synchronize()
        said = "served: the driver had kept room"
    except RuntimeError as error:
        said = " / ".join(str(error).splitlines()[:2])
    for address in more:
        assert cuda.cuMemFree_v2(ctypes.c_uint64(address)) == 0
    held.clear()
    torch.cuda.empty_cache()
    norm()
    return {"said": said, "blocks": len(more)}


@attack("memory-full-inside-a-build")
def build_memory() -> Facts:
    import torch

    torch.zeros(1, device="cuda")
    os.environ["PRECAST_JIT"] = "jit"
    os.environ["PRECAST_CACHE_DIR"] = tempfile.mkdtemp(prefix="precast-attack-")
    from precast._builder import nvrtc_child

    before = resource.getrlimit(resource.RLIMIT_DATA)
    compile_ = nvrtc_child.Isolated.compile

    def starved(self: Any, *args: Any, **more: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_DATA, (24 << 20, before[1]))
        try:
            return compile_(self, *args, **more)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)

    nvrtc_child.Isolated.compile = starved  # type: ignore[method-assign]
    said = refused()
    nvrtc_child.Isolated.compile = compile_  # type: ignore[method-assign]
    norm()
    return {"said": said}


def child_of(action: Callable[[], object]) -> str:
    """What a forked child says of an action; it must end within 30 seconds, and by itself."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, refused(action).encode())
        except AssertionError as error:
            os.write(writing, f"AssertionError: {error}".encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], 30)
    said = os.read(reading, 4096).decode() if ready else ""
    if not ready:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ready and status == 0, f"the forked child hung, or ended with {status}"
    return said


@attack("fork-with-a-live-context")
def fork_live() -> Facts:
    import torch

    from precast import ops

    norm()
    x, weight = torch.randn(64, 1024, device="cuda"), torch.randn(1024, device="cuda")
    said = child_of(lambda: ops.rms_norm(x, weight, 1e-6))
    norm()
    return {"said": said}


@attack("fork-with-a-live-context-before-the-first-call")
def fork_cold() -> Facts:
    import torch

    from precast import ops

    x, weight = torch.randn(64, 1024, device="cuda"), torch.randn(1024, device="cuda")
    said = child_of(lambda: ops.rms_norm(x, weight, 1e-6))
    norm()
    return {"said": said}


@attack("fork-while-a-thread-loads")
def fork_loading() -> Facts:
    import torch

    from precast import ops

    os.environ["CUDA_CACHE_DISABLE"] = "1"
    x, weight = torch.randn(64, 1024, device="cuda"), torch.randn(1024, device="cuda")
    thread = threading.Thread(target=norm)
    thread.start()
    said = []
    for _ in range(5):
        time.sleep(0.02)
        said.append(child_of(lambda: ops.rms_norm(x, weight, 1e-6)))
    thread.join()
    norm()
    return {"said": sorted(set(said))}


@attack("after-an-error-that-stays")
def sticky() -> Facts:
    import torch

    from precast import ops

    norm()
    x, weight = torch.randn(64, 1024, device="cuda"), torch.randn(1024, device="cuda")
    first = refused(lambda: (x[torch.tensor([10**9], device="cuda")], torch.cuda.synchronize()))
    said = refused(lambda: (ops.rms_norm(x, weight, 1e-6), torch.cuda.synchronize()))
    return {"first": first, "said": said}


def serve(names: list[str]) -> int:
    """Runs the attacks, a few at once, each in a fork of this process; prints one JSON line for each."""
    import torch

    import precast.ops

    assert not torch.cuda.is_initialized() and precast.ops is not None
    running: dict[int, tuple[str, int, float]] = {}
    todo = list(names)
    failed = 0
    while todo or running:
        while todo and len(running) < AT_ONCE and not any(alone(name) for name, _, _ in running.values()):
            if running and alone(todo[0]):
                break
            name = todo.pop(0)
            reading, writing = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                one(name, writing)
            os.close(writing)
            running[pid] = name, reading, time.monotonic()
        for pid, (name, reading, started) in list(running.items()):
            late = time.monotonic() - started > SECONDS
            if late:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if not done:
                continue
            with os.fdopen(reading) as pipe:
                facts = json.loads(pipe.read() or "{}")
            code = os.waitstatus_to_exitcode(status)
            wrong = facts.pop("wrong", None)
            if code == -signal.SIGSEGV and name.startswith("garbage-in-cubin"):
                facts = {"said": "the driver ended the process (SIGSEGV)"}
            elif code:
                wrong = f"no end within {SECONDS} s" if late else f"ended with {code}"
            failed += wrong is not None
            seconds = round(time.monotonic() - started, 1)
            print(json.dumps({"attack": name, "wrong": wrong, "seconds": seconds, **facts}), flush=True)
            del running[pid]
        time.sleep(0.02)
    return failed


def alone(name: str) -> bool:
    """What takes all of the GPU's memory is tried by itself."""
    return name.startswith("gpu-memory")


def one(name: str, out: int) -> None:
    """An attack in the forked process; does not return."""
    try:
        facts = ATTACKS[name]()
    except BaseException as error:  # noqa: BLE001  # whatever it is, the parent reports it
        facts = {"wrong": f"{type(error).__name__}: {str(error)[:500]}"}
    with os.fdopen(out, "w") as pipe:
        pipe.write(json.dumps(facts))
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the attacks; by default all")
    parser.add_argument("--json", type=Path, help="write what was seen to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.names or list(ATTACKS)
    if options.serve:
        return min(serve(names), 100)
    with tempfile.TemporaryDirectory(prefix="precast-attacks-") as folder:
        site = Path(folder, "site")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site)]
        subprocess.run([*pip, str(options.wheel.resolve())], check=True)
        env = os.environ | {"PYTHONPATH": str(site), "PRECAST_CACHE_DIR": str(Path(folder, "cache"))}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(options.wheel), *names]
        done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        print(f"{'FAIL' if row['wrong'] else 'ok  '} {json.dumps(row)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    failed = sum(row["wrong"] is not None for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed, {len(names) - len(rows)} without a word")
    return 0 if not failed and len(rows) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
