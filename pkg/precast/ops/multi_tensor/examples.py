"""Example calls of the ops over lists."""

from __future__ import annotations

from precast.ops._folders import Examples

EXAMPLES: Examples = {
    "multi_tensor_l2norm": lambda some: ([some(33), some(5, 7)],),
    "multi_tensor_axpby_": lambda some: ([some(33)], [some(33)], [some(33)], 0.5, -2.0, some(1), some(1)),
    # The ops of a plan work only together.
    "multi_tensor_plan": None,
    "multi_tensor_step_": None,
    "multi_tensor_forget": None,
}
