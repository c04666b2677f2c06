"""Products, transposes and conversions of torch-sparse compared with dense matrices."""

import pytest
import torch
import torch_sparse
from torch_sparse import SparseTensor

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def dense(request):
    torch.manual_seed(0)
    values = torch.randn(17, 23, dtype=torch.float64, device=request.param)
    return torch.where(torch.rand_like(values) < 0.2, values, 0)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_products_with_a_dense_matrix(reduce, dense):
    sparse, other = SparseTensor.from_dense(dense), torch.randn(23, 5, dtype=torch.float64, device=dense.device)
    terms = dense[:, :, None] * other
    there = (dense != 0)[:, :, None]
    count = there.sum(1)
    wanted = {
        "sum": terms.sum(1),
        "mean": terms.sum(1) / count.clamp(min=1),
        "min": torch.where(there, terms, torch.inf).amin(1),
        "max": torch.where(there, terms, -torch.inf).amax(1),
    }[reduce]
    torch.testing.assert_close(sparse.matmul(other, reduce=reduce), torch.where(count > 0, wanted, 0))


def test_gradients(dense):
    row, column = dense.nonzero().t()
    values = dense[row, column].requires_grad_()
    other = torch.randn(23, 3, dtype=torch.float64, device=dense.device, requires_grad=True)

    def product(values, other):
        return SparseTensor(row=row, col=column, value=values, sparse_sizes=(17, 23)).matmul(other)

    assert torch.autograd.gradcheck(product, (values, other))


def test_products_of_two_sparse_matrices(dense):
    sparse = SparseTensor.from_dense(dense)
    torch.testing.assert_close((sparse @ sparse.t()).to_dense(), dense @ dense.t())


def test_slices_and_transposes(dense):
    sparse = SparseTensor.from_dense(dense)
    torch.testing.assert_close(sparse.t().to_dense(), dense.t())
    torch.testing.assert_close(sparse[2:9, 5:].to_dense(), dense[2:9, 5:])
    rows = torch.tensor([3, 0, 8], device=dense.device)
    torch.testing.assert_close(sparse.index_select(0, rows).to_dense(), dense[rows])
    torch.testing.assert_close(sparse.set_diag().to_dense().diagonal(), torch.ones_like(dense.diagonal()))


def test_duplicates_are_added(dense):
    index = torch.tensor([[1, 0, 1, 0], [2, 1, 2, 1]], device=dense.device)
    found, values = torch_sparse.coalesce(index, torch.arange(4.0, device=dense.device), 3, 3)
    assert found.tolist() == [[0, 1], [1, 2]] and values.tolist() == [4, 2]


def test_walks_and_samples_follow_edges(dense):
    square = dense[:, :17]
    sparse = SparseTensor.from_dense(square)
    degree = (square != 0).sum(1)
    start = degree.nonzero().flatten().repeat(20)
    walk = sparse.random_walk(start, 1)
    assert bool((square[walk[:, 0], walk[:, 1]] != 0).all())
    if dense.device.type == "cpu":
        picked, nodes = sparse.sample_adj(torch.arange(4), 2, replace=False)
        assert picked.to_dense().count_nonzero(1).tolist() == degree[:4].clamp(max=2).tolist() and len(nodes) >= 4
