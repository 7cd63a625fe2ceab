"""EarlyStopper: stop training early when a metric has not improved for a while (early stopping)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer._numbers import non_negative
from composer._text import plural
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
from composer.core.metric_names import MetricName, check_monitor
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["EarlyStopper"]


class EarlyStopper(Callback):
    """Stops training early when a metric has not improved for longer than ``patience``.

    With the best value b so far, a value v is an improvement if ``comp(v, b)`` and |v - b| > ``min_delta``. NaN is
    never an improvement: it uses up patience, and if the first value is NaN, any number improves on it. The metric is
    checked after each evaluation of its data; training metrics at the end of each epoch, or of each batch if
    ``patience`` is in batches, which then synchronizes with the device in each batch. Checkpoints contain the best
    value and its time, so a resumed run stops where the uninterrupted one does; with a training metric and a checkpoint
    in the middle of an epoch, only with ``Trainer(save_metrics=True)``, since the metric else covers the rest of it.

    Args:
        monitor: Name of the metric: "eval/MulticlassAccuracy", or as it is logged, "metrics/eval/MulticlassAccuracy",
            or "MulticlassAccuracy".
        dataloader_label: The data: "train", or the label of an evaluator, such as "eval". None if ``monitor`` includes
            it or only one evaluator has the metric; if no evaluator has it, the training data.
        comp: Function ``(value, best) -> bool`` of two scalar tensors that returns whether a value is better, or "gt",
            "greater", "lt" or "less". Defaults to the metric's ``higher_is_better``, or else is derived from its name,
            see :func:`.larger_is_better`.
        min_delta: Smallest change that counts as an improvement, in units of the metric.
        patience: How long to wait for an improvement: epochs, or a time in epochs or batches. 0 stops at the first
            check, at a later time, without one.

    Attributes:
        best: The best value so far, a scalar tensor on the CPU, or None.
        best_occurred: Timestamp of the best value, or None.

    Raises:
        TypeError: ``monitor`` or ``dataloader_label`` is not a string.
        ValueError: An argument is invalid; when training starts, also if the data or metric does not exist, or if
            ``comp`` is not given and neither the metric nor its name implies a direction.

    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> trainer = Trainer(
    ...     model=model,
    ...     train_dataloader=[(torch.zeros(2, 2), torch.tensor([0, 1]))],  # nothing can be learned from it
    ...     optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     max_duration="100ep",
    ...     callbacks=EarlyStopper("MulticlassAccuracy", "train", patience=2),
    ...     progress_bar=False,
    ... )
    >>> trainer.fit()
    >>> trainer.state.timestamp.epoch
    Time(4, TimeUnit.EPOCH)
    """

    def __init__(
        self,
        monitor: str,
        dataloader_label: str | None = None,
        comp: Comparison | str | None = None,
        min_delta: float = 0.0,
        patience: int | str | Time = 1,
    ) -> None:
        self.monitor = check_monitor(monitor)
        if dataloader_label is not None and not isinstance(dataloader_label, str):
            raise TypeError(f"dataloader_label must be a string such as 'eval'; got {dataloader_label!r}.")
        self.dataloader_label = dataloader_label
        self._metric: MetricName | None = None  # set when training starts
        self.comp_func = self._given = as_comparison(comp)
        self.min_delta = non_negative("min_delta", min_delta)
        self.patience = ensure_time(patience, TimeUnit.EPOCH, "patience", (TimeUnit.EPOCH, TimeUnit.BATCH))
        if self.patience.value < 0:
            raise ValueError(f"patience must not be negative; got {patience!r}. Use a time such as '3ep' or '500ba'.")
        self.best: Tensor | None = None
        self.best_occurred: Timestamp | None = None
        self._num_checks = 0  # without an improvement

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
        """Check a metric of the training data, if patience is in batches."""
        if self.patience.unit is TimeUnit.BATCH:
            self._check(state)

    def _check(self, state: State) -> None:
        metric = self._metric or resolve_current_metric(state, self.monitor, self.dataloader_label)
        value = read_metric(state, metric)
        if metric is None or value is None:
            return
        better = self.comp_func or comparison_for(state, metric)  # evaluated outside of fit
        if self.best is None or self.best_occurred is None or self._improves(value, self.best, better):
            self.best, self.best_occurred, self._num_checks = value, state.timestamp, 0
            return
        self._num_checks += 1
        unit = self.patience.unit
        if state.timestamp.count(unit) - self.best_occurred.count(unit) > self.patience.value:
            state.stop_training(everywhere=True, reason=self._reason(state, metric.name, value, better))

    def _improves(self, value: Tensor, best: Tensor, better: Comparison) -> bool:
        if best.isnan():
            return not value.isnan()
        return bool(better(value, best)) and bool((value - best).abs() > self.min_delta)

    def _reason(self, state: State, name: str, value: Tensor, better: Comparison) -> str:
        """Return the reason for stopping: "CrossEntropy 0.24 not below 0.23 for 3 evaluations"."""
        margin = f" by more than {self.min_delta:.4g}" if self.min_delta else ""
        noun = self.patience.unit.name.lower() if state.dataloader_label == state.train_phase.label else "evaluation"
        checks = self._num_checks
        count = f"{checks} batches" if noun == "batch" and checks != 1 else plural(checks, noun)
        numbers = f"{name} {value.item():.4g} not {comparison_word(better)} {self.best:.4g}"
        return f"{numbers}{margin} for {count}"

    def state_dict(self) -> dict[str, Any]:
        if self.best is None or self.best_occurred is None:
            return {}
        epoch, batch = (self.best_occurred.count(unit) for unit in (TimeUnit.EPOCH, TimeUnit.BATCH))
        return {"best": self.best, "epoch": epoch, "batch": batch, "looks": self._num_checks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.best = torch.as_tensor(state["best"])
            self.best_occurred = Timestamp(epoch=state["epoch"], batch=state["batch"])
            self._num_checks = state.get("looks", 0)  # older checkpoints lack it
