"""Training metrics: updated with every microbatch, computed only when a logger, checkpoint or summary reads them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from composer import trees
from composer.core._log_record import dense_tensor
from composer.core.array_axes import is_array
from composer.core.eval_mode import model_eval_mode
from composer.core.model import ComposerModel
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.core.types import Batch
from composer.metrics.across_ranks import compute_across_ranks
from composer.metrics.class_names import array_axes
from composer.precision import widest_dtype
from composer.trainer.run import Run

if TYPE_CHECKING:
    from torchmetrics import Metric

__all__ = [
    "compute_across_ranks",
    "describe_arrays",
    "finish_train_metrics",
    "keep_train_values",
    "log_last_train_metrics",
    "log_train_metrics",
    "metrics_are_due",
    "metrics_of",
    "move_metrics",
    "named_values",
    "reset_train_metrics",
    "to_metrics_device",
    "update_train_metrics",
]


def update_train_metrics(run: Run, batch: Batch, *, counts: bool = True) -> None:
    """Update the metrics with ``state.outputs``.

    Args:
        run: The run; if its state has no outputs, they are computed.
        batch: The microbatch before algorithms edited it.
        counts: Whether it counts; a dummy microbatch (uneven inputs) only runs the model, for its collectives.
    """
    state = run.state
    model = cast(ComposerModel, state.model)
    with torch.no_grad():
        by_default = type(model).eval_forward is ComposerModel.eval_forward and not hasattr(type(model), "validate")
        if by_default and state.outputs is not None:
            outputs = state.outputs
        else:
            # Without outputs, which a callback may have freed, this runs a forward pass.
            with model_eval_mode(model), nullcontext() if run.autocast is None else run.autocast():
                outputs = model.eval_forward(batch, state.outputs)
        metrics = state.train_metrics.values() if counts else ()
        if metrics:
            batch, outputs = to_metrics_device(state, batch, outputs)
        for metric in metrics:
            model.update_metric(batch, outputs, metric)
            # Validating values synchronizes with the device; the first batch has been validated.
            if getattr(metric, "validate_args", False):
                metric.validate_args = False


def reset_train_metrics(state: State) -> None:
    """Reset the training metrics.

    Args:
        state: The state.

    >>> reset_train_metrics(State(model=torch.nn.Linear(1, 1)))
    """
    for metric in state.train_metrics.values():
        metric.reset()


def metrics_are_due(run: Run) -> bool:
    """Return whether a logger on any rank reads the metrics after this batch: all ranks must compute them together.

    Args:
        run: The run.
    """
    if run.step_sync is None:
        is_due = bool(run.logger.destinations) and run.logger.poll()
    else:
        is_due = run.step_sync.counts().metrics_due  # loggers were polled when the batch was fetched
    return is_due and bool(run.state.train_metrics)


def log_train_metrics(run: Run, step: int) -> None:
    """Log the values since the start of the epoch.

    Args:
        run: The run.
        step: The step to log at.
    """
    label = run.state.train_phase.label
    values: dict[str, Any] = {}
    keep_train_values(run)
    for name, value in run.state.train_values.items():
        named = named_values(f"metrics/{label}/{name}", value)
        describe_arrays(run, named, run.state.train_metrics[name], run.state.train_phase.loader)
        values.update(named)
    run.state.train_phase.metrics_logged_at = run.state.timestamp.count(TimeUnit.BATCH)
    if values:
        run.logger.enqueue(values, step, as_numbers=False)


def log_last_train_metrics(run: Run) -> None:
    """Log the values at the end of an epoch or of training, unless they were logged with the last batch.

    Args:
        run: The run.
    """
    batch = run.state.timestamp.count(TimeUnit.BATCH)
    if run.state.train_metrics and run.state.train_phase.metrics_logged_at != batch:
        log_train_metrics(run, batch)


def finish_train_metrics(run: Run) -> None:
    """Log the values at the end of training, or keep them if nothing logs.

    Args:
        run: The run.
    """
    if run.step_sync is not None or run.logger.destinations:
        log_last_train_metrics(run)
    else:
        _keep_last_train_values(run)


def keep_train_values(run: Run) -> None:
    """Compute the metrics and keep the values in the state, for checkpoints and callbacks; all ranks must call this.

    Args:
        run: The run.
    """
    state = run.state
    state.train_values = compute_across_ranks(state.train_metrics, run.strategy.data_group)
    state.train_values_batch = int(state.timestamp.batch)


def _keep_last_train_values(run: Run) -> None:
    """Compute and keep the metrics at the end of training, if other ranks, a checkpoint or the summary read them.

    Args:
        run: The run.
    """
    if run.step_sync is not None or run.interruption is not None or run.summary is not None:
        keep_train_values(run)


def named_values(name: str, value: Any) -> dict[str, Any]:
    """Return the result of a metric as values to log: a metric may compute more than one.

    Args:
        name: The metric's name in the log.
        value: The computed value, or a dict of values; sparse tensors become dense.

    Raises:
        TypeError: A value has no data: it is a tensor on the device "meta".
        ValueError: A tensor cannot be made dense.

    >>> named_values("metrics/eval/F", {"precision": 1.0, "recall": 0.5})
    {'metrics/eval/F/precision': 1.0, 'metrics/eval/F/recall': 0.5}
    """
    parts: dict[str, Any] = {name: value}
    if isinstance(value, dict):
        parts = {f"{name}/{key}": part for key, part in cast("dict[str, Any]", value).items()}
    return {one: dense_tensor(one, part) if isinstance(part, Tensor) else part for one, part in parts.items()}


def describe_arrays(run: Run, values: dict[str, Any], metric: Metric, data: Any) -> None:
    """Report to the loggers what the axes of a metric stand for, if its values are arrays.

    Args:
        run: The run.
        values: The values of the metric, by name in the log.
        metric: The metric.
        data: The data spec or loader, whose data set may have the names of the classes.
    """
    for name, value in values.items():
        if is_array(value):
            run.logger.describe_array(name, array_axes(metric, data))


def to_metrics_device(state: State, batch: Batch, outputs: Any) -> tuple[Batch, Any]:
    """Return a batch and its outputs on the device of the metrics.

    Args:
        state: The state.
        batch: The batch.
        outputs: The outputs of the model.

    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> to_metrics_device(state, [torch.ones(1)], torch.zeros(1))
    ([tensor([1.])], tensor([0.]))
    """
    device = _metrics_device(state)
    if device == state.device.torch_device:
        return batch, outputs
    return trees.map_tensors(lambda tensor: tensor.detach().to(device), (batch, outputs))


def _metrics_device(state: State) -> torch.device:
    device = state.device.torch_device
    return device if widest_dtype(device) is torch.float64 else torch.device("cpu")


def metrics_of(model: ComposerModel, *, is_train: bool) -> dict[str, Metric]:
    """Return the metrics of a model by name.

    Args:
        model: The model.
        is_train: Whether to return the training metrics, rather than the evaluation metrics.

    Raises:
        TypeError: ``get_metrics`` of the model returns something else.

    >>> from composer.models import ComposerClassifier
    >>> sorted(metrics_of(ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2), is_train=True))
    ['MulticlassAccuracy']
    """
    found: Any = model.get_metrics(is_train=is_train)
    if hasattr(found, "items"):  # a mapping, or torchmetrics' MetricCollection
        wrong = {name: one for name, one in found.items() if isinstance(one, type) or not hasattr(one, "metric_state")}
        if not wrong:
            return found
        name, value = next(iter(wrong.items()))
        reason = f"its entry {name!r} is {value!r}, not a torchmetrics.Metric"
    else:
        reason = f"got {found!r}"
    form = "{'accuracy': metric}, or {} for none"
    raise TypeError(f"{type(model).__name__}.get_metrics(is_train={is_train}) must return {form}; {reason}.")


def move_metrics(metrics: dict[str, Metric], state: State) -> dict[str, Metric]:
    """Move metrics to the device, or to the CPU if the device lacks double precision.

    Args:
        metrics: The metrics by name.
        state: The state.

    Raises:
        ValueError: A metric was created under ``torch.device("meta")``, and has no initial values.

    >>> move_metrics({}, State(model=torch.nn.Linear(1, 1)))
    {}
    """
    for name, metric in metrics.items():
        if any(isinstance(value, Tensor) and value.is_meta for value in metric.metric_state.values()):
            raise ValueError(
                f"The metric {name!r} is on the meta device, where it has no initial values. Create it outside of "
                f"torch.device('meta')."
            )
    device = _metrics_device(state)
    return {name: metric.to(device) for name, metric in metrics.items()}
