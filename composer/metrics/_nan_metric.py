"""Placeholder metric whose value is always NaN, for models without data to measure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = ["NaNMetric"]


class NaNMetric(Metric):
    """Placeholder for a metric without data; its value is NaN.

    Args:
        metric: The metric whose ``higher_is_better`` to copy.

    >>> from torchmetrics import MeanSquaredError
    >>> metric = NaNMetric(MeanSquaredError())
    >>> metric.update("anything")
    >>> metric.compute(), metric.higher_is_better
    (tensor(nan), False)
    """

    full_state_update = False

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        # torchmetrics treats it as a class constant and refuses to set it.
        object.__setattr__(self, "higher_is_better", metric.higher_is_better)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def compute(self) -> Tensor:
        """Return NaN."""
        return torch.tensor(torch.nan, device=self.device)
