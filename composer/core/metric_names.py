"""Find a metric by name: "Accuracy", "eval/Accuracy" or, as it is logged, "metrics/eval/Accuracy"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from composer._numbers import real_number
from composer._text import did_you_mean

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["MetricName", "as_threshold", "check_monitor", "find_metric", "metrics_of_run", "spellings"]

_LOGGED = "metrics/"

Known = Mapping[str, Mapping[str, Any]]


class MetricName(NamedTuple):
    """A metric of some data.

    Attributes:
        label: Label of the data: "train", or that of an evaluator.
        name: The metric's name among the model's metrics.

    >>> str(MetricName("eval", "Accuracy"))
    'eval/Accuracy'
    """

    label: str
    name: str

    def __str__(self) -> str:
        return f"{self.label}/{self.name}"


def check_monitor(monitor: Any) -> str:
    """Return the name of a metric if it is a string.

    Args:
        monitor: The given name.

    Raises:
        TypeError: It is not a string.

    >>> check_monitor("eval/Accuracy")
    'eval/Accuracy'
    """
    if not isinstance(monitor, str):
        raise TypeError(f"monitor must be the name of a metric such as 'eval/Accuracy', but got {monitor!r}.")
    return monitor


def as_threshold(argument: str, value: Any) -> float:
    """Return the value that a metric is to reach as a float; infinities are never passed.

    Args:
        argument: Name of the argument, for the message.
        value: The given value.

    Raises:
        TypeError: It is not a number.
        ValueError: It is NaN, with which every comparison is false.

    >>> as_threshold("target", 1)
    1.0
    """
    if math.isnan(number := real_number(argument, value)):
        raise ValueError(f"{argument} must be a number that the metric can reach, such as 0.9, but got {value!r}.")
    return number


def spellings(label: str, name: str) -> tuple[str, str, str]:
    """Return the three accepted names of a metric.

    Args:
        label: Label of the data.
        name: The metric's name.

    >>> spellings("eval", "Accuracy")
    ('Accuracy', 'eval/Accuracy', 'metrics/eval/Accuracy')
    """
    return name, f"{label}/{name}", f"{_LOGGED}{label}/{name}"


def metrics_of_run(state: State) -> dict[str, Mapping[str, Any]]:
    """Return the metrics that a run computes by label and name, with those of its evaluators first.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> metrics_of_run(State(model=torch.nn.Linear(1, 1)))
    {'train': {}}
    """
    found = {evaluator.label: state.eval_metrics.get(evaluator.label, {}) for evaluator in state.evaluators}
    return {**found, state.train_phase.label or "train": state.train_metrics}


def find_metric(
    known: Known, monitor: str, label: str | None = None, training: str | None = None, argument: str = "monitor"
) -> MetricName:
    """Return the metric of a name, in any of its :func:`spellings`.

    A name without a label must be unique among the data. The training data is considered only if no other data has the
    metric, since the evaluation metric is usually meant.

    Args:
        known: The metrics by label and name.
        monitor: The name.
        label: Label of the data, if given separately.
        training: Label of the training data, if included.
        argument: Name of the argument that has the name, for messages.

    Raises:
        ValueError: The metric does not exist, is ambiguous, or belongs to other data than ``label``.

    >>> known = {"eval": {"Accuracy": None}, "train": {"Accuracy": None}}
    >>> {
    ...     str(find_metric(known, name, training="train"))
    ...     for name in ("Accuracy", "eval/Accuracy", "metrics/eval/Accuracy")
    ... }
    {'eval/Accuracy'}
    >>> find_metric(known, "Accurcy", "eval")
    Traceback (most recent call last):
    ValueError: monitor='Accurcy' is not a metric of the data 'eval'. Did you mean 'Accuracy'?
    """
    if label is not None and label not in known:
        hint = did_you_mean(label, known) or f" The labels are {', '.join(map(repr, known))}."
        raise ValueError(f"dataloader_label={label!r} is not a label of the data of this run.{hint}")
    pairs = [MetricName(one, name) for one, metrics in known.items() for name in metrics]
    found = [pair for pair in pairs if monitor in spellings(*pair)]
    # A metric may be called "eval/Accuracy" itself.
    exact = [pair for pair in found if pair.name == monitor]
    matching = [pair for pair in (exact or found) if label in (None, pair.label)]
    chosen = [pair for pair in matching if pair.label != training] or matching
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        listed = ", ".join(repr(str(pair)) for pair in chosen)
        raise ValueError(f"{argument}={monitor!r} is a metric of several evaluators; give one of {listed}.")
    if found:
        raise ValueError(f"{argument}={monitor!r} is a metric of other data than dataloader_label={label!r}.")
    raise ValueError(_unknown(argument, monitor, label, pairs))


def _unknown(argument: str, monitor: str, label: str | None, pairs: list[MetricName]) -> str:
    """Return the error message for an unknown metric name."""
    if label is not None:
        names = [pair.name for pair in pairs if pair.label == label]
        last = monitor.removeprefix(_LOGGED).removeprefix(f"{label}/")
        hint = did_you_mean(last, names) or f" The metrics are {sorted(names)}."
        return f"{argument}={monitor!r} is not a metric of the data {label!r}.{hint}"
    names = [str(pair) for pair in pairs]
    short = monitor.removeprefix(_LOGGED)
    near = did_you_mean(short, [*names, *(pair.name for pair in pairs)])
    meant = next((str(pair) for pair in pairs if near.endswith((f"{pair.name!r}?", f"{str(pair)!r}?"))), None)
    hint = "" if meant is None else f" Did you mean {meant!r}?"
    if not names:
        return f"{argument}={monitor!r}: this run has no metrics. Pass eval_dataloader, and a model with get_metrics."
    return f"{argument}={monitor!r} is not a metric of this run.{hint} The metrics are {', '.join(map(repr, names))}."
