"""The losses in the loops that people write: loss scales, accumulation, changed logits, batched gradients.

The law for each generated case: a gradient is no further from float64 than that of torch's own loss in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.losses import _linear  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.compiler,
    # torch.func.jvp of torch 2.13 warns about torch's own use of torch.jit.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
ROWS, CLASSES, WIDTH, CHUNK = 9, 40, 16, 4
by_torch = torch.nn.functional.cross_entropy
FORMS = ("cross_entropy", "in place", "linear", "linear in chunks")


@dataclass(frozen=True)
class Case:
    """One loop: which loss, how it is reduced, scaled and accumulated."""

    form: str
    dtype: Any
    reduction: dict[str, Any]
    options: dict[str, Any]
    scale: float
    steps: int


REDUCTIONS = ({}, {"reduction": "sum"}, {"reduction": "none"}, {"num_items_in_batch": 65536})
OPTIONS = ({}, {"label_smoothing": 0.1, "z_loss": 1e-3}, {"weight": True}, {"weight": True, "label_smoothing": 0.1})


def cases() -> Iterator[Case]:
    for one in itertools.product(FORMS, (F32, HALF, BF16), REDUCTIONS, OPTIONS, (1.0, 65536.0, 3.0), (1, 3)):
        yield Case(*one)


def inputs(dtype: Any, device: str, classes: int = CLASSES, rows: int = ROWS) -> tuple[Any, Any, Any, Any]:
    """Rows, a linear weight, targets of which one is ignored, and class weights."""
    generator = torch.Generator().manual_seed(0)
    x, linear = (torch.randn(n, WIDTH, generator=generator) for n in (rows, classes))
    target = torch.randint(classes, (rows,), generator=generator)
    target[1] = -100
    weight = torch.rand(classes, generator=generator) + 0.1
    return x.to(device, dtype), (linear / 2).to(device, dtype), target.to(device), weight.to(device)


def plain(logits: Any, target: Any, weight: Any, options: dict[str, Any]) -> Any:
    """The loss in torch, in the dtype of the logits."""
    own = dict(options)
    z_loss, items = own.pop("z_loss", 0.0), own.pop("num_items_in_batch", None)
    reduction = own.pop("reduction", "mean")
    weight = None if weight is None else weight.to(logits.dtype)
    counted = target != -100
    each = by_torch(logits, target, weight, reduction="none", **own)
    if z_loss:
        each = each + z_loss * torch.logsumexp(logits, -1).square() * counted
    if reduction == "none":
        return each
    at = target.clamp(min=0)
    total = counted.sum() if weight is None else (weight[at] * counted).sum()
    return each.sum() / {"sum": 1.0, "mean": total if items is None else items}[reduction]


def gradients(case: Case, device: str, mine: bool, dtype: Any) -> list[Any]:
    """Of what the loop has for leaves, after all steps."""
    x, linear, target, weight = inputs(case.dtype, device)
    options = {**case.reduction, **case.options}
    weight = weight if options.pop("weight", False) else None
    leaves = [one.clone().to(dtype).requires_grad_() for one in (x, linear)]
    logits = None
    if not case.form.startswith("linear"):
        logits = (x.double() @ linear.double().t()).to(case.dtype)
        leaves = [logits.clone().to(dtype).requires_grad_()]
    for _ in range(case.steps):
        if not mine:
            own = leaves[0] if logits is not None else leaves[0] @ leaves[1].t()
            loss = plain(own if dtype == torch.float64 else own.float(), target, weight, options)
        elif logits is not None:
            place = case.form == "in place"
            loss = ops.cross_entropy(leaves[0] * 1, target, weight, in_place=place, **options)
        else:
            loss = ops.linear_cross_entropy(*leaves, target, weight=weight, **options)
        slope = torch.linspace(0.5, 2, loss.numel(), device=device).reshape(loss.shape).to(loss.dtype)
        (loss * slope * (case.scale / case.steps)).sum().backward()
    return [leaf.grad.double() for leaf in leaves]


def test_no_gradient_is_worse_than_that_of_torch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seen, lost = _linear.rows_at_once, 0, []
    for case in cases():
        chunked = case.form == "linear in chunks"
        monkeypatch.setattr(_linear, "rows_at_once", (lambda *_: CHUNK) if chunked else whole)
        exact = gradients(case, device, mine=False, dtype=torch.float64)
        own = gradients(case, device, mine=False, dtype=case.dtype)
        found = gradients(case, device, mine=True, dtype=case.dtype)
        seen += 1
        for right, theirs, ours in zip(exact, own, found, strict=True):
            finite = theirs.isfinite()
            same = torch.equal(finite, ours.isfinite())
            error, their_error = ((one - right)[finite].norm() for one in (ours, theirs))
            # In bfloat16, a gradient is rounded once more where it is multiplied, or where chunks are added on a CPU.
            share = 2.5 if case.dtype == BF16 else 1.02
            room = 0.0 if case.dtype == BF16 else 3e-6 * right[finite].norm()  # sums in float32, in another order
            if not same or error > share * their_error + room:
                lost.append((case, float(error), float(their_error)))
    assert not lost, f"{len(lost)} of {seen} cases, such as {lost[:6]}"
    assert seen == 1152


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_under_a_scaler_keeps_small_gradients(
    form: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 thousand classes and a batch of 65,536 items: without the scale, nearly all elements are zero in float16."""
    x, linear, target, _ = inputs(HALF, device, classes=16384, rows=8)
    if form == "linear in chunks":
        monkeypatch.setattr(_linear, "rows_at_once", lambda *_: CHUNK)

    def trained(loss: Callable[[Any, Any], Any]) -> list[Any]:
        leaves = [one.clone().float().requires_grad_() for one in (x, linear)]
        scaler = torch.amp.GradScaler(device, init_scale=65536.0)
        optimizer = torch.optim.SGD(leaves, lr=1.0)
        with torch.autocast(device, HALF):
            for _ in range(2):
                scaler.scale(loss(*leaves) / 2).backward()
        scaler.unscale_(optimizer)
        return [leaf.grad.double() for leaf in leaves]

    def mine(x: Any, linear: Any) -> Any:
        if form.startswith("linear"):
            return ops.linear_cross_entropy(x, linear, target, num_items_in_batch=65536)
        logits = torch.nn.functional.linear(x, linear)
        return ops.cross_entropy(logits, target, num_items_in_batch=65536, in_place=form == "in place")

    def theirs(x: Any, linear: Any) -> Any:
        return by_torch(torch.nn.functional.linear(x, linear).float(), target, reduction="sum") / 65536

    for ours, own in zip(trained(mine), trained(theirs), strict=True):
        assert (ours != 0).sum() >= 0.999 * (own != 0).sum() > own.numel() // 2
        assert (ours - own).norm() < 1e-3 * own.norm()


@pytest.mark.parametrize("dtype", [F32, HALF, BF16], ids=str)
def test_logits_may_change_between_the_loss_and_its_gradient(dtype: Any, device: str) -> None:
    x, linear, target, _ = inputs(dtype, device)
    leaf = (x @ linear.t()).detach().requires_grad_()
    right = torch.autograd.grad(ops.cross_entropy(leaf, target), leaf)[0]
    logits = leaf * 1
    loss = ops.cross_entropy(logits, target)
    logits.div_(2)
    if dtype == HALF:  # its gradient is computed from the logits in the backward pass
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        return
    assert torch.equal(torch.autograd.grad(loss, leaf, retain_graph=True)[0], right)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # a second pass reads them
        loss.backward()


@pytest.mark.parametrize("dtype", [F32, HALF, BF16], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_batched_gradients(form: str, reduction: str, dtype: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, linear, target, _ = inputs(dtype, device)
    leaves = [x.requires_grad_(), linear.requires_grad_()]
    if form == "linear in chunks":
        monkeypatch.setattr(_linear, "rows_at_once", lambda *_: CHUNK)

    def loss() -> Any:
        if form.startswith("linear"):
            return ops.linear_cross_entropy(*leaves, target, reduction=reduction)
        logits = leaves[0] @ leaves[1].t()
        return ops.cross_entropy(logits, target, reduction=reduction, in_place=form == "in place")

    slopes = torch.randn(3, *loss().shape, generator=torch.Generator().manual_seed(1)).to(device)
    batched = torch.autograd.grad(loss(), leaves, slopes, is_grads_batched=True)
    singles = [torch.autograd.grad(loss(), leaves, slope) for slope in slopes]
    for found, *one in zip(batched, *singles, strict=True):
        unit = 1e-5 if dtype == F32 else 3 * torch.finfo(dtype).eps
        right = torch.stack(one)
        torch.testing.assert_close(found, right, rtol=unit, atol=unit * float(right.abs().max()))


def test_transforms_of_the_linear_form_have_all_logits(device: str) -> None:
    x, linear, target, _ = inputs(F32, device)
    for transform in (
        lambda f: torch.func.grad(f)(x),
        lambda f: torch.vmap(f)(torch.stack([x, 2 * x])),
        lambda f: torch.func.jvp(f, (x,), (x,))[1],
    ):
        mine = transform(lambda x: ops.linear_cross_entropy(x, linear, target))
        torch.testing.assert_close(mine, transform(lambda x: by_torch(x @ linear.t(), target)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_checkpoints_and_hooks_of_saved_tensors_see_the_gradient(dtype: Any, device: str) -> None:
    x, linear, target, _ = inputs(dtype, device)
    leaf = x.requires_grad_()

    def loss(x: Any) -> Any:
        return ops.cross_entropy(x @ linear.t(), target)

    right = torch.autograd.grad(loss(leaf), leaf)[0]
    again = torch.utils.checkpoint.checkpoint(loss, leaf, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again, leaf)[0], right)
    shapes: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape) or t.cpu(), lambda t: t.to(device)):
        kept = loss(leaf)
    # The logits; in bfloat16 also the gradient. Without either, a checkpoint would keep them in memory.
    assert shapes.count((ROWS, CLASSES)) == (1 if dtype == HALF else 2)
    assert torch.equal(torch.autograd.grad(kept, leaf)[0], right)
