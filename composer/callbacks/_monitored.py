"""The value of a metric that a callback looks at to decide whether to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor

from composer._text import did_you_mean, one_of
from composer.core.metric_direction import require_direction
from composer.metrics.over_processes import computed

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = [
    "Comparison",
    "as_comparison",
    "check_monitored",
    "comparison_for",
    "mode_for",
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


def comparison_for(state: State, monitor: str, label: str) -> Comparison:
    """Return the comparison that tells whether a value of a metric is better, see :func:`.larger_is_better`.

    Args:
        state: The state, its metrics.
        monitor: Name of the metric.
        label: Name of the data: "train", or the label of an evaluator.

    Raises:
        ValueError: Neither the metric nor its name says so.
    """
    metric = (_metrics(state, label) or {}).get(monitor)
    larger = require_direction(monitor, metric, "comp='less' or comp='greater'")
    return torch.gt if larger else torch.lt


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


def check_monitored(state: State, monitor: str, label: str) -> None:
    """Refuse, before the training, a metric that will never be there.

    Args:
        state: The state, its data set.
        monitor: Name of the metric.
        label: Name of the data: "train", or the label of an evaluator.

    Raises:
        ValueError: There are no data of that label, or no such metric of them.
    """
    labels = [state.train_phase.label or "train", *(evaluator.label for evaluator in state.evaluators)]
    if label not in labels:
        hint = did_you_mean(label, labels) or f" There are {', '.join(map(repr, labels))}."
        raise ValueError(f"dataloader_label={label!r} names no data of this run.{hint}")
    metrics = _metrics(state, label)
    if metrics is not None:
        _find(metrics, monitor, label)


def read_monitored(state: State, monitor: str, label: str) -> Tensor | None:
    """Return a metric of the data that was just worked on, as a scalar on the CPU; None where it is of other data.

    This waits for the device, and where there are several processes, for all of them.

    Args:
        state: The state.
        monitor: Name of the metric.
        label: Name of the data.

    Raises:
        ValueError: There is no such metric.
        TypeError: It has several values.
    """
    if state.dataloader_label != label:
        return None
    metric = _find(_metrics(state, label) or {}, monitor, label)
    values = computed({monitor: metric}, getattr(metric, "process_group", None))
    if not values:
        return None
    return _one_number(values[monitor], monitor)


def mode_for(state: State, monitor: str) -> Literal["min", "max"]:
    """Return whether small or large values of a metric of the evaluation are good, see :func:`.larger_is_better`.

    Args:
        state: The state, its metrics.
        monitor: ``"<label>/<name>"``.

    Raises:
        ValueError: There is no such metric, or neither it nor its name says so.
    """
    metric = _evaluated(state, monitor)
    return "max" if require_direction(monitor, metric, "mode='min' or mode='max'") else "min"


def read_score(state: State, monitor: str) -> float | None:
    """Return the value of a metric of the evaluation; None if there was none yet.

    Args:
        state: The state.
        monitor: ``"<label>/<name>"``.

    Raises:
        ValueError: There is no such metric.
        TypeError: It has several values.
    """
    _evaluated(state, monitor)
    value = state.eval_metric_values.get(monitor)
    return None if value is None else _one_number(value, monitor).item()


def _evaluated(state: State, monitor: str) -> Any:
    known = {f"{label}/{name}": one for label, metrics in state.eval_metrics.items() for name, one in metrics.items()}
    if monitor not in known:
        raise ValueError(f"monitor={monitor!r} is not among the metrics {list(known)}.{did_you_mean(monitor, known)}")
    return known[monitor]


def _one_number(value: Any, monitor: str) -> Tensor:
    if isinstance(value, (Mapping, list, tuple)) or (isinstance(value, Tensor) and value.numel() != 1):
        raise TypeError(f"monitor={monitor!r} is a metric of several values, of which none can be compared: {value!r}.")
    return torch.as_tensor(value).detach().reshape(()).cpu()


def _metrics(state: State, label: str) -> Mapping[str, Any] | None:
    """The metrics of some data, or None where they are not made yet."""
    return state.train_metrics if label == state.train_phase.label else state.eval_metrics.get(label)


def _find(metrics: Mapping[str, Any], monitor: str, label: str) -> Any:
    if monitor not in metrics:
        hint = did_you_mean(monitor, metrics) or f" There are {sorted(metrics)}."
        raise ValueError(f"monitor={monitor!r} is no metric of the data {label!r}.{hint}")
    return metrics[monitor]
