"""Reduce the learning rate when an evaluation metric stops improving (reduce LR on plateau)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, final

from composer._numbers import non_negative, whole_number
from composer._text import one_of
from composer.core.metric_direction import require_direction
from composer.core.metric_names import MetricName, check_monitor, find_metric
from composer.optim.schedule import ComposerScheduler, Plan
from composer.optim.schedule_times import Horizon

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["ReduceOnPlateauScheduler"]


@final
class ReduceOnPlateauScheduler(ComposerScheduler):
    """Multiplies the value by ``factor`` if a metric has not improved for more than ``patience`` evaluations.

    It is updated after each evaluation in ``Trainer.fit`` that computed the metric, so ``eval_interval`` sets its pace.
    An improvement is a value above ``best + threshold * |best|`` or ``best + threshold`` in mode "max", and below
    ``best - threshold * |best|`` or ``best - threshold`` in mode "min". NaN is never an improvement.

    Args:
        monitor: The metric as it is logged, "metrics/eval/Accuracy"; also "eval/Accuracy", or "Accuracy" if only one
            evaluator has it.
        mode: Whether larger ("max") or smaller ("min") values are better. Default: the metric's ``higher_is_better``,
            or else its name, see :func:`.larger_is_better`.
        factor: Factor of each reduction, in (0, 1).
        patience: Number of evaluations without improvement that are tolerated.
        threshold: Minimum change that counts as an improvement.
        threshold_mode: Whether ``threshold`` is a fraction of the best value ("rel") or a difference ("abs").
        cooldown: Number of evaluations after a reduction that are not counted.
        min_factor: Lower bound of the multiplier.

    Attributes:
        multiplier: The current multiplier.
        best: The best value so far, or None.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range; when training starts: the metric does not exist, or ``mode`` is not
            given and cannot be inferred from the metric or its name; during training: the metric is not a number.

    >>> schedule = ReduceOnPlateauScheduler("eval/Accuracy", mode="max", factor=0.5, patience=1)
    >>> [schedule.update(accuracy) for accuracy in (0.7, 0.8, 0.8, 0.8)]
    [1.0, 1.0, 1.0, 0.5]
    """

    def __init__(
        self,
        monitor: str,
        mode: Literal["min", "max"] | None = None,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_factor: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError(f"factor must be between 0 and 1 (both excluded), but got {factor!r}.")
        self.monitor = check_monitor(monitor)
        self.mode = mode if mode is None else one_of("mode", mode, ("min", "max"))
        self._larger = None if mode is None else mode == "max"
        self.factor = factor
        self.patience = whole_number("patience", patience)
        self.threshold = non_negative("threshold", threshold)
        self.threshold_mode = one_of("threshold_mode", threshold_mode, ("rel", "abs"))
        self.cooldown = whole_number("cooldown", cooldown)
        self.min_factor = non_negative("min_factor", min_factor)
        self.multiplier = 1.0
        self.best: float | None = None
        self._bad = 0
        self._cooling = 0

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp, on which it does not depend."""
        return lambda now: self.multiplier

    def update(self, value: float) -> float:
        """Update the schedule with a value of the metric, and return the new multiplier.

        Args:
            value: The metric. NaN is never an improvement.
        """
        if self._is_better(value):
            self.best, self._bad = value, 0
        else:
            self._bad += 1
        if self._cooling:
            self._cooling, self._bad = self._cooling - 1, 0
        if self._bad > self.patience:
            self.multiplier = max(self.multiplier * self.factor, self.min_factor)
            self._cooling, self._bad = self.cooldown, 0
        return self.multiplier

    def __check__(self, state: State) -> None:
        """Raise if the metric does not exist, and infer whether larger values are better."""
        label, name = self._find(state)
        if self.mode is None:
            self._larger = self._direction(state.eval_metrics[label][name])

    def __observe__(self, state: State, labels: Sequence[str]) -> bool:
        """Read the metric if its evaluator ran; return whether the multiplier changed."""
        label, name = self._find(state)
        metric = state.eval_metrics[label][name]
        if label not in labels or not metric.update_called:
            return False
        # The evaluation has computed the metric, which caches its value: this reads one number.
        value: Any = metric.compute()
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"monitor={self.monitor!r} must be one number, but {label}/{name} computed {value!r}."
            ) from None
        before = self.multiplier
        return self.update(number) != before

    def state_dict(self) -> dict[str, Any]:
        """Return the multiplier, the best value, and the counters of bad and cooldown evaluations."""
        return {"multiplier": self.multiplier, "best": self.best, "bad": self._bad, "cooling": self._cooling}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Args:
            state_dict: The saved values.
        """
        self.multiplier, self.best = state_dict["multiplier"], state_dict["best"]
        self._bad, self._cooling = state_dict["bad"], state_dict["cooling"]

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return not math.isnan(value)
        if self._larger is None:  # a custom loop without __check__
            self._larger = self._direction(None)
        sign = 1 if self._larger else -1
        if self.threshold_mode == "rel":
            # Unlike torch's, which counts equal and worse values as better if the best value is negative.
            relative = math.copysign(self.threshold, self.best)
            return sign * value > sign * self.best * (1 + sign * relative)
        return sign * value > sign * self.best + self.threshold

    def _direction(self, metric: Any) -> bool:
        return require_direction(self.monitor, metric, "mode='min' or mode='max'")

    def _find(self, state: State) -> MetricName:
        return find_metric(state.eval_metrics, self.monitor)
