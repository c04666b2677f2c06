"""Small tensors stay on the calling thread: entering a region of torch's pool costs more than they do."""

from __future__ import annotations

import json

import pytest

from tests.kit import spawn

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CODE = """
import json, os
import torch
from precast import ops

torch.set_num_threads(4)

def threads():
    return len(os.listdir("/proc/self/task"))

def calls(rows, columns):
    x, weight = torch.ones(rows, columns, requires_grad=True), torch.ones(columns, requires_grad=True)
    for y in (
        ops.scaled_softmax(x, 1.0),
        ops.layer_norm(x, weight, weight),
        ops.rms_norm(x, weight),
        ops.silu_and_mul(x),
        ops.bias_act(x, act="lrelu"),
        ops.filter2d(x[None, None], torch.ones(1, 3)),
    ):
        y.backward(torch.ones_like(y))

calls(1, 64)
before = threads()
calls(1, 4096)
calls(40, 100)
small = threads()
calls(512, 2048)
print(json.dumps([before, small, threads()]))
"""


def test_a_row_of_4096_wakes_no_pool() -> None:
    before, small, large = json.loads(spawn.python("-c", CODE).stdout.splitlines()[-1])
    assert small == before
    assert large > small  # the pool starts its threads in its first region
