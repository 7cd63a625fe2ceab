"""Squeeze-and-excitation: reweight the channels of an image based on their means.

    y = x * sigmoid(W2 relu(W1 mean(x)))            mean over the pixels, one weight for each channel

Paper: Squeeze-and-Excitation Networks, Hu et al. 2018, https://arxiv.org/abs/1709.01507
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from composer._numbers import positive, whole_number
from composer.nn._forward_context import autocast_dtype, is_traced

__all__ = ["SqueezeExcite2d", "SqueezeExciteConv2d"]


class SqueezeExcite2d(nn.Module):
    """Reweights channels with a small network of the channel means.

    Args:
        num_features: C.
        latent_channels: Width of the hidden layer: channels, or below 1 a fraction of ``num_features``; at least one.

    Raises:
        ValueError: ``latent_channels`` is not positive.

    >>> layer = SqueezeExcite2d(64)
    >>> layer(torch.ones(2, 64, 8, 8)).shape, layer.squeeze.out_features
    (torch.Size([2, 64, 8, 8]), 8)

    Paper: https://arxiv.org/abs/1709.01507 (Hu et al. 2018)
    """

    def __init__(self, num_features: int, latent_channels: float = 0.125) -> None:
        super().__init__()
        num_features = whole_number("num_features", num_features, minimum=1)
        is_fraction = positive("latent_channels", latent_channels) < 1
        latent = max(int(latent_channels * num_features if is_fraction else latent_channels), 1)
        self.squeeze = nn.Linear(num_features, latent, bias=False)
        self.excite = nn.Linear(latent, num_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Reweight the channels of images of shape (B, C, H, W)."""
        # TorchScript compiles only one branch.
        return self._plain(input) if torch.jit.is_scripting() else self._fused(input)  # pyright: ignore[reportPrivateImportUsage]

    def _plain(self, input: Tensor) -> Tensor:
        """Compute the formula with separate operators, for tracers and compilers."""
        hidden = F.relu(self.squeeze(input.mean((2, 3))))
        return input * self.excite(hidden).sigmoid()[..., None, None].to(input.dtype)

    def _fused(self, input: Tensor) -> Tensor:
        """Compute the same with :class:`_SqueezeExcite`."""
        if is_traced(input) or input.dtype not in _DTYPES:
            return self._plain(input)
        device_type = input.device.type
        squeeze, excite = (layer.weight.to(input.dtype) for layer in (self.squeeze, self.excite))
        if autocast_dtype(device_type) is None:
            return _SqueezeExcite.apply(input, squeeze, excite)
        # In the dtype that the preceding convolution returned.
        with torch.autocast(device_type, enabled=False):
            return _SqueezeExcite.apply(input, squeeze, excite)


class SqueezeExciteConv2d(nn.Module):
    """A convolution whose output channels are reweighted by :class:`SqueezeExcite2d`.

    Args:
        *args: As for :class:`torch.nn.Conv2d`.
        latent_channels: As for :class:`SqueezeExcite2d`, of the output channels.
        conv: A convolution to use instead of making one.
        **kwargs: As for :class:`torch.nn.Conv2d`.

    >>> SqueezeExciteConv2d(16, 32, 3, padding=1, latent_channels=0.25)(torch.ones(2, 16, 8, 8)).shape
    torch.Size([2, 32, 8, 8])
    """

    def __init__(
        self, *args: Any, latent_channels: float = 0.125, conv: nn.Conv2d | None = None, **kwargs: Any
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*args, **kwargs) if conv is None else conv
        self.se = SqueezeExcite2d(self.conv.out_channels, latent_channels)

    @staticmethod
    def from_conv2d(module: nn.Conv2d, module_index: int = -1, latent_channels: float = 0.125) -> SqueezeExciteConv2d:
        """Put an existing convolution before a new :class:`SqueezeExcite2d`.

        Args:
            module: The layer.
            module_index: Not used; present so that this is a policy of module surgery.
            latent_channels: As for :class:`SqueezeExcite2d`.

        >>> conv = nn.Conv2d(3, 8, 3)
        >>> SqueezeExciteConv2d.from_conv2d(conv).conv is conv
        True
        """
        return SqueezeExciteConv2d(conv=module, latent_channels=latent_channels)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve images of shape (B, C, H, W)."""
        return self.se(self.conv(input))


# Above this number, one matrix product per channel, which reads both images once, pays off.
_MANY_PIXELS = 100
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class _SqueezeExcite(torch.autograd.Function):
    """The fused layer, with a backward pass that reads each image twice and writes it once."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, squeeze: Tensor, excite: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        means = input.mean((2, 3))
        hidden = torch.relu_(means @ squeeze.t())
        weights = torch.sigmoid_(hidden @ excite.t())
        ctx.save_for_backward(input, squeeze, excite, means, hidden, weights)
        return input * weights[..., None, None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = gradients[0]
        input, squeeze, excite, means, hidden, weights = ctx.saved_tensors
        of_weights = _channel_products(gradient, input)
        of_weights = of_weights * (weights * (1 - weights))
        of_hidden = (of_weights @ excite) * (hidden > 0)
        of_means = (of_hidden @ squeeze) / (input.shape[2] * input.shape[3])
        of_input = torch.addcmul(of_means[..., None, None], gradient, weights[..., None, None])
        return of_input, of_hidden.t() @ means, of_weights.t() @ hidden


def _channel_products(one: Tensor, other: Tensor) -> Tensor:
    """Return the inner product of each channel of one image with that of another, (B, C)."""
    batch, channels = other.shape[:2]
    if not other.is_contiguous() or other.shape[2] * other.shape[3] < _MANY_PIXELS:
        return (one * other).sum((2, 3))
    products = one.reshape(batch * channels, 1, -1) @ other.view(batch * channels, -1, 1)
    return products.view(batch, channels)
