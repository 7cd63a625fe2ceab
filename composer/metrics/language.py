"""Language-model metrics: cross entropy, perplexity, masked accuracy, F1. Updates do not synchronize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from composer._numbers import whole_number

__all__ = ["BinaryF1Score", "LanguageCrossEntropy", "LanguagePerplexity", "MaskedAccuracy"]


class LanguageCrossEntropy(Metric):
    """Mean cross entropy per token over all tokens that are not ignored, independent of the batch sizes.

        CE = -1/N sum_i log softmax(x_i)_{y_i}

    The value is NaN before the first update.

    Args:
        dist_sync_on_step: Whether each ``forward`` call returns the value over all ranks.
        ignore_index: Token index to ignore, such as that of padding and prompts.

    >>> metric = LanguageCrossEntropy()
    >>> metric.update(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, -100]]))
    >>> metric.compute()
    tensor(0.1269)
    """

    is_differentiable = True
    higher_is_better = False
    full_state_update = False

    sum_loss: Tensor
    total_items: Tensor

    def __init__(self, dist_sync_on_step: bool = False, ignore_index: int = -100) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.ignore_index = whole_number("ignore_index", ignore_index, minimum=None)
        # float32 stops accumulating after about ten million tokens.
        self.add_state("sum_loss", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total_items", torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, output: Tensor | Mapping[str, Any], target: Tensor) -> None:
        """Update the state with a batch.

        Args:
            output: Logits, (..., V), or a mapping with the key ``"logits"``, as transformers models return.
            target: Token indices, one for each position of the logits, such as (B, T).

        Raises:
            ValueError: The shapes do not match, or the mapping has no logits.
        """
        logits = _logits(output)
        if logits.shape[:-1].numel() != target.numel():
            raise ValueError(
                f"output must have logits of shape (..., V) for each of the {target.numel()} positions of target, "
                f"{tuple(target.shape)}, but got {tuple(logits.shape)}."
            )
        target = target.reshape(-1)
        logits = logits.reshape(target.shape[0], -1).float()
        # Not in place: a state that was reset in inference mode cannot be updated in place outside of it.
        self.sum_loss = self.sum_loss + F.cross_entropy(logits, target, ignore_index=self.ignore_index, reduction="sum")
        self.total_items = self.total_items + torch.count_nonzero(target != self.ignore_index)

    def compute(self) -> Tensor:
        """Return the mean cross entropy, a scalar, in nats."""
        return (self.sum_loss / self.total_items).float()


class LanguagePerplexity(LanguageCrossEntropy):
    """Perplexity: the exponential of the mean cross entropy per token, see :class:`LanguageCrossEntropy`.

        PPL = exp(CE)

    A model that is as uncertain as a uniform choice among k tokens has a perplexity of k. The value is NaN before the
    first update.

    Args:
        dist_sync_on_step: Whether each ``forward`` call returns the value over all ranks.
        ignore_index: Token index to ignore.

    >>> metric = LanguagePerplexity()
    >>> metric.update(torch.zeros(1, 3, 8), torch.tensor([[0, 5, -100]]))
    >>> metric.compute()
    tensor(8.)
    """

    def compute(self) -> Tensor:
        """Return the perplexity, a scalar."""
        return super().compute().exp()


class MaskedAccuracy(Metric):
    """Fraction of the positions with a target whose most likely class is the target class.

        accuracy = sum_i [argmax x_i = y_i] / N

    Args:
        ignore_index: Class index to ignore, such as that of positions that were not masked.
        dist_sync_on_step: Whether each ``forward`` call returns the value over all ranks.

    >>> metric = MaskedAccuracy()
    >>> metric.update(torch.tensor([[[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]]), torch.tensor([[0, 0, -100]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    correct: Tensor
    total: Tensor

    def __init__(self, ignore_index: int = -100, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.ignore_index = whole_number("ignore_index", ignore_index, minimum=None)
        self.add_state("correct", torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Tensor | Mapping[str, Any], target: Tensor) -> None:
        """Update the state with a batch.

        Args:
            preds: Logits, (..., C), a mapping with the key ``"logits"``, or predicted class indices (...).
            target: Class indices, (...).

        Raises:
            ValueError: The shapes do not match, or the mapping has no logits.
        """
        logits = _logits(preds)
        predicted = logits.argmax(dim=-1) if logits.is_floating_point() else logits
        # Different shapes would be broadcast and counted incorrectly.
        if predicted.shape != target.shape:
            raise ValueError(
                f"preds must be logits of shape {(*target.shape, 'C')} or class indices of shape "
                f"{tuple(target.shape)}, as the target is, but got {tuple(logits.shape)} of {logits.dtype}."
            )
        counts = target != self.ignore_index
        self.correct = self.correct + torch.count_nonzero((predicted == target) & counts)
        self.total = self.total + torch.count_nonzero(counts)

    def compute(self) -> Tensor:
        """Return the accuracy, a scalar; 0 before the first update."""
        return self.correct / self.total.clamp_min(1)


class BinaryF1Score(Metric):
    """F1 score of class 1 in binary classification: the harmonic mean of precision and recall.

        F1 = 2 TP / (2 TP + FP + FN)

    It is 0 if class 1 neither occurs nor is predicted. Positions whose target is neither 0 nor 1 are ignored.

    Args:
        dist_sync_on_step: Whether each ``forward`` call returns the value over all ranks.

    >>> metric = BinaryF1Score()
    >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1, 0]))
    >>> metric.compute()
    tensor(0.6667)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    true_positive: Tensor
    false_positive: Tensor
    false_negative: Tensor

    def __init__(self, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        for name in ("true_positive", "false_positive", "false_negative"):
            self.add_state(name, torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, output: Tensor | Mapping[str, Any], target: Tensor) -> None:
        """Update the state with a batch.

        Args:
            output: Logits, (B, 2), a mapping with the key ``"logits"``, or predicted classes (B,).
            target: Class indices, (B,).

        Raises:
            ValueError: The shapes do not match, or the mapping has no logits.
        """
        logits = _logits(output)
        if logits.is_floating_point() and logits.shape == (*target.shape, 2):
            predicted = logits.argmax(dim=-1)
        elif not logits.is_floating_point() and logits.shape == target.shape:
            predicted = logits
        else:
            raise ValueError(
                f"output must be logits of shape {(*target.shape, 2)} or classes of shape {tuple(target.shape)}, to "
                f"match the target, but got {tuple(logits.shape)} of {logits.dtype}."
            )
        hit, positive, negative = predicted == 1, target == 1, target == 0
        self.true_positive = self.true_positive + torch.count_nonzero(hit & positive)
        self.false_positive = self.false_positive + torch.count_nonzero(hit & negative)
        self.false_negative = self.false_negative + torch.count_nonzero(~hit & positive)

    def compute(self) -> Tensor:
        """Return the F1 score, a scalar."""
        doubled = 2 * self.true_positive
        return doubled / (doubled + self.false_positive + self.false_negative).clamp_min(1)


def _logits(output: Tensor | Mapping[str, Any]) -> Tensor:
    """Return the logits of a tensor or mapping."""
    if not isinstance(output, Mapping):
        return output
    if "logits" not in output:
        raise ValueError(f"The output is a mapping and must have 'logits', but has {', '.join(map(repr, output))}.")
    return output["logits"]
