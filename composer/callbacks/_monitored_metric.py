"""The value of a metric that a callback looks at to decide whether to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from composer._text import one_of
from composer.core.metric_direction import require_direction
from composer.core.metric_names import MetricName, find_metric, metrics_of_run, spellings
from composer.metrics.across_ranks import compute_across_ranks

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = [
    "Comparison",
    "as_comparison",
    "comparison_for",
    "mode_for",
    "monitored",
    "monitored_now",
    "read_monitored",
    "read_score",
    "word_for",
]

Comparison = Callable[[Any, Any], Any]

_COMPARISONS: Final[Mapping[str, Comparison]] = {
    "gt": torch.gt,
    "greater": torch.gt,
    "lt": torch.lt,
    "less": torch.lt,
}


def as_comparison(comp: Comparison | str | None) -> Comparison | None:
    """Return the function ``(value, reference) -> bool`` that tells whether a value is better.

    Args:
        comp: That function, or its name: "gt", "greater", "lt" or "less". None, which is returned as it is, leaves it
            to :func:`comparison_for`, as the metric is not known before training starts.

    Raises:
        ValueError: The name is unknown.
        TypeError: It is neither a name nor a function.

    >>> as_comparison("greater") is torch.gt
    True
    """
    if comp is None:
        return None
    if isinstance(comp, str):
        return _COMPARISONS[one_of("comp", comp.lower(), _COMPARISONS)]
    if not callable(comp):
        raise TypeError(f"comp must be a function (value, reference) -> bool, or its name; got {comp!r}.")
    return comp


def comparison_for(state: State, metric: MetricName) -> Comparison:
    """Return the comparison that tells whether a value of a metric is better, see :func:`.larger_is_better`.

    Args:
        state: The state, its metrics.
        metric: The metric.

    Raises:
        ValueError: Neither the metric nor its name says so.
    """
    found = metrics_of_run(state).get(metric.label, {}).get(metric.name)
    return torch.gt if require_direction(metric.name, found, "comp='less' or comp='greater'") else torch.lt


def word_for(comparison: Comparison) -> str:
    """Return the word for a comparison in a sentence: a value is "above", "below" or, if it is a user's, "better than".

    Args:
        comparison: A function ``(value, reference) -> bool``.

    >>> word_for(torch.lt), word_for(lambda value, best: value <= best)
    ('below', 'better than')
    """
    # torch.less and torch.greater are functions of their own.
    words: dict[Any, str] = {torch.gt: "above", torch.greater: "above", torch.lt: "below", torch.less: "below"}
    return words.get(comparison, "better than")


def monitored(state: State, monitor: str, label: str | None) -> MetricName:
    """Return the metric to monitor; refuse, before the training, one that will never be there.

    Args:
        state: The state, its data set.
        monitor: Name of the metric, in any of its :func:`.spellings`.
        label: Name of the data: "train", or the label of an evaluator; None where ``monitor`` has it.

    Raises:
        ValueError: There are no data of that label, or no such metric of them.
    """
    return find_metric(metrics_of_run(state), monitor, label, training=state.train_phase.label or "train")


def monitored_now(state: State, monitor: str, label: str | None) -> MetricName | None:
    """Return the metric to monitor if it is of the data that was just worked on, outside of a fit.

    Args:
        state: The state.
        monitor: Name of the metric.
        label: Name of the data, or None.

    Raises:
        ValueError: The data is the one that was named and has no such metric.
    """
    now = state.dataloader_label
    if now is None or label not in (None, now):
        return None
    is_train = now == state.train_phase.label
    metrics = state.train_metrics if is_train else state.eval_metrics.get(now, {})
    if label is None and not any(monitor in spellings(now, name) for name in metrics):
        return None
    return find_metric({now: metrics}, monitor, label)


def read_monitored(state: State, monitor: MetricName | None) -> Tensor | None:
    """Return a metric of the data that was just worked on, as a scalar on the CPU; None where it is of other data.

    This waits for the device, and where there are several processes, for all of them.

    Args:
        state: The state.
        monitor: The metric, or None.

    Raises:
        ValueError: There is no such metric.
        TypeError: It has several values.
    """
    if monitor is None or state.dataloader_label != monitor.label:
        return None
    known = state.train_metrics if monitor.label == state.train_phase.label else state.eval_metrics[monitor.label]
    metric: Any = known[find_metric({monitor.label: known}, monitor.name, monitor.label).name]
    values = compute_across_ranks({monitor.name: metric}, getattr(metric, "process_group", None))
    if not values:
        return None
    return _one_number(values[monitor.name], monitor.name)


def mode_for(state: State, monitor: str) -> Literal["min", "max"]:
    """Return whether small or large values of a metric of the evaluation are good, see :func:`.larger_is_better`.

    Args:
        state: The state, its metrics.
        monitor: Name of the metric, in any of its :func:`.spellings`.

    Raises:
        ValueError: There is no such metric, or neither it nor its name says so.
    """
    found = find_metric(state.eval_metrics, monitor)
    metric = state.eval_metrics[found.label][found.name]
    return "max" if require_direction(monitor, metric, "mode='min' or mode='max'") else "min"


def read_score(state: State, monitor: str) -> float | None:
    """Return the value of a metric of the evaluation; None if there was none yet.

    Args:
        state: The state.
        monitor: Name of the metric, in any of its :func:`.spellings`.

    Raises:
        ValueError: There is no such metric.
        TypeError: It has several values.
    """
    value = state.eval_metric_values.get(str(find_metric(state.eval_metrics, monitor)))
    return None if value is None else _one_number(value, monitor).item()


def _one_number(value: Any, monitor: str) -> Tensor:
    if isinstance(value, (Mapping, list, tuple)) or (isinstance(value, Tensor) and value.numel() != 1):
        raise TypeError(f"monitor={monitor!r} is a metric of several values, of which none can be compared: {value!r}.")
    return torch.as_tensor(value).detach().reshape(()).cpu()
