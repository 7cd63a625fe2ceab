"""Normalize the ``metrics`` arguments of models (one, a list, a collection or a dict) to a dict by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from composer.dist.ranks import check_environment

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection

__all__ = ["MetricAttributes", "metrics_by_name", "metrics_on_cpu"]


class MetricAttributes:
    """Keep the metrics of a model out of its submodules, and so out of state dicts, module surgery and TorchScript.

    ``train_metrics`` and ``val_metrics`` can be set at any time, in the formats of :func:`metrics_by_name`; reading
    them returns the value that was set.

    >>> class Model(MetricAttributes, torch.nn.Module):
    ...     pass
    >>> model = Model()
    >>> model.val_metrics = {}
    >>> model.val_metrics, list(model.children())
    ({}, [])
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, without registering metrics as submodules."""
        if name in ("train_metrics", "val_metrics"):
            metrics_by_name(name, value)
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


def metrics_on_cpu() -> torch.device:
    """Return the context in which models create their metrics: always on the CPU.

    A model may be created under ``torch.device("meta")``, for deferred initialization when it is sharded. Metric states
    need values from the start; they are moved to the device on which they are updated.

    >>> with torch.device("meta"), metrics_on_cpu():
    ...     torch.zeros(1).device
    device(type='cpu')
    """
    return torch.device("cpu")


def metrics_by_name(
    argument: str,
    metrics: Metric | MetricCollection | Mapping[str, Metric] | Sequence[Metric] | None,
) -> dict[str, Metric]:
    """Return metrics by name: the class name for a single metric or a list, else the name in the collection or dict.

    Args:
        argument: Name of the argument, for error messages.
        metrics: The metrics; None for none.

    Raises:
        TypeError: The format is not supported, or an entry is not a metric.
        ValueError: Two metrics of a list have the same class.

    >>> metrics_by_name("metrics", {})
    {}
    """
    if metrics is None or (isinstance(metrics, (Mapping, list, tuple)) and not metrics):
        return {}  # avoids the import of torchmetrics, which takes a second
    check_environment()  # importing torchmetrics reads these variables
    from torchmetrics import Metric, MetricCollection

    if isinstance(metrics, Metric):
        return {type(metrics).__name__: metrics}
    if isinstance(metrics, (list, tuple)):
        metrics = _by_class(argument, metrics)
    if not isinstance(metrics, (MetricCollection, Mapping)):
        raise TypeError(
            f"{argument} must be a Metric, a list of metrics, a MetricCollection or a dict of metrics by name, but got "
            f"a {type(metrics).__name__}."
        )
    named = dict(metrics.items())
    for name, metric in named.items():
        if not isinstance(metric, Metric):
            raise TypeError(f"{argument}[{name!r}] must be a torchmetrics Metric, but got a {type(metric).__name__}.")
    return named


def _by_class(argument: str, metrics: Sequence[Metric]) -> dict[str, Metric]:
    counts = Counter(type(metric).__name__ for metric in metrics)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(
            f"{argument} has several metrics of the class {twice[0]}, and metrics in a list are named by their class. "
            f"Pass a dict of metrics by name."
        )
    return {type(metric).__name__: metric for metric in metrics}
