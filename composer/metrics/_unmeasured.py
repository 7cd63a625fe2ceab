"""A metric of nothing, under the name of another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = ["Unmeasured"]


class Unmeasured(Metric):
    """Stands in for a metric where there is nothing to measure; its value is NaN.

    Args:
        metric: The metric whose direction it has.

    >>> from torchmetrics import MeanSquaredError
    >>> metric = Unmeasured(MeanSquaredError())
    >>> metric.update("anything")
    >>> metric.compute(), metric.higher_is_better
    (tensor(nan), False)
    """

    full_state_update = False

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        # A constant of the class, as torchmetrics sees it, which refuses to set it.
        object.__setattr__(self, "higher_is_better", metric.higher_is_better)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add nothing."""

    def compute(self) -> Tensor:
        """Return NaN."""
        return torch.tensor(torch.nan, device=self.device)
