"""Low-rank layers: a linear layer or convolution factorized into two thin layers with fewer parameters.

    W ~ Wa Wb            a linear layer with ``rank`` output features, then one back to full width;
                         a convolution with ``rank`` output channels, then a 1 x 1 convolution

Papers: Speeding up Convolutional Neural Networks with Low Rank Expansions, Jaderberg et al. 2014,
https://arxiv.org/abs/1405.3866; Zhang et al. 2015, https://arxiv.org/abs/1411.4229
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from composer.nn.low_rank import LowRankSolution, factorize_conv2d, factorize_matrix, latent_size, split_matrix

__all__ = ["FactorizedConv2d", "FactorizedLinear", "factorizing_could_speedup"]


def factorizing_could_speedup(module: nn.Module, latent: float) -> bool:
    """Return whether two thin layers of a given rank need fewer multiplications than one layer.

        latent * (fan_in + out) < fan_in * out            fan_in: in features, or in channels times kernel size

    Args:
        module: A ``Linear`` or ``Conv2d``, or its factorized version; for other modules the result is False.
        latent: Features or channels in between; below 1, a fraction of the smaller of input and output size.

    >>> (
    ...     factorizing_could_speedup(nn.Linear(100, 100), 49),
    ...     factorizing_could_speedup(nn.Linear(100, 100), 50),
    ... )
    (True, False)
    """
    if isinstance(module, FactorizedLinear | nn.Linear):
        num_in, num_out, area = module.in_features, module.out_features, 1
    elif isinstance(module, FactorizedConv2d | nn.Conv2d) and (
        isinstance(module, FactorizedConv2d) or module.groups == 1
    ):
        num_in, num_out, area = module.in_channels, module.out_channels, math.prod(module.kernel_size)
    else:
        return False
    return latent_size("latent", latent, num_in, num_out) <= _largest(num_in * area, num_out)


class _TwoLayers(nn.Module):
    """Base class that provides MosaicML Composer's names of the two layers."""

    __jit_unused_properties__ = ("module0", "module1")

    @property
    def module0(self) -> Any:
        """The first layer, ``reduce``."""
        return self.reduce

    @property
    def module1(self) -> Any:
        """The second layer, ``expand``."""
        return self.expand


class FactorizedLinear(_TwoLayers):
    """A linear layer factorized into two.

    Its initial weights are the best low-rank approximation of a newly initialized layer, see :func:`.split_matrix`.

    Args:
        in_features: Number of input features.
        out_features: Number of output features.
        bias: Whether there is a bias.
        latent_features: Features in between; below 1, a fraction of the smaller of input and output features.

    Raises:
        ValueError: Two layers of that rank need as many multiplications as one.

    >>> layer = FactorizedLinear(64, 32, latent_features=8)
    >>> layer(torch.ones(2, 64)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([2, 32]), 800)

    Paper: https://arxiv.org/abs/2105.01029 (Khodak et al. 2021)
    """

    if TYPE_CHECKING:  # not supported by TorchScript
        reduce: nn.Linear
        expand: nn.Linear

    def __init__(self, in_features: int, out_features: int, bias: bool = True, latent_features: float = 0.25) -> None:
        super().__init__()
        self._split(nn.Linear(in_features, out_features, bias), latent_features)

    @staticmethod
    def from_linear(module: nn.Linear, module_index: int = -1, latent_features: float = 0.25) -> FactorizedLinear:
        """Factorize a linear layer with the best low-rank approximation of its weight; the bias is kept.

        Args:
            module: The layer.
            module_index: Not used; present so that this is a policy of module surgery.
            latent_features: Features in between; below 1, a fraction of the smaller of input and output features.

        >>> FactorizedLinear.from_linear(nn.Linear(64, 32), latent_features=8).latent_features
        8
        """
        new = FactorizedLinear.__new__(FactorizedLinear)
        nn.Module.__init__(new)
        new._split(module, latent_features)
        return new

    @property
    def weight(self) -> Tensor:
        """The product of both weights, (out, in), for code that reads the weight of a linear layer."""
        return self.expand.weight @ self.reduce.weight

    @property
    def bias(self) -> Tensor | None:
        """The bias, (out,)."""
        return self.expand.bias

    def _split(self, linear: nn.Linear, latent_features: float) -> None:
        self.in_features, self.out_features = linear.in_features, linear.out_features
        rank = latent_size("latent_features", latent_features, self.in_features, self.out_features)
        _check_rank("latent_features", rank, self.in_features, self.out_features)
        first, second = split_matrix(linear.weight.mT, rank)
        self._set(first, second, linear.bias)
        _freeze_like(linear.weight, self.reduce, self.expand)

    def _set(self, first: Tensor, second: Tensor, bias: Tensor | None) -> None:
        """Set the factors (in, rank) and (rank, out)."""
        self.latent_features = first.shape[1]
        self.reduce = _bare(nn.Linear, self.in_features, self.latent_features, bias=False)
        self.expand = _bare(nn.Linear, self.latent_features, self.out_features, bias=bias is not None)
        _fill(self.reduce, first.mT, None)
        _fill(self.expand, second.mT, bias)

    def forward(self, input: Tensor) -> Tensor:
        """Transform features, (..., in) to (..., out)."""
        return self.expand(self.reduce(input))

    def solution_for_rank(self, input: Tensor, rank: float) -> LowRankSolution:
        """Find thinner layers that approximate this one on some data, see :func:`.factorize_matrix`.

        Args:
            input: Input of the layer, (..., in).
            rank: Features in between.

        >>> FactorizedLinear(64, 32, latent_features=8).solution_for_rank(torch.randn(100, 64), 4).rank
        4
        """
        input = input.detach().flatten(0, -2)
        first, second = self.reduce.weight.mT, self.expand.weight.mT
        output = self(input).detach()
        return factorize_matrix(input, output, first, second, self.expand.bias, rank)

    def apply_solution(self, solution: LowRankSolution) -> None:
        """Set the layers of a solution; the parameters are new, so create the optimizer afterwards.

        Args:
            solution: A result of :meth:`solution_for_rank`.

        Raises:
            ValueError: The solution does not have two factors.

        >>> layer = FactorizedLinear(64, 32, latent_features=8)
        >>> layer.apply_solution(layer.solution_for_rank(torch.randn(100, 64), 4))
        >>> layer.latent_features
        4
        """
        first, second = _factors(solution)
        self._set(first, second, solution.bias)

    def set_rank(self, input: Tensor, rank: float) -> None:
        """Reduce the rank with the best approximation on some data.

        Args:
            input: Input of the layer, (..., in).
            rank: Features in between; below 1, a fraction of the smaller of input and output features.

        Raises:
            ValueError: The rank is larger than the current one.

        >>> layer = FactorizedLinear(64, 32, latent_features=8)
        >>> layer.set_rank(torch.randn(100, 64), 4)
        """
        new_rank = latent_size("rank", rank, self.in_features, self.out_features)
        if _is_thinner(new_rank, self.latent_features):
            self.apply_solution(self.solution_for_rank(input, new_rank))


class FactorizedConv2d(_TwoLayers):
    """A convolution factorized into one with few output channels and a 1 x 1 convolution.

    Its initial weights are the best low-rank approximation of a newly initialized layer, see :func:`.split_matrix`.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        kernel_size: Size in pixels of the first kernel.
        latent_channels: Channels in between; below 1, a fraction of the smaller of input and output channels.
        **kwargs: ``stride``, ``padding``, ``dilation``, ``padding_mode`` and ``bias``, as for
            :class:`torch.nn.Conv2d`.

    Raises:
        NotImplementedError: ``groups`` is not 1.
        ValueError: Two layers of that rank need as many multiplications as one.

    >>> layer = FactorizedConv2d(64, 64, 3, latent_channels=16, padding=1)
    >>> layer(torch.ones(2, 64, 8, 8)).shape, layer.reduce.kernel_size, layer.expand.kernel_size
    (torch.Size([2, 64, 8, 8]), (3, 3), (1, 1))

    Paper: https://arxiv.org/abs/1405.3866 (Jaderberg et al. 2014)
    """

    if TYPE_CHECKING:  # not supported by TorchScript
        reduce: nn.Conv2d
        expand: nn.Conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        latent_channels: float = 0.25,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._split(nn.Conv2d(in_channels, out_channels, kernel_size, **kwargs), latent_channels)

    @staticmethod
    def from_conv2d(module: nn.Conv2d, module_index: int = -1, latent_channels: float = 0.25) -> FactorizedConv2d:
        """Factorize a convolution with the best low-rank approximation of its kernel; the bias is kept.

        Args:
            module: The layer.
            module_index: Not used; present so that this is a policy of module surgery.
            latent_channels: Channels in between; below 1, a fraction of the smaller of input and output channels.

        >>> FactorizedConv2d.from_conv2d(nn.Conv2d(64, 64, 3), latent_channels=0.25).latent_channels
        16
        """
        new = FactorizedConv2d.__new__(FactorizedConv2d)
        nn.Module.__init__(new)
        new._split(module, latent_channels)
        return new

    def _split(self, conv: nn.Conv2d, latent_channels: float) -> None:
        if conv.groups != 1:
            raise NotImplementedError(f"groups must be 1, but got {conv.groups}: grouped kernels cannot be factorized.")
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size = (conv.kernel_size[0], conv.kernel_size[1])
        self._arguments: dict[str, Any] = {
            name: getattr(conv, name) for name in ("stride", "padding", "dilation", "padding_mode")
        }
        rank = latent_size("latent_channels", latent_channels, self.in_channels, self.out_channels)
        _check_rank("latent_channels", rank, self.in_channels * math.prod(self.kernel_size), self.out_channels)
        first, second = split_matrix(conv.weight.flatten(1).mT, rank)
        channels_last = conv.weight.is_contiguous(memory_format=torch.channels_last) and not conv.weight.is_contiguous()
        kernels = first.mT.unflatten(1, conv.weight.shape[1:]), second.mT[..., None, None]
        self._set(*kernels, conv.bias, torch.channels_last if channels_last else torch.contiguous_format)
        _freeze_like(conv.weight, self.reduce, self.expand)

    def _set(
        self,
        first: Tensor,
        second: Tensor,
        bias: Tensor | None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """Set the kernels (rank, C_in, kH, kW) and (C_out, rank, 1, 1)."""
        self.latent_channels = first.shape[0]
        sizes = self.in_channels, self.latent_channels, self.kernel_size
        self.reduce = _bare(nn.Conv2d, *sizes, bias=False, **self._arguments)
        self.expand = _bare(nn.Conv2d, self.latent_channels, self.out_channels, 1, bias=bias is not None)
        _fill(self.reduce, first, None, memory_format)
        _fill(self.expand, second, bias, memory_format)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve images of shape (B, C, H, W)."""
        return self.expand(self.reduce(input))

    def solution_for_rank(self, input: Tensor, rank: float) -> LowRankSolution:
        """Find thinner layers that approximate this one on some images, see :func:`.factorize_conv2d`.

        Args:
            input: Input of the layer, (B, C, H, W).
            rank: Channels in between.

        >>> layer = FactorizedConv2d(16, 16, 3, latent_channels=8)
        >>> layer.solution_for_rank(torch.randn(4, 16, 8, 8), 4).rank
        4
        """
        kernels = self.reduce.weight, self.expand.weight
        return factorize_conv2d(input, *kernels, rank=rank, biasB=self.expand.bias, **self._arguments)

    def apply_solution(self, solution: LowRankSolution) -> None:
        """Set the layers of a solution; the parameters are new, so create the optimizer afterwards.

        Args:
            solution: A result of :meth:`solution_for_rank`.

        Raises:
            ValueError: The solution does not have two factors.

        >>> layer = FactorizedConv2d(16, 16, 3, latent_channels=8)
        >>> layer.apply_solution(layer.solution_for_rank(torch.randn(4, 16, 8, 8), 4))
        >>> layer.latent_channels
        4
        """
        first, second = _factors(solution)
        self._set(first, second, solution.bias)

    def set_rank(self, input: Tensor, rank: float) -> None:
        """Reduce the rank with the best approximation on some images.

        Args:
            input: Input of the layer, (B, C, H, W).
            rank: Channels in between; below 1, a fraction of the smaller of input and output channels.

        Raises:
            ValueError: The rank is larger than the current one.

        >>> layer = FactorizedConv2d(16, 16, 3, latent_channels=8)
        >>> layer.set_rank(torch.randn(4, 16, 8, 8), 4)
        """
        new_rank = latent_size("rank", rank, self.in_channels, self.out_channels)
        if _is_thinner(new_rank, self.latent_channels):
            self.apply_solution(self.solution_for_rank(input, new_rank))


def _largest(fan_in: int, num_out: int) -> int:
    """Return the largest rank that saves multiplications."""
    return (fan_in * num_out - 1) // (fan_in + num_out)


def _check_rank(argument: str, rank: int, fan_in: int, num_out: int) -> None:
    largest = _largest(fan_in, num_out)
    if rank > largest:
        raise ValueError(f"{argument} must be at most {largest}, to be cheaper than one layer, but it is {rank}.")


def _is_thinner(rank: int, current: int) -> bool:
    """Return whether the rank decreases; raise if it increases, since a split loses information."""
    if rank > current:
        raise ValueError(f"Requested rank {rank} exceeds current rank {current}: layers can only become thinner.")
    return rank < current


def _bare(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Create a layer without initializing its weights, which are overwritten: the random state does not change."""
    return cls(*args, device="meta", **kwargs)


def _fill(
    layer: nn.Module, weight: Tensor, bias: Tensor | None, memory_format: torch.memory_format = torch.contiguous_format
) -> None:
    layer.weight = nn.Parameter(weight.contiguous(memory_format=memory_format))
    if bias is not None:
        layer.bias = bias if isinstance(bias, nn.Parameter) else nn.Parameter(bias)


def _freeze_like(weight: Tensor, *layers: nn.Module) -> None:
    for layer in layers:
        layer.weight.requires_grad_(weight.requires_grad)  # pyright: ignore[reportCallIssue]


def _factors(solution: LowRankSolution) -> tuple[Tensor, Tensor]:
    if solution.Wa is None or solution.Wb is None:
        raise ValueError(f"solution must have two factors, but got {solution}.")
    return solution.Wa, solution.Wb
