"""``scipy.signal.upfirdn`` as a witness: it knows nothing of our formulas or of torch's convolutions."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from scipy.signal import upfirdn

torch = pytest.importorskip("torch")

from precast import ops  # noqa: E402
from precast.ops.image import reference  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]


def by_scipy(image: Any, taps: Any, up: int, down: int, pads: tuple[int, int]) -> Any:
    """One axis, the last: upsampled and filtered by scipy, which begins where the first tap meets the first pixel.

    Its result has no padding behind the last pixel, and all taps overlap the image: so result ``i`` of ours, without
    steps, is its result ``i + taps - 1 - before``.
    """
    full = upfirdn(taps, image, up=up, down=1, axis=-1)
    length = image.shape[-1] * up + pads[0] + pads[1] - len(taps) + 1
    first = len(taps) - 1 - pads[0]
    places = np.arange(first, first + length)
    inside = (places >= 0) & (places < full.shape[-1])
    found = np.zeros((*image.shape[:-1], length))
    found[..., inside] = full[..., places[inside]]
    return found[..., ::down]


@pytest.mark.parametrize("function", ["kernel", "reference"])
def test_generated_filters(function: str) -> None:
    numbers, generator = random.Random(5), torch.Generator().manual_seed(5)
    for _ in range(80):
        size = [numbers.randint(1, 20) for _ in range(2)]
        taps = [torch.randn(numbers.randint(1, 12), generator=generator, dtype=torch.float64) for _ in range(2)]
        ups, downs = ([numbers.randint(1, 4) for _ in range(2)] for _ in range(2))
        pads = [(numbers.randint(-3, 12), numbers.randint(-3, 12)) for _ in range(2)]
        if any(n * u + sum(p) < len(t) for n, u, p, t in zip(size, ups, pads, taps, strict=True)):
            continue
        x = torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)
        args = (ups[1], ups[0], downs[1], downs[0], *pads[1], *pads[0], False, 1.0)
        call = torch.ops.precast.upfirdn2d if function == "kernel" else reference.upfirdn2d
        ours = call(x, torch.outer(*taps), *args)
        right = by_scipy(x.numpy(), taps[1].numpy(), ups[1], downs[1], pads[1])
        right = by_scipy(right.swapaxes(-1, -2), taps[0].numpy(), ups[0], downs[0], pads[0]).swapaxes(-1, -2)
        np.testing.assert_allclose(ours.numpy(), right, rtol=1e-11, atol=1e-11)


def test_upsampling_and_downsampling() -> None:
    x = torch.randn(1, 1, 9, 9, dtype=torch.float64)
    f = ops.setup_filter([1, 3, 3, 1])
    taps = np.array([1, 3, 3, 1]) / 8
    for ours, up, down, pads, gain in (
        (ops.upsample2d(x, f), 2, 1, (2, 1), 2),
        (ops.downsample2d(x, f), 1, 2, (1, 1), 1),
        (ops.filter2d(x, f), 1, 1, (2, 1), 1),
    ):
        right = by_scipy(x.numpy(), taps * gain, up, down, pads)
        right = by_scipy(right.swapaxes(-1, -2), taps * gain, up, down, pads).swapaxes(-1, -2)
        np.testing.assert_allclose(ours.numpy(), right, rtol=1e-11, atol=1e-12)
