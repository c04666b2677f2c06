"""The optimizers and list ops of the GPU on a GPU: numbers, streams, graphs, GradScaler, bad input."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.optim import FusedAdam, FusedAdamW, FusedLAMB, FusedSGD  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler, pytest.mark.gpu]

SHAPES = [(4096,), (1000, 33), (), (0,), (7,), (513,), (300_001,), *[(1 + i,) for i in range(40)]]


def made(dtype: Any = torch.float32, seed: int = 0, shapes: Any = SHAPES) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to("cuda", dtype) for shape in shapes]


def give_grads(params: list[Any], seed: int) -> None:
    for param, grad in zip(params, made(torch.float32, seed, [p.shape for p in params]), strict=True):
        param.grad = grad.to(param.dtype)


def assert_near(ours: Any, exact: Any, terms: float, step: int) -> None:
    kind = torch.finfo(ours.dtype)
    allowed = step * (2e-6 * (exact.abs() + terms) + (0 if kind.bits == 32 else kind.eps * (exact.abs() + kind.tiny)))
    error = (ours.double() - exact.double()).abs()
    assert bool((error <= allowed).all()), f"off by {error.max()}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"maximize": True, "betas": (0.5, 0.9)}], ids=str)
def test_adamw_is_torchs_in_float64(dtype: Any, options: dict[str, Any]) -> None:
    low = dtype != torch.float32
    params = made(dtype)
    exact = [p.double() for p in params]
    ours = FusedAdamW(params, lr=1e-2, master_weights=low, **options)
    theirs = torch.optim.AdamW(exact, lr=1e-2, **options)
    for step in range(1, 4):
        give_grads(params, step)
        for param, wide in zip(params, exact, strict=True):
            wide.grad = param.grad.double()
        ours.step()
        theirs.step()
        for param, wide in zip(params, exact, strict=True):
            assert_near(ours.state[param]["master_param"] if low else param, wide, 0.02, step)


def test_the_same_bits_every_time() -> None:
    results = []
    for _ in range(2):
        params = made()
        optimizer = FusedLAMB(params, lr=1e-2)
        for step in range(3):
            give_grads(params, step)
            optimizer.step()
        results.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_grad_scaler_skips_an_overflow_without_waiting() -> None:
    params, twins = made(), made()
    ours, theirs = FusedAdam(params, lr=0.1), torch.optim.Adam(twins, lr=0.1, fused=True)
    scalers = [torch.amp.GradScaler("cuda", init_scale=1024.0) for _ in range(2)]
    for step in range(1, 4):
        for tensors, optimizer, scaler in ((params, ours, scalers[0]), (twins, theirs, scalers[1])):
            scaler.scale(torch.ones((), device="cuda"))
            give_grads(tensors, step)
            for tensor in tensors:
                tensor.grad *= scaler.get_scale()
            if step == 2:
                tensors[0].grad[5] = float("inf")
            scaler.step(optimizer)
            scaler.update()
    assert [s.get_scale() for s in scalers] == [512.0, 512.0]
    for param, twin in zip(params, twins, strict=True):
        assert_near(param, twin, 0.5, 3)
    assert float(ours.state[params[0]]["step"]) == 2


def test_a_graph_replays_steps_and_follows_its_learning_rate() -> None:
    params, twins = made(), made()
    rate = torch.tensor(0.1, device="cuda")
    ours, theirs = FusedAdamW(params, lr=rate), torch.optim.AdamW(twins, lr=0.1)
    give_grads(params, 1)
    give_grads(twins, 1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ours.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step()
    theirs.step()
    for step in range(2, 6):
        seeds = made(torch.float32, step)
        for param, twin, grad in zip(params, twins, seeds, strict=True):
            param.grad.copy_(grad)
            twin.grad.copy_(grad)
        theirs.param_groups[0]["lr"] = 0.1 / step
        rate.fill_(0.1 / step)
        graph.replay()
        theirs.step()
    for param, twin in zip(params, twins, strict=True):
        assert_near(param, twin, 0.5, 5)
    assert float(ours.state[params[0]]["step"]) == 5


def test_gradients_from_the_pool_of_a_graph() -> None:
    """Gradients that only exist in the captured memory: their table is copied by every replay."""
    layer, twin = (torch.nn.Linear(64, 64).cuda() for _ in range(2))
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(8, 64, device="cuda")
    ours, theirs = FusedAdamW(layer.parameters(), lr=0.01), torch.optim.AdamW(twin.parameters(), lr=0.01)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer(x).square().mean().backward()
        ours.step()
        ours.zero_grad()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(x).square().mean().backward()
        ours.step()
    noise = [torch.randn(1 << 20, device="cuda") for _ in range(8)]
    del noise
    for step in range(4):
        theirs.zero_grad()
        twin(x).square().mean().backward()
        theirs.step()
        if step:
            graph.replay()
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        assert_near(a, b, 1.0, 10)


def test_another_stream_has_a_table_of_its_own() -> None:
    params, twins = made(), made()
    ours, theirs = FusedAdamW(params, lr=0.1), torch.optim.AdamW(twins, lr=0.1)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for step in range(1, 7):
        give_grads(params, step)
        give_grads(twins, step)
        stream = streams[step % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            ours.step()
        torch.cuda.current_stream().wait_stream(stream)
        theirs.step()
    for param, twin in zip(params, twins, strict=True):
        assert_near(param, twin, 0.5, 6)


def test_a_first_step_is_not_captured() -> None:
    params = made()
    give_grads(params, 1)
    optimizer = FusedAdamW(params)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="needed: one step before the capture"), torch.cuda.graph(graph):
        optimizer.step()


def test_versions_rise_and_compiled_programs_call_the_step() -> None:
    param = torch.randn(8, device="cuda", requires_grad=True)
    optimizer = FusedSGD([param], lr=0.1, momentum=0.9)
    kept = (param * param).sum()
    param.grad = torch.ones_like(param)

    @torch.compile(backend="eager")
    def step(x: Any) -> Any:
        optimizer.step()
        return x + 1

    step(torch.zeros(1, device="cuda"))
    assert param._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_states_go_to_torch_and_back() -> None:
    params, twins = made(), made()
    ours, theirs = FusedAdamW(params, lr=0.1), torch.optim.AdamW(twins, lr=0.1, fused=True)
    for step in range(1, 4):
        give_grads(params, step)
        give_grads(twins, step)
        ours.step()
        theirs.step()
        mine, yours = copy.deepcopy(ours.state_dict()), copy.deepcopy(theirs.state_dict())
        ours.load_state_dict(yours)
        theirs.load_state_dict(mine)
    for param, twin in zip(params, twins, strict=True):
        assert_near(param, twin, 0.5, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_scaling_and_sums(dtype: Any) -> None:
    xs, ys = made(dtype, 1), made(dtype, 2)
    total, squares = ops.multi_tensor_l2norm(xs)
    exact = torch.stack([x.double().square().sum() for x in xs])
    torch.testing.assert_close(squares.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(total.double(), exact.sum().sqrt(), rtol=1e-5, atol=0)
    outs = [torch.full_like(x, float("nan")) for x in xs]
    found = torch.zeros(1, device="cuda")
    ops.multi_tensor_axpby_(outs, xs, ys, 2.0, -0.5, found_inf=found)
    for out, x, y in zip(outs, xs, ys, strict=True):
        assert_near(out, 2 * x.double() - 0.5 * y.double(), 3.0, 1)
    assert float(found) == 0
    xs[3 + 1][6] = float("inf")
    ops.multi_tensor_scale_(xs, xs, 0.5, found_inf=found)
    assert float(found) == 1
    norm = ops.clip_grad_norm_([], 1.0)
    assert float(norm) == 0
    give_grads(ys, 3)
    twins = [y.clone() for y in ys]
    give_grads(twins, 3)
    before = torch.nn.utils.clip_grad_norm_(twins, 1.0)
    torch.testing.assert_close(ops.clip_grad_norm_(ys, 1.0), before, rtol=1e-2, atol=0)
    for y, twin in zip(ys, twins, strict=True):
        torch.testing.assert_close(y.grad, twin.grad, rtol=2e-2, atol=1e-5)


def test_opcheck() -> None:
    xs, ys = made(seed=1, shapes=[(5,), (3, 4)]), made(seed=2, shapes=[(5,), (3, 4)])
    torch.library.opcheck(torch.ops.precast.multi_tensor_l2norm.default, (xs,))
    found = torch.zeros((), device="cuda")
    outs = [torch.zeros_like(x) for x in xs]  # opcheck copies them before they are written
    torch.library.opcheck(torch.ops.precast.multi_tensor_axpby_.default, (outs, xs, ys, 2.0, 1.0, None, found))


@pytest.fixture
def lists() -> dict[str, Any]:
    return {"outs": made(shapes=[(5,), (6,)]), "xs": made(shapes=[(5,), (6,)]), "ys": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xs": 1}, "2 outs, but 1 xs; one for each is needed"),
        ({"xs": torch.float64}, r"xs\[0\] is float64; float32, float16 or bfloat16 is needed"),
        ({"xs": "cpu"}, r"xs\[0\] is on cpu and outs\[0\] on cuda:0; all tensors must be on one device"),
        ({"xs": (2, 3)}, r"xs\[0\] has shape \(2, 3\), outs\[0\] has \(5,\); as many elements are needed"),
        ({"outs": "expanded"}, "has gaps or overlaps in memory"),
    ],
    ids=str,
)
def test_bad_lists_are_refused(lists: dict[str, Any], change: dict[str, Any], message: str) -> None:
    ((name, how),) = change.items()
    if how == 1:
        lists[name] = lists[name][:1]
    elif isinstance(how, torch.dtype) or how == "cpu":
        lists[name] = [t.to(how) for t in lists[name]]
    elif how == "expanded":
        lists[name][0] = torch.zeros(1, device="cuda").expand(5)
    else:
        lists[name][0] = torch.zeros(how, device="cuda")
    with pytest.raises(RuntimeError, match=message):
        ops.multi_tensor_axpby_(lists["outs"], lists["xs"], lists["ys"], 1.0, 0.0)


def test_storage_offset_of_one_and_channels_last() -> None:
    flat = torch.randn(2050, device="cuda")
    image = torch.randn(2, 3, 5, 7, device="cuda").to(memory_format=torch.channels_last)
    params = [flat[1:1025], flat[1026:], image]
    twins = [p.clone() for p in params]
    give_grads(params, 1)
    image.grad = torch.randn(2, 3, 5, 7, device="cuda")  # in the usual layout
    for param, twin in zip(params, twins, strict=True):
        twin.grad = param.grad.clone()
    ours, theirs = FusedAdamW(params, lr=0.1), torch.optim.AdamW(twins, lr=0.1)
    for step in range(1, 3):
        ours.step()
        theirs.step()
        for param, twin in zip(params, twins, strict=True):
            assert_near(param, twin, 0.5, step)


def test_a_parameter_turned_in_place_is_seen() -> None:
    ours, theirs = (torch.arange(32.0, device="cuda").view(4, 8) for _ in range(2))
    optimizers = [FusedAdamW([ours], lr=0.1), torch.optim.AdamW([theirs], lr=0.1)]
    generator = torch.Generator("cuda").manual_seed(0)
    for shape in ((4, 8), (4, 8), (8, 4)):
        grad = torch.randn(shape, generator=generator, device="cuda")
        for param, optimizer in zip((ours, theirs), optimizers, strict=True):
            if param.shape != shape:
                states = optimizer.state[param]
                for tensor in (param, states["exp_avg"], states["exp_avg_sq"]):
                    tensor.data = tensor.data.t()  # other sizes and strides, in the same memory
            param.grad = grad.clone()
            optimizer.step()
    assert_near(ours, theirs, 0.5, 3)
