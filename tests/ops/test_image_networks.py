"""A small generator and discriminator in the manner of StyleGAN2: with our ops they train as with plain torch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precast.compat import members  # noqa: E402
from precast.compat import op as op_layout  # noqa: E402
from precast.compat.torch_utils.ops import bias_act as bias_act_module  # noqa: E402
from precast.compat.torch_utils.ops import upfirdn2d as upfirdn2d_module  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CHANNELS, STYLE = 8, 6
NAMES = ["bias_act", "fused_leaky_relu", "setup_filter", "upfirdn2d", "filter2d", "upsample2d", "downsample2d"]


def plain() -> SimpleNamespace:
    return SimpleNamespace(**members.members((), NAMES, (), plain=True))


def by_torch_utils() -> SimpleNamespace:
    """The ops through the modules of one layout."""
    module = upfirdn2d_module
    return SimpleNamespace(
        bias_act=bias_act_module.bias_act,
        setup_filter=module.setup_filter,
        upfirdn2d=module.upfirdn2d,
        upsample2d=module.upsample2d,
        downsample2d=module.downsample2d,
        filter2d=module.filter2d,
    )


def by_op() -> SimpleNamespace:
    """The ops through the functions of the other layout, for the calls that this file makes."""

    def bias_act(x: Any, b: Any, act: str = "linear", gain: float | None = None, clamp: float | None = None) -> Any:
        if act != "lrelu":
            return plain().bias_act(x, b, act=act, gain=gain, clamp=clamp)
        y = op_layout.fused_leaky_relu(x, b, 0.2, 2**0.5 if gain is None else gain)
        return y if clamp is None else y.clamp(-clamp, clamp)

    def upfirdn2d(x: Any, f: Any, up: int = 1, down: int = 1, padding: Any = 0, gain: float = 1.0) -> Any:
        return op_layout.upfirdn2d(x, f * gain, up, down, padding)

    return SimpleNamespace(
        bias_act=bias_act,
        setup_filter=plain().setup_filter,
        upfirdn2d=upfirdn2d,
        upsample2d=lambda x, f: upfirdn2d(x, f, up=2, padding=(2, 1, 2, 1), gain=4.0),
        downsample2d=lambda x, f: upfirdn2d(x, f, down=2, padding=(1, 1, 1, 1)),
        filter2d=lambda x, f: upfirdn2d(x, f, padding=(2, 1, 2, 1)),
    )


class Modulated(torch.nn.Module):
    """A convolution whose weights are scaled by a style and normalised, then a filter after upsampling, and bias."""

    def __init__(self, ops: Any, up: bool) -> None:
        super().__init__()
        self.ops, self.up = ops, up
        self.weight = torch.nn.Parameter(torch.randn(CHANNELS, CHANNELS, 3, 3))
        self.style = torch.nn.Linear(STYLE, CHANNELS)
        self.bias = torch.nn.Parameter(torch.zeros(CHANNELS))
        self.register_buffer("f", ops.setup_filter([1, 3, 3, 1]))

    def forward(self, x: Any, w: Any) -> Any:
        batch, _, height, width = x.shape
        weight = self.weight * (self.style(w) + 1)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        x = x.reshape(1, -1, height, width)
        if self.up:
            weight = weight.transpose(1, 2).reshape(-1, CHANNELS, 3, 3)
            x = torch.nn.functional.conv_transpose2d(x, weight, stride=2, groups=batch)
            x = x.reshape(batch, CHANNELS, *x.shape[2:])
            x = self.ops.upfirdn2d(x, self.f, padding=(1, 1, 1, 1), gain=4.0)
        else:
            x = torch.nn.functional.conv2d(x, weight.reshape(-1, CHANNELS, 3, 3), padding=1, groups=batch)
            x = x.reshape(batch, CHANNELS, height, width)
        return self.ops.bias_act(x, self.bias, act="lrelu", clamp=256.0)


class Generator(torch.nn.Module):
    def __init__(self, ops: Any) -> None:
        super().__init__()
        self.ops = ops
        self.mapping = torch.nn.Linear(STYLE, STYLE)
        self.mapping_bias = torch.nn.Parameter(torch.zeros(STYLE))
        self.const = torch.nn.Parameter(torch.randn(1, CHANNELS, 4, 4))
        self.layers = torch.nn.ModuleList([Modulated(ops, up) for up in (False, True, False, True)])
        self.to_rgb = torch.nn.ModuleList([torch.nn.Conv2d(CHANNELS, 3, 1, bias=False) for _ in range(3)])
        self.rgb_bias = torch.nn.Parameter(torch.zeros(3, 3))
        self.register_buffer("f", ops.setup_filter([1, 3, 3, 1]))

    def forward(self, z: Any) -> Any:
        w = self.ops.bias_act(torch.nn.functional.linear(z, self.mapping.weight), self.mapping_bias, act="lrelu")
        x = self.layers[0](self.const.expand(z.shape[0], -1, -1, -1), w)
        image = self.ops.bias_act(self.to_rgb[0](x), self.rgb_bias[0], clamp=256.0)
        for number in (1, 2):
            if number == 2:
                x = self.layers[2](x, w)
            x = self.layers[2 * number - 1](x, w)
            image = self.ops.upsample2d(image, self.f)
            image = image + self.ops.bias_act(self.to_rgb[number](x), self.rgb_bias[number], clamp=256.0)
        return image


class Discriminator(torch.nn.Module):
    def __init__(self, ops: Any) -> None:
        super().__init__()
        self.ops = ops
        self.from_rgb = torch.nn.Conv2d(3, CHANNELS, 1, bias=False)
        self.first, self.second = (torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False) for _ in range(2))
        self.skip = torch.nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)
        self.biases = torch.nn.Parameter(torch.zeros(3, CHANNELS))
        self.out = torch.nn.Linear(CHANNELS * 64, 1)
        self.register_buffer("f", ops.setup_filter([1, 3, 3, 1]))

    def forward(self, image: Any) -> Any:
        x = self.ops.bias_act(self.from_rgb(image), self.biases[0], act="lrelu")
        y = self.skip(self.ops.downsample2d(x, self.f))
        x = self.ops.bias_act(self.first(x), self.biases[1], act="lrelu")
        x = self.second(self.ops.filter2d(x, self.f))[:, :, ::2, ::2]
        x = self.ops.bias_act(x, self.biases[2], act="lrelu", gain=1.0)
        return self.out((x + y).flatten(1))


def trained(make: Callable[[], Any], device: str, steps: int = 20) -> list[Any]:
    """Losses and weights after steps with a non-saturating loss, R1 (a second gradient) and path lengths (another)."""
    torch.manual_seed(0)
    generator, discriminator = Generator(make()).to(device), Discriminator(make()).to(device)
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3) for net in (generator, discriminator)]
    random = torch.Generator().manual_seed(1)
    softplus, seen = torch.nn.functional.softplus, []
    for _ in range(steps):
        z = torch.randn(4, STYLE, generator=random).to(device)
        real = torch.randn(4, 3, 16, 16, generator=random).to(device).requires_grad_()
        noise = torch.randn(4, 3, 16, 16, generator=random).to(device)
        score = discriminator(real)
        (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        loss = softplus(discriminator(generator(z).detach())).mean() + softplus(-score).mean()
        loss = loss + slope.square().sum((1, 2, 3)).mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        z.requires_grad_()
        image = generator(z)
        (length,) = torch.autograd.grad((image * noise).sum() / 16, z, create_graph=True)
        cost = softplus(-discriminator(image)).mean() + 0.1 * (length.square().sum(1).sqrt() - 1).square().mean()
        optimizers[0].zero_grad()
        cost.backward()
        optimizers[0].step()
        seen.append(torch.stack([loss.detach(), cost.detach()]))
    return [torch.stack(seen), *(p.detach() for net in (generator, discriminator) for p in net.parameters())]


@pytest.mark.parametrize("layout", [by_torch_utils, by_op], ids=["torch_utils", "op"])
def test_twenty_steps_equal_plain_torch(layout: Callable[[], Any], device: str) -> None:
    ours, right = trained(layout, device), trained(plain, device)
    assert float(right[0][-1].sum()) != float(right[0][0].sum())
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


def test_the_names_and_defaults_that_such_code_reads() -> None:
    functions = bias_act_module.activation_funcs
    assert functions["lrelu"].def_gain == pytest.approx(2**0.5) and functions["lrelu"].def_alpha == 0.2
    assert functions["sigmoid"].def_gain == 1
    assert upfirdn2d_module._parse_padding([1, 2]) == (1, 1, 2, 2)
    assert upfirdn2d_module._get_filter_size(torch.ones(3, 5)) == (5, 3)
    assert upfirdn2d_module._get_filter_size(None) == (1, 1)
    x = torch.randn(2, 3, 4, 4)
    ours = op_layout.upfirdn2d(x, torch.ones(2, 2), pad=(1, 0))
    torch.testing.assert_close(ours, upfirdn2d_module.upfirdn2d(x, torch.ones(2, 2), padding=[1, 0, 1, 0], impl="ref"))


def test_the_module_with_its_bias() -> None:
    from precast.nn import FusedLeakyReLU

    assert op_layout.FusedLeakyReLU is FusedLeakyReLU
    module = FusedLeakyReLU(3, negative_slope=0.1, scale=2.0)
    assert list(module.state_dict()) == ["bias"]
    x = torch.randn(2, 3, 5)
    torch.nn.init.normal_(module.bias)
    right = torch.nn.functional.leaky_relu(x + module.bias[:, None], 0.1) * 2
    torch.testing.assert_close(module(x), right)
    module(x).sum().backward()
    assert module.bias.grad.shape == (3,)
    assert "channel=3, negative_slope=0.1" in repr(module)
    assert FusedLeakyReLU(3, bias=False)(x).shape == x.shape
