"""What the op tests share: the devices, and the rule that says whether a result is close enough."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit import forked, spawn

if TYPE_CHECKING:
    from torch import Tensor


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["direct", "dispatched"])
def each_route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes public functions use the route of the test's name; call it when the kernels are loaded."""
    from precast._dispatch import namespace

    def take() -> None:
        routes = [binding.__self__ for bindings in namespace.BINDINGS.values() for binding in bindings]
        assert routes
        for route in routes if request.param == "dispatched" else ():
            monkeypatch.setattr(route, "call", route.below)

    return take


@pytest.fixture
def assert_accurate() -> Callable[..., None]:
    """``check(ours, exact, torchs)``: of one shape, ``exact`` in float64, ``torchs`` in the dtype of ``ours``.

    Accepted is an error of one unit in the last place (float32: 2e-6 of the element) at every element, or else a
    largest error of at most 1.5 times torch's own. ``terms`` is the size of what was added up for an element, where
    that can be much more than the element itself: the float32 allowance is then taken from it.
    """
    import torch

    def check(ours: Tensor, exact: Tensor, torchs: Tensor | None = None, *, terms: Tensor | None = None) -> None:
        assert exact.dtype == torch.float64
        assert ours.shape == exact.shape
        ours, exact = ours.detach().cpu(), exact.detach().cpu()
        error = (ours.double() - exact).abs()
        if ours.numel() == 0:
            return
        unit = 2e-6 * (exact.abs() if terms is None else terms.detach().cpu())
        if ours.dtype != torch.float32:
            kind = torch.finfo(ours.dtype)
            unit += kind.eps * torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=kind.tiny))))
        if bool((error <= unit).all()):
            return
        worst = int((error / unit).argmax())
        text = (
            f"{int((error > unit).sum())} of {error.numel()} elements are off by more than a unit; the worst: {worst}, "
        )
        text += f"ours {ours.flatten()[worst]}, exact {exact.flatten()[worst]}, largest error {error.max()}"
        assert torchs is not None, text
        assert torchs.dtype == ours.dtype
        allowed = 1.5 * (torchs.detach().cpu().double() - exact).abs().max()
        assert error.max() <= allowed, f"{text}, torch's own error times 1.5 {allowed}"

    return check


@pytest.fixture
def run_child(tmp_path: Path) -> Callable[[str], str]:
    """Runs Python source in a fresh process, with empty torch.compile caches, and returns what it printed."""

    def run(source: str) -> str:
        env = spawn.environ(PYTHONPATH=spawn.search_path(), TORCHINDUCTOR_CACHE_DIR=tmp_path / "inductor")
        child = forked.run(textwrap.dedent(source), env=env, cwd=tmp_path)
        assert child.returncode == 0, child.stdout + child.stderr
        return child.stdout

    return run
