"""Operators whose fake implementations give no size, or no value: the largest size that is possible, and a value.

Of most the shape depends on values; of layers of an LSTM on the CPU the workspace depends on oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["assumed_value", "largest_outputs"]

aten = torch.ops.aten


def largest_outputs(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the largest outputs that an operator can have; None if its shapes depend on no values.

    Args:
        func: The operator, such as ``torch.ops.aten.nonzero.default``.
        args: Its positional arguments.
        kwargs: Its other arguments.

    >>> largest_outputs(aten.nonzero.default, [torch.zeros(3, 4)], {}).shape
    torch.Size([12, 2])
    >>> largest_outputs(aten.relu.default, [torch.zeros(3)], {})
    """
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def assumed_value(dtype: torch.dtype) -> bool | int | float:
    """Return a number in place of an unknown one that programs work with: no NaN was found, and a divisor is not 0.

    Args:
        dtype: The data type of the tensor that has the value.

    >>> assumed_value(torch.bool), assumed_value(torch.int64), assumed_value(torch.float32)
    (False, 1, 1.0)
    """
    return False if dtype == torch.bool else 1.0 if dtype.is_floating_point or dtype.is_complex else 1


def _ctc_loss(scores: Tensor, targets: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of each sample, and a log-probability for each position and each label and blank around it."""
    del args, kwargs
    length, batch = scores.shape[:2]
    labels = targets.shape[1] if targets.ndim == 2 else targets.numel()
    return scores.new_empty((batch,)), scores.new_empty((batch, length, 2 * labels + 1))


def _like(tensor: Tensor, *size: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(size, dtype=dtype, device=tensor.device)


def _nonzero(tensor: Tensor) -> Tensor:
    return _like(tensor, tensor.numel(), tensor.ndim)


def _masked_select(tensor: Tensor, mask: Tensor) -> Tensor:
    return _like(tensor, torch.broadcast_shapes(tensor.shape, mask.shape).numel(), dtype=tensor.dtype)


def _unique(tensor: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    del args, kwargs
    return (
        _like(tensor, tensor.numel(), dtype=tensor.dtype),
        _like(tensor, *tensor.shape),
        _like(tensor, tensor.numel()),
    )


def _unique_dim(tensor: Tensor, dim: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    del args, kwargs
    return (
        _like(tensor, *tensor.shape, dtype=tensor.dtype),
        _like(tensor, tensor.shape[dim]),
        _like(tensor, tensor.shape[dim]),
    )


def _bincount(tensor: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    dtype = torch.int64 if weights is None else torch.float64
    return _like(tensor, max(minlength, tensor.numel()), dtype=dtype)


def _index(tensor: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Return the outputs of an index by masks; None for one by positions, whose shape is known."""
    masks = [each for each in indices if each is not None and each.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return None
    positions: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            positions += [_like(index, index.numel()) for _ in range(index.ndim)]
        else:
            positions.append(index)
    return aten.index.Tensor(tensor, positions)


def _lstm(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs of a layer of an LSTM by oneDNN, whose fake implementation has no workspace.

    The workspace holds gates, states and gradients of the states of each position, as measured with oneDNN 3.
    """
    del kwargs
    hx, cx, width, training = args[4], args[5], args[9], args[14]
    length, batch = input.shape[:2]
    states, gates = _leading_size(max(input.shape[-1], width)), _leading_size(width, 1)
    per_position = 4 * (6 * states + 37 * gates // 4)
    if input.itemsize == 2:  # gates and states of the forward pass take half as much
        per_position -= 2 * (7 * states + 27 * gates) // 4
    size = (length + 1) * batch * per_position if training else 0
    output = input.new_empty((length, batch, width))
    return output, hx.new_empty(hx.shape), cx.new_empty(cx.shape), _like(input, size, dtype=torch.uint8)


def _leading_size(width: int, alias: int = 256) -> int:
    """Round up to whole cache lines, and away from sizes that would share the same lines."""
    rounded = -(-width // 16) * 16
    return rounded + 16 if alias > 1 and rounded % alias == 0 else rounded


_RULES: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique_dim,
    aten.unique_consecutive.default: _unique,
    aten.bincount.default: _bincount,
    aten.index.Tensor: _index,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._ctc_loss.default: _ctc_loss,
    aten.mkldnn_rnn_layer.default: _lstm,
}
