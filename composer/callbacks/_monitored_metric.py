"""Find, read and compare the monitored metric of early stopping, threshold stopping and checkpoint selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from composer._text import one_of
from composer.core.metric_direction import require_direction
from composer.core.metric_names import MetricName, find_metric, metrics_of_run, spellings
from composer.metrics.across_ranks import computed

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = [
    "Comparison",
    "as_comparison",
    "comparison_for",
    "comparison_word",
    "mode_for",
    "read_metric",
    "read_score",
    "resolve_current_metric",
    "resolve_metric",
]

Comparison = Callable[[Any, Any], Any]

_COMPARISONS: Final[Mapping[str, Comparison]] = {
    "gt": torch.gt,
    "greater": torch.gt,
    "lt": torch.lt,
    "less": torch.lt,
}


def as_comparison(comp: Comparison | str | None) -> Comparison | None:
    """Return the function ``(value, reference) -> bool`` that returns whether a value is better.

    Args:
        comp: That function, or its name: "gt", "greater", "lt" or "less". None is returned unchanged: the comparison is
            then chosen by :func:`comparison_for`, as the metric is not known before training starts.

    Raises:
        ValueError: The name is unknown.
        TypeError: ``comp`` is neither a name nor a function.

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
    """Return the comparison by which a value of a metric is better, see :func:`.larger_is_better`.

    Args:
        state: The state, which has the metrics.
        metric: The metric.

    Raises:
        ValueError: Neither the metric nor its name implies a direction.
    """
    found = metrics_of_run(state).get(metric.label, {}).get(metric.name)
    return torch.gt if require_direction(metric.name, found, "comp='less' or comp='greater'") else torch.lt


def comparison_word(comparison: Comparison) -> str:
    """Return the word for a comparison in a message: "above", "below" or, for a custom function, "better than".

    Args:
        comparison: A function ``(value, reference) -> bool``.

    >>> comparison_word(torch.lt), comparison_word(lambda value, best: value <= best)
    ('below', 'better than')
    """
    # torch.less and torch.greater are not aliases of the same function objects.
    words: dict[Any, str] = {torch.gt: "above", torch.greater: "above", torch.lt: "below", torch.less: "below"}
    return words.get(comparison, "better than")


def resolve_metric(state: State, monitor: str, label: str | None) -> MetricName:
    """Return the metric to monitor; raise before training if it does not exist.

    Args:
        state: The state, which has the metrics.
        monitor: Name of the metric, in any of its :func:`.spellings`.
        label: Label of the data: "train", or that of an evaluator; None if ``monitor`` includes it.

    Raises:
        ValueError: No data has this label, or it does not have the metric.
    """
    return find_metric(metrics_of_run(state), monitor, label, training=state.train_phase.label or "train")


def resolve_current_metric(state: State, monitor: str, label: str | None) -> MetricName | None:
    """Return the metric to monitor if it belongs to the data just processed, outside of fit; None otherwise.

    Args:
        state: The state.
        monitor: Name of the metric.
        label: Label of the data, or None.

    Raises:
        ValueError: The data has the given label but not the metric.
    """
    now = state.dataloader_label
    if now is None or label not in (None, now):
        return None
    is_train = now == state.train_phase.label
    metrics = state.train_metrics if is_train else state.eval_metrics.get(now, {})
    if label is None and not any(monitor in spellings(now, name) for name in metrics):
        return None
    return find_metric({now: metrics}, monitor, label)


def read_metric(state: State, monitor: MetricName | None) -> Tensor | None:
    """Return a metric of the data just processed, as a scalar on the CPU; None if it belongs to other data.

    This synchronizes with the device and, in distributed training, with all ranks.

    Args:
        state: The state.
        monitor: The metric, or None.

    Raises:
        ValueError: The metric does not exist.
        TypeError: The metric has several values.
    """
    if monitor is None or state.dataloader_label != monitor.label:
        return None
    known = state.train_metrics if monitor.label == state.train_phase.label else state.eval_metrics[monitor.label]
    metric: Any = known[find_metric({monitor.label: known}, monitor.name, monitor.label).name]
    values = computed({monitor.name: metric}, getattr(metric, "process_group", None))
    if not values:
        return None
    return _as_scalar(values[monitor.name], monitor.name)


def mode_for(state: State, monitor: str) -> Literal["min", "max"]:
    """Return whether small or large values of an evaluation metric are better, see :func:`.larger_is_better`.

    Args:
        state: The state, which has the metrics.
        monitor: Name of the metric, in any of its :func:`.spellings`.

    Raises:
        ValueError: The metric does not exist, or neither it nor its name implies a direction.
    """
    found = find_metric(state.eval_metrics, monitor)
    metric = state.eval_metrics[found.label][found.name]
    return "max" if require_direction(monitor, metric, "mode='min' or mode='max'") else "min"


def read_score(state: State, monitor: str) -> float | None:
    """Return the value of an evaluation metric; None before the first evaluation.

    Args:
        state: The state.
        monitor: Name of the metric, in any of its :func:`.spellings`.

    Raises:
        ValueError: The metric does not exist.
        TypeError: The metric has several values.
    """
    value = state.eval_metric_values.get(str(find_metric(state.eval_metrics, monitor)))
    return None if value is None else _as_scalar(value, monitor).item()


def _as_scalar(value: Any, monitor: str) -> Tensor:
    if isinstance(value, (Mapping, list, tuple)) or (isinstance(value, Tensor) and value.numel() != 1):
        raise TypeError(f"monitor={monitor!r} must be a metric with a single value; got {value!r}.")
    return torch.as_tensor(value).detach().reshape(()).cpu()
