"""Label smoothing: move a share of each target's mass to the uniform distribution.

    y' = (1 - s) * y + s / C

Paper: Rethinking the Inception Architecture for Computer Vision, Szegedy et al. 2016, https://arxiv.org/abs/1512.00567
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer._text import in_unit_interval
from composer.algorithms._targets import as_soft_target, edit_targets, logits_of
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.trees import BatchKey

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["LabelSmoothing", "smooth_labels"]


def smooth_labels(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """Return targets smoothed towards uniform.

        y' = (1 - s) * y + s / C

    The mass of a target stays: an ignored place (a negative index, such as -100), whose probabilities are all zero,
    stays all zero, and :func:`.soft_cross_entropy` goes on ignoring it.

    Args:
        logits: Model output, (B, C, ...); only the shape and dtype are read.
        target: Class indices (B, ...) or probabilities (B, C, ...).
        smoothing: Share moved, from 0 (none) to 1 (uniform).

    Returns:
        Probabilities, (B, C, ...), of the dtype of the logits but at least float32.

    Raises:
        ValueError: ``smoothing`` is not in [0, 1], or the target does not fit the logits.

    >>> smooth_labels(torch.zeros(1, 4), torch.tensor([2]), 0.4)
    tensor([[0.1000, 0.1000, 0.7000, 0.1000]])

    Paper: https://arxiv.org/abs/1512.00567 (Szegedy et al. 2016)
    """
    in_unit_interval("smoothing", smoothing)
    classes_dim = min(1, logits.ndim - 1)
    target = as_soft_target(target, logits)
    uniform = target.sum(classes_dim, keepdim=True) / logits.shape[classes_dim]
    return torch.lerp(target, uniform, smoothing)


class LabelSmoothing(Algorithm):
    """Applies :func:`smooth_labels` around the loss; metrics see the original targets.

    When to use it:
        For classification by cross entropy over several classes, whenever the model gets sure of itself on the
        training data.

    When not to:
        Where the probabilities themselves are wanted sharp, for the teacher of a distillation, and with targets that
        are soft by nature.

    How to choose:
        0.1 is usual; 0.05 to 0.2 makes little difference. Less beside MixUp or CutMix, which soften targets too.

    Cost:
        Targets as probabilities, (B, C): less than the softmax of the loss.

    Args:
        smoothing: Share of the mass moved to uniform, from 0 (none) to 1.
        target_key: Where the target is in the batch, or a list of such keys for several; outputs in a sequence of
            the same length belong to one target each.

    Raises:
        ValueError: ``smoothing`` is not in [0, 1].

    >>> LabelSmoothing(0.1)
    LabelSmoothing(smoothing=0.1, target_key=1)

    Paper: https://arxiv.org/abs/1512.00567 (Szegedy et al. 2016)
    """

    __traits__ = Traits(
        slot=Slot.LABEL,
        sharding=Sharding.SAFE,
        sharding_reason="Each target is smoothed by itself.",
    )

    def __init__(self, smoothing: float = 0.1, target_key: BatchKey = 1) -> None:
        self.smoothing = in_unit_interval("smoothing", smoothing)
        self.target_key = target_key
        self.original_labels: Any = None

    def before_loss(self, state: State, logger: Logger) -> None:
        """Smooth the targets of the microbatch."""
        self.original_labels = state.batch_get_item(self.target_key)
        state.batch_set_item(self.target_key, edit_targets(self._smooth, state.outputs, self.original_labels))

    def after_loss(self, state: State, logger: Logger) -> None:
        """Put the original targets back."""
        state.batch_set_item(self.target_key, self.original_labels)
        self.original_labels = None

    def _smooth(self, outputs: Any, target: Tensor) -> Tensor:
        return smooth_labels(logits_of(outputs), target, self.smoothing)
