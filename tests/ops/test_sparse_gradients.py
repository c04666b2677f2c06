"""Sparse gradients: CPUAdagrad takes them as torch's does, the other optimizers refuse them as torch's do."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.optim import CPUSGD, CPUAdagrad, CPUAdam, CPULion  # noqa: E402

pytestmark = [
    *(pytest.mark.torch, pytest.mark.compiler),
    *map(pytest.mark.filterwarnings, ("ignore:Sparse invariant checks", "ignore:Sparse CSR tensor support")),
]

OPTIONS: dict[str, Any] = {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1}


def embedding() -> Any:
    table = torch.nn.Embedding(11, 6, sparse=True)
    with torch.no_grad():
        table.weight.copy_(torch.linspace(-1, 1, 66).view(11, 6))
    return table


def test_an_embedding_and_a_dense_layer_train_as_with_torch() -> None:
    models = [torch.nn.Sequential(embedding(), torch.nn.Linear(6, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours, theirs = CPUAdagrad(models[0].parameters(), **OPTIONS), torch.optim.Adagrad(models[1].parameters(), **OPTIONS)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 6):
        tokens = torch.randint(0, 11, (9,), generator=generator)  # some of them several times
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            optimizer.zero_grad()
            model(tokens).square().sum().backward()
            assert model[0].weight.grad.is_sparse
            optimizer.step()
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(ours.state[one]["sum"], theirs.state[other]["sum"], rtol=1e-5, atol=1e-6)
            assert float(ours.state[one]["step"]) == step


GRADIENTS: dict[str, Any] = {
    "rows": lambda: torch.sparse_coo_tensor(torch.tensor([[3, 1]]), torch.ones(2, 6), (11, 6)),
    "a row twice": lambda: torch.sparse_coo_tensor(torch.tensor([[3, 1, 3]]), torch.ones(3, 6), (11, 6)),
    "elements": lambda: torch.sparse_coo_tensor(torch.tensor([[3, 1], [5, 0]]), torch.ones(2), (11, 6)),
    "nothing": lambda: torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.ones(0, 6), (11, 6)),
}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("kind", GRADIENTS)
def test_only_the_elements_of_the_gradient_are_updated(kind: str, maximize: bool) -> None:
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 66).view(11, 6)) for _ in range(2))
    optimizers = (
        CPUAdagrad([ours], maximize=maximize, **OPTIONS),
        torch.optim.Adagrad([theirs], maximize=maximize, **OPTIONS),
    )
    for dense in (False, True, False):
        for param, optimizer in zip((ours, theirs), optimizers, strict=True):
            param.grad = GRADIENTS[kind]().to_dense() if dense else GRADIENTS[kind]()
            optimizer.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(optimizers[0].state[ours]["sum"], optimizers[1].state[theirs]["sum"])
    assert float(optimizers[0].state[ours]["step"]) == 3


def test_a_low_precision_table_has_wide_sums_and_a_copy() -> None:
    param, copy = torch.nn.Parameter(torch.ones(11, 6)), torch.zeros(11, 6, dtype=torch.bfloat16)
    narrow = torch.nn.Parameter(torch.ones(11, 6, dtype=torch.bfloat16))
    optimizer = CPUAdagrad([param, narrow], lr=0.5)
    optimizer.step(grads=[GRADIENTS["rows"](), GRADIENTS["rows"]().bfloat16()], copies=[copy, None])
    wanted = torch.ones(11, 6)
    wanted[[1, 3]] = 0.5
    torch.testing.assert_close(param.detach(), wanted)
    assert torch.equal(narrow, wanted.bfloat16()) and optimizer.state[narrow]["sum"].dtype == torch.float32
    assert torch.equal(copy, wanted.bfloat16())  # as a whole: nothing says what it had before


def test_sparse_gradients_are_unscaled() -> None:
    table = embedding()
    optimizer, scaler = CPUAdagrad(table.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(table(torch.tensor([3, 1, 3])).sum()).backward()
    scaler.step(optimizer)
    wanted = torch.zeros(11, 6)
    wanted[3], wanted[1] = 2.0, 1.0
    assert torch.equal(table.weight.grad.to_dense(), wanted)
    torch.testing.assert_close(optimizer.state[table.weight]["sum"], wanted.square())


def test_weight_decay_and_other_layouts_are_refused_before_any_write() -> None:
    params = [torch.nn.Parameter(torch.ones(11, 6)) for _ in range(2)]
    params[0].grad, params[1].grad = torch.ones(11, 6), GRADIENTS["rows"]()
    with pytest.raises(RuntimeError, match=r"parameter 1: its gradient is sparse, and weight_decay is 0.1; needed 0"):
        CPUAdagrad(params, weight_decay=0.1).step()
    params[1].grad = None
    with pytest.raises(RuntimeError, match="parameter 1: its gradient has layout sparse_csr; needed a dense tensor"):
        CPUAdagrad(params).step(grads=[params[0].grad, torch.eye(11, 6).to_sparse_csr()])
    with pytest.raises(RuntimeError, match=r"parameter 1: its gradient has shape \(11, 5\)"):
        CPUAdagrad(params).step(grads=[params[0].grad, torch.eye(11, 5).to_sparse()])
    for index, needed in ((-1, "-1; needed 0 to 10"), (11, "11; needed 0 to 10")):
        outside = torch.sparse_coo_tensor(torch.tensor([[2, index]]), torch.ones(2, 6), (11, 6))
        with pytest.raises(RuntimeError, match=f"parameter 1: its sparse gradient has index {needed}"):
            CPUAdagrad(params).step(grads=[params[0].grad, outside])
    bad = torch.zeros(1, dtype=torch.bfloat16).expand(11, 6)
    with pytest.raises(RuntimeError, match="one place for many elements"):
        CPUAdagrad(params).step(grads=[params[0].grad, GRADIENTS["rows"]()], copies=[None, bad])
    assert all(torch.equal(param, torch.ones(11, 6)) for param in params)


@pytest.mark.parametrize("make", [CPUAdam, CPUSGD, CPULion])
def test_the_others_refuse_them_and_name_the_one_that_does_not(make: Any) -> None:
    table = embedding()
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"has layout sparse_coo; needed a dense tensor; precast\.optim\.CPUAdagrad"):
        make(table.parameters(), lr=0.1).step()
