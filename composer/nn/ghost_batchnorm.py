"""Batch norm over parts of a batch: each part, a ghost batch, is normalised by its own mean and variance.

    y = (x - mean(G)) / sqrt(var(G) + eps) * weight + bias          G: the ghost batch that x belongs to

Paper: Train longer, generalize better, Hoffer et al. 2017, https://arxiv.org/abs/1705.08741
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from composer._device_copies import copied_to
from composer._text import positive

__all__ = ["GhostBatchNorm1d", "GhostBatchNorm2d", "GhostBatchNorm3d", "ghost_batchnorm"]

_HALF = (torch.float16, torch.bfloat16)
_LARGE = 1 << 20
"""Number of elements from which on it is worth the effort not to put the batch together from its parts."""


def ghost_batchnorm(module: _BatchNorm, ghost_batch_size: int = 32) -> _GhostBatchNorm:
    """Make the ghost form of a batch norm, with the very parameters and running statistics of it.

    Args:
        module: A ``BatchNorm1d``, ``BatchNorm2d`` or ``BatchNorm3d``.
        ghost_batch_size: Number of samples in a ghost batch, at most.

    Raises:
        TypeError: It is another kind of layer, or one that computes something of its own.

    >>> norm = nn.BatchNorm2d(8)
    >>> ghost_batchnorm(norm, 16).weight is norm.weight
    True
    """
    for cls in (GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d):
        if isinstance(module, cls.__mro__[2]) and type(module).forward is _BatchNorm.forward:
            new = cls.__new__(cls)
            nn.Module.__init__(new)
            for name in ("num_features", "eps", "momentum", "affine", "track_running_stats"):
                setattr(new, name, getattr(module, name))
            new.ghost_batch_size = positive("ghost_batch_size", ghost_batch_size)
            new._parameters.update(module._parameters)
            new._buffers.update(module._buffers)
            return new
    raise TypeError(f"module must be a BatchNorm1d, BatchNorm2d or BatchNorm3d, but got {type(module).__name__}.")


class _GhostBatchNorm(_BatchNorm):
    """What the layers for all numbers of dimensions share: all but the check of the input."""

    def __init__(
        self,
        num_features: int,
        ghost_batch_size: int = 32,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.ghost_batch_size = positive("ghost_batch_size", ghost_batch_size)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise samples of shape (B, C, ...)."""
        # TorchScript compiles one side only.
        return self._one_by_one(input) if torch.jit.is_scripting() else self._fast(input)  # pyright: ignore[reportPrivateImportUsage]

    def _one_by_one(self, input: Tensor) -> Tensor:
        """Normalise ghost batches one after the other."""
        if not self._by_ghost_batches():
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        number = self._number_of_ghost_batches(input.shape)  # pyright: ignore[reportArgumentType]
        outputs: list[Tensor] = []
        parts = input.split(_sizes(input.shape[0], number))
        for part, momentum in zip(parts, self._momenta(number)):  # noqa: B905 -- TorchScript has no such argument
            outputs.append(self._plain(part, momentum))
        return torch.cat(outputs)

    def _by_ghost_batches(self) -> bool:
        return self.training or self.running_mean is None

    def _number_of_ghost_batches(self, shape: list[int]) -> int:
        number = -(-shape[0] // self.ghost_batch_size)
        places = 1
        for size in shape[2:]:
            places *= size
        if places == 1:
            number = min(number, shape[0] // 2)  # a single value has no variance
        return max(number, 1)

    def _fast(self, input: Tensor) -> Tensor:
        """Normalise all ghost batches together where that is worth it."""
        if not self._by_ghost_batches():
            if isinstance(input, fx.Proxy):
                return self._one_by_one(input)
            # Before the size is looked at, to which an exported model would then be bound.
            return super().forward(input)
        # In a trace sizes are tensors; the number of ghost batches is a constant of it.
        shape = [int(size) for size in input.shape] if torch.jit.is_tracing() else input.shape  # pyright: ignore[reportPrivateImportUsage]
        number = self._number_of_ghost_batches(shape)  # pyright: ignore[reportArgumentType]
        if number == 1:
            return super().forward(input)
        self._check_input_dim(input)
        momenta = self._momenta(number)
        if torch.compiler.is_compiling():
            return self._traced(input, momenta)
        weight = self.weight if self.affine else None
        if weight is None or input.numel() < _LARGE or input.device.type not in ("cpu", "cuda"):
            # Not tensor_split, whose gradient is put together from as many copies of the batch as there are parts.
            parts = input.split(_sizes(shape[0], number))
            return torch.cat([self._plain(part, momentum) for part, momentum in zip(parts, momenta, strict=True)])
        running = (self.running_mean, self.running_var) if self.training else (None, None)
        return _GhostNormalise.apply(input, weight, self.bias, *running, momenta, self.eps)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{super().extra_repr()}, ghost_batch_size={self.ghost_batch_size}"

    def _momenta(self, number: int) -> list[float]:
        """The weight of each ghost batch in the running statistics: all together forget as much as one batch does."""
        if not self.training or self.num_batches_tracked is None:
            return [0.0] * number
        self.num_batches_tracked.add_(1)
        if self.momentum is not None:
            return [self.momentum / number] * number
        seen = (int(self.num_batches_tracked) - 1) * number
        return [1 / (seen + place) for place in range(1, number + 1)]

    def _plain(self, part: Tensor, momentum: float) -> Tensor:
        """Normalise one ghost batch."""
        mean = self.running_mean if self.training else None
        variance = self.running_var if self.training else None
        return F.batch_norm(part, mean, variance, self.weight, self.bias, True, momentum, self.eps)

    def _traced(self, input: Tensor, momenta: list[float]) -> Tensor:
        """Normalise all ghost batches at once: what a compiler makes few kernels of, whatever their number."""
        number = len(momenta)
        # Not divmod, which Dynamo does not take of the size of a batch that may be of any.
        size, longer = input.shape[0] // number, input.shape[0] % number
        parts = [(longer, size + 1), (number - longer, size)]
        outputs, means, variances = [], [], []
        start = 0
        for count, length in parts:
            if count == 0:
                continue
            part = input[start : start + count * length].unflatten(0, (count, length))
            start += count * length
            dims = (1, *range(3, part.ndim))
            exact = torch.promote_types(part.dtype, torch.float32)
            variance, mean = torch.var_mean(part.to(exact), dims, correction=0, keepdim=True)
            shape = (-1, *(1,) * (part.ndim - 3))
            scale = torch.rsqrt(variance + self.eps)
            if self.affine:
                scale = scale * self.weight.view(shape)
            shift = -mean * scale
            if self.affine:
                shift = shift + self.bias.view(shape)
            outputs.append((part * scale + shift).flatten(0, 1).to(input.dtype))
            elements = part[0, :, 0].numel()
            means.append(mean.detach().view(count, -1))
            variances.append(variance.detach().view(count, -1) * (elements / max(elements - 1, 1)))
        if self.training and self.running_mean is not None and self.running_var is not None:
            _follow(self.running_mean, torch.cat(means), momenta)
            _follow(self.running_var, torch.cat(variances), momenta)
        return torch.cat(outputs)


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    """``BatchNorm1d`` over ghost batches.

    A batch is split into as few ghost batches of at most ``ghost_batch_size`` samples as will do, of sizes that differ
    by one at most; none is a single value. In evaluation, and for a batch that is one ghost batch, it is
    ``BatchNorm1d``.

    Args:
        num_features: C.
        ghost_batch_size: Number of samples in a ghost batch, at most.
        eps: Added to the variance.
        momentum: Weight of a batch, all its ghost batches together, in the running statistics; None averages evenly.
        affine: Whether there are weights and biases.
        track_running_stats: Whether there are running statistics, for evaluation.

    >>> GhostBatchNorm1d(1, ghost_batch_size=2)(
    ...     torch.tensor([[0.0], [2.0], [5.0], [3.0]])
    ... ).round().flatten()
    tensor([-1.,  1.,  1., -1.], grad_fn=...)
    """


class GhostBatchNorm2d(_GhostBatchNorm, nn.BatchNorm2d):
    """``BatchNorm2d`` over ghost batches, see :class:`GhostBatchNorm1d`.

    >>> GhostBatchNorm2d(8, ghost_batch_size=16)(torch.randn(64, 8, 4, 4)).shape
    torch.Size([64, 8, 4, 4])
    """


class GhostBatchNorm3d(_GhostBatchNorm, nn.BatchNorm3d):
    """``BatchNorm3d`` over ghost batches, see :class:`GhostBatchNorm1d`.

    >>> GhostBatchNorm3d(8, ghost_batch_size=2)(torch.randn(5, 8, 4, 4, 4)).shape
    torch.Size([5, 8, 4, 4, 4])
    """


def _sizes(samples: int, number: int) -> list[int]:
    """The sizes of the ghost batches, as even as can be."""
    size, longer = divmod(samples, number)
    return [size + 1] * longer + [size] * (number - longer)


def _follow(running: Tensor, statistics: Tensor, momenta: list[float]) -> None:
    """Move running statistics towards those of each ghost batch in turn, (n, C), in one go."""
    kept, shares = 1.0, []
    for momentum in reversed(momenta):
        shares.append(kept * momentum)
        kept *= 1 - momentum
    weights = copied_to(torch.tensor(shares[::-1], dtype=running.dtype), running.device)
    running.mul_(kept).add_(weights @ statistics.to(running.dtype))


class _GhostNormalise(torch.autograd.Function):
    """The native kernel on each ghost batch, writing where the result belongs: the batch is never put together."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momenta: list[float],
        eps: float,
    ) -> Tensor:
        number = len(momenta)
        output = torch.empty_like(input)
        # The kernels for GPUs keep the statistics of short formats in float32.
        dtype = torch.float32 if input.is_cuda and weight.dtype in _HALF else weight.dtype
        means = torch.empty(number, input.shape[1], dtype=dtype, device=input.device)
        scales = torch.empty_like(means)
        parts = zip(
            input.tensor_split(number),
            output.tensor_split(number),
            means.unbind(),
            scales.unbind(),
            momenta,
            strict=True,
        )
        for part, out, mean, scale, momentum in parts:
            torch.native_batch_norm(
                part,
                weight,
                bias,
                running_mean,
                running_var,
                True,
                momentum,
                eps,
                out=(out, mean, scale),
            )
        ctx.save_for_backward(input, weight, means, scales)
        ctx.eps = eps
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        input, weight, means, scales = ctx.saved_tensors
        number = len(means)
        of_input = torch.empty_like(input)
        parts = zip(
            gradients[0].tensor_split(number),
            input.tensor_split(number),
            of_input.tensor_split(number),
            means.unbind(),
            scales.unbind(),
            strict=True,
        )
        sums: list[list[Any]] = []
        for gradient, part, out, mean, scale in parts:
            found, *others = torch.ops.aten.native_batch_norm_backward(
                gradient, part, weight, None, None, mean, scale, True, ctx.eps, ctx.needs_input_grad[:3]
            )
            sums.append(others)
            if found is not None:
                out.copy_(found)  # at once, while it is in the cache
        wanted = ctx.needs_input_grad
        of_weight, of_bias = zip(*sums, strict=True)
        return (
            of_input if wanted[0] else None,
            torch.stack(of_weight).sum(0) if wanted[1] else None,
            torch.stack(of_bias).sum(0) if wanted[2] else None,
            *(None,) * 4,
        )
