"""Evaluator: validation data with a label, its metrics, and the interval of evaluation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

from composer._numbers import whole_number
from composer._text import did_you_mean
from composer.core.data_spec import DataSpec, ensure_data_spec, microbatch_size_of
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.types import Batch

if TYPE_CHECKING:
    from torchmetrics import Metric

    from composer.core.state import State

__all__ = ["Evaluator", "ensure_evaluator"]


class Evaluator:
    """A data loader to evaluate on.

    Args:
        label: Name of the data; metrics are logged as ``metrics/<label>/<metric>``.
        dataloader: Yields batches; None as in :class:`.DataSpec`.
        metric_names: Which of the model's evaluation metrics to compute: every metric whose name matches one of these
            regular expressions, ignoring case; a leading "<label>/" may be omitted. None computes all.
        subset_num_batches: Number of batches per evaluation; -1 is all, None uses the trainer's setting.
        eval_interval: How often: epochs, a time string, a :class:`.Time`, or ``(state, event) -> bool``. None uses the
            trainer's setting.
        device_eval_microbatch_size: Number of samples per forward pass; None is the full batch, "auto" as many as
            memory allows.

    Attributes:
        auto_microbatching: Whether the microbatch size is determined during evaluation.
        microbatch_size: The given or determined size, or None.

    Raises:
        ValueError: ``metric_names`` is not a list of strings, or ``device_eval_microbatch_size`` or
            ``subset_num_batches`` is not a valid number.

    >>> Evaluator(label="test", dataloader=[1, 2], metric_names=["Accuracy"]).label
    'test'
    """

    def __init__(
        self,
        *,
        label: str,
        dataloader: DataSpec | Iterable[Batch] | Mapping[str, Any] | None,
        metric_names: list[str] | None = None,
        subset_num_batches: int | None = None,
        eval_interval: int | str | Time | Callable[[State, Event], bool] | None = None,
        device_eval_microbatch_size: float | Literal["auto"] | None = None,
    ) -> None:
        if metric_names is not None and not (
            isinstance(metric_names, list) and all(isinstance(name, str) for name in metric_names)
        ):
            raise ValueError(f"metric_names must be a list of strings; got {metric_names!r}.")
        self.auto_microbatching = isinstance(device_eval_microbatch_size, str) and device_eval_microbatch_size == "auto"
        if subset_num_batches is not None:
            subset_num_batches = whole_number("subset_num_batches", subset_num_batches, minimum=None)
            if subset_num_batches < -1 or subset_num_batches == 0:
                raise ValueError(f"subset_num_batches must be positive, or -1 for all; got {subset_num_batches!r}.")
        if not isinstance(label, str) or not label:
            raise TypeError(f"label must be a non-empty string, the name of the data in metrics; got {label!r}.")
        self.label = label
        self.dataloader = spec = ensure_data_spec(dataloader)
        self.metric_names = metric_names
        self.subset_num_batches = subset_num_batches
        self.microbatch_size: int | None = None
        if device_eval_microbatch_size is not None and not self.auto_microbatching:
            self.microbatch_size = microbatch_size_of("device_eval_microbatch_size", device_eval_microbatch_size, spec)
        self.eval_interval = eval_interval

    @property
    def device_eval_microbatch_size(self) -> int | None:
        """Number of samples per forward pass; the loader's batch size if none was given."""
        return self.dataloader.__batch_size__ if self.microbatch_size is None else self.microbatch_size

    @device_eval_microbatch_size.setter
    def device_eval_microbatch_size(self, size: int | None) -> None:
        self.microbatch_size = size

    @property
    def eval_interval(self) -> Callable[[State, Event], bool] | None:
        """Function that decides whether an evaluation is due; set to a time or a function."""
        return self._eval_interval

    @eval_interval.setter
    def eval_interval(self, interval: int | str | Time | Callable[[State, Event], bool] | None) -> None:
        if interval is not None and not callable(interval):
            interval = ensure_time(interval, TimeUnit.EPOCH, "eval_interval")
            interval = create_interval_scheduler(interval, checkpoint_events=False, final_events={Event.FIT_END})
        self._eval_interval = interval

    def __select__(self, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
        """Return copies of the metrics that ``metric_names`` selects.

        Args:
            metrics: The model's evaluation metrics by name.

        Raises:
            ValueError: A name matches none of them, or is not a valid regular expression.
        """
        if self.metric_names is None:
            return {name: deepcopy(metric) for name, metric in metrics.items()}
        written = {name: name.removeprefix("metrics/").removeprefix(f"{self.label}/") for name in self.metric_names}
        patterns = {name: self.__compile(name if name in metrics else short) for name, short in written.items()}
        for requested, pattern in patterns.items():
            if not any(pattern.search(name) for name in metrics):
                raise ValueError(
                    f"Evaluator {self.label!r}: metric_names has {requested!r}, which matches none of the model's "
                    f"metrics {sorted(metrics)}.{did_you_mean(written[requested], list(metrics))}"
                )
        return {
            name: deepcopy(metric) for name, metric in metrics.items() if any(p.search(name) for p in patterns.values())
        }

    def __compile(self, name: str) -> re.Pattern[str]:
        try:
            return re.compile(name, re.IGNORECASE)
        except re.error as error:
            raise ValueError(
                f"Evaluator {self.label!r}: metric_names has {name!r}, which is not a valid regular expression: "
                f"{error}. Escape special characters: {re.escape(name)!r}."
            ) from None


def ensure_evaluator(
    evaluator: Evaluator | DataSpec | Iterable[Batch] | Mapping[str, Any],
    default_metric_names: Sequence[str] | None = None,
) -> Evaluator:
    """Return an :class:`Evaluator` for an evaluator or evaluation data.

    Args:
        evaluator: An evaluator, or data, which gets the label ``"eval"``.
        default_metric_names: The metrics to compute on data without an evaluator; None computes all.

    >>> ensure_evaluator([1, 2]).label
    'eval'
    """
    if isinstance(evaluator, Evaluator):
        return evaluator
    names = None if default_metric_names is None else list(default_metric_names)
    return Evaluator(label="eval", dataloader=evaluator, metric_names=names)
