from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.nn import BlurConv2d, BlurMaxPool2d, BlurPool2d, blur_2d, blurmax_pool2d

FILTER = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16


def test_impulse_gives_the_filter():
    x = torch.zeros(1, 2, 5, 5)
    x[0, 1, 2, 2] = 1.0
    blurred = blur_2d(x)
    assert torch.equal(blurred[0, 1, 1:4, 1:4], FILTER)
    assert torch.equal(blurred[0, 0], torch.zeros(5, 5))
    assert blurred.sum() == 1.0  # the kernel sums to one


@given(
    value=st.floats(-100, 100, width=32), height=st.integers(3, 9), width=st.integers(3, 9), stride=st.integers(1, 3)
)
def test_constant_images_stay_constant_inside(value, height, width, stride):
    blurred = blur_2d(torch.full((1, 1, height, width), value), stride=stride)
    assert blurred.shape[-2:] == (-(-height // stride), -(-width // stride))
    inner = blurred[..., 1 : (height - 2) // stride + 1, 1 : (width - 2) // stride + 1]
    torch.testing.assert_close(inner, torch.full_like(inner, value))


def test_stride_keeps_every_other_pixel():
    x = torch.randn(2, 3, 8, 9)
    assert torch.allclose(blur_2d(x, stride=2), blur_2d(x)[..., ::2, ::2], atol=1e-6)
    assert torch.allclose(blur_2d(x, stride=(1, 2)), blur_2d(x)[..., ::2], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_dtypes_and_memory_formats(dtype, memory_format):
    x = torch.randn(2, 4, 6, 6).to(dtype=dtype, memory_format=memory_format)
    for layer in (BlurPool2d(), BlurMaxPool2d(2), BlurConv2d(4, 4, 3, 2, 1).to(dtype)):
        out = layer(x)
        assert out.dtype == dtype
        assert out.is_contiguous(memory_format=memory_format)


def test_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert BlurConv2d(4, 4, 3, 2, 1)(torch.randn(2, 4, 6, 6)).dtype == torch.bfloat16
        BlurMaxPool2d(2)(torch.randn(2, 4, 6, 6))


def test_own_filter():
    box = torch.ones(1, 5) / 5
    x = torch.randn(1, 1, 4, 9)
    torch.testing.assert_close(blur_2d(x, filter=box), F.avg_pool2d(x, (1, 5), 1, (0, 2)))
    torch.testing.assert_close(blur_2d(x, filter=box.view(1, 1, 1, 5)), F.avg_pool2d(x, (1, 5), 1, (0, 2)))
    with pytest.raises(ValueError, match="odd"):
        blur_2d(x, filter=torch.ones(2, 2))
    with pytest.raises(ValueError, match="channels"):
        blur_2d(x, channels=3)
    assert blur_2d(x[0]).shape == (1, 4, 9)


@pytest.mark.parametrize("arguments", [(2,), (3, 2, 1), (3, (2, 1), 1), (2, 3), ((2, 3), 2)])
def test_maxpool_keeps_the_size_and_blurs_the_maxima(arguments):
    x = torch.randn(2, 3, 12, 12)
    pool = nn.MaxPool2d(*arguments)
    layer = BlurMaxPool2d.from_maxpool2d(pool)
    maxima = F.max_pool2d(x, pool.kernel_size, 1, pool.padding)
    torch.testing.assert_close(layer(x), blur_2d(maxima, stride=pool.stride))
    torch.testing.assert_close(layer(x), blurmax_pool2d(x, pool.kernel_size, pool.stride, pool.padding))
    if arguments in ((2,), (3, 2, 1)):
        assert layer(x).shape == pool(x).shape


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("stride", [2, (1, 2)])
@pytest.mark.parametrize("blur_first", [True, False])
def test_conv_equals_blur_and_conv_in_turn(kernel_size, stride, blur_first):
    conv = nn.Conv2d(4, 6, kernel_size, stride, padding=kernel_size // 2, groups=2)
    x = torch.randn(2, 4, 9, 8)
    weight, bias = conv.weight.detach().clone(), conv.bias.detach().clone()
    if blur_first:
        expected = F.conv2d(blur_2d(x), weight, bias, stride, kernel_size // 2, 1, 2)
    else:
        expected = blur_2d(F.conv2d(x, weight, bias, 1, kernel_size // 2, 1, 2), stride=stride)
    layer = BlurConv2d.from_conv2d(conv, blur_first=blur_first)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    assert layer.conv is conv
    assert sorted(layer.state_dict()) == ["conv.bias", "conv.weight"]


def test_conv_of_its_own_arguments():
    layer = BlurConv2d(4, 8, 3, stride=2, padding=1, bias=False)
    assert layer(torch.zeros(1, 4, 8, 8)).shape == (1, 8, 4, 4)
    assert layer.conv.bias is None
    assert BlurConv2d(4, 8, 3)(torch.zeros(1, 4, 8, 8)).shape == (1, 8, 6, 6)
    assert "blur_first=True" in repr(layer)
    assert "stride=2" in repr(BlurPool2d(8, 2))


def test_gradients_reach_the_input_and_not_the_filter():
    layer = BlurConv2d(2, 2, 3, 2, 1).double()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
    assert not layer.blur_filter.requires_grad
