"""Label smoothing: mix each target with the uniform distribution.

    y' = (1 - s) * y + s / C

Paper: Rethinking the Inception Architecture for Computer Vision, Szegedy et al. 2016, https://arxiv.org/abs/1512.00567
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer._numbers import in_unit_interval
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
    """Return targets smoothed towards the uniform distribution.

        y' = (1 - s) * y + s / C

    The total probability of a target does not change: an ignored position (a negative index, such as -100) has
    all-zero probabilities and keeps them, and :func:`.soft_cross_entropy` still ignores it.

    Args:
        logits: Model output, (B, C, ...); only the shape and dtype are read.
        target: Class indices (B, ...) or probabilities (B, C, ...).
        smoothing: Smoothing factor s, from 0 (none) to 1 (uniform).

    Returns:
        Probabilities, (B, C, ...), of the dtype of the logits but at least float32.

    Raises:
        ValueError: ``smoothing`` is not in [0, 1], or the shapes of target and logits do not match.

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
        For multi-class classification with cross-entropy, whenever the model becomes overconfident on the training
        data.

    When not to:
        If you need sharp probabilities, for the teacher in a distillation, and with targets that are soft by nature.

    How to choose:
        0.1 is usual; 0.05 to 0.2 makes little difference. Use less with MixUp or CutMix, which soften targets too;
        combine it with them only if their ``interpolate_loss`` is False, the default.

    Cost:
        Targets as probabilities, (B, C): less than the softmax of the loss.

    Args:
        smoothing: Smoothing factor, from 0 (none) to 1 (uniform).
        target_key: Key of the target in the batch, or a list of keys for multiple targets; if the outputs are a
            sequence of the same length, each output belongs to one target.

    Raises:
        ValueError: ``smoothing`` is not in [0, 1].

    >>> LabelSmoothing(0.1)
    LabelSmoothing(smoothing=0.1, target_key=1)

    Paper: https://arxiv.org/abs/1512.00567 (Szegedy et al. 2016)
    """

    __traits__ = Traits(
        slot=Slot.LABEL,
        sharding=Sharding.SAFE,
        sharding_reason="Each target is smoothed independently.",
        why_not_neutral="its targets are probabilities at 0 too, whose loss is that of classes but for rounding",
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
        """Restore the original targets."""
        state.batch_set_item(self.target_key, self.original_labels)
        self.original_labels = None

    def _smooth(self, outputs: Any, target: Tensor) -> Tensor:
        return smooth_labels(logits_of(outputs), target, self.smoothing)
