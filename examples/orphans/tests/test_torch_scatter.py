"""Each op of torch-scatter compared with a plain loop, and its gradients with finite differences."""

import pytest
import torch
import torch_scatter

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
REDUCES = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0),
    "min": lambda rows: rows.min(0).values,
    "max": lambda rows: rows.max(0).values,
}


def plain(source, index, size, reduce):
    """Rows of each index, reduced; zero where an index has none."""
    rows = [source[index == i] for i in range(size)]
    return torch.stack([REDUCES[reduce](some) if len(some) else torch.zeros_like(source[0]) for some in rows])


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("shape", [(1, 1), (37, 5), (1000, 3)])
def test_scatter(shape, reduce, dtype, device):
    source = torch.randint(-9, 9, shape, device=device).to(dtype)
    index = torch.randint(0, 11, shape[:1], device=device)
    if reduce == "mean" and not dtype.is_floating_point:
        pytest.skip("integers have no mean")
    found = torch_scatter.scatter(source, index, 0, dim_size=11, reduce=reduce)
    wanted = plain(source.double(), index, 11, reduce)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("reduce", REDUCES)
def test_segments(reduce, device):
    source = torch.randn(40, 4, device=device)
    index = torch.randint(0, 7, (40,), device=device).sort().values
    pointers = torch.searchsorted(index, torch.arange(8, device=device))
    wanted = plain(source, index, 7, reduce)
    torch.testing.assert_close(torch_scatter.segment_coo(source, index, dim_size=7, reduce=reduce), wanted)
    torch.testing.assert_close(torch_scatter.segment_csr(source, pointers, reduce=reduce), wanted)


def test_gathers(device):
    rows, index = torch.randn(7, 4, device=device), torch.tensor([0, 0, 2, 5, 6, 6], device=device)
    pointers = torch.searchsorted(index, torch.arange(8, device=device))
    torch.testing.assert_close(torch_scatter.gather_coo(rows, index), rows[index])
    torch.testing.assert_close(torch_scatter.gather_csr(rows, pointers), rows[index])


@pytest.mark.parametrize("reduce", REDUCES)
def test_gradients(reduce, device):
    source = torch.randn(12, 2, dtype=torch.float64, device=device, requires_grad=True)
    index = torch.randint(0, 4, (12,), device=device).sort().values
    assert torch.autograd.gradcheck(lambda x: torch_scatter.scatter(x, index, 0, reduce=reduce), source)
    assert torch.autograd.gradcheck(lambda x: torch_scatter.segment_coo(x, index, reduce=reduce), source)


def test_composites(device):
    source, index = torch.randn(30, device=device), torch.randint(0, 4, (30,), device=device)
    shares = torch_scatter.scatter_softmax(source, index)
    wanted = torch.empty_like(source)
    for i in range(4):
        wanted[index == i] = source[index == i].softmax(0)
    torch.testing.assert_close(shares, wanted)
    torch.testing.assert_close(torch_scatter.scatter_log_softmax(source, index), wanted.log())
