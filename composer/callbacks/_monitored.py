"""The value of a metric that a callback looks at to decide whether to stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from composer._text import did_you_mean, one_of
from composer.metrics.over_processes import computed

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Comparison", "as_comparison", "check_monitored", "read_monitored"]

Comparison = Callable[[Any, Any], Any]

_COMPARISONS: Final[Mapping[str, Comparison]] = {
    "gt": torch.gt,
    "greater": torch.gt,
    "lt": torch.lt,
    "less": torch.lt,
}
_SMALLER_IS_BETTER: Final = ("loss", "error", "perplexity")


def as_comparison(comp: Comparison | str | None, monitor: str) -> Comparison:
    """Return the function ``(value, reference) -> bool`` that tells whether a value is better.

    Args:
        comp: That function, or its name: "gt", "greater", "lt" or "less". None chooses by the name of the metric.
        monitor: Name of the metric; smaller is better if it contains "loss", "error" or "perplexity".

    Raises:
        ValueError: The name is unknown.
        TypeError: It is neither a name nor a function.

    >>> as_comparison(None, "CrossEntropyLoss") is torch.lt, as_comparison("greater", "x") is torch.gt
    (True, True)
    """
    if comp is None:
        return torch.lt if any(word in monitor.lower() for word in _SMALLER_IS_BETTER) else torch.gt
    if isinstance(comp, str):
        return _COMPARISONS[one_of("comp", comp.lower(), _COMPARISONS)]
    if not callable(comp):
        raise TypeError(f"comp must be a function (value, reference) -> bool, or its name; got {comp!r}.")
    return comp


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
    value = values[monitor]
    if isinstance(value, Mapping) or (isinstance(value, Tensor) and value.numel() != 1):
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
