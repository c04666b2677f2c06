"""The launch protocol against a driver of our own: contexts, loading, refusals, and what each message says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit import spawn

pytestmark = pytest.mark.compiler

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"

# What a child process begins with: `c` is the probe, `cuda` the driver, and a scenario ends by printing `out`.
PRELUDE = """
import ctypes, json, sys, threading
folder = sys.argv[1]
cuda = ctypes.CDLL(f"{folder}/libcuda.so.1") if "no driver" not in sys.argv else None
torch_cuda = ctypes.CDLL(f"{folder}/libtorch_cuda.so") if "no torch" not in sys.argv else None
c = ctypes.CDLL(f"{folder}/probe.so")
c.precast_families.restype = ctypes.c_char_p
err = ctypes.create_string_buffer(4096)
size = ctypes.c_size_t(4096)
def call(name, *args):
    "None, or the text of the failure."
    args = [a.encode() if isinstance(a, str) else a for a in args]
    return getattr(c, name)(*args, err, size) and err.value.decode()
def image(device, target="sm_90", cc=(9, 0), data=b"code", family="probe"):
    return call("precast_set_image", family, device, data, ctypes.c_size_t(len(data)), target, *cc)
def launch(device=0, entry=0, early=0):
    return call("probe_launch", device, entry, early)
def record():
    cuda.fake_record.restype = ctypes.c_char_p
    return cuda.fake_record().decode().split()
def setting(name, value):
    cuda.fake_set(name.encode(), value)
out = {}
"""


def build(work: Path) -> Path:
    """The driver, and the launch protocol as it is shipped, in a folder."""
    options = ("-std=c++17", "-O1", "-fvisibility=hidden", f"-I{CSRC}")
    for soname in ("libcuda.so.1", "libtorch_cuda.so"):
        spawn.library(work / soname, HERE / "fake_driver.cpp", *options, f"-Wl,-soname,{soname}")
    shipped = [CSRC / name for name in ("host/api.cpp", "gpu/driver.cpp", "gpu/launch.cpp")]
    spawn.library(work / "probe.so", HERE / "launch_probe.cpp", *shipped, *options)
    return work


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("launch"))


def scenario(folder: Path, code: str, *arguments: str) -> Any:
    """Runs code in a process of its own, as nothing that was loaded is ever unloaded; returns what it left in `out`."""
    return json.loads(spawn.python("-c", f"{PRELUDE}{code}\nprint(json.dumps(out))", folder, *arguments).stdout)


def test_the_first_launch_loads_and_later_ones_do_not(folder: Path) -> None:
    out = scenario(folder, "image(0)\nout['errors'] = [launch(), launch(0, 1)]\nout['record'] = record()")
    assert out["errors"] == [0, 0]
    # Nothing is current: the primary context (100) is made so and taken away again, once to load, then per launch.
    once = "set_current(100) launch(2100) in(100) stream(40) set_current(0)"
    assert out["record"] == f"retain(0) set_current(100) library(4) set_current(0) {once} {once}".split()


@pytest.mark.parametrize(
    ("target", "cc", "version", "starts_early"),
    [
        ("sm_90", (9, 0), 13000, True),
        ("compute_90", (9, 0), 12030, True),
        ("sm_90", (9, 0), 12020, False),  # the driver could not capture such a launch
        ("compute_80", (9, 0), 13000, False),  # code for older GPUs does not wait
    ],
)
def test_a_launch_starts_early_only_where_the_device_code_waits(
    folder: Path, target: str, cc: tuple[int, int], version: int, starts_early: bool
) -> None:
    code = f"setting('version', {version})\nimage(0, {target!r}, {cc!r})\nlaunch(0, 0)\nrecord()\n"
    for cluster, attribute in ((1, ""), (2, "attribute(4) value(2) ")):  # blocks in a cluster
        out = scenario(folder, code + f"out['error'] = launch(0, 0, {cluster})\nout['record'] = record()")
        assert out["error"] == 0
        told = f"attribute(6) value(1) {attribute}blocks(8) threads(128) shared(16) " if starts_early else ""
        once = f"set_current(100) launch(2100) in(100) stream(40) {told}set_current(0)"
        assert out["record"] == once.split()


def test_a_cluster_need_not_start_early(folder: Path) -> None:
    out = scenario(folder, "image(0)\nlaunch(0, 0)\nrecord()\nlaunch(0, 0, -4)\nout['record'] = record()")
    told = "attribute(4) value(4) blocks(8) threads(128) shared(16)"
    assert out["record"] == f"set_current(100) launch(2100) in(100) stream(40) {told} set_current(0)".split()


def test_the_driver_is_asked_once_how_many_clusters_are_resident(folder: Path) -> None:
    code = "image(0)\nlaunch(0, 0)\nrecord()\n"
    code += "out['found'] = [c.probe_resident(0, n) for n in (1, 1, 8, 8, 1, 16, 16)]\nout['record'] = record()"
    out = scenario(folder, code)
    assert out["found"] == [16] * 7
    asked = [word for word in out["record"] if word.startswith("occupancy")]
    assert asked == ["occupancy(1)", "occupancy(8)", "occupancy(16)"]


def test_more_than_eight_blocks_in_a_cluster_where_they_were_tried(folder: Path) -> None:
    """On a GPU of another generation the driver is not asked; where it refuses, there are none, and no error."""
    ask = "out['found'] = [c.probe_resident(0, n) for n in (16, 8)]\nout['record'] = record()"
    other = scenario(folder, f"setting('capability0', 100)\nimage(0, 'sm_100', (10, 0))\n{ask}")
    assert other["found"] == [0, 16]
    assert "occupancy(16)" not in other["record"]
    part = scenario(folder, f"setting('occupancy_result', 912)\nimage(0)\n{ask}")
    assert part["found"] == [0, -1], "a refusal of eight is an error: every GPU with clusters has those"


def test_prepare_leaves_nothing_to_load(folder: Path) -> None:
    code = "image(1, 'sm_80', (8, 0))\nout['error'] = call('precast_prepare', 'probe', 1)\nrecord()\nlaunch(1)\n"
    out = scenario(folder, code + "out['record'] = record()")
    assert out["error"] == 0
    assert out["record"] == ["set_current(101)", "launch(2101)", "in(101)", "stream(41)", "set_current(0)"]


@pytest.mark.parametrize(
    ("current", "record"),
    [
        (100, "launch(2100) in(100) stream(40)"),  # the primary context: nothing to do
        (101, "set_current(100) launch(2100) in(100) stream(40) set_current(101)"),  # another device's: put back
        (200, "launch(1100) in(200) stream(40)"),  # another one of this device: kept, and the kernel of no context
    ],
)
def test_the_context_that_is_current(folder: Path, current: int, record: str) -> None:
    code = f"image(0)\nlaunch()\nrecord()\ncuda.fake_context(ctypes.c_longlong({current}))\n"
    out = scenario(
        folder, f"{code}out['error'] = launch()\nout['record'] = record()\nout['after'] = cuda.fake_current()"
    )
    assert out == {"error": 0, "record": record.split(), "after": current}


def test_a_fresh_thread_has_no_context(folder: Path) -> None:
    code = "image(0)\ncuda.fake_context(ctypes.c_longlong(100))\nlaunch()\nrecord()\n"
    code += (
        "t = threading.Thread(target=lambda: out.update(error=launch()))\nt.start(); t.join()\nout['record'] = record()"
    )
    out = scenario(folder, code)
    assert out["error"] == 0
    assert out["record"] == ["set_current(100)", "launch(2100)", "in(100)", "stream(40)", "set_current(0)"]


def test_many_threads_load_once(folder: Path) -> None:
    code = "image(0)\nerrors = []\nstart = threading.Barrier(16)\n"
    code += "def work():\n    e = ctypes.create_string_buffer(4096)\n    start.wait()\n"
    code += "    errors.append(c.probe_launch(0, 0, e, ctypes.c_size_t(4096)))\n"
    code += "ts = [threading.Thread(target=work) for _ in range(16)]\n[t.start() for t in ts]; [t.join() for t in ts]\n"
    out = scenario(folder, code + "out['errors'] = errors\nout['record'] = record()")
    assert out["errors"] == [0] * 16
    assert out["record"].count("library(4)") == 1


def test_devices_with_the_same_image_share_it(folder: Path) -> None:
    code = "setting('capability1', 90)\nimage(0)\nimage(1)\nlaunch(0)\nlaunch(1)\nout['record'] = record()"
    assert scenario(folder, code)["record"].count("library(4)") == 1
    code = "image(0)\nimage(1, 'sm_80', (8, 0), b'other code')\nlaunch(0)\nlaunch(1)\nout['record'] = record()"
    record = scenario(folder, code)["record"]
    assert (record.count("library(4)"), record.count("library(10)")) == (1, 1)


def test_ptx_ends_in_a_nul(folder: Path) -> None:
    code = "image(0, 'compute_80', data=b'ptx text')\nout['error'] = launch()\nout['record'] = record()"
    out = scenario(folder, code)
    assert out["error"] == 0
    assert "library(8)" in out["record"]  # strlen saw its 8 bytes and no more


def test_eager_loading_makes_a_module_of_each_context(folder: Path) -> None:
    code = "setting('loading_mode', 1)\nimage(0)\nimage(1, 'sm_80', (8, 0))\nlaunch(0)\nlaunch(1)\n"
    code += "out['record'] = record()"
    record = scenario(folder, code)["record"]
    assert "module(100)" in record
    assert "module(101)" in record
    assert not any(entry.startswith("library") for entry in record)
    assert "launch(3100)" in record


MESSAGES = {
    "no image": ("out = launch()", 'probe has no device code for cuda:0; call precast.load("probe", "cuda:0")'),
    "refused": (
        "image(0)\nc.precast_refuse(b'probe', 0, b'V100 under +cu130: use +cu129, 100% sure')\nout = launch()",
        "V100 under +cu130: use +cu129, 100% sure",
    ),
    "other device": (
        "image(0, 'sm_80', (8, 0))\nout = launch()",
        "the loader took cuda:0 for compute capability 8.0, the driver says 9.0; the order of the devices differs",
    ),
    "other minor": (
        "setting('capability0', 86)\nimage(0, 'sm_80', (8, 0))\nout = launch()",
        "the loader took cuda:0 for compute capability 8.0, the driver says 8.6; the order of the devices differs",
    ),
    "wrong target": (
        "image(0, 'sm_80', (9, 0))\nout = launch()",
        "the device code for cuda:0 is for sm_80 and does not run on compute capability 9.0",
    ),
    "capture": (
        "setting('version', 12020)\nsetting('capturing', 1)\nimage(0)\nout = launch()",
        'while a graph is captured; call precast.load("probe", "cuda:0") before the capture',
    ),
    "missing entry": (
        "setting('missing_kernel', 1)\nimage(0)\nout = launch()",
        "probe on cuda:0: probe_any failed: CUDA_ERROR_NOT_FOUND (the driver's words)",
    ),
    "no entry": ("image(0)\nout = launch(0, -1)", "probe on cuda:0: found entry point -1; needed 0 to 1. The op chose"),
    "entry behind the last": ("image(0)\nout = launch(0, 2)", "probe on cuda:0: found entry point 2; needed 0 to 1"),
    "launch": (
        "setting('launch_result', 700)\nimage(0)\nout = launch()",
        "probe on cuda:0: probe_v4 failed: CUDA_ERROR_ILLEGAL_ADDRESS (the driver's words)",
    ),
    "device 64": ("out = image(64)", "there is no cuda:64; at most 64 devices are served"),
    "bad target": ("out = image(0, 'sm_9x')", "'sm_9x' is not a GPU target such as sm_90"),
    "empty": ("out = image(0, data=b'')", "the device code for cuda:0 is empty"),
    "replaced": (
        "image(0)\nlaunch()\nout = image(0, data=b'other')",
        "probe is already running on cuda:0 with other device code, which cannot be replaced",
    ),
    "no family": (
        "out = image(0, family='softmax')",
        "this library has no kernel family 'softmax'; it has: ",
    ),
    "no device code": ("out = image(0, family='no_device_code')", "kernel family 'no_device_code' has no device code"),
    "no key": (
        "out = call('precast_register', 'probe', 'CUDA')",
        "kernel family 'probe' has no implementation for 'CUDA'",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(folder: Path, name: str) -> None:
    code, message = MESSAGES[name]
    assert message in scenario(folder, code)


def test_a_refusal_ends_with_a_new_image(folder: Path) -> None:
    code = "c.precast_refuse(b'probe', 0, b'no')\nout['first'] = launch()\nimage(0)\nout['second'] = launch()"
    assert scenario(folder, code) == {"first": "no", "second": 0}


def test_capture_is_no_obstacle_to_a_newer_driver_or_a_loaded_kernel(folder: Path) -> None:
    assert scenario(folder, "setting('capturing', 1)\nimage(0)\nout = launch()") == 0
    oldest = "setting('version', 12030)\nsetting('capturing', 1)\nimage(0)\nout = launch()"
    assert scenario(folder, oldest) == 0  # the first driver that may load code then
    code = "setting('version', 12000)\nimage(0)\ncall('precast_prepare', 'probe', 0)\nsetting('capturing', 1)\n"
    assert scenario(folder, code + "out = launch()") == 0


@pytest.mark.parametrize(
    ("setting", "result", "words"),
    [
        ("context_result", 3, "start it with spawn, not with fork"),
        ("init_result", 3, "start it with spawn, not with fork"),
        ("load_result", 2, "free memory of the GPU, then call again"),
        ("load_result", 200, "the driver refuses the device code: install precast again"),
        ("launch_result", 709, "another library has destroyed or reset the CUDA context"),
    ],
)
def test_an_error_of_the_driver_says_what_to_do_and_is_over_when_the_driver_is_well(
    folder: Path, setting: str, result: int, words: str
) -> None:
    code = f"setting({setting!r}, {result})\nimage(0)\nout['first'] = launch()\nout['second'] = launch()\n"
    out = scenario(folder, code + f"setting({setting!r}, 0)\nout['third'] = launch()")
    assert words in out["first"] and out["first"] == out["second"] and out["third"] == 0


def test_a_child_that_is_forked_while_a_thread_loads_does_not_wait_for_that_thread(folder: Path) -> None:
    code = "import os, time\nimage(0)\nsetting('load_seconds', 3)\nt = threading.Thread(target=launch)\nt.start()\n"
    code += "time.sleep(0.5)\nchild = os.fork()\nif child == 0:\n    import faulthandler\n"
    code += "    faulthandler.dump_traceback_later(30, exit=True)\n    setting('load_seconds', 0)\n"
    code += "    os._exit(7 if launch() == 0 else 8)\n"
    out = scenario(folder, code + "out['child'] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\nt.join()")
    assert out["child"] == 7


def test_without_a_driver_or_torchs_cuda(folder: Path) -> None:
    message = scenario(folder, "image(0)\nout = launch()", "no driver")
    assert "no CUDA driver: libcuda.so.1 cannot be opened" in message
    message = scenario(folder, "image(0)\nout = launch()", "no torch")
    assert "this process has not loaded libtorch_cuda.so: the running torch has no CUDA" in message


TARGETS = [
    ("sm_90", 90, True),
    ("sm_80", 86, True),
    ("sm_86", 80, False),
    ("sm_90a", 90, True),
    ("sm_100a", 103, False),
    ("sm_100f", 103, True),
    ("sm_100f", 120, False),
    ("sm_80", 87, False),
    ("sm_87", 87, True),
    ("sm_120", 121, True),
    ("compute_80", 121, True),
    ("compute_90", 89, False),
    ("compute_90a", 100, False),
    # Integrated GPUs run their own machine code alone, and nothing else runs theirs.
    ("sm_72", 72, True),
    ("sm_70", 72, False),
    ("sm_72", 75, False),
    ("compute_70", 72, True),
    ("sm_87", 89, False),
    ("sm_101", 101, True),
    ("sm_100", 101, False),
    ("sm_100f", 101, False),
    ("sm_101", 103, False),
    ("sm_110", 110, True),
    ("sm_110", 111, False),
    ("compute_110", 110, True),
    ("compute_110", 120, True),
]


@pytest.mark.parametrize(("target", "device", "fits"), TARGETS)
def test_targets(folder: Path, target: str, device: int, fits: bool) -> None:
    code = f"setting('capability0', {device})\nimage(0, '{target}', {divmod(device, 10)})\nout = launch()"
    assert (scenario(folder, code) == 0) is fits


def test_attributes_and_names(folder: Path) -> None:
    code = "image(0)\nvalue = ctypes.c_int()\nattribute = ctypes.byref(value)\n"
    code += "out['error'] = call('precast_kernel_attribute', 'probe', 0, 'probe_any', 6, attribute)\n"
    code += "out['binary'] = value.value\nout['families'] = c.precast_families().decode()\n"
    code += "out['status'] = c.precast_entries(b'probe', err, size)\nout['entries'] = err.value.decode()\n"
    code += "out['short'] = c.precast_entries(b'probe', err, ctypes.c_size_t(9))\n"
    code += "room = ctypes.create_string_buffer(b'#' * 32)\n"
    code += "out['just'] = [c.precast_entries(b'probe', room, ctypes.c_size_t(n)) for n in (16, 17, 18, 19)]\n"
    code += "out['behind'] = room.raw[19:].decode()\n"
    code += "out['wrong'] = call('precast_kernel_attribute', 'probe', 0, 'x', 6, ctypes.byref(value))"
    out = scenario(folder, code)
    assert out["error"] == out["status"] == 0
    assert out["binary"] == 90
    assert sorted(out["families"].split()) == ["no_device_code", "probe"]
    assert out["entries"] == "probe_v4 probe_any"
    assert out["short"] == 1
    assert out["just"] == [1, 1, 1, 0] and out["behind"] == "#" * 13 + "\0"
    assert out["wrong"] == "precast: kernel family 'probe' has no entry point 'x'"


def test_a_family_is_registered_once_for_each_key(folder: Path) -> None:
    code = "both = ('CPU', 'CPU', 'CUDA', 'CUDA', 'CPU')\n"
    code += "out['errors'] = [call('precast_register', 'no_device_code', key) for key in both]\n"
    code += "out['times'] = [c.probe_registrations(cuda) for cuda in (0, 1)]"
    assert scenario(folder, code) == {"errors": [0] * 5, "times": [1, 1]}


@pytest.mark.parametrize(("has", "given"), [(232448, 131072), (101376, 101376 - 2048)])
def test_a_kernel_is_given_the_shared_memory_it_asks_for_as_far_as_the_device_has_it(
    folder: Path, has: int, given: int
) -> None:
    """2 KB of what a block may have are for what kernels declare themselves."""
    code = f"setting('shared', {has})\nimage(0)\nout = [launch(0, 1), cuda.fake_shared_limit()]"
    assert scenario(folder, code) == [0, given]
