"""Example calls of the ops over lists."""

from __future__ import annotations

from precast.ops._folders import Examples
from precast.ops._updates import ADAM, DECOUPLED

EXAMPLES: Examples = {
    "multi_tensor_l2norm": lambda some: ([some(33), some(5, 7)],),
    "multi_tensor_axpby_": lambda some: ([some(33)], [some(33)], [some(33)], 0.5, -2.0, some(1), some(1)),
    "multi_tensor_update_": lambda some: (
        *([some(33), some(5, 7)], [some(33), some(5, 7)], [some(33), some(5, 7)]),
        *([some(33).square(), some(5, 7).square()], [], [some(33).half(), some(5, 7).half()]),
        *(None, some(1).abs(), 3.0, 0.5, 0.1, 0.9, 0.99, 1e-6, 0.1, 0.0, ADAM, DECOUPLED),
    ),
    # The ops of a plan work only together.
    "multi_tensor_plan": None,
    "multi_tensor_step_": None,
    "multi_tensor_forget": None,
}
