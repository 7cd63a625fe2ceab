"""No-op model: replace the model by a single parameter, to measure the speed of the data and the training loop.

outputs = w * targets,    loss = mean((outputs - targets)^2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer import trees
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.model import ComposerModel
from composer.core.traits import Traits
from composer.surgery import update_params_in_optimizer

if TYPE_CHECKING:
    from torchmetrics import Metric

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["NoOpModel", "NoOpModelClass"]

_TARGETS = ("labels", "label", "targets", "target", "y")


class NoOpModelClass(ComposerModel):
    """A single parameter times the targets, so that a training step takes next to no time.

    The metrics have the names of the original model's, so that evaluators and callbacks find them, and the value NaN.

    Args:
        original_model: The model to replace, from which the device, the number of classes, the metric names and the
            logger are taken.

    >>> model = NoOpModelClass(nn.Linear(2, 2))
    >>> batch = torch.zeros(2, 2), torch.tensor([0, 1])
    >>> model(batch).tolist(), model.loss(model(batch), batch).item()
    ([0.0, 1.5], 0.125)
    """

    def __init__(self, original_model: nn.Module) -> None:
        super().__init__()
        first = next(original_model.parameters(), None)
        self.weights = nn.Parameter(torch.tensor([1.5], device=None if first is None else first.device))
        if hasattr(original_model, "num_classes"):
            self.num_classes = original_model.num_classes
        self._metrics = {is_train: _placeholder_metrics(original_model, is_train) for is_train in (True, False)}
        if isinstance(original_model, ComposerModel):
            self.logger = original_model.logger

    def forward(self, batch: Any) -> Tensor:
        """Scale the targets of a batch."""
        return self.weights * _targets(batch)

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        """Compute the mean squared difference from the targets."""
        return F.mse_loss(outputs, _targets(batch))

    def get_metrics(self, is_train: bool) -> dict[str, Metric]:
        """Return placeholders for the metrics of the model."""
        return dict(self._metrics[is_train])

    def update_metric(self, batch: Any, outputs: Any, metric: Metric) -> None:
        """Do nothing: there is nothing to measure."""
        metric.update()


class NoOpModel(Algorithm):
    """Replaces the model by a :class:`NoOpModelClass`: the remaining time is that of the data and the loop.

    Metrics and evaluators keep their names; the metric values are NaN.

    When to use it:
        To find out whether the data or the model is the bottleneck: if the throughput is similar to that of the real
        model, speed up the data loading.

    When not to:
        In any run that must learn something. It is a diagnostic tool, not a training method.

    How to choose:
        There are no options. Omit the other methods, which find no layers to act on.

    Cost:
        The cost of the data and the loop, which is what it measures.

    >>> NoOpModel()
    NoOpModel()
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "NEFTune": "it requires a module that NoOpModel removes. Omit it to measure the loop.",
            "PatchDropout": "it requires a module that NoOpModel removes. Omit it to measure the loop.",
            "SelectiveBackprop": "it requires the model that NoOpModel replaces. Omit it to measure the loop.",
        },
        sharding=Sharding.SAFE,
        sharding_reason="The model has one parameter.",
        why_not_neutral="it replaces the model",
    )

    @staticmethod
    def required_on_load() -> bool:
        """Return True: the model is a different one."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Replace the model."""
        model = NoOpModelClass(state.model)
        update_params_in_optimizer(state.model.parameters(), model.parameters(), state.optimizers)
        state.model = model


def _placeholder_metrics(model: nn.Module, is_train: bool) -> dict[str, Metric]:
    """Return placeholders for the metrics of a model."""
    found = model.get_metrics(is_train=is_train) if isinstance(model, ComposerModel) else {}
    if not found:
        return {}  # without importing torchmetrics
    from composer.metrics._nan_metric import NaNMetric

    return {name: NaNMetric(metric) for name, metric in found.items()}


def _targets(batch: Any) -> Tensor:
    """Return the targets of a batch as numbers: the second element, a usual key, or else the last tensor."""
    if isinstance(batch, Mapping):
        batch = next((batch[name] for name in _TARGETS if name in batch), batch)
    elif isinstance(batch, (tuple, list)) and len(batch) > 1:
        batch = batch[1]
    tensors = [leaf for leaf in trees.leaves(batch) if isinstance(leaf, Tensor)]
    if not tensors:
        raise TypeError(f"NoOpModel requires a tensor among the targets of a batch, but got {type(batch).__name__}.")
    return tensors[-1].float()
