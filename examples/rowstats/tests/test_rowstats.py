"""The installed ops against plain torch in float64."""

from __future__ import annotations

import pytest
import torch

import rowstats

SHAPES = [(1,), (3, 1), (2, 3, 5), (70, 1001), (0, 4)]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def rows(shape: tuple[int, ...], device: str = "cpu") -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(shape, device=device) * 3 + 100


def has_moments(device: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("rowstats::moments", device.upper())


@pytest.mark.parametrize("device", [device for device in DEVICES if has_moments(device)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments(shape: tuple[int, ...], device: str) -> None:
    x = rows(shape, device)
    mean, variance = rowstats.moments(x)
    torch.testing.assert_close(mean.double(), x.double().mean(-1), rtol=1e-6, atol=0)
    squares = (x.double() - x.double().mean(-1, keepdim=True)).square()
    torch.testing.assert_close(variance.double(), squares.mean(-1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extremes_and_median(shape: tuple[int, ...]) -> None:
    x = rows(shape).transpose(0, -1).contiguous().transpose(0, -1)
    least, greatest = rowstats.extremes(x)
    assert torch.equal(least, x.amin(-1)) and torch.equal(greatest, x.amax(-1))
    assert torch.equal(rowstats.median(x), x.median(-1).values)


def test_not_a_number_is_seen_wherever_it_stands() -> None:
    for place in range(3):
        x = torch.tensor([1.0, 2.0, 3.0])
        x[place] = float("nan")
        assert torch.stack(rowstats.extremes(x)).isnan().all() and rowstats.median(x).isnan()


@pytest.mark.parametrize("name", rowstats.__all__)
def test_graphs_know_the_ops(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.rowstats, name).default, (rows((4, 6)),))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(RuntimeError, match="x must be float32"):
        rowstats.moments(torch.ones(3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="rows of one value or more"):
        rowstats.median(torch.ones(3, 0))
