"""Convert classification targets between class indices and one-hot or soft probabilities."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor

from composer.warnings import ComposerWarning

__all__ = ["as_probabilities", "check_for_index_targets", "ensure_targets_one_hot", "infer_target_type"]


def infer_target_type(input: Tensor, targets: Tensor) -> Literal["indices", "one_hot"]:
    """Infer from its shape whether a target holds class indices or one value per class.

    Args:
        input: Model output, (B, C, ...).
        targets: Class indices (B, ...), or one value per class (B, C, ...).

    Raises:
        ValueError: The shape is neither.

    >>> infer_target_type(torch.zeros(2, 4), torch.tensor([0, 3]))
    'indices'
    >>> infer_target_type(torch.zeros(2, 4), torch.zeros(2, 4))
    'one_hot'
    """
    if targets.shape == input.shape:
        return "one_hot"
    if input.ndim > 0 and targets.shape == _without_classes(input):
        return "indices"
    raise ValueError(
        f"targets must have the shape of class indices, {tuple(_without_classes(input))}, or of probabilities, "
        f"{tuple(input.shape)}, to match an output of shape {tuple(input.shape)}, but got {tuple(targets.shape)}."
    )


def check_for_index_targets(targets: Tensor) -> bool:
    """Return whether the dtype of a tensor can hold class indices: any integer type.

    Args:
        targets: A tensor of any shape.

    >>> check_for_index_targets(torch.tensor([1, 2])), check_for_index_targets(torch.tensor([0.5]))
    (True, False)
    """
    return not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)


def as_probabilities(target: Tensor, *, like: Tensor) -> Tensor:
    """Return targets as one probability per class, in the shape and dtype of the logits.

    Class indices become one-hot vectors; a negative index, such as the usual -100 of an ignored position,
    becomes a vector of zeros. Probabilities keep their values. It does not synchronize with the device.

    Args:
        target: Class indices (B, ...), or probabilities (B, C, ...).
        like: Logits, (B, C, ...); only shape and dtype are read. The dtype must be floating point.

    Raises:
        ValueError: An argument has the wrong shape or dtype.

    >>> as_probabilities(torch.tensor([2, -100]), like=torch.zeros(2, 3))
    tensor([[0., 0., 1.],
            [0., 0., 0.]])
    """
    if not like.is_floating_point():
        raise ValueError(f"like must be logits of a floating dtype, but got {like.dtype}.")
    if infer_target_type(like, target) == "one_hot":
        return target.to(like.dtype)
    return _write_ones(torch.zeros_like(like), target)


def ensure_targets_one_hot(input: Tensor, targets: Tensor, num_classes: int | None = None) -> Tensor:
    """Return targets as one value per class in float32, after checking every index.

    The check synchronizes with the accelerator; in a training step use :func:`as_probabilities`.

    Args:
        input: Model output, (B, C, ...); only the shape is read.
        targets: Class indices (B, ...), or one value per class (B, C, ...), which keep their values.
        num_classes: Number of classes of the result; C by default.

    Raises:
        ValueError: An index is too large, the indices are not integers, or the shape is wrong.

    >>> ensure_targets_one_hot(torch.zeros(2, 3), torch.tensor([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    if infer_target_type(input, targets) == "one_hot":
        return targets.float()
    classes = input.shape[_class_dim(input)] if num_classes is None else num_classes
    if targets.numel() > 0 and check_for_index_targets(targets):
        lowest, highest = (int(bound) for bound in torch.aminmax(targets))
        if highest >= classes:
            raise ValueError(f"targets must be class indices below num_classes={classes}, but got {highest}.")
        if lowest < 0:
            warnings.warn(
                "Negative label indices are being ignored in conversion to one-hot labels: the rows of targets below 0 "
                f"are zeros (the lowest is {lowest}).",
                ComposerWarning,
                stacklevel=2,
            )
    shape = list(input.shape)
    shape[_class_dim(input)] = classes
    return _write_ones(torch.zeros(shape, device=input.device), targets)


def _one_hot(tensor: Tensor, num_classes: int = -1, dim: int = -1) -> Tensor:  # pyright: ignore[reportUnusedFunction]
    """Return class indices as one-hot vectors of the same dtype, zeros if negative. Imported by third-party code."""
    if not check_for_index_targets(tensor):
        raise ValueError(f"tensor must be class indices of an integer dtype, but got {tensor.dtype}.")
    needed = int(tensor.max()) + 1 if tensor.numel() else 0
    classes = needed if num_classes == -1 else int(num_classes)
    if classes < needed:
        raise ValueError(f"num_classes must be at least {needed}, the largest index plus one, but got {classes}.")
    index = tensor.unsqueeze(dim)
    shape = list(index.shape)
    shape[dim] = classes
    ones = (index >= 0).to(tensor.dtype)
    return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device).scatter_(dim, index.clamp_min(0).long(), ones)


def _write_ones(zeros: Tensor, indices: Tensor) -> Tensor:
    """Write a one at each non-negative index. ``F.one_hot`` would synchronize to check the indices."""
    if not check_for_index_targets(indices):
        raise ValueError(
            f"targets of shape {tuple(indices.shape)} must be class indices of an integer dtype, "
            f"but got {indices.dtype}. Convert them with .long()."
        )
    dim = _class_dim(zeros)
    index = indices.unsqueeze(dim)
    # A negative index writes a zero at class 0, which is already zero.
    return zeros.scatter_(dim, index.clamp_min(0).long(), (index >= 0).to(zeros.dtype))


def _class_dim(input: Tensor) -> int:
    """Return the class dim: 1, or 0 for a single sample without a batch dim."""
    return min(1, input.ndim - 1)


def _without_classes(input: Tensor) -> torch.Size:
    """Return the shape of class indices for an output."""
    dim = _class_dim(input)
    return input.shape[:dim] + input.shape[dim + 1 :]
