"""What the functions over lists must do, in float64; for the kernels, the twins and plain torch alike.

Each step is compared with what its formula makes of the tensors as they were before the step, so that states of a
narrow dtype are rounded only once in between.
"""

from __future__ import annotations

from typing import Any

import torch

SHAPES = [(3,), (512,), (515,), (), (0,), (40, 31), (1024,), (2, 3, 5)]
LOW = {"float32": (torch.float32, torch.float32), "float16": (torch.float16, torch.float16)}
LOW |= {"float16 gradients": (torch.float32, torch.float16), "bfloat16": (torch.bfloat16, torch.bfloat16)}
LR, BETA1, BETA2, EPS = 0.05, 0.8, 0.95, 1e-3


def made(dtype: Any, seed: int, device: str = "cpu", shapes: Any = SHAPES) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def flag(device: str = "cpu", value: int = 0) -> Any:
    return torch.full((1,), value, dtype=torch.int32, device=device)


def near(found: Any, exact: Any) -> None:
    """Of what was added up: 4e-6 for float32, and two roundings of a narrow dtype."""
    for one, other in zip(found, exact, strict=True):
        share = 4e-6 + (0 if one.dtype == torch.float32 else 2 * torch.finfo(one.dtype).eps)
        torch.testing.assert_close(one.double(), other, rtol=share, atol=share)


def wide(lists: Any) -> Any:
    return [[tensor.double() for tensor in tensors] for tensors in lists]


def check_adam(module: Any, dtypes: str, mode: int, correct: int, scale: float, device: str = "cpu") -> None:
    own, of_grads = LOW[dtypes]
    params, firsts, seconds = made(own, 1, device), made(own, 2, device), [t.abs() for t in made(own, 3, device)]
    for step in (1, 2, 5):
        grads = made(of_grads, 10 + step, device)
        before = [grad.clone() for grad in grads]
        g, p, m, v = wide([grads, params, firsts, seconds])
        numbers = (LR, BETA1, BETA2, EPS, step, mode, correct, 0.1)
        module.multi_tensor_adam(65536, flag(device, 1), [grads, params, firsts, seconds], *numbers, scale)
        c1, c2 = (1 - BETA1**step, 1 - BETA2**step) if correct else (1.0, 1.0)
        for i in range(len(p)):
            g[i] = g[i] / (scale if scale > 0 else 1) + (0 if mode else 0.1) * p[i]
            m[i] = BETA1 * m[i] + (1 - BETA1) * g[i]
            v[i] = BETA2 * v[i] + (1 - BETA2) * g[i] ** 2
            p[i] = p[i] - LR * (m[i] / c1 / ((v[i] / c2).sqrt() + EPS) + (0.1 if mode else 0) * p[i])
        near(params + firsts + seconds, p + m + v)
        assert all(map(torch.equal, grads, before))


def check_sgd(module: Any, dtypes: str, momentum: float, options: dict[str, Any], device: str = "cpu") -> None:
    own, of_grads = LOW[dtypes]
    params, firsts = made(own, 1, device), made(own, 2, device)
    kept = [t.clone() for t in firsts]
    copies = made(torch.float16, 3, device) if own == torch.float32 else None
    dampening, nesterov = options.get("dampening", 0.0), options.get("nesterov", False)
    after, scale = options.get("after", False), options.get("scale", 1.0)
    for step in (1, 2, 3):
        grads = made(of_grads, 10 + step, device)
        g, p, m = wide([grads, params, firsts])
        lists = [grads, params, firsts, *([copies] if copies else [])]
        numbers = (0.1, momentum, dampening, LR, nesterov, step == 1, after, scale)
        module.multi_tensor_sgd(65536, flag(device), lists, *numbers)
        for i in range(len(p)):
            g[i] = g[i] * scale + (0 if after else 0.1) * p[i]
            if momentum:
                m[i] = g[i] if step == 1 else momentum * m[i] + (1 - dampening) * g[i]
                g[i] = g[i] + momentum * m[i] if nesterov else m[i]
            p[i] = p[i] - LR * (g[i] + (0.1 if after else 0) * p[i])
        near(params + firsts, p + m)
        assert not copies or all(torch.equal(c, t.half()) for c, t in zip(copies, params, strict=True))
    if not momentum:
        assert all(map(torch.equal, firsts, kept))
    before = [t.clone() for t in params]
    module.multi_tensor_sgd(65536, flag(device, 1), [grads, params, firsts], *numbers)
    assert all(map(torch.equal, params, before))  # the flag says that the gradients overflowed


def check_lamb(
    module: Any, dtypes: str, mode: int, options: dict[str, Any], device: str = "cpu", decay: float = 0.1
) -> None:
    own, of_grads = LOW[dtypes]
    params, firsts, seconds = made(own, 1, device), made(own, 2, device), [t.abs() for t in made(own, 3, device)]
    correct, averaging = options.get("correct", 1), options.get("averaging", 1)
    limit, always = options.get("limit", 1.0), options.get("always", False)
    for step in (1, 2):
        grads = made(of_grads, 10 + step, device)
        before = [grad.clone() for grad in grads]
        g, p, m, v = wide([grads, params, firsts, seconds])
        norm, _ = module.multi_tensor_l2norm(65536, flag(device), [grads], False)
        numbers = (LR, BETA1, BETA2, EPS, step, correct, decay, averaging, mode, norm, limit)
        module.multi_tensor_lamb(65536, flag(device), [grads, params, firsts, seconds], *numbers, always)
        share = max(1.0, float(torch.stack([t.square().sum() for t in g]).sum().sqrt()) / limit)
        c1, c2 = (1 - BETA1**step, 1 - BETA2**step) if correct else (1.0, 1.0)
        for i in range(len(p)):
            g[i] = g[i] / share + (0 if mode else decay) * p[i]
            m[i] = BETA1 * m[i] + ((1 - BETA1) if averaging else 1) * g[i]
            v[i] = BETA2 * v[i] + (1 - BETA2) * g[i] ** 2
            along = m[i] / c1 / ((v[i] / c2).sqrt() + EPS) + (decay if mode else 0) * p[i]
            size, length = float(p[i].norm()), float(along.norm())
            adapts = (decay or always) and size > 0 and length > 0
            p[i] = p[i] - LR * (size / length if adapts else 1) * along
        near(params + firsts + seconds, p + m + v)
        assert all(map(torch.equal, grads, before))


def check_sums(module: Any, device: str = "cpu") -> None:
    """``multi_tensor_scale`` and ``multi_tensor_l2norm``, and what they do to the flag."""
    xs = made(torch.float32, 1, device) + made(torch.float16, 2, device)
    outs = made(torch.float16, 3, device) + made(torch.float32, 4, device)
    found = flag(device)
    module.multi_tensor_scale(65536, found, [xs, outs], 0.5)
    near(outs, [0.5 * x.double() for x in xs])
    each = torch.stack([x.double().norm() for x in xs])
    for wanted in (True, False, None):
        total, norms = module.multi_tensor_l2norm(65536, found, [xs], wanted)
        assert total.shape == (1,) and norms.shape == ((len(xs),) if wanted else (0,))
        near([total], [each.norm().reshape(1)])
        near([norms], [each if wanted else each[:0]])
    assert found.tolist() == [0]
    for bad in (float("inf"), float("nan")):
        xs[1][5] = bad
        for name, arguments in (("scale", ([xs, outs], 0.5)), ("l2norm", ([xs],))):
            found.zero_()
            getattr(module, f"multi_tensor_{name}")(65536, found, *arguments)
            assert found.tolist() == [1]


def check_more_sums(module: Any, device: str = "cpu") -> None:
    """``multi_tensor_axpby`` and the two other norms, and which list sets the flag."""
    xs = made(torch.float32, 1, device) + made(torch.float16, 2, device)
    ys = made(torch.float16, 3, device) + made(torch.float32, 4, device)
    outs = made(torch.float32, 5, device) + made(torch.bfloat16, 6, device)
    found = flag(device)
    for checked in (-1, 0, 1):
        module.multi_tensor_axpby(65536, found, [xs, ys, outs], 0.5, -2.0, checked)
        near(outs, [0.5 * x.double() - 2.0 * y.double() for x, y in zip(xs, ys, strict=True)])
    total, norms = module.multi_tensor_l2norm_scale(65536, found, [xs, outs], 0.25, True)
    near(outs, [0.25 * x.double() for x in xs])
    near([norms], [torch.stack([x.double().norm() for x in xs])])
    assert torch.equal(total, module.multi_tensor_l2norm_mp(65536, found, [xs], False)[0])
    assert found.tolist() == [0]
    for bad, seen in ((xs, (-1, 0)), (ys, (-1, 1))):
        kept = bad[1][5].clone()
        bad[1][5] = float("nan")
        for checked in (-1, 0, 1):
            found.zero_()
            module.multi_tensor_axpby(65536, found, [xs, ys, outs], 0.5, -2.0, checked)
            assert found.tolist() == [int(checked in seen)]
        bad[1][5] = kept


def check_adagrad(module: Any, dtypes: str, mode: int, device: str = "cpu") -> None:
    own, of_grads = LOW[dtypes]
    params, sums = made(own, 1, device), [t.abs() for t in made(own, 2, device)]
    for step in (1, 2):
        grads = made(of_grads, 10 + step, device)
        g, p, h = wide([grads, params, sums])
        module.multi_tensor_adagrad(65536, flag(device), [grads, params, sums], LR, EPS, mode, 0.1)
        for i in range(len(p)):
            g[i] = g[i] + (0 if mode else 0.1) * p[i]
            h[i] = h[i] + g[i] ** 2
            p[i] = p[i] - LR * (g[i] / (h[i].sqrt() + EPS) + (0.1 if mode else 0) * p[i])
        near(params + sums, p + h)


ADAM = [(mode, correct, scale) for mode in (0, 1) for correct in (0, 1) for scale in (-1.0, 8.0)]
SGD: list[tuple[float, dict[str, Any]]] = [
    (0.0, {}),
    (0.0, {"after": True, "scale": 0.25}),
    (0.9, {}),
    (0.9, {"dampening": 0.3, "scale": 0.25}),
    (0.9, {"nesterov": True}),
    (0.9, {"nesterov": True, "after": True}),
]
LAMB: list[tuple[int, float, dict[str, Any]]] = [
    (1, 0.1, {}),
    (0, 0.1, {}),
    (1, 0.1, {"correct": 0, "limit": 1e3}),
    (1, 0.1, {"averaging": 0}),
    (0, 0.0, {"averaging": 0, "correct": 0}),
    (1, 0.0, {}),
    (1, 0.0, {"always": True}),
]
