"""A queued log record; its device tensors are copied to the host in one transfer per device and dtype."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from composer import trees
from composer._containers import PLAIN
from composer.core._snapshot import snapshot

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp

# Reading it off its module costs as much as the comparison.
_STRIDED: Final = torch.strided


class LogRecord:
    """A queued log record, shared by the queues of all destinations, so that its tensors are copied only once.

    Args:
        metrics: Values by name.
        step: The step.
        timestamp: When it was logged.
        as_numbers: Whether tensors of one element become numbers.
        has_counters: Whether the counters of the timestamp are added when it is delivered.
    """

    __slots__ = ("as_numbers", "has_counters", "metrics", "pending", "step", "timestamp")

    def __init__(
        self, metrics: dict[str, Any], step: int, timestamp: Timestamp, as_numbers: bool, has_counters: bool = False
    ) -> None:
        self.metrics = metrics
        self.step = step
        self.timestamp = timestamp
        self.as_numbers = as_numbers
        self.has_counters = has_counters
        self.pending = True


def time_counters(timestamp: Timestamp) -> dict[str, int]:
    """Return the counters that are logged with each batch.

    Args:
        timestamp: The timestamp.
    """
    now = timestamp.__fields__
    counters = {
        "time/batch": now.batch,
        "time/sample": now.sample,
        "time/batch_in_epoch": now.batch_in_epoch,
        "time/sample_in_epoch": now.sample_in_epoch,
    }
    if now.token:
        counters["time/token"] = now.token
        counters["time/token_in_epoch"] = now.token_in_epoch
    return counters


def check_value(name: Any, value: Any) -> None:
    """Refuse what no logger can write, whether or not one receives it.

    Args:
        name: Name of the metric.
        value: Its value.

    Raises:
        TypeError: The name is not a string, or the value has no data: it is a tensor on the device "meta".
    """
    _check_name(name)
    if isinstance(value, Tensor):
        _check_tensor(name, value)
    elif isinstance(value, (list, tuple, dict)):
        for leaf in trees.leaves(value):
            if isinstance(leaf, Tensor):
                _check_tensor(name, leaf)


def copy_value(name: Any, value: Any) -> Any:
    """Check and copy a value, since the caller may modify it before delivery; sparse tensors become dense.

    Args:
        name: Name of the metric.
        value: Its value.

    Raises:
        TypeError: As :func:`check_value`.
        ValueError: A tensor cannot be made dense.
    """
    _check_name(name)
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensor):
        tensor = value.detach()
        dense = dense_tensor(name, tensor)
        return dense.clone() if dense is tensor else dense
    if isinstance(value, (list, tuple, dict)):
        return copy.deepcopy(trees.map_tensors(lambda tensor: dense_tensor(name, tensor.detach()), value))
    return snapshot(value)


def dense_tensor(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor itself if it is dense, and a dense one of the same values otherwise.

    Args:
        name: Name of the metric.
        tensor: Its value, or a part of it.

    Raises:
        TypeError: The tensor has no data.
        ValueError: It cannot be made dense: it would be too large, or has rows of different lengths.
    """
    _check_tensor(name, tensor)
    if tensor.layout is _STRIDED:
        return tensor
    try:
        return tensor.to_dense()
    except torch.OutOfMemoryError:
        raise  # automatic microbatching answers it with smaller microbatches
    except RuntimeError as error:
        raise ValueError(
            f"The metric {name!r} has the layout {tensor.layout} and the shape {tuple(tensor.shape)}, and cannot be "
            f"made dense for the loggers ({error}). Log a summary of it, such as its sum."
        ) from error


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"The name of a metric must be a string, but got {name!r} of type {type(name).__name__}. Convert it with "
            f"str(), or log the value under a name such as 'layer/1'."
        )


def _check_tensor(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise TypeError(
            f"The metric {name!r} is a tensor on the device 'meta' of shape {tuple(tensor.shape)}, which has no data "
            f"to log. Log the value once it is computed on another device, or leave the metric out."
        )


def complete_records(records: Sequence[LogRecord]) -> int | None:
    """Complete pending records: add counters, and copy tensors to the host, in one transfer for each device and dtype.

    A tensor of one element becomes a number in records with ``as_numbers``, and keeps its shape in others.

    Returns:
        The first step at which a loss of training is NaN, or None.
    """
    nan_since: int | None = None
    groups: dict[tuple[torch.device, torch.dtype, bool], list[tuple[LogRecord, str, Tensor]]] = defaultdict(list)
    numbers: list[tuple[LogRecord, str, Any]] = []
    for record in records:
        if record.pending:
            record.pending = False
            for name, value in record.metrics.items():
                if isinstance(value, Tensor) and value.numel() == 1:
                    if record.as_numbers and value.is_cpu:
                        numbers.append((record, name, value.item()))
                    else:
                        groups[value.device, value.dtype, record.as_numbers].append((record, name, value))
                elif isinstance(value, (Tensor, list, tuple, dict)):
                    record.metrics[name] = trees.map_tensors(_to_host, value)
            if record.has_counters:  # not when it was logged, in a step, where it takes several times as long
                record.metrics = {**time_counters(record.timestamp), **record.metrics}
    for (_, _, as_numbers), values in groups.items():
        stacked = torch.stack([value.detach().reshape(()) for _, _, value in values])
        if as_numbers:
            found = stacked.tolist()
            numbers += [(record, name, number) for (record, name, _), number in zip(values, found, strict=True)]
            continue
        for (record, name, value), element in zip(values, stacked.cpu(), strict=True):
            # Cloned, since a view would keep the storage of all of them in memory, and in saved files.
            record.metrics[name] = element.reshape(value.shape).clone()
    for record, name, number in numbers:
        record.metrics[name] = number
        # By its name, since a model may return a loss in some steps only.
        if number != number and name.startswith("loss/train/") and (nan_since is None or record.step < nan_since):
            nan_since = record.step
    return nan_since


def _to_host(tensor: Tensor) -> Tensor:
    """Return a copy, since a metric may continue to update the tensor that it returned."""
    return tensor.detach().to("cpu", copy=True)
