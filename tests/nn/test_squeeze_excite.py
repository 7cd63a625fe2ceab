from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from composer.nn import SqueezeExcite2d, SqueezeExciteConv2d


def plain(layer, x):
    """The formula, with the gradient of autograd."""
    squeeze, excite = (layer_.weight.to(x.dtype) for layer_ in (layer.squeeze, layer.excite))
    weights = torch.sigmoid(F.linear(F.relu(F.linear(x.mean((2, 3)), squeeze)), excite))
    return x * weights[:, :, None, None]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_formula_and_gradients(dtype, memory_format):
    layer = SqueezeExcite2d(6, 4)
    x = torch.randn(3, 6, 5, 4).to(dtype=dtype, memory_format=memory_format)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    upstream = torch.randn(x.shape).to(dtype)
    expected, found = plain(layer, one), layer(other)
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found, expected, **tolerance)
    assert found.is_contiguous(memory_format=memory_format)
    gradients = [
        torch.autograd.grad(y, (z, *layer.parameters()), upstream) for y, z in ((expected, one), (found, other))
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, **tolerance)


def test_gradcheck():
    layer = SqueezeExcite2d(3, 2).double()
    assert torch.autograd.gradcheck(layer, torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True))


def test_compiled_is_the_same():
    torch.compiler.reset()
    layer, x = SqueezeExcite2d(6, 4), torch.randn(3, 6, 5, 4)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))


def test_autocast_keeps_the_format_of_the_convolution():
    layer = SqueezeExciteConv2d(4, 8, 3)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(2, 4, 6, 6))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize(("latent", "width"), [(0.25, 4), (5, 5), (0.001, 1), (1, 1)])
def test_width(latent, width):
    assert SqueezeExcite2d(16, latent).squeeze.out_features == width
    assert SqueezeExciteConv2d(8, 16, 1, latent_channels=latent).se.squeeze.out_features == width


def test_of_a_convolution():
    conv = nn.Conv2d(4, 8, 3, stride=2, padding=1)
    layer = SqueezeExciteConv2d.from_conv2d(conv, latent_channels=2)
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(layer(x), plain(layer.se, conv(x)))
    assert SqueezeExciteConv2d(conv=conv).conv is conv
    with pytest.raises(ValueError, match="latent_channels"):
        SqueezeExcite2d(4, 0)


@pytest.mark.parametrize("autocast", [False, True])
def test_meta_tensors(autocast):
    """Meta tensors have no autocast dtype."""
    layer = SqueezeExciteConv2d(3, 16, 3).to("meta")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = layer(torch.empty(2, 3, 8, 8, device="meta"))
    assert (output.shape, output.dtype, output.device.type) == ((2, 16, 6, 6), torch.float32, "meta")
    output.sum().backward()
    assert all(parameter.grad.is_meta for parameter in layer.parameters())
