"""Each op of torch-sparse compared with dense matrices and plain loops, and its gradients with finite differences."""

import pytest
import torch
import torch_sparse
from torch_sparse import SparseTensor

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return request.param


def given(rows, columns, device, dtype=torch.float64, share=0.3):
    """A dense matrix with few entries, and the same matrix as indices and values, row by row."""
    dense = torch.randint(1, 9, (rows, columns), device=device).to(dtype)
    dense = dense * (torch.rand(rows, columns, device=device) < share)
    index = dense.nonzero().t()
    return dense, index, dense[index[0], index[1]]


def sparse(index, value, dense):
    return SparseTensor(row=index[0], col=index[1], value=value, sparse_sizes=tuple(dense.shape))


def plain(dense, other, reduce):
    """Row by row: the products with the entries of the row, reduced; zero for an empty row."""
    found = torch.zeros(len(dense), other.shape[1], dtype=other.dtype, device=other.device)
    for i, row in enumerate(dense):
        at = row.nonzero().flatten()
        if len(at):
            products = row[at, None] * other[at]
            found[i] = getattr(products, {"min": "amin", "max": "amax"}.get(reduce, reduce))(0)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (60, 40, 17)])
def test_products_with_a_dense_matrix(shape, reduce, dtype, device):
    if reduce == "mean" and not dtype.is_floating_point:
        pytest.skip("integers have no mean")
    rows, inner, columns = shape
    dense, index, value = given(rows, inner, device, dtype)
    other = torch.randint(-9, 9, (inner, columns), device=device).to(dtype)
    found = torch_sparse.matmul(sparse(index, value, dense), other, reduce=reduce)
    torch.testing.assert_close(found, plain(dense, other, reduce))
    if reduce == "sum":
        torch.testing.assert_close(torch_sparse.spmm(index, value, rows, inner, other), dense @ other)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_gradients(reduce, device):
    dense, index, value = given(6, 5, device)
    value = (value + torch.rand_like(value)).requires_grad_()
    other = torch.randn(5, 2, dtype=torch.float64, device=device, requires_grad=True)

    def product(value, other):
        return torch_sparse.matmul(sparse(index, value, dense), other, reduce=reduce)

    assert torch.autograd.gradcheck(product, (value, other))


def test_products_and_sums_of_sparse_matrices(device):
    (a, at, x), (b, bt, y), (c, ct, z) = given(8, 6, device), given(6, 7, device), given(8, 6, device)
    index, value = torch_sparse.spspmm(at, x, bt, y, 8, 6, 7)
    torch.testing.assert_close(torch.sparse_coo_tensor(index, value, (8, 7)).to_dense(), a @ b)
    index, value = torch_sparse.spadd(at, x, ct, z, 8, 6)
    torch.testing.assert_close(torch.sparse_coo_tensor(index, value, (8, 6)).to_dense(), a + c)


def test_entries_are_sorted_and_their_duplicates_added(device):
    index = torch.tensor([[2, 0, 2, 0, 1], [1, 3, 1, 0, 2]], device=device)
    found, value = torch_sparse.coalesce(index, torch.arange(1.0, 6.0, device=device), 3, 4)
    assert found.tolist() == [[0, 0, 1, 2], [0, 3, 2, 1]] and value.tolist() == [4, 2, 5, 4]
    found, value = torch_sparse.transpose(found, value, 3, 4)
    assert found.tolist() == [[0, 1, 2, 3], [0, 2, 1, 0]] and value.tolist() == [4, 4, 5, 2]


def test_views_of_a_matrix(device):
    dense, index, value = given(9, 9, device)
    matrix, at = sparse(index, value, dense), torch.tensor([7, 0, 7, 3], device=device)
    pointers = (dense != 0).sum(1).cumsum(0)
    assert matrix.storage.rowptr().tolist() == [0, *pointers.tolist()]
    assert torch.equal(SparseTensor(rowptr=matrix.storage.rowptr(), col=index[1]).storage.row(), index[0])
    assert torch.equal(matrix.t().to_dense(), dense.t())
    assert torch.equal(matrix.index_select(0, at).to_dense(), dense[at])
    assert torch.equal(matrix[2:5, 1:8].to_dense(), dense[2:5, 1:8])
    ones = torch.ones(9, dtype=dense.dtype, device=device)
    assert torch.equal(matrix.set_diag(ones).to_dense(), dense - dense.diag().diag() + ones.diag())
    for reduce in ("sum", "mean", "max"):
        wanted = plain(dense, torch.ones(9, 1, dtype=dense.dtype, device=device), reduce).flatten()
        torch.testing.assert_close(getattr(matrix, reduce)(1), wanted)


def test_subgraphs(device):
    dense, index, value = given(12, 12, device)
    matrix, nodes = sparse(index, value, dense), torch.tensor([5, 2, 9, 0], device=device)
    part, edges = matrix.saint_subgraph(nodes)
    assert torch.equal(part.to_dense(), dense[nodes][:, nodes]) and torch.equal(part.storage.value(), value[edges])


def test_walks_follow_edges(device):
    dense, _, _ = given(12, 12, device, share=0.4)
    dense.fill_diagonal_(1)
    index = dense.nonzero().t()
    walks = sparse(index, None, dense).random_walk(torch.arange(12, device=device), 20)
    assert walks.shape == (12, 21) and walks[:, 0].tolist() == list(range(12))
    assert (dense[walks[:, :-1], walks[:, 1:]] != 0).all()


def test_samples_of_neighbours():
    dense, index, value = given(12, 12, "cpu", share=0.5)
    matrix, nodes = sparse(index, value, dense), torch.tensor([4, 1, 8])
    whole, names = matrix.sample_adj(nodes, -1)
    assert names[:3].tolist() == nodes.tolist() and torch.equal(whole.to_dense(), dense[nodes][:, names])
    some, names = matrix.sample_adj(nodes, 2)
    entries = some.to_dense()
    assert torch.equal((entries != 0).sum(1), (dense[nodes] != 0).sum(1).clamp(max=2))
    assert torch.equal(entries, torch.where(entries != 0, dense[nodes][:, names], 0))


def test_neighbours_of_neighbours_are_renumbered():
    dense, _, _ = given(10, 10, "cpu", share=0.3)
    index = dense.nonzero().t()
    pointers, columns = sparse(index, None, dense).storage.rowptr(), index[1]
    nodes = torch.tensor([6, 3])
    ptr, at, _, names = torch.ops.torch_sparse.relabel_one_hop(pointers, columns, None, nodes, True)
    for i, node in enumerate(nodes):
        assert names[at[ptr[i] : ptr[i + 1]]].tolist() == dense[node].nonzero().flatten().tolist()
    incoming = dense.t().contiguous()  # by column: which nodes lead to a node
    index = incoming.nonzero().t()
    pointers = sparse(index, None, incoming).storage.rowptr()
    sampled = torch.ops.torch_sparse.neighbor_sample(pointers, index[1], nodes, [-1, -1], False, True)
    names, rows, columns, edges = sampled
    assert names[:2].tolist() == nodes.tolist() and len(set(names.tolist())) == len(names)
    assert torch.equal(index[1][edges], names[rows]) and torch.equal(index[0][edges], names[columns])
    reached = set(nodes.tolist())
    for _ in range(2):
        reached |= {int(j) for i in reached for j in incoming[i].nonzero().flatten()}
    assert set(names.tolist()) == reached
