"""How fake kernels are registered: in torch's registry, or by torch's own function where the registry is another."""

from __future__ import annotations

import pytest
import torch

from precast._dispatch import formulas


class Elsewhere:
    """A registry whose entries hold something else."""

    def find(self, name: str) -> object:
        return object()


class OtherArguments:
    """A registry whose fake kernels are registered with other arguments, as in older torch."""

    @property
    def fake_impl(self) -> OtherArguments:
        return self

    def find(self, name: str) -> OtherArguments:
        return self

    def register(self, function: object, source: str) -> None:
        raise AssertionError("reached without the library")


def test_a_fake_kernel_in_torchs_registry_is_what_tracing_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(*_: object, **__: object) -> None:
        raise AssertionError("torch's own function was called, which looks through every module")

    library = torch.library.Library("precast_test", "FRAGMENT")
    library.define("known(Tensor x) -> Tensor")
    with monkeypatch.context() as patch:
        patch.setattr(torch.library, "register_fake", unasked)
        formulas._register_fake(library, "precast_test::known", lambda x: x.new_empty(3))
    with torch._subclasses.FakeTensorMode() as mode:
        made = torch.ops.precast_test.known(mode.from_tensor(torch.ones(2)))
    assert made.shape == (3,) and made.device.type == "cpu"
    assert torch.ops.precast_test.known(torch.ones(2, device="meta")).shape == (3,)


@pytest.mark.parametrize("registry", [Elsewhere(), OtherArguments()], ids=["elsewhere", "arguments"])
def test_in_another_torch_its_own_function_is_called(registry: object, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    library = torch.library.Library("precast_test", "FRAGMENT")
    with monkeypatch.context() as patch:
        patch.setattr(torch._library.simple_registry, "singleton", registry)
        patch.setattr(torch.library, "register_fake", lambda name, fake, *, lib: asked.append((name, fake, lib)))
        formulas._register_fake(library, "precast_test::other", max)
    assert asked == [("precast_test::other", max, library)]
