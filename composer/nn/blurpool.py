"""Anti-aliased layers: convolution and pooling that blur before they subsample.

    blur(x) = x * [1 2 1; 2 4 2; 1 2 1] / 16        per channel

Paper: Making Convolutional Networks Shift-Invariant Again, Zhang 2019, https://arxiv.org/abs/1904.11486
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BlurConv2d", "BlurMaxPool2d", "BlurPool2d", "blur_2d", "blurmax_pool2d"]

# The types here are readable by TorchScript: no strings, and only types in class bodies.
Size: TypeAlias = int | tuple[int, int]


def blur_2d(input: Tensor, channels: int = -1, stride: Size = 1, filter: Tensor | None = None) -> Tensor:
    """Blur each channel, and keep every ``stride``-th pixel.

    Zero padding keeps the size with stride 1.

    Args:
        input: Images, (B, C, H, W) or (C, H, W), of a floating dtype and any memory format.
        channels: C; read from the input by default.
        stride: Step in pixels, along both dimensions or (vertically, horizontally).
        filter: The kernel, (K, L) or (1, 1, K, L) with odd sizes; the binomial 3 x 3 kernel by default.

    Returns:
        Blurred images, (B, C, ceil(H / stride), ceil(W / stride)).

    Raises:
        ValueError: A size of the filter is even, or ``channels`` does not match the input.

    >>> blur_2d(torch.ones(1, 1, 3, 3))
    tensor([[[[0.5625, 0.7500, 0.5625],
              [0.7500, 1.0000, 0.7500],
              [0.5625, 0.7500, 0.5625]]]])
    """
    found = input.shape[-3]
    if channels != -1 and channels != found:
        raise ValueError(f"channels must be the number of channels of the input, {found}, or -1, but got {channels}.")
    if filter is None:
        filter = _binomial_filter(input.device)
    height, width = filter.shape[-2], filter.shape[-1]
    if height % 2 == 0 or width % 2 == 0:
        raise ValueError(f"filter must have odd sizes, so that it has a center, but got ({height}, {width}).")
    kernel = filter.to(input.dtype).expand(found, 1, height, width)
    return F.conv2d(input, kernel, None, _pair(stride), (height // 2, width // 2), 1, found)


def blurmax_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size = 2,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    filter: Tensor | None = None,
) -> Tensor:
    """Take the maximum around each pixel, then blur and keep every ``stride``-th pixel.

    Args:
        input: Images, (B, C, H, W) or (C, H, W).
        kernel_size: Size in pixels of the window of the maximum.
        stride: Step in pixels of the result.
        padding: Pixels of minus infinity around the image, at most half the kernel.
        dilation: Step in pixels within the window.
        ceil_mode: As for :func:`torch.nn.functional.max_pool2d`; it has no effect, since the pooling has stride 1.
        filter: As for :func:`blur_2d`.

    >>> blurmax_pool2d(torch.ones(1, 1, 8, 8), kernel_size=3, padding=1).shape
    torch.Size([1, 1, 4, 4])
    """
    maxima = F.max_pool2d(input, _pair(kernel_size), 1, _pair(padding), _pair(dilation), ceil_mode)
    return blur_2d(maxima, stride=stride, filter=filter)


class BlurPool2d(nn.Module):
    """Blurs, and keeps every ``stride``-th pixel: :func:`blur_2d` as a layer.

    Args:
        channels: C; 0 takes any.
        stride: Step in pixels.
        padding: Ignored, accepted for compatibility; padding is always as in :func:`blur_2d`.

    >>> BlurPool2d(stride=2)(torch.ones(1, 8, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    if TYPE_CHECKING:
        blur_filter: Tensor

    def __init__(self, channels: int = 0, stride: Size = 2, padding: Size = 1) -> None:
        super().__init__()
        self.channels = channels
        self.stride = stride
        self.padding = padding
        self.register_buffer("blur_filter", _binomial_filter(), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Blur images of shape (B, C, H, W)."""
        return blur_2d(input, self.channels if self.channels > 0 else -1, self.stride, self.blur_filter)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"channels={self.channels}, stride={self.stride}"


class BlurMaxPool2d(nn.Module):
    """Anti-aliased max-pooling: :func:`blurmax_pool2d` as a layer, with the arguments of ``MaxPool2d``.

    Args:
        kernel_size: Size in pixels of the window.
        stride: Step in pixels; the kernel size by default.
        padding: Pixels of minus infinity around the image.
        dilation: Step in pixels within the window.
        ceil_mode: As for :class:`torch.nn.MaxPool2d`.

    >>> BlurMaxPool2d(2)(torch.ones(1, 8, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    if TYPE_CHECKING:
        blur_filter: Tensor

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.ceil_mode = ceil_mode
        self.register_buffer("blur_filter", _binomial_filter(), persistent=False)

    @staticmethod
    def from_maxpool2d(module: nn.MaxPool2d, module_index: int = -1) -> BlurMaxPool2d:
        """Make the anti-aliased version of a max-pooling layer.

        Args:
            module: The layer.
            module_index: Not used; present so that this is a policy of module surgery.

        >>> BlurMaxPool2d.from_maxpool2d(torch.nn.MaxPool2d(3, 2, 1))
        BlurMaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1)
        """
        return BlurMaxPool2d(module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)  # pyright: ignore[reportArgumentType]

    def forward(self, input: Tensor) -> Tensor:
        """Pool images of shape (B, C, H, W)."""
        return blurmax_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.blur_filter
        )

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}"


class BlurConv2d(nn.Module):
    """An anti-aliased strided convolution.

    With ``blur_first`` the input is blurred, then convolved with the stride; otherwise it is convolved at every pixel,
    then blurred and subsampled, which costs ``stride`` squared times the convolution.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Size of the convolution in pixels.
        stride: Step in pixels; 1 by default.
        padding: Zero padding of the convolution, in pixels.
        dilation: Step in pixels within the kernel.
        groups: Number of channel groups.
        bias: Whether a bias is learned.
        blur_first: Whether to blur before the convolution.

    >>> BlurConv2d(3, 8, kernel_size=3, stride=2, padding=1)(torch.ones(1, 3, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    if TYPE_CHECKING:
        blur_filter: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        blur_first: bool = True,
    ) -> None:
        super().__init__()
        step = 1 if stride is None else stride
        self._wrap(nn.Conv2d(in_channels, out_channels, kernel_size, step, padding, dilation, groups, bias), blur_first)

    @staticmethod
    def from_conv2d(module: nn.Conv2d, module_index: int = -1, blur_first: bool = True) -> BlurConv2d:
        """Make the anti-aliased version of a convolution, which it wraps; the blur may take over the stride.

        Args:
            module: The layer.
            module_index: Not used; present so that this is a policy of module surgery.
            blur_first: Whether to blur before the convolution.

        >>> conv = torch.nn.Conv2d(3, 8, 3, stride=2)
        >>> BlurConv2d.from_conv2d(conv).conv.weight is conv.weight
        True
        """
        new = BlurConv2d.__new__(BlurConv2d)
        nn.Module.__init__(new)
        new._wrap(module, blur_first)
        return new

    def _wrap(self, conv: nn.Conv2d, blur_first: bool) -> None:
        self.conv = conv
        self.blur_first = blur_first
        self.stride: tuple[int, int] = (conv.stride[0], conv.stride[1])
        self.register_buffer("blur_filter", _binomial_filter(conv.weight.device, conv.weight.dtype), persistent=False)
        # A 1 x 1 convolution reads single pixels, so only those that it would read are blurred.
        self._blur_thins = not blur_first or (max(conv.kernel_size) == 1 and conv.padding in ((0, 0), "valid", "same"))
        if self._blur_thins:
            conv.stride = (1, 1)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve images of shape (B, C, H, W)."""
        step = self.stride if self._blur_thins else (1, 1)
        if self.blur_first:
            return self.conv(blur_2d(input, stride=step, filter=self.blur_filter))
        return blur_2d(self.conv(input), stride=step, filter=self.blur_filter)

    def extra_repr(self) -> str:
        """Show the arguments that the convolution does not show."""
        return f"stride={self.stride}, blur_first={self.blur_first}"


def _pair(size: Size) -> tuple[int, int]:
    """Return a size for both dimensions."""
    if isinstance(size, int):
        return (size, size)
    return (size[0], size[1])


def _binomial_filter(device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the kernel [1 2 1] x [1 2 1] / 16, (3, 3), exact in every floating dtype."""
    # Computed on the device: copying values from the host would synchronize a GPU in each pass.
    line = 0.5 - 0.25 * torch.arange(-1, 2, device=device, dtype=dtype).abs()
    return line[:, None] * line
