"""Ghost batch norm: normalize each chunk of a batch, a ghost batch, by its mean and variance.

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
from composer._numbers import whole_number

__all__ = ["GhostBatchNorm1d", "GhostBatchNorm2d", "GhostBatchNorm3d", "ghost_batchnorm"]

_HALF = (torch.float16, torch.bfloat16)
_LARGE = 1 << 20
"""Number of elements above which it pays to avoid concatenating the chunks of a batch."""


def ghost_batchnorm(module: _BatchNorm, ghost_batch_size: int = 32) -> _GhostBatchNorm:
    """Make the ghost version of a batch norm, with the same parameter and buffer objects.

    Args:
        module: A ``BatchNorm1d``, ``BatchNorm2d`` or ``BatchNorm3d``.
        ghost_batch_size: Maximum number of samples in a ghost batch.

    Raises:
        TypeError: The layer is of another class, or has a custom forward pass.

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
            new.ghost_batch_size = whole_number("ghost_batch_size", ghost_batch_size, minimum=1)
            new._parameters.update(module._parameters)
            new._buffers.update(module._buffers)
            return new
    raise TypeError(f"module must be a BatchNorm1d, BatchNorm2d or BatchNorm3d, but got {type(module).__name__}.")


class _GhostBatchNorm(_BatchNorm):
    """Base class for all numbers of dimensions: everything except the check of the input."""

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
        self.ghost_batch_size = whole_number("ghost_batch_size", ghost_batch_size, minimum=1)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize samples of shape (B, C, ...)."""
        # TorchScript compiles only one branch.
        return self._one_by_one(input) if torch.jit.is_scripting() else self._fast(input)  # pyright: ignore[reportPrivateImportUsage]

    def _one_by_one(self, input: Tensor) -> Tensor:
        """Normalize ghost batches one after the other."""
        if not self._by_ghost_batches():
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        number = self._number_of_ghost_batches(input.shape)  # pyright: ignore[reportArgumentType]
        outputs: list[Tensor] = []
        chunks = input.split(_sizes(input.shape[0], number))
        for chunk, momentum in zip(chunks, self._momenta(number)):  # noqa: B905 -- TorchScript has no such argument
            outputs.append(self._plain(chunk, momentum))
        return torch.cat(outputs)

    def _by_ghost_batches(self) -> bool:
        return self.training or self.running_mean is None

    def _number_of_ghost_batches(self, shape: list[int]) -> int:
        number = -(-shape[0] // self.ghost_batch_size)
        num_positions = 1
        for size in shape[2:]:
            num_positions *= size
        if num_positions == 1:
            number = min(number, shape[0] // 2)  # a single value has no variance
        return max(number, 1)

    def _fast(self, input: Tensor) -> Tensor:
        """Normalize all ghost batches together if that is faster."""
        if not self._by_ghost_batches():
            if isinstance(input, fx.Proxy):
                return self._one_by_one(input)
            # Before the size is read, which would specialize an exported model to it.
            return super().forward(input)
        # In a trace, sizes are tensors; the number of ghost batches becomes a constant.
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
            # Not tensor_split, whose backward pass concatenates as many copies of the batch as there are chunks.
            chunks = input.split(_sizes(shape[0], number))
            return torch.cat([self._plain(chunk, momentum) for chunk, momentum in zip(chunks, momenta, strict=True)])
        running = (self.running_mean, self.running_var) if self.training else (None, None)
        return _GhostNormalize.apply(input, weight, self.bias, *running, momenta, self.eps)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{super().extra_repr()}, ghost_batch_size={self.ghost_batch_size}"

    def _momenta(self, number: int) -> list[float]:
        """Return the momentum of each ghost batch in the running statistics; combined they equal that of one batch."""
        if not self.training or self.num_batches_tracked is None:
            return [0.0] * number
        self.num_batches_tracked.add_(1)
        if self.momentum is not None:
            return [self.momentum / number] * number
        seen = (int(self.num_batches_tracked) - 1) * number
        return [1 / (seen + step) for step in range(1, number + 1)]

    def _plain(self, chunk: Tensor, momentum: float) -> Tensor:
        """Normalize one ghost batch."""
        mean = self.running_mean if self.training else None
        variance = self.running_var if self.training else None
        return F.batch_norm(chunk, mean, variance, self.weight, self.bias, True, momentum, self.eps)

    def _traced(self, input: Tensor, momenta: list[float]) -> Tensor:
        """Normalize all ghost batches at once, which compilers turn into few kernels, whatever their number."""
        number = len(momenta)
        # Not divmod, which Dynamo does not support for dynamic batch sizes.
        size, longer = input.shape[0] // number, input.shape[0] % number
        groups = [(longer, size + 1), (number - longer, size)]
        outputs, means, variances = [], [], []
        start = 0
        for count, length in groups:
            if count == 0:
                continue
            chunk = input[start : start + count * length].unflatten(0, (count, length))
            start += count * length
            dims = (1, *range(3, chunk.ndim))
            exact = torch.promote_types(chunk.dtype, torch.float32)
            variance, mean = torch.var_mean(chunk.to(exact), dims, correction=0, keepdim=True)
            shape = (-1, *(1,) * (chunk.ndim - 3))
            scale = torch.rsqrt(variance + self.eps)
            if self.affine:
                scale = scale * self.weight.view(shape)
            shift = -mean * scale
            if self.affine:
                shift = shift + self.bias.view(shape)
            outputs.append((chunk * scale + shift).flatten(0, 1).to(input.dtype))
            elements = chunk[0, :, 0].numel()
            means.append(mean.detach().view(count, -1))
            variances.append(variance.detach().view(count, -1) * (elements / max(elements - 1, 1)))
        if self.training and self.running_mean is not None and self.running_var is not None:
            _update_running(self.running_mean, torch.cat(means), momenta)
            _update_running(self.running_var, torch.cat(variances), momenta)
        return torch.cat(outputs)


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    """``BatchNorm1d`` over ghost batches.

    A batch is split into the smallest number of ghost batches of at most ``ghost_batch_size`` samples, whose sizes
    differ by at most one; none is a single value. In evaluation, and if the batch is one ghost batch, it is equivalent
    to ``BatchNorm1d``.

    Args:
        num_features: C.
        ghost_batch_size: Maximum number of samples in a ghost batch.
        eps: Added to the variance.
        momentum: Momentum of a batch, all its ghost batches together, in the running statistics; None is the
            cumulative average.
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
    """Return the sizes of the ghost batches, as equal as possible."""
    size, longer = divmod(samples, number)
    return [size + 1] * longer + [size] * (number - longer)


def _update_running(running: Tensor, statistics: Tensor, momenta: list[float]) -> None:
    """Update running statistics with those of each ghost batch in sequence, (n, C), in one operation."""
    kept, contributions = 1.0, []
    for momentum in reversed(momenta):
        contributions.append(kept * momentum)
        kept *= 1 - momentum
    weights = copied_to(torch.tensor(contributions[::-1], dtype=running.dtype), running.device)
    running.mul_(kept).add_(weights @ statistics.to(running.dtype))


class _GhostNormalize(torch.autograd.Function):
    """Run the native kernel on each ghost batch, writing to slices of the result: chunks are never concatenated."""

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
        # GPU kernels keep the statistics of half-precision inputs in float32.
        dtype = torch.float32 if input.is_cuda and weight.dtype in _HALF else weight.dtype
        means = torch.empty(number, input.shape[1], dtype=dtype, device=input.device)
        scales = torch.empty_like(means)
        chunks = zip(
            input.tensor_split(number),
            output.tensor_split(number),
            means.unbind(),
            scales.unbind(),
            momenta,
            strict=True,
        )
        for chunk, out, mean, scale, momentum in chunks:
            torch.native_batch_norm(
                chunk,
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
        chunks = zip(
            gradients[0].tensor_split(number),
            input.tensor_split(number),
            of_input.tensor_split(number),
            means.unbind(),
            scales.unbind(),
            strict=True,
        )
        sums: list[list[Any]] = []
        for gradient, chunk, out, mean, scale in chunks:
            found, *others = torch.ops.aten.native_batch_norm_backward(
                gradient, chunk, weight, None, None, mean, scale, True, ctx.eps, ctx.needs_input_grad[:3]
            )
            sums.append(others)
            if found is not None:
                out.copy_(found)  # immediately, while it is in the cache
        needed = ctx.needs_input_grad
        of_weight, of_bias = zip(*sums, strict=True)
        return (
            of_input if needed[0] else None,
            torch.stack(of_weight).sum(0) if needed[1] else None,
            torch.stack(of_bias).sum(0) if needed[2] else None,
            *(None,) * 4,
        )
