"""Neighbours, samples and clusters of torch-cluster compared with distances of all pairs, or with what defines them."""

import itertools

import pytest
import torch
import torch_cluster

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def points(request):
    torch.manual_seed(0)
    return torch.rand(60, 3, device=request.param), torch.rand(25, 3, device=request.param)


def pairs(index):
    return set(map(tuple, index.t().tolist()))


def test_nearest_neighbours(points):
    x, y = points
    near = torch.cdist(y, x).topk(4, largest=False).indices
    wanted = {(i, int(j)) for i, row in enumerate(near) for j in row}
    assert pairs(torch_cluster.knn(x, y, 4)) == wanted
    assert torch_cluster.nearest(y, x).tolist() == torch.cdist(y, x).argmin(1).tolist()


def test_nearest_neighbours_stay_in_their_batch(points):
    x, y = points
    of_x, of_y = (torch.arange(len(some), device=some.device) // 10 % 2 for some in (x, y))
    of_x, of_y = of_x.sort().values, of_y.sort().values
    rows, columns = torch_cluster.knn(x, y, 3, of_x, of_y)
    assert len(rows) == 75 and bool((of_y[rows] == of_x[columns]).all())


def test_all_within_a_radius(points):
    x, y = points
    wanted = {tuple(pair) for pair in (torch.cdist(y, x) < 0.3).nonzero().tolist()}
    assert pairs(torch_cluster.radius(x, y, 0.3, max_num_neighbors=60)) == wanted
    graph = pairs(torch_cluster.radius_graph(x, 0.3, max_num_neighbors=60))
    assert graph == {tuple(pair) for pair in (torch.cdist(x, x) < 0.3).nonzero().tolist() if pair[0] != pair[1]}


def test_farthest_points(points):
    x, _ = points
    found = torch_cluster.fps(x, ratio=0.25, random_start=False).tolist()
    wanted = [0]
    for _ in range(14):
        wanted.append(int(torch.cdist(x, x[wanted]).amin(1).argmax()))
    assert found == wanted


def test_cells_of_a_grid(points):
    x, _ = points
    size, low, high = (torch.full((3,), value, device=x.device) for value in (0.25, 0.0, 1.0))
    cells = (x / 0.25).long()
    assert torch_cluster.grid_cluster(x, size, low, high).tolist() == (cells @ cells.new_tensor([1, 5, 25])).tolist()


def test_walks_and_matchings_follow_edges(points):
    x, _ = points
    row, column = torch_cluster.knn_graph(x, 5)
    edges = {*zip(row.tolist(), column.tolist(), strict=True), *zip(column.tolist(), row.tolist(), strict=False)}
    row, column = torch.tensor(sorted(edges), device=x.device).t()
    walk = torch_cluster.random_walk(row, column, torch.arange(60, device=x.device), 8)
    assert all((a, b) in edges for path in walk.tolist() for a, b in itertools.pairwise(path))
    clusters = torch_cluster.graclus_cluster(row, column)
    for cluster in clusters.unique().tolist():
        members = (clusters == cluster).nonzero().flatten().tolist()
        assert len(members) == 1 or (len(members) == 2 and tuple(members) in edges)
