"""Save and restore the last computed values of metrics, so that ``compute()`` returns them after a resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from composer.core.state import State

__all__ = ["get_metric_values", "set_metric_values"]

# Curves over all samples of an evaluation would make up most of a checkpoint.
_MOST_ELEMENTS: Final = 2**20


def get_metric_values(state: State) -> dict[str, Any]:
    """Return the last computed values, as ``{"train": {name: saved}, "eval": {label: {name: saved}}}``.

    Values of more than a million numbers are left out, and values other than tensors, numbers, strings and containers
    of these.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> get_metric_values(State(model=torch.nn.Linear(1, 1)))
    {'train': {}, 'eval': {}}
    """
    # In the middle of an epoch, training metrics have been reset, and old values would be taken for current ones.
    is_current = state.train_values_batch == int(state.timestamp.batch)
    train = _collect(state.train_values, state.train_metrics) if is_current else {}
    found = {label: _collect(values, state.eval_metrics.get(label, {})) for label, values in state.eval_values.items()}
    if state.loaded is not None and state.loaded.metric_values:  # of data that fit may set
        later = state.loaded.metric_values
        return {"train": train or later.get("train", {}), "eval": {**later.get("eval", {}), **found}}
    return {"train": train, "eval": found}


def set_metric_values(state: State, saved: Any) -> None:
    """Restore the saved values of metrics that have not been updated since.

    ``metric.compute()`` returns such a value until the metric is updated or reset.

    Args:
        state: The state of the run.
        saved: What :func:`get_metric_values` returned.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> set_metric_values(state, {"train": {}, "eval": {"eval": {}}})
    >>> state.eval_values
    {}
    """
    if not state.train_values:
        state.train_values = _restore(saved["train"], state.train_metrics)
        state.train_values_batch = int(state.timestamp.batch)
    for label, metrics in state.eval_metrics.items():
        if label not in state.eval_values and label in saved["eval"]:
            state.eval_values[label] = _restore(saved["eval"][label], metrics)


def _collect(values: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in metrics and _may_be_saved(value):
            # A wrapper always recomputes, from inner metrics that cache their values.
            inner = {path: inner_metric._computed for path, inner_metric in _metrics_in(metrics[name]) if path}
            inner = {path: kept for path, kept in inner.items() if kept is not None and _may_be_saved(kept)}
            found[name] = _plain({"value": value, "inner": inner})
    return found


def _restore(saved: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, metric in metrics.items():
        if name not in saved or _has_data(metric):
            continue
        found[name] = _moved(saved[name]["value"], metric.device)
        inner = {"": saved[name]["value"], **saved[name]["inner"]}
        for path, inner_metric in _metrics_in(metric):
            if path in inner and inner_metric.compute_with_cache:
                # As torchmetrics sets them when it loads a state.
                inner_metric._computed, inner_metric._update_count = _moved(inner[path], inner_metric.device), 1
    return found


def _has_data(metric: Any) -> bool:
    # Some wrappers report an update from the start, so only the innermost metrics count.
    metrics = list(_metrics_in(metric))
    inmost = [
        inner_metric
        for path, inner_metric in metrics
        if not any(path != other and _is_in(other, path) for other, _ in metrics)
    ]
    return any(inner_metric.update_called for inner_metric in inmost) or not metrics


def _is_in(inner: str, outer: str) -> bool:
    return not outer or inner.startswith(f"{outer}.")


def _metrics_in(metric: Any) -> Iterator[tuple[str, Any]]:
    """Yield a metric and its inner metrics, each with its path."""
    return ((path, inner_metric) for path, inner_metric in metric.named_modules() if hasattr(inner_metric, "_computed"))


def _numbers_in(value: Any) -> int | None:
    """Return how many numbers a value contains, or None if a checkpoint cannot store it."""
    if isinstance(value, Tensor):
        return None if hasattr(value, "placements") else value.numel()
    if value is None or isinstance(value, (bool, int, float, str, np.number)):
        return 1
    if isinstance(value, Mapping):
        known = cast("Mapping[Any, Any]", value)
        metrics = [*known.values()] if all(isinstance(key, (str, int)) for key in known) else [object()]
    elif isinstance(value, (list, tuple)):
        metrics = list(cast("list[Any]", value))
    else:
        return None
    counts = [_numbers_in(inner_metric) for inner_metric in metrics]
    return None if None in counts else sum(count for count in counts if count is not None)


def _may_be_saved(value: Any) -> bool:
    count = _numbers_in(value)
    return count is not None and count <= _MOST_ELEMENTS


def _plain(value: Any) -> Any:
    """Return a copy on the host, of classes that ``torch.load(weights_only=True)`` allows."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, np.number):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(inner_metric) for key, inner_metric in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner_metric) for inner_metric in cast("list[Any]", value)]
    return value


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(inner_metric, device) for key, inner_metric in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_moved(inner_metric, device) for inner_metric in cast("list[Any]", value)]
    return value
