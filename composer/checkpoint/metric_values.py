"""Save and restore the last computed values of metrics, so that ``compute()`` returns them after a resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from composer.core.state import State

__all__ = ["give_metric_values", "take_metric_values"]

# Curves over all samples of an evaluation would make up most of a checkpoint.
_MOST_ELEMENTS: Final = 2**20


def take_metric_values(state: State) -> dict[str, Any]:
    """Return the last computed values, as ``{"train": {name: saved}, "eval": {label: {name: saved}}}``.

    Values of more than a million numbers are left out, and values other than tensors, numbers, strings and containers
    of these.

    Args:
        state: The state of the run.

    >>> from composer import State
    >>> take_metric_values(State(model=torch.nn.Linear(1, 1)))
    {'train': {}, 'eval': {}}
    """
    # In the middle of an epoch, training metrics have been reset, and old values would be taken for current ones.
    is_current = state.train_values_batch == int(state.timestamp.batch)
    train = _taken(state.train_values, state.train_metrics) if is_current else {}
    found = {label: _taken(values, state.eval_metrics.get(label, {})) for label, values in state.eval_values.items()}
    return {"train": train, "eval": found}


def give_metric_values(state: State, saved: Any) -> None:
    """Restore the saved values of metrics that have not been updated since.

    ``metric.compute()`` returns such a value until the metric is updated or reset.

    Args:
        state: The state of the run.
        saved: What :func:`take_metric_values` returned.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> give_metric_values(state, {"train": {}, "eval": {"eval": {}}})
    >>> state.eval_values
    {}
    """
    if not state.train_values:
        state.train_values = _given(saved["train"], state.train_metrics)
        state.train_values_batch = int(state.timestamp.batch)
    for label, metrics in state.eval_metrics.items():
        if label not in state.eval_values and label in saved["eval"]:
            state.eval_values[label] = _given(saved["eval"][label], metrics)


def _taken(values: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in metrics and _may_be_saved(value):
            # A wrapper always recomputes, from inner metrics that cache their values.
            inner = {path: part._computed for path, part in _parts(metrics[name]) if path}
            inner = {path: kept for path, kept in inner.items() if kept is not None and _may_be_saved(kept)}
            found[name] = _plain({"value": value, "inner": inner})
    return found


def _given(saved: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, metric in metrics.items():
        if name not in saved or _has_data(metric):
            continue
        found[name] = _moved(saved[name]["value"], metric.device)
        inner = {"": saved[name]["value"], **saved[name]["inner"]}
        for path, part in _parts(metric):
            if path in inner and part.compute_with_cache:
                # As torchmetrics sets them when it loads a state.
                part._computed, part._update_count = _moved(inner[path], part.device), 1
    return found


def _has_data(metric: Any) -> bool:
    # Some wrappers report an update from the start, so only the innermost metrics count.
    parts = list(_parts(metric))
    inmost = [part for path, part in parts if not any(path != other and _is_in(other, path) for other, _ in parts)]
    return any(part.update_called for part in inmost) or not parts


def _is_in(inner: str, outer: str) -> bool:
    return not outer or inner.startswith(f"{outer}.")


def _parts(metric: Any) -> Iterator[tuple[str, Any]]:
    """Yield a metric and its inner metrics, each with its path."""
    return ((path, part) for path, part in metric.named_modules() if hasattr(part, "_computed"))


def _numbers_in(value: Any) -> int | None:
    """Return how many numbers a value contains, or None if a checkpoint cannot hold it."""
    if isinstance(value, Tensor):
        return None if hasattr(value, "placements") else value.numel()
    if value is None or isinstance(value, (bool, int, float, str, np.number)):
        return 1
    if isinstance(value, Mapping):
        known = cast("Mapping[Any, Any]", value)
        parts = [*known.values()] if all(isinstance(key, (str, int)) for key in known) else [object()]
    elif isinstance(value, (list, tuple)):
        parts = list(cast("list[Any]", value))
    else:
        return None
    counts = [_numbers_in(part) for part in parts]
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
        return {key: _plain(part) for key, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in cast("list[Any]", value)]
    return value


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(part, device) for key, part in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_moved(part, device) for part in cast("list[Any]", value)]
    return value
