"""The direct route of a call: taken if the dispatcher would have done nothing, and never otherwise."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import precast  # noqa: E402
from precast import ops  # noqa: E402
from precast._dispatch.routes import Route  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

RMS = importlib.import_module("precast.ops.norm._rms_norm")


def tensors(device: str) -> tuple[Any, Any]:
    return torch.randn(4, 8, device=device), torch.randn(8, device=device)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, device: str) -> Iterator[list[str]]:
    """The calls of rms_norm that left the direct route."""
    precast.load("rms_norm", device)
    seen: list[str] = []
    real = RMS._RMS_NORM.below

    class Seen(Route):
        def below(self, *args: Any) -> Any:
            seen.append("rms_norm")
            return real(*args)

    route = Seen(RMS.RMS_NORM, RMS._RmsNorm, RMS._rms_norm_dispatched)
    loader = importlib.import_module("precast._load.loader")
    for kind in dict.fromkeys(("cpu", torch.device(device).type)):
        precast.load("rms_norm", kind)
        route._bind(loader._state.serving["rms_norm", kind], kind.upper())
    monkeypatch.setattr(RMS, "_RMS_NORM", route)
    yield seen
    namespace = importlib.import_module("precast._dispatch.namespace")
    del namespace.BINDINGS["rms_norm"][1:]


def test_a_plain_call_is_direct_and_has_the_dispatchers_bits(slow: list[str], device: str) -> None:
    x, weight = tensors(device)
    for dtype in (torch.float32, torch.bfloat16):
        rows, scale = x.to(dtype), weight.to(dtype)
        assert torch.equal(ops.rms_norm(rows, scale), torch.ops.precast.rms_norm(rows, scale, 1e-6, 0))
    assert slow == []


def test_a_gradient_is_recorded_directly(slow: list[str], device: str) -> None:
    x, weight = (tensor.requires_grad_() for tensor in tensors(device))
    y = ops.rms_norm(x, torch.nn.Parameter(weight))
    assert slow == []
    assert type(y.grad_fn).__name__ == "_RmsNormBackward"
    with torch.no_grad():
        assert ops.rms_norm(x, weight).grad_fn is None
    with torch.inference_mode():
        assert ops.rms_norm(x, weight).is_inference()
    with torch.autocast(x.device.type, torch.bfloat16):
        assert ops.rms_norm(x, weight).requires_grad
    assert slow == []
    expected = torch.autograd.grad(torch.ops.precast.rms_norm(x, weight, 1e-6, 0).sum(), (x, weight))
    found = torch.autograd.grad(ops.rms_norm(x, weight).sum(), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_with_autograd_excluded_nothing_is_recorded(slow: list[str], device: str) -> None:
    x, weight = (tensor.requires_grad_() for tensor in tensors(device))
    with torch._C._AutoDispatchBelowAutograd():
        assert not ops.rms_norm(x, weight).requires_grad
    assert slow == []


class Subclass(torch.Tensor):
    """Any subclass may handle calls itself."""


def subclass(call: Callable[..., Any], x: Any, weight: Any) -> None:
    assert isinstance(call(x.as_subclass(Subclass), weight), Subclass)


def parameter_subclass(call: Callable[..., Any], x: Any, weight: Any) -> None:
    class Own(torch.nn.Parameter):
        pass

    call(x, Own(weight))


def negative(call: Callable[..., Any], x: Any, weight: Any) -> None:
    view = torch._neg_view(x)
    assert view.is_neg()
    torch.testing.assert_close(call(view, weight), call(view.resolve_neg(), weight), rtol=0, atol=0)


def zero_tensor(call: Callable[..., Any], x: Any, weight: Any) -> None:
    assert not call(torch._efficientzerotensor(x.shape, device=x.device), weight).any()


def profiled(call: Callable[..., Any], x: Any, weight: Any) -> None:
    with torch.autograd.profiler.profile() as profile:
        call(x, weight)
    assert "precast::rms_norm" in {event.name for event in profile.function_events}


def function_mode(call: Callable[..., Any], x: Any, weight: Any) -> None:
    with torch.device(x.device):
        call(x, weight)


def dispatch_mode(call: Callable[..., Any], x: Any, weight: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        call(x, weight)
    assert seen == ["precast.rms_norm.default"]


def traced(call: Callable[..., Any], x: Any, weight: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        graph = torch.jit.trace(call, (x, weight), check_trace=False).graph
    assert [node.kind() for node in graph.nodes() if "precast" in node.kind()] == ["precast::rms_norm"]


def mapped(call: Callable[..., Any], x: Any, weight: Any) -> None:
    y = torch.vmap(call, (0, None))(x[:, None], weight)
    torch.testing.assert_close(y[:, 0], RMS.RMS_NORM(x, weight, 1e-6, 0))


def whole_number(call: Callable[..., Any], x: Any, weight: Any) -> None:
    y = call(x, weight, 1)
    assert torch.equal(y, call(x, weight, 1.0))


def another_device(call: Callable[..., Any], x: Any, weight: Any) -> None:
    assert call(x.to("meta"), weight.to("meta")).is_meta


@pytest.mark.parametrize(
    "case",
    [
        subclass,
        parameter_subclass,
        negative,
        zero_tensor,
        profiled,
        function_mode,
        dispatch_mode,
        traced,
        mapped,
        whole_number,
        another_device,
    ],
    ids=lambda case: case.__name__,
)
def test_anything_that_is_not_plain_takes_another_route(
    slow: list[str], case: Callable[..., None], device: str
) -> None:
    case(ops.rms_norm, *tensors(device))
    assert slow == ["rms_norm"]


def test_torch_compile_traces_the_op(slow: list[str], device: str) -> None:
    x, weight = tensors(device)
    compiled = torch.compile(ops.rms_norm, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, weight), ops.rms_norm(x, weight))
    assert slow == []  # nor does it trace the other route


@pytest.mark.parametrize(
    "weight", [torch.randn(3), torch.randn(8).double(), torch.randn(8, 1)], ids=["3", "fp64", "2d"]
)
def test_an_error_is_the_dispatchers(slow: list[str], weight: Any, device: str) -> None:
    x = torch.randn(4, 8, device=device)
    with pytest.raises(RuntimeError) as expected:
        torch.ops.precast.rms_norm(x, weight.to(device), 1e-6, 0)
    with pytest.raises(RuntimeError) as found:
        ops.rms_norm(x, weight.to(device))
    assert str(found.value) == str(expected.value)
    assert slow == ["rms_norm"]
    assert ops.rms_norm(x, torch.ones(8, device=device)).shape == x.shape  # and nothing is left behind


def test_a_wrong_number_of_arguments_and_a_wrong_type_are_the_dispatchers_errors(slow: list[str], device: str) -> None:
    x, weight = tensors(device)
    call = RMS._RMS_NORM.call
    for arguments in ((), (x,), (x, weight, 1e-6, 1 << 80), (x, None, 1e-6, 0), (3, weight, 1e-6, 0)):
        with pytest.raises((RuntimeError, TypeError)):
            call(*arguments)


def test_what_is_written_counts_as_a_change(each_route: Callable[[], None], device: str) -> None:
    x, residual, weight = (
        torch.randn(4, 8, device=device),
        torch.randn(4, 8, device=device),
        torch.ones(8, device=device),
    )
    precast.load("rms_norm", device)
    each_route()
    for _ in range(2):
        before = x._version, residual._version, weight._version
        ops.fused_add_rms_norm_(x, residual, weight)
        assert (x._version, residual._version, weight._version) == (before[0] + 1, before[1] + 1, before[2])


def test_references_are_given_back(slow: list[str], device: str) -> None:
    import sys

    x, weight = tensors(device)
    bad = torch.randn(3, device=device)
    before = sys.getrefcount(x), sys.getrefcount(weight)
    for _ in range(100):
        ops.rms_norm(x, weight)
        with pytest.raises(RuntimeError):
            ops.rms_norm(x, bad)
    assert (sys.getrefcount(x), sys.getrefcount(weight)) == before
    assert x._use_count() == 1  # of the tensor in C++
    assert ops.rms_norm(x, weight)._use_count() == 1


def test_threads_have_modes_of_their_own(slow: list[str], device: str) -> None:
    x, weight = tensors(device)
    expected = ops.rms_norm(x, weight)
    found: list[bool] = []

    def run() -> None:
        for _ in range(50):
            found.append(torch.equal(ops.rms_norm(x, weight), expected))

    threads = [threading.Thread(target=run) for _ in range(4)]
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 200
    assert slow == []


@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
@pytest.mark.parametrize("key", ["Autocast", "", "Autograd"])
def test_a_kernel_of_somebody_else_is_called(slow: list[str], key: str, device: str) -> None:
    """Registered while the direct route is in use, or before; once it is gone, calls are direct again."""
    x, weight = (tensor.requires_grad_(key == "Autograd") for tensor in tensors(device))
    expected = ops.rms_norm(x, weight)
    route = RMS._RMS_NORM
    kind = torch.device(device).type
    with torch.autocast(kind, torch.bfloat16):
        assert ops.rms_norm(x, weight).dtype == torch.float32 and slow == []
        theirs = torch.library.Library("precast", "IMPL")
        try:
            theirs.impl("rms_norm", lambda x, *_: torch.full_like(x, 7.0), key + kind.upper())
            assert bool((ops.rms_norm(x, weight) == 7).all())
            assert bool((torch.ops.precast.rms_norm(x, weight, 1e-6, 0) == 7).all())
            if key:
                loader = importlib.import_module("precast._load.loader")
                route._bind(loader._state.serving["rms_norm", kind], kind.upper())
                assert route.call is route.otherwise
        finally:
            theirs._destroy()
        assert slow == []
    assert torch.equal(ops.rms_norm(x, weight), expected)


def test_a_rule_for_autocast_is_the_dispatchers(slow: list[str], device: str) -> None:
    x, weight = (tensor.requires_grad_() for tensor in tensors(device))
    kind = torch.device(device).type
    theirs = torch.library.Library("precast", "IMPL")
    try:
        torch.library.register_autocast("precast::rms_norm", kind, torch.bfloat16, lib=theirs)
        for call in (ops.rms_norm, RMS._RMS_NORM.below):
            with torch.autocast(kind, torch.bfloat16):
                y = call(x, weight, *(() if call is ops.rms_norm else (1e-6, 0)))
            assert y.dtype == torch.bfloat16
            y.sum().backward()
            assert x.grad is not None and x.grad.dtype == torch.float32
        assert ops.rms_norm(x, weight).dtype == torch.float32
    finally:
        theirs._destroy()


def test_without_the_dispatchers_count_no_call_is_direct(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    routes = importlib.import_module("precast._dispatch.routes")
    loader = importlib.import_module("precast._load.loader")
    precast.load("rms_norm", device)
    kind = torch.device(device).type
    library = loader._state.serving["rms_norm", kind]
    assert routes._place_of_count(library) is not None
    for answer in (None, (torch.zeros(64).data_ptr(), 0)):  # not found; found, but nothing in it counts
        routes._place_of_count.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(type(library), "operator", lambda self, name, answer=answer: answer)
            route = Route(RMS.RMS_NORM, RMS._RmsNorm)
            route._bind(library, kind.upper())
        assert route.call == route.below
    routes._place_of_count.cache_clear()
    namespace = importlib.import_module("precast._dispatch.namespace")
    del namespace.BINDINGS["rms_norm"][1:]


def test_a_torch_without_what_we_read_takes_the_other_route(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    routes = importlib.import_module("precast._dispatch.routes")
    loader = importlib.import_module("precast._load.loader")
    precast.load("layer_norm", device)
    library = loader._state.serving["layer_norm", torch.device(device).type]
    layer = importlib.import_module("precast.ops.norm._layer_norm")
    for answer in (None, (0, 0)):  # not found; found, but it is another variable: it does not change
        route = Route.__new__(Route)
        routes._is_readable.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(type(library), "thread_keys", lambda self, answer=answer: answer)
            route.__init__(layer.LAYER_NORM, layer._LayerNorm)  # type: ignore[misc]
            route._bind(library, torch.device(device).type.upper())
        assert route.call == route.below
        x, weight = tensors(device)
        assert torch.equal(route(x, weight, None, 1e-5), ops.layer_norm(x, weight))
    routes._is_readable.cache_clear()
    namespace = importlib.import_module("precast._dispatch.namespace")
    del namespace.BINDINGS["layer_norm"][1:]


def test_a_torch_without_the_bits_of_dispatch_keys_finds_the_same_tensors_plain(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    formulas = importlib.import_module("precast._dispatch.formulas")
    routes = importlib.import_module("precast._dispatch.routes")
    x, weight = tensors(device)
    plain = (x, torch.nn.Parameter(weight), x[1:, ::2])
    odd = (torch._neg_view(x), torch._efficientzerotensor(x.shape, device=device), x.to("meta"), x.to_sparse())

    def both(batched: Any) -> Any:
        assert [formulas.means_its_memory(tensor) for tensor in (*plain, *odd, batched)] == [True] * 3 + [False] * 5
        assert formulas.means_its_memory(*plain) and not formulas.means_its_memory(x, odd[0])
        return batched

    torch.vmap(both)(x)
    monkeypatch.setattr(formulas, "HAS_KEY_BITS", False)  # as in torch 2.4
    monkeypatch.delattr(formulas, "plain_keys")
    torch.vmap(both)(x)
    routes._is_readable.cache_clear()
    monkeypatch.setattr(routes, "HAS_KEY_BITS", False)
    loader = importlib.import_module("precast._load.loader")
    precast.load("rms_norm", device)
    assert not routes._is_readable(loader._state.serving["rms_norm", torch.device(device).type])
    routes._is_readable.cache_clear()
