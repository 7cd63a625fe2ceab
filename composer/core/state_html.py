"""The state of a run as an HTML table, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from composer import _html
from composer.core.logger_destination import LoggerDestination
from composer.core.model_changes import base_class

__all__ = ["state_html"]

_MOST_VALUES = 12


def state_html(state: Any, title: str = "State", about_model: Sequence[tuple[str, object]] = ()) -> str:
    """Return a table of the model, data, optimizers and progress, with the last losses and metrics, which are read.

    Args:
        state: The state.
        title: Title of the table.
        about_model: Rows that replace the row with the model's class.

    >>> from composer import State
    >>> import torch
    >>> "<td" in state_html(State(torch.nn.Linear(1, 1)))
    True
    """
    watching = [callback for callback in state.callbacks if not isinstance(callback, LoggerDestination)]
    loggers = [callback for callback in state.callbacks if isinstance(callback, LoggerDestination)]
    rows: list[tuple[str, object]] = [
        ("run", state.run_name),
        *(about_model or [("model", base_class(state.model).__name__)]),
        ("trained", _progress(state)),
        ("data", _data(state.train_phase)),
        ("evaluation", [_evaluator(evaluator) for evaluator in state.evaluators]),
        ("optimizers", [_optimizer(optimizer) for optimizer in state.optimizers]),
        ("schedulers", [type(scheduler).__name__ for scheduler in state.schedulers]),
        ("algorithms", [repr(algorithm) for algorithm in state.algorithms]),
        ("callbacks", [type(callback).__name__ for callback in watching]),
        ("loggers", [type(logger).__name__ for logger in loggers]),
        ("device", f"{state.device.torch_device}, {state.precision}"),
        ("microbatch size", state.device_train_microbatch_size),
        ("last values", _values(state)),
    ]
    return _html.facts(title, rows)


def _progress(state: Any) -> str:
    now = state.timestamp
    done = f"{now.epoch.value} epochs, {now.batch.value:,} batches, {now.sample.value:,} samples"
    return done if state.max_duration is None else f"{done}, of {state.max_duration.to_timestring()}"


def _data(phase: Any) -> str | None:
    if phase.loader is None:
        return None
    length = "" if phase.length is None else f", {phase.length:,} batches"
    return f"{phase.label}: {type(phase.loader.dataloader).__name__}{length}"


def _evaluator(evaluator: Any) -> str:
    loader = getattr(evaluator.dataloader, "dataloader", evaluator.dataloader)
    return f"{evaluator.label}: {type(loader).__name__}"


def _optimizer(optimizer: Any) -> str:
    rates = dict.fromkeys(f"{float(group['lr']):.4g}" for group in optimizer.param_groups if "lr" in group)
    return f"{type(optimizer).__name__}, lr {', '.join(rates)}" if rates else type(optimizer).__name__


def _values(state: Any) -> list[str]:
    """Return the last losses, and the last metrics of training and evaluation."""
    named = dict(state.total_loss_dict)
    named |= {f"{state.train_phase.label}/{name}": value for name, value in state.train_values.items()}
    for label, values in state.eval_values.items():
        named |= {f"{label}/{name}": value for name, value in values.items()}
    numbers = {name: value for name, value in named.items() if not isinstance(value, Tensor) or value.numel() == 1}
    shown = [f"{name.removesuffix('/total')} {_number(value)}" for name, value in list(numbers.items())[:_MOST_VALUES]]
    return [*shown, f"and {len(numbers) - _MOST_VALUES} more"] if len(numbers) > _MOST_VALUES else shown


def _number(value: Any) -> str:
    return f"{float(value):.4g}" if isinstance(value, (int, float, Tensor)) else str(value)
