"""A Python without its global lock: imports leave it off, and threads that start cold make one build and no mistake.

FREE_THREADED_PYTHON names the interpreter, which has torch and ninja; `make free-threaded` makes one.
"""

from __future__ import annotations

import dataclasses
import os

import pytest

from tests.load.conftest import Site

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.freethreaded]

# Every thread calls an op at once, each on tensors of its own, and again when all is loaded.
THREADS = """
import sys, threading, torch
import precast
from precast._builder import cache
builds, publish = [], cache.Cache.publish
cache.Cache.publish = lambda *args: (builds.append(1), publish(*args))[1]
start, done, wrong = threading.Barrier(32), [], []
rates = dict(lr=0.5, beta1=0.9, beta2=0.999, eps=0.0, weight_decay=0.0)
def work():
    start.wait()
    try:
        for _ in range(20):
            param, grad, first, second = torch.ones(1000), torch.ones(1000), torch.zeros(1000), torch.zeros(1000)
            precast.ops.adam_([param], [grad], [first], [second], **rates, bias_correction1=0.1, bias_correction2=0.001)
            torch.testing.assert_close(param, torch.full((1000,), 0.5))
            torch.testing.assert_close(first, torch.full((1000,), 0.1))
        done.append(precast.load("adam_").host.kind)
    except BaseException as error:
        wrong.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(32)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong[0]
print(len(builds), len(done), *sorted(set(done)), sys._is_gil_enabled())
"""


def free_threaded(site: Site) -> Site:
    """The same installation, seen by the other interpreter."""
    return dataclasses.replace(site, python=os.environ["FREE_THREADED_PYTHON"])


def test_imports_leave_the_global_lock_off(bare: Site) -> None:
    modules = "torch, precast, precast.ops, precast.nn, precast.optim, precast.kernel_loader, precast.base_extension"
    assert free_threaded(bare).ok(f"import sys, {modules}\nprint(sys._is_gil_enabled())") == "False\n"


def test_thirty_two_cold_threads_build_once_and_compute_right(cold: Site) -> None:
    assert free_threaded(cold).ok(THREADS) == "1 32 jit False\n"


def test_thirty_two_cold_threads_use_the_prebuilt_library(wheel: Site) -> None:
    assert free_threaded(wheel).ok(THREADS, env={"PRECAST_JIT": "aot"}) == "0 32 prebuilt False\n"
