"""``precast.adopt`` on modules of torch: what is patched, what stays, and each reason to leave a module alone."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast._adopt import recognise  # noqa: E402
from precast._adopt.report import Report, parse  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler]


def rounds_once() -> bool:
    """Whether torch's RMS norm rounds once; in torch 2.5 it rounds every step."""
    here = torch.get_default_device()
    x, weight = (torch.randn(shape, generator=torch.Generator(here).manual_seed(0)) for shape in ((64, 64), (64,)))
    narrow = torch.nn.functional.rms_norm(x.bfloat16(), (64,), weight.bfloat16(), 1e-6)
    wide = torch.nn.functional.rms_norm(x.bfloat16().float(), (64,), weight.bfloat16().float(), 1e-6)
    return bool((narrow == wide.bfloat16()).float().mean() > 0.99)


def model() -> Any:
    torch.manual_seed(0)
    parts = (torch.nn.Linear(8, 64), torch.nn.LayerNorm(64), torch.nn.RMSNorm(64, eps=1e-6), torch.nn.Softmax(dim=-1))
    return torch.nn.Sequential(*parts)


def reason(report: Report, name: str) -> str:
    """Why a module was left alone."""
    return next(group.note for group in report.left if name in group.modules)


def fate(module: Any) -> str:
    """What becomes of one module: its kernel, or the reason why it stays."""
    report = precast.adopt(torch.nn.ModuleList([module]))
    (group,) = (*report.replaced, *report.left)
    return group.note


def test_what_is_known_is_replaced_and_compared() -> None:
    one, x = model(), torch.randn(4, 8)
    before = one(x)
    report = precast.adopt(one, x)
    assert report.ok, report
    replaced = {group.kind: group.modules for group in report.replaced}
    assert replaced == {"layer_norm": ("1",), "softmax": ("3",)} | ({"rms_norm": ("2",)} if rounds_once() else {})
    if not rounds_once():
        assert reason(report, "2").startswith("it rounds in another order in bfloat16: ")
    assert [compared.output for compared in report.compared][:2] == ["output", "output, parameters hidden"]
    torch.testing.assert_close(one(x), before, rtol=1e-5, atol=1e-6)


def test_what_is_ours_already_is_said_to_be() -> None:
    report = precast.adopt(torch.nn.Sequential(precast.nn.RMSNorm(64), precast.nn.LayerNorm(64)), torch.randn(4, 64))
    assert {group.note for group in report.left} == {"already precast's"} and not report.replaced
    assert str(report).splitlines()[0].endswith("on cpu: nothing to adopt") or torch.get_default_device().type != "cpu"
    assert fate(type("Mine", (precast.nn.RMSNorm,), {"forward": lambda self, x: x})(64)) != "already precast's"


def test_only_instances_are_patched_and_undo_restores_every_object() -> None:
    one, other = model(), model()
    shown = [dict(vars(module)) for module in one.modules()]
    classes = [dict(vars(type(module))) for module in one.modules()]
    precast.adopt(one)
    assert "forward" in vars(one[1])
    assert all("forward" not in vars(module) for module in other.modules())
    assert [dict(vars(type(module))) for module in one.modules()] == classes
    assert precast.undo_adopt(one) == 2 + rounds_once()
    assert [dict(vars(module)) for module in one.modules()] == shown
    assert precast.undo_adopt(one) == 0


def test_names_parameters_and_hooks_stay() -> None:
    one, calls = model(), []
    one[1].register_forward_hook(lambda *_: calls.append("hook"))
    names, state = [name for name, _ in one.named_modules()], list(one.state_dict())
    precast.adopt(one)
    one(torch.randn(2, 8))
    assert calls == ["hook"]
    assert [name for name, _ in one.named_modules()] == names
    assert list(one.state_dict()) == state


def test_a_copy_and_a_pickle_use_their_own_parameters() -> None:
    one, x = model(), torch.randn(2, 8)
    precast.adopt(one)
    for again in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        with torch.no_grad():
            again[1].weight.mul_(2)
        assert again[1].forward.args[0] is again[1]
        assert not torch.equal(again[:2](x), one[:2](x))
        assert precast.undo_adopt(again) == 2 + rounds_once()
    assert precast.undo_adopt(one) == 2 + rounds_once()


def test_a_saved_module_is_loaded() -> None:
    one, file = model(), io.BytesIO()
    precast.adopt(one)
    torch.save(one, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    x = torch.randn(2, 8)
    assert torch.equal(again(x), one(x))


def test_a_second_call_finds_nothing_new() -> None:
    one = model()
    precast.adopt(one)
    report = precast.adopt(one)
    assert not report.replaced
    assert reason(report, "1") == "it is adopted already"


def test_a_dry_run_changes_nothing() -> None:
    one = model()
    report = precast.adopt(one, torch.randn(2, 8), dry_run=True)
    assert report.replaced
    assert report.ok
    assert "would be adopted" in str(report)
    assert precast.undo_adopt(one) == 0


def test_training_and_modes_and_gradients_stay() -> None:
    one, x = model(), torch.randn(4, 8)
    one[0].eval()
    one(x).sum().backward()
    modes, gradients = [m.training for m in one.modules()], [p.grad.clone() for p in one.parameters()]
    state = torch.get_rng_state()
    precast.adopt(one, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in one.modules()] == modes
    assert all(torch.equal(p.grad, g) for p, g in zip(one.parameters(), gradients, strict=True))


def test_calls_that_the_probe_does_not_cover_run_the_own_forward(device: str) -> None:
    one, like = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)
    precast.adopt(one)
    x = torch.randn(4, 64)
    assert torch.equal(one.double()(x.double()), like.double()(x.double()))
    one, like = one.float(), like.float()
    with torch.autocast(device, dtype=torch.bfloat16):
        assert one(x.bfloat16()).dtype == like(x.bfloat16()).dtype
    assert torch.equal(one(input=x), like(input=x))  # by name
    if device == "cpu":  # where torch takes it
        assert torch.equal(one(x.bfloat16()), like(x.bfloat16()))


class Override(torch.nn.LayerNorm):
    def forward(self, input: Any) -> Any:  # noqa: A002
        return super().forward(input) * 2


class Inherits(torch.nn.LayerNorm):
    pass


class Called(torch.nn.LayerNorm):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) + 1


def test_a_subclass_counts_if_it_changes_nothing() -> None:
    assert fate(Inherits(64)).startswith("layer_norm: ")
    assert fate(Override(64)) == "forward is wrapped by a decorator or a closure"  # super() is a closure
    assert fate(Called(64)) == "its class replaces __call__"


def test_what_was_patched_by_others_is_left_alone() -> None:
    one = torch.nn.LayerNorm(64)
    one.forward = lambda x: x
    assert fate(one) == f"its forward was replaced before, by {__name__}"


def test_settings_without_a_kernel_are_left_alone() -> None:
    assert fate(torch.nn.LayerNorm((4, 16))) == "it normalises 2 dimensions; needed 1"
    assert fate(torch.nn.RMSNorm((4, 16))) == "it normalises 2 dimensions; needed 1"
    assert fate(torch.nn.Softmax(dim=1)) == "its dimension is 1; needed -1"
    assert fate(torch.nn.LayerNorm(64, device="meta")) == "it is on meta; needed cpu or cuda"


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_without_weights_a_norm_refuses_another_width_still(kind: str) -> None:
    norm = getattr(torch.nn, kind)(8, eps=1e-6, elementwise_affine=False)
    report = precast.adopt(torch.nn.Sequential(norm), torch.randn(2, 8))
    assert report.ok and (report.replaced or not rounds_once())
    reasons = ("gradients: no parameter requires a gradient", "noise in a wider dtype: the model has no parameters")
    assert report.not_compared == reasons * bool(report.replaced)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        norm(torch.randn(2, 9))


def test_a_softmax_over_another_dimension_by_now() -> None:
    one, x = torch.nn.Softmax(-1), torch.randn(3, 4)
    assert precast.adopt(torch.nn.Sequential(one), x).ok
    assert one(torch.tensor(3.0)) == 1
    one.dim = 0
    torch.testing.assert_close(one(x), x.softmax(0))


def test_a_version_that_is_not_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "3.1.0")
    assert fate(torch.nn.LayerNorm(64)) == "torch 3.1.0 is not known; needed 2.4 or newer, and below 3.0"


def test_an_unknown_package_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(recognise.PACKAGES, "torch")
    assert fate(torch.nn.LayerNorm(64)) == "its forward is defined in torch, which is not a known package"


def test_a_changed_source_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, input: Any) -> Any:  # noqa: A002
        return torch.nn.functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps + 1e-3)

    monkeypatch.setattr(torch.nn.LayerNorm, "forward", forward)
    assert fate(torch.nn.LayerNorm(64)) == "no rule knows what its forward does"


def test_a_machine_without_the_kernel_leaves_the_module_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise precast.errors.KernelUnavailable("layer_norm cannot be built\n  found   nothing")

    monkeypatch.setattr("precast._adopt.recognise.decide", refuse)
    assert fate(torch.nn.LayerNorm(64)) == "no kernel here: layer_norm cannot be built"


def test_no_comparison_without_a_sample_is_said() -> None:
    report = precast.adopt(model())
    assert report.not_compared == ("no outputs: precast.adopt(model, sample) takes the arguments of a call",)
    assert "not compared: no outputs" in str(report)


def test_the_report_is_one_screen_and_its_json_is_stable() -> None:
    report = precast.adopt(model(), torch.randn(2, 8))
    text = str(report)
    assert len(text.splitlines()) < 24
    assert "1 x LayerNorm: layer_norm: " in text
    assert f"torch {torch.__version__}" in text
    again = parse(report.json())
    assert again == report
    assert again.json() == report.json()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"replaced": [{"kind": 1}]}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a report"):
        parse(text)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match="adopt: model is a list; needed"):
        precast.adopt([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="undo_adopt: model is a list; needed"):
        precast.undo_adopt([])  # type: ignore[arg-type]
