"""What the labels of a batch and its ``"loss_weights"`` say about what its loss averages over."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from composer._containers import is_mapping
from composer.core.types import Batch
from composer.precision import widest_dtype
from composer.warnings import ComposerWarning

__all__ = ["has_counted_labels", "sum_of_weights", "warn_of_unreduced_loss", "warn_of_unused_weights"]


def has_counted_labels(batch: Batch) -> bool:
    """Return whether a loss averages over the labels of a batch that are valid, or over their weights, by default.

    Args:
        batch: The batch.

    >>> import torch
    >>> (
    ...     has_counted_labels({"labels": torch.tensor([[3, -100]])}),
    ...     has_counted_labels({"labels": torch.tensor([3])}),
    ... )
    (True, False)
    """
    labels, weights = _labels_and_weights(batch)
    if labels is None:
        return False
    is_per_token = labels.ndim >= 2 and not labels.is_floating_point()
    return is_per_token or (weights is not None and weights.shape == labels.shape)


def sum_of_weights(batch: Batch) -> Tensor | None:
    """Return the sum of the ``"loss_weights"`` of a batch, one per label, as of packed documents; None without them.

    Args:
        batch: The batch.

    >>> import torch
    >>> sum_of_weights({"labels": torch.tensor([1, 2]), "loss_weights": torch.tensor([0.5, 1.0])})
    tensor(1.5000, dtype=torch.float64)
    """
    labels, weights = _labels_and_weights(batch)
    if labels is None or weights is None or weights.shape != labels.shape:
        return None
    return weights.sum(dtype=widest_dtype(weights.device))


def _labels_and_weights(batch: Batch) -> tuple[Tensor | None, Tensor | None]:
    """Return the entries ``"labels"`` and ``"loss_weights"`` of a batch if they are tensors of numbers."""
    if not is_mapping(batch):
        return None, None
    labels, weights = (cast("Mapping[str, Any]", batch).get(name) for name in ("labels", "loss_weights"))
    has_weights = isinstance(weights, Tensor) and not weights.is_complex()
    return labels if isinstance(labels, Tensor) else None, weights if has_weights else None


def warn_of_unused_weights(batch: Batch) -> None:
    """Warn if a batch has ``"loss_weights"`` that are not one for each label, by which microbatches are not weighted.

    Args:
        batch: The batch.

    >>> import torch
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_unused_weights({"labels": torch.zeros(2, 8), "loss_weights": torch.ones(2)})
    >>> str(caught[0].message)[:72]
    "The batch has 'loss_weights' of shape (2,) and 'labels' of shape (2, 8):"
    """
    labels, weights = _labels_and_weights(batch)
    if labels is not None and weights is not None and labels.shape != weights.shape:
        warnings.warn(
            f"The batch has 'loss_weights' of shape {tuple(weights.shape)} and 'labels' of shape "
            f"{tuple(labels.shape)}: microbatches and ranks are not weighted by the sum of these weights. If the loss "
            f"divides by it, expand the weights to one for each label.",
            ComposerWarning,
            stacklevel=2,
        )


def warn_of_unreduced_loss(loss: Tensor) -> None:
    """Warn that a loss is averaged over all its entries, but its microbatches are weighted by their valid labels.

    Args:
        loss: The loss, of at least one dimension.

    >>> import torch
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_unreduced_loss(torch.ones(2, 8))
    >>> str(caught[0].message)[:39]
    "The model's loss has the shape (2, 8), "
    """
    warnings.warn(
        f"The model's loss has the shape {tuple(loss.shape)}, and its mean over all entries is used, including "
        f"ignored labels. Microbatches and ranks are weighted by their valid labels or 'loss_weights', so the "
        f"accumulated gradient may differ from that of the full batch. Return a scalar, the mean over the valid "
        f"labels, or use accumulate_train_batch_on_tokens=False to weight by samples.",
        ComposerWarning,
        stacklevel=2,
    )
