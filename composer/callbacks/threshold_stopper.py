"""ThresholdStopper: stop training when a metric has reached a target value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from composer.callbacks._monitored_metric import (
    Comparison,
    as_comparison,
    comparison_for,
    comparison_word,
    read_metric,
    resolve_current_metric,
    resolve_metric,
)
from composer.core.callback import Callback
from composer.core.metric_names import MetricName, as_threshold, check_monitor

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ThresholdStopper"]


class ThresholdStopper(Callback):
    """Stops training as soon as ``comp(metric, threshold)`` holds; NaN never satisfies it.

    The metric is checked after each evaluation of its data; training metrics at the end of each epoch, or of each
    batch with ``stop_on_batch``, which then synchronizes with the device in each batch.

    Args:
        monitor: Name of the metric: "eval/MulticlassAccuracy", or as it is logged, "metrics/eval/MulticlassAccuracy",
            or "MulticlassAccuracy".
        dataloader_label: The data: "train", or the label of an evaluator, such as "eval". None if ``monitor`` includes
            it or only one evaluator has the metric; if no evaluator has it, the training data.
        threshold: The value to reach, in units of the metric.
        comp: Function ``(value, threshold) -> bool`` of two scalar tensors, or "gt", "greater", "lt" or "less".
            Defaults to the metric's ``higher_is_better``, or else is derived from its name, see
            :func:`.larger_is_better`.
        stop_on_batch: Check a training metric after each batch.

    Raises:
        TypeError: ``threshold`` is missing, or an argument has another type.
        ValueError: ``threshold`` is NaN, or ``comp`` is unknown; when training starts, also if the data or metric does
            not exist, or if ``comp`` is not given and neither the metric nor its name implies a direction.

    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> trainer = Trainer(
    ...     model=model,
    ...     train_dataloader=[(torch.eye(2), torch.tensor([0, 1]))],
    ...     optimizers=torch.optim.SGD(model.parameters(), lr=1.0),
    ...     max_duration="100ep",
    ...     callbacks=ThresholdStopper("MulticlassAccuracy", "train", 0.99),
    ...     progress_bar=False,
    ... )
    >>> trainer.fit()
    >>> trainer.state.timestamp.epoch < 10
    True
    """

    def __init__(
        self,
        monitor: str,
        dataloader_label: str | None = None,
        threshold: float | None = None,
        *,
        comp: Comparison | str | None = None,
        stop_on_batch: bool = False,
    ) -> None:
        self.monitor = check_monitor(monitor)
        self.dataloader_label = dataloader_label
        self._metric: MetricName | None = None  # set when training starts
        if dataloader_label is not None and not isinstance(dataloader_label, str):
            raise TypeError(
                f"dataloader_label must be a string such as 'eval'; got {dataloader_label!r}. To omit it, pass "
                f"ThresholdStopper({monitor!r}, threshold=...)."
            )
        if threshold is None:
            raise TypeError("threshold is required: the value of the metric at which to stop.")
        self.threshold = as_threshold("threshold", threshold)
        self.comp_func = self._given = as_comparison(comp)
        self.stop_on_batch = stop_on_batch

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that the metric exists, and determine whether larger or smaller values are better."""
        self._metric = resolve_metric(state, self.monitor, self.dataloader_label)
        self.comp_func = self._given or comparison_for(state, self._metric)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Check a metric of evaluation data."""
        self._check(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Check a metric of the training data."""
        self._check(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Check a metric of the training data, with ``stop_on_batch``."""
        if self.stop_on_batch:
            self._check(state)

    def _check(self, state: State) -> None:
        metric = self._metric or resolve_current_metric(state, self.monitor, self.dataloader_label)
        value = read_metric(state, metric)
        if metric is None or value is None or value.isnan():
            return
        better = self.comp_func or comparison_for(state, metric)  # evaluated outside of fit
        if better(value, torch.tensor(self.threshold, dtype=torch.float64)):
            reason = f"{metric.name} {value.item():.4g} {comparison_word(better)} {self.threshold:.4g}"
            state.stop_training(everywhere=True, reason=reason)
