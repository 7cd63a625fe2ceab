"""Stop when a metric has not improved for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer._text import non_negative, plural
from composer.callbacks._monitored_metric import (
    Comparison,
    as_comparison,
    comparison_for,
    monitored,
    monitored_now,
    read_monitored,
    word_for,
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
    """Ends the training when a metric has not improved for longer than ``patience``.

    With the best value b so far, a value v improves it if ``comp(v, b)`` and |v - b| > ``min_delta``. NaN is never an
    improvement: it uses up patience, and where the first value is NaN any number improves it. The metric is looked at
    after each evaluation of its data; metrics of the training data at the end of each epoch, or of each batch if
    ``patience`` is in batches, which then waits for the device in each batch. The best value and its time are part of
    a checkpoint, so a run that is resumed stops where the uninterrupted one does.

    Args:
        monitor: Name of the metric: "eval/MulticlassAccuracy", or as it is logged, "metrics/eval/MulticlassAccuracy",
            or "MulticlassAccuracy".
        dataloader_label: The data: "train", or the label of an evaluator, such as "eval". None where ``monitor`` has
            it, or only one evaluator has the metric; the training data where none has.
        comp: Function ``(value, best) -> bool`` of two scalar tensors that tells whether a value is better, or "gt",
            "greater", "lt" or "less". By default the metric's ``higher_is_better`` decides, or else its name, see
            :func:`.larger_is_better`.
        min_delta: Smallest change that counts, in units of the metric.
        patience: How long no improvement is accepted: epochs, or a time in epochs or batches. 0 stops at the first
            look, at a later time, without one.

    Attributes:
        best: The best value so far, a scalar tensor on the CPU, or None.
        best_occurred: When it was found, or None.

    Raises:
        TypeError: ``monitor`` or ``dataloader_label`` is not a string.
        ValueError: An argument is impossible; when training starts also if there is no such data or metric, or if
            ``comp`` is not given and neither the metric nor its name says what is better.

    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> trainer = Trainer(
    ...     model=model,
    ...     train_dataloader=[(torch.zeros(2, 2), torch.tensor([0, 1]))],  # of which nothing can be learnt
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
        self._metric: MetricName | None = None  # known when training starts
        self.comp_func = self._given = as_comparison(comp)
        self.min_delta = non_negative("min_delta", min_delta)
        self.patience = ensure_time(patience, TimeUnit.EPOCH, "patience")
        if self.patience.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH) or self.patience.value < 0:
            raise ValueError(f"patience must be in epochs or batches, such as '3ep' or '500ba'; got {patience!r}.")
        self.best: Tensor | None = None
        self.best_occurred: Timestamp | None = None
        self._looks = 0  # without an improvement

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that the metric exists, and find out which of its values are better."""
        self._metric = monitored(state, self.monitor, self.dataloader_label)
        self.comp_func = self._given or comparison_for(state, self._metric)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Look at a metric of evaluation data."""
        self._look(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Look at a metric of the training data."""
        self._look(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Look at a metric of the training data, if batches count."""
        if self.patience.unit is TimeUnit.BATCH:
            self._look(state)

    def _look(self, state: State) -> None:
        metric = self._metric or monitored_now(state, self.monitor, self.dataloader_label)
        value = read_monitored(state, metric)
        if metric is None or value is None:
            return
        better = self.comp_func or comparison_for(state, metric)  # outside of a fit
        if self.best is None or self.best_occurred is None or self._improves(value, self.best, better):
            self.best, self.best_occurred, self._looks = value, state.timestamp, 0
            return
        self._looks += 1
        unit = self.patience.unit
        if state.timestamp.count(unit) - self.best_occurred.count(unit) > self.patience.value:
            state.stop_training(everywhere=True, reason=self._reason(state, metric.name, value, better))

    def _improves(self, value: Tensor, best: Tensor, better: Comparison) -> bool:
        if best.isnan():
            return not value.isnan()
        return bool(better(value, best)) and bool((value - best).abs() > self.min_delta)

    def _reason(self, state: State, name: str, value: Tensor, better: Comparison) -> str:
        """What to tell of the end: "CrossEntropy 0.24 not below 0.23 for 3 evaluations"."""
        margin = f" by more than {self.min_delta:.4g}" if self.min_delta else ""
        noun = self.patience.unit.name.lower() if state.dataloader_label == state.train_phase.label else "evaluation"
        looks = f"{self._looks} batches" if noun == "batch" and self._looks != 1 else plural(self._looks, noun)
        numbers = f"{name} {value.item():.4g} not {word_for(better)} {self.best:.4g}"
        return f"{numbers}{margin} for {looks}"

    def state_dict(self) -> dict[str, Any]:
        if self.best is None or self.best_occurred is None:
            return {}
        epoch, batch = (self.best_occurred.count(unit) for unit in (TimeUnit.EPOCH, TimeUnit.BATCH))
        return {"best": self.best, "epoch": epoch, "batch": batch, "looks": self._looks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.best = torch.as_tensor(state["best"])
            self.best_occurred = Timestamp(epoch=state["epoch"], batch=state["batch"])
            self._looks = state.get("looks", 0)  # checkpoints of before this was counted lack it
