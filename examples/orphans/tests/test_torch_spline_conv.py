"""The B-spline convolution of torch-spline-conv compared with the tensor product of its bases, by plain loops."""

import itertools

import pytest
import torch
from torch_spline_conv import spline_basis, spline_conv, spline_weighting

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
# The uniform B-spline of each degree at t in [0, 1): the weights of its degree + 1 knots, first knot first.
SPLINES = {
    1: lambda t: (1 - t, t),
    2: lambda t: (t * t / 2 - t + 0.5, -t * t + t + 0.5, t * t / 2),
    3: lambda t: ((1 - t) ** 3 / 6, (3 * t**3 - 6 * t**2 + 4) / 6, (-3 * t**3 + 3 * t**2 + 3 * t + 1) / 6, t**3 / 6),
}


def plain(places, sizes, open_, degree):
    """Basis values and weight indices of each place; the first dimension varies fastest."""
    values, indices = [], []
    for place in places.tolist():
        scaled = [x * (size - degree * is_open) for x, size, is_open in zip(place, sizes, open_, strict=True)]
        whole = [int(x) for x in scaled]
        parts = [SPLINES[degree](x - n) for x, n in zip(scaled, whole, strict=True)]
        one, at = [], []
        for knots in itertools.product(range(degree + 1), repeat=len(sizes)):
            knots = knots[::-1]
            product, index, stride = 1.0, 0, 1
            for part, knot, n, size in zip(parts, knots, whole, sizes, strict=True):
                product *= part[knot]
                index += (n + knot) % size * stride
                stride *= size
            one.append(product)
            at.append(index)
        values.append(one)
        indices.append(at)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(indices)


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return request.param


def given(dims, device, count=20):
    places = torch.rand(count, dims, dtype=torch.float64, device=device) * 0.99
    sizes = torch.tensor([5, 6, 7][:dims], device=device)
    return places, sizes, torch.tensor([1, 0, 1][:dims], dtype=torch.uint8, device=device)


@pytest.mark.parametrize("degree", SPLINES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_bases(dims, degree, device):
    places, sizes, is_open = given(dims, device)
    values, indices = spline_basis(places, sizes, is_open, degree)
    wanted, at = plain(places, sizes.tolist(), is_open.tolist(), degree)
    torch.testing.assert_close(values.cpu(), wanted)
    assert torch.equal(indices.cpu(), at)


@pytest.mark.parametrize("degree", SPLINES)
def test_convolutions(degree, device):
    places, sizes, is_open = given(2, device)
    x = torch.randn(9, 3, dtype=torch.float64, device=device)
    weight = torch.randn(30, 3, 4, dtype=torch.float64, device=device)
    edges = torch.randint(0, 9, (2, 20), device=device)
    found = spline_conv(x, edges, places, weight, sizes, is_open, degree, norm=False)
    values, at = plain(places, sizes.tolist(), is_open.tolist(), degree)
    wanted = torch.zeros(9, 4, dtype=torch.float64)
    for (to, source), value, index in zip(edges.t().tolist(), values, at, strict=True):
        wanted[to] += torch.einsum("k,i,kio->o", value, x[source].cpu(), weight[index].cpu())
    torch.testing.assert_close(found.cpu(), wanted)


def test_gradients(device):
    places, sizes, is_open = given(2, device)
    values, at = spline_basis(places, sizes, is_open, 2)
    x = torch.randn(20, 2, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(30, 2, 3, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: spline_weighting(x, w, values, at), (x, weight))
