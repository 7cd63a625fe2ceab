"""Which metric of several runs a name means, and whether larger values of it are better."""

from __future__ import annotations

from collections.abc import Sequence

from composer._text import did_you_mean, first_of
from composer.core.metric_direction import larger_is_better
from composer.core.metric_names import find_metric
from composer.history.history import History

__all__ = ["choose_metric", "common_metrics", "direction", "is_evaluation"]

_LOGGED = "metrics/"


def common_metrics(runs: Sequence[History]) -> list[str]:
    """Return the names of the metrics that all runs logged.

    Args:
        runs: The runs.

    >>> common_metrics([History("a"), History("b")])
    []
    """
    names = [name for name, series in runs[0].series.items() if len(series)]
    return [name for name in names if all(len(run.series.get(name, ())) for run in runs)]


def is_evaluation(name: str) -> bool:
    """Return whether a metric was logged by an evaluation.

    Args:
        name: Name as it was logged.

    >>> is_evaluation("metrics/eval/Accuracy"), is_evaluation("metrics/train/Accuracy")
    (True, False)
    """
    label, slash, _ = name.removeprefix(_LOGGED).partition("/")
    return name.startswith(_LOGGED) and bool(slash) and label != "train"


def direction(name: str) -> bool | None:
    """Return whether larger values of a metric are better, by its name; None if it is not known.

    Args:
        name: Name as it was logged.

    >>> direction("loss/train/total"), direction("metrics/eval/Accuracy"), direction("mine")
    (False, True, None)
    """
    return False if name.startswith("loss/") else larger_is_better(name)


def choose_metric(runs: Sequence[History], name: str | None = None) -> str:
    """Return the full name of the metric by which runs are compared.

    Without a name it is the first metric of an evaluation that all runs logged, one with a known direction if there is
    one; otherwise the training loss, or the first that they have in common.

    Args:
        runs: The runs.
        name: Its name, with or without "metrics/" and the label of the data; None for the default.

    Raises:
        ValueError: A run did not log the metric, it is ambiguous, or the runs have no metric in common.

    >>> import numpy as np
    >>> from composer.history import Series
    >>> loss = {"loss/train/total": Series("loss/train/total", np.array([0]), np.array([0.5]))}
    >>> choose_metric([History("a", loss), History("b", loss)])
    'loss/train/total'
    """
    if name is not None:
        return _named(runs, name)
    common = common_metrics(runs)
    if not common:
        listed = "; ".join(f"{run.name!r} has {first_of(list(run.series))}" for run in runs[:3])
        raise ValueError(f"The runs have no metric in common: {listed}. Compare runs that log the same metrics.")
    ranks = {
        metric: (
            not is_evaluation(metric),
            direction(metric) is not True,
            direction(metric) is None,
            metric != "loss/train/total",
        )
        for metric in common
    }
    return min(common, key=lambda metric: ranks[metric])


def _named(runs: Sequence[History], name: str) -> str:
    """Return the full name of a metric, from any of its names."""
    every = list(dict.fromkeys(metric for run in runs for metric in run.series))
    found = next((one for one in (name, f"{_LOGGED}{name}") if one in every), None)
    if found is None:
        known: dict[str, dict[str, None]] = {}
        for one in every:
            label, slash, metric = one.removeprefix(_LOGGED).partition("/")
            if one.startswith(_LOGGED) and slash:
                known.setdefault(label, {})[metric] = None
        if not known:
            hint = did_you_mean(name, every) or f" They logged {first_of(every)}."
            raise ValueError(f"metric={name!r} was not logged by the runs.{hint}")
        found = f"{_LOGGED}{find_metric(known, name, training='train', argument='metric')}"
    for run in runs:
        if not len(run.series.get(found, ())):
            where = f" ({run.files[0]})" if run.files else ""
            raise ValueError(
                f"The run {run.name!r}{where} did not log {found!r}, but {first_of(list(run.series))}. Leave the run "
                f"out, or choose a metric that all runs have."
            )
    return found
