"""``adopt`` leaves a model as it was but for the forwards that it replaces: whatever the model's own calls write."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import precast  # noqa: E402
from precast._adopt import instances, state  # noqa: E402
from tests.adopt.picture import changes, picture  # noqa: E402
from tests.adopt.test_models import QUIET  # noqa: E402

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.torch, pytest.mark.compiler, *QUIET]


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Config:
    def __init__(self) -> None:
        self.mode, self.sizes = "sparse", [1, 2]


class Written(torch.nn.Module):
    """A norm, and a forward that does one more thing."""

    shared: ClassVar[list[int]] = []
    calls = 0

    def __init__(self, write: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.write, self.inner, self.norm = write, torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.large = torch.nn.Parameter(torch.randn(600, 600))  # more than what is copied at once
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("rows", torch.arange(4.0).expand(3, 4))
        self.register_buffer("none", None)
        self.count, self.seen, self.recent, self.names = 0, [], deque([1], 4), {"a"}
        self.kept, self.config, self.slots, self.array = {"x": torch.ones(3)}, Config(), Slots(), np.zeros(3)
        self.generator = torch.Generator(torch.get_default_device()).manual_seed(1)
        self.scale = torch.ones(8)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.write(self, x)
        return self.norm(self.inner(x) * self.scale)


def counted(one: Any, x: Any) -> None:
    one.count += 1
    one.mean += 1
    one.seen.append(one.count)
    one.recent.append(one.count)
    one.names.add(str(one.count))
    one.slots.count += 1
    one.array[0] += 1


def averaged(one: Any, x: Any) -> None:
    one.mean.mul_(0.9).add_(one.inner(x).mean(0) * 0.1)
    one.rows = one.rows + 1
    one.none = torch.ones(2)
    one.register_buffer("more", torch.ones(1))


def weights(one: Any, x: Any) -> None:
    one.inner.weight.mul_(0.5)
    one.large.data.mul_(0.5)
    one.norm.weight.data = one.norm.weight.data * 2


def rewired(one: Any, x: Any) -> None:
    one.config.mode = "full"
    one.config.sizes.append(3)
    one.kept["x"] += 1
    one.kept["y"] = torch.ones(1)
    one.inner = torch.nn.Linear(8, 8)
    one.inner.requires_grad_(False)
    one.norm.register_forward_hook(lambda *_: None)
    one.add_module("child", torch.nn.Linear(1, 1))
    del one.scale
    one.scale = torch.full((8,), 2.0)


def of_the_class(one: Any, x: Any) -> None:
    type(one).calls += 1
    type(one).shared.append(1)
    type(one).more = 1
    one.__class__ = type("Other", (Written,), {})


def process(one: Any, x: Any) -> None:
    torch.rand(1)
    random.random()
    np.random.rand()
    torch.randn(1, generator=one.generator)
    one.inner.weight.grad = torch.ones(8, 8)
    torch.set_default_dtype(torch.float64)
    x.add_(1)
    one.train()


WRITES = [counted, averaged, weights, rewired, of_the_class, process]


def in_a_closure() -> Any:
    calls = 0

    def write(one: Any, x: Any) -> None:
        nonlocal calls
        calls += 1

    return Written(write)


def observed() -> Any:
    return torch.nn.Sequential(torch.nn.LayerNorm(8), torch.ao.quantization.MinMaxObserver())


def with_batch_norm() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.LayerNorm(8)).train()


def with_spectral_norm(new: bool) -> Any:
    change = torch.nn.utils.parametrizations.spectral_norm if new else torch.nn.utils.spectral_norm
    return torch.nn.Sequential(change(torch.nn.Linear(8, 8)), torch.nn.LayerNorm(8)).train()


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = torch.jit.Attribute(0, int)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.mean += 1
        return x + self.mean


def scripted() -> Any:
    return torch.nn.Sequential(torch.jit.script(Counts()), torch.nn.LayerNorm(8))


MODELS: dict[str, Callable[[], Any]] = {
    **{write.__name__: lambda write=write: Written(write) for write in WRITES},  # type: ignore[misc]
    "in a closure": in_a_closure,
    "observer": observed,
    "batch norm": with_batch_norm,
    "spectral norm": lambda: with_spectral_norm(False),
    "spectral norm, parametrized": lambda: with_spectral_norm(True),
    "TorchScript": scripted,
}


def assert_kept(model: Any, sample: Any = None, outputs: int = 1) -> None:
    """A dry run, and adoption with undo, leave the same objects with the same bits, and the comparison holds."""
    before = picture(model, sample)
    report = precast.adopt(model, sample, dry_run=True)
    assert changes(before, picture(model, sample)) == []
    assert report.ok and report.replaced and len(report.compared) > outputs, report
    assert precast.adopt(model, sample).ok
    ours = [f".{name}" for name in (*instances._METHODS, *instances._HELPERS)]
    assert all(any(name in path for name in ours) for path in changes(before, picture(model, sample)))
    precast.undo_adopt(model)
    assert changes(before, picture(model, sample)) == []


@pytest.mark.parametrize("name", MODELS)
def test_what_the_calls_of_a_model_write_is_put_back(name: str) -> None:
    torch.manual_seed(0)
    with contextlib.suppress(AttributeError):
        del Written.more  # type: ignore[attr-defined]
    assert_kept(MODELS[name](), torch.randn(4, 8))


def test_a_picture_sees_each_of_these_writes() -> None:
    """Or else the test above would say nothing."""
    for name, make in MODELS.items():
        model, x = make(), torch.randn(4, 8)
        before, settings = picture(model, x), torch.get_default_dtype()
        kept = {key: Written.__dict__[key] for key in ("calls", "shared")}
        try:
            model(x)
            assert changes(before, picture(model, x)), name
        finally:
            torch.set_default_dtype(settings)
            for key, value in kept.items():
                setattr(Written, key, value)
            if hasattr(Written, "more"):
                del Written.more


def test_outputs_are_compared_from_one_state() -> None:
    """A forward whose result depends on how often it was called has no noise of its own."""

    def write(one: Any, x: Any) -> None:
        one.mean += 1
        one.scale = one.scale + one.mean

    report = precast.adopt(Written(write), torch.randn(4, 8))
    assert report.ok and max(one.noise for one in report.compared if "gradient" not in one.output) < 1e-4


def hooked(fired: list[str]) -> Any:
    """A model with hooks of every kind that a user may set."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).train()
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: fired.append("before"))
        module.register_forward_hook(lambda *_: fired.append("after"), always_call=True)
        module.register_forward_hook(lambda *_, **__: fired.append("named"), with_kwargs=True)
        module.register_full_backward_hook(lambda *_: fired.append("backward"))
        module.register_full_backward_pre_hook(lambda *_: fired.append("before backward"))
    for parameter in model.parameters():
        parameter.register_hook(lambda g: fired.append("gradient"))
        parameter.register_post_accumulate_grad_hook(lambda p: fired.append("accumulated"))
    return model


def test_hooks_of_users_do_not_fire() -> None:
    fired: list[str] = []
    model, x, nn = hooked(fired), torch.randn(4, 8), torch.nn.modules.module
    handles = [
        nn.register_module_forward_hook(lambda *_: fired.append("all")),
        nn.register_module_forward_pre_hook(lambda *_: fired.append("all")),
        nn.register_module_full_backward_hook(lambda *_: fired.append("all")),
        nn.register_module_module_registration_hook(lambda *_: fired.append("registered")),
        nn.register_module_parameter_registration_hook(lambda *_: fired.append("registered")),
    ]
    try:
        assert_kept(model, x)
        assert fired == []
        reasons = precast.adopt(model, x).not_compared
        assert reasons == (f"what the hooks of {__name__.partition('.')[0]} do: they are not called here",)
        model(x).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    assert {"before", "after", "named", "backward", "gradient", "accumulated", "all"} <= {*fired}


def test_hooks_that_compute_are_called() -> None:
    """Those of spectral norm give the weight; without them no gradient would reach it."""
    report = precast.adopt(with_spectral_norm(False), torch.randn(4, 8))
    assert report.ok and not any("hooks" in reason for reason in report.not_compared)


@pytest.mark.parametrize("given", ["tensor", "nested"])
def test_a_sample_with_a_history_keeps_it(given: str) -> None:
    """Embeddings that the model made itself: its graph is not freed, and its hooks do not fire."""

    class Adds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

        def forward(self, x: Any) -> Any:
            return self.norm(self.inner(x if isinstance(x, torch.Tensor) else x[0]))

    fired: list[str] = []
    model = Adds()
    x = model.inner(torch.randn(4, 8)).exp()
    x.register_hook(lambda _: fired.append("gradient"))
    report = precast.adopt(model, {"x": x if given == "tensor" else [x]})
    assert report.ok and any(one.output.startswith("gradient") for one in report.compared), report
    assert fired == []
    x.sum().backward()
    assert model.inner.weight.grad is not None


def test_what_was_written_past_all_ops_is_said() -> None:
    def write(one: Any, x: Any) -> None:
        torch.from_dlpack(one.large.detach())[0] += 1

    for dry in (True, False):
        model = Written(write)
        report = precast.adopt(model, torch.randn(4, 8), dry_run=dry)
        assert report.lost == ("large",) and not report.ok
        assert report.undone == "a call of the model wrote large, and it cannot be put back"
        assert "undone, but a call changed it" in str(report)
        assert "forward" not in vars(model.norm)


def test_what_refuses_to_be_put_back_is_said() -> None:
    class Refuses(dict[str, int]):
        pass

    model = Written(lambda one, x: one.frozen.update(calls=1))
    model.frozen = Refuses()
    kept = state._put_dict

    def refuse(one: Any, content: Any) -> None:
        if isinstance(one, Refuses):
            raise TypeError("it is frozen")
        kept(one, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_put_dict", refuse)
        report = precast.adopt(model, torch.randn(4, 8))
    assert report.lost == ("TypeError: it is frozen",) and not report.ok


def test_too_large_a_state_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_MOST", 100)
    model = Written(counted)
    report = precast.adopt(model, torch.randn(4, 8))
    assert model.count == 0 and report.replaced and not report.ok
    assert report.not_compared == (
        "no outputs: more than 100 objects can be reached from the model, too many to put back",
    )


def test_parameters_are_copied_only_if_they_are_written() -> None:
    model, copied = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.LayerNorm(600)), []
    kept = state.State(model)
    with kept.of_one_call(watch=True):
        model(torch.randn(2, 600))
    copied = [memory.name for memory in kept._memory.values() if memory.copy is not None]
    assert "0.weight" not in copied
    with kept.of_one_call(watch=True), torch.no_grad():
        model[0].weight[:2].zero_()
    assert model[0].weight[:2].any()


@pytest.mark.models
@pytest.mark.parametrize("name", ["big_bird", "phi3"])
def test_a_sample_does_not_change_how_a_model_computes(name: str) -> None:
    """Big Bird leaves its sparse attention for short sequences; Phi-3 keeps the frequencies for them."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    if name == "big_bird":
        model: Any = transformers.BigBirdModel(
            transformers.BigBirdConfig(
                vocab_size=64, attention_type="block_sparse", max_position_embeddings=128, **sizes
            )
        )
    else:
        rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        options = {"original_max_position_embeddings": 8, "max_position_embeddings": 64, "pad_token_id": None}
        model = transformers.Phi3ForCausalLM(
            transformers.Phi3Config(
                vocab_size=64, rope_parameters=rope | {"original_max_position_embeddings": 8}, **options, **sizes
            )
        )
    assert_kept(model)
    if name == "big_bird":
        assert model.attention_type == "block_sparse"
