"""Setting up a run, and parts of it again when :meth:`.Trainer.fit` is given new ones."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO, cast

import torch

from composer import dist
from composer._text import one_of
from composer._version import __version__
from composer.core.data import DataSpec, ensure_data_spec
from composer.core.evaluator import Evaluator
from composer.core.logger import LoggerDestination
from composer.core.model import ComposerModel
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.core.types import Batch
from composer.precision import Precision, default_precision, get_precision_context
from composer.trainer.arguments import check_subset
from composer.trainer.hparams import describe
from composer.trainer.metrics import place
from composer.trainer.run import Run
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.time import Time

__all__ = [
    "add_console",
    "add_progress_bar",
    "log_hyperparameters",
    "prepare",
    "set_eval_metrics",
    "set_evaluators",
    "set_log_level",
    "set_precision",
    "set_train_data",
]


def set_log_level(level: str | None) -> None:
    """Show the library's log messages from a level on.

    Args:
        level: Its name in any case; None changes nothing.

    Raises:
        ValueError: There is no level of that name.

    >>> set_log_level(None)
    """
    if level is not None:
        names = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("composer").setLevel(one_of("python_log_level", level.upper(), names))


def add_progress_bar(destinations: list[LoggerDestination], stream: str | TextIO, log_traces: bool) -> None:
    """Add a progress bar to the loggers, unless there is one.

    Args:
        destinations: The loggers.
        stream: Where it is drawn.
        log_traces: Whether it shows traces.

    >>> destinations = []
    >>> add_progress_bar(destinations, "stderr", log_traces=False)
    >>> [type(destination).__name__ for destination in destinations]
    ['ProgressBarLogger']
    """
    from composer.loggers.progress_bar_logger import ProgressBarLogger

    if not any(isinstance(destination, ProgressBarLogger) for destination in destinations):
        destinations.append(ProgressBarLogger(stream, log_traces))


def add_console(
    destinations: list[LoggerDestination], stream: str | TextIO, log_interval: int | str | Time, log_traces: bool
) -> None:
    """Add a logger that prints lines, unless there is one.

    Args:
        destinations: The loggers.
        stream: Where it prints.
        log_interval: How often.
        log_traces: Whether it prints traces.

    >>> destinations = []
    >>> add_console(destinations, "stderr", "10ba", log_traces=False)
    >>> [type(destination).__name__ for destination in destinations]
    ['ConsoleLogger']
    """
    from composer.loggers.console_logger import ConsoleLogger
    from composer.loggers.progress_bar_logger import ProgressBarLogger

    if any(isinstance(destination, ProgressBarLogger) for destination in destinations):
        message = "Both progress_bar and log_to_console are on and write to the same terminal; turn one of them off."
        warnings.warn(message, ComposerWarning, stacklevel=3)
    if not any(isinstance(destination, ConsoleLogger) for destination in destinations):
        destinations.append(ConsoleLogger(log_interval, stream, log_traces))


def set_train_data(
    state: State, data: DataSpec | Iterable[Batch] | Mapping[str, Any] | None, label: str, subset: int | None
) -> None:
    """Set the training data.

    Args:
        state: The state.
        data: The data; None keeps what is there.
        label: Its label.
        subset: Number of batches in an epoch; -1 is all, None keeps what is there.

    Raises:
        ValueError: ``subset`` is zero or less than -1.
    """
    if subset is not None:
        check_subset("train_subset_num_batches", subset)
    if data is not None:
        state.set_dataloader(ensure_data_spec(data), label)
        state.train_phase.repeated = None
    if subset == -1 and state.train_phase.loader is not None:
        state.train_phase.length = state.train_phase.loader.length
    elif subset is not None and subset != -1:
        state.dataloader_len = subset


def set_evaluators(state: State, evaluators: list[Evaluator]) -> None:
    """Set what is evaluated on.

    Args:
        state: The state.
        evaluators: The evaluators.
    """
    state.evaluators = evaluators
    for evaluator in evaluators:
        set_eval_metrics(state, evaluator)


def set_eval_metrics(state: State, evaluator: Evaluator) -> None:
    """Give an evaluator its own copies of the model's metrics.

    Args:
        state: The state.
        evaluator: The evaluator.
    """
    metrics = cast(ComposerModel, state.model).get_metrics(is_train=False)
    state.eval_metrics[evaluator.label] = place(evaluator.select(metrics), state)


def set_precision(run: Run, precision: str | Precision | None, config: dict[str, Any] | None) -> None:
    """Set the precision of the forward passes, and the scaling of gradients that goes with it.

    Args:
        run: The run.
        precision: The precision; None is the best that the device has.
        config: Arguments of the recipe of amp_fp8.

    Raises:
        ValueError: The device does not have it.
    """
    state = run.state
    state.precision = default_precision(state.device) if precision is None else Precision(precision)
    state.precision_config = config
    kind = state.device.torch_device.type
    context = functools.partial(get_precision_context, state.precision, config, device_type=kind)
    context()  # refuses now what the device cannot do
    run.autocast = None if state.precision is Precision.FP32 else context
    state.scaler = torch.amp.GradScaler(kind) if state.precision is Precision.AMP_FP16 else None


def prepare(state: State) -> None:
    """Refuse a training that cannot begin; make an optimizer where none was given.

    Args:
        state: The state.

    Raises:
        ValueError: Data, duration or parameters are missing, or there is nothing left to train.
    """
    if state.train_phase.loader is None:
        raise ValueError("train_dataloader must be given, to fit or to the Trainer.")
    if state.max_duration is None:
        raise ValueError("max_duration must be given to the Trainer, or duration to fit, such as '10ep' or '1000ba'.")
    if state.max_duration.unit is TimeUnit.ITERATION and state._iteration_length is None:  # pyright: ignore[reportPrivateUsage]
        raise ValueError(f"max_duration={state.max_duration}, but an iteration has no length; give epochs or batches.")
    if state.finished:
        raise ValueError(
            f"There is nothing left to train: max_duration is {state.max_duration} and training has come to "
            f"{state.timestamp.get(state.max_duration.unit)}. Give fit(duration=...) to go on, or reset_time=True."
        )
    if not state.optimizers:
        parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
        if not parameters:
            raise ValueError(f"model: no parameter of {type(state.model).__name__} requires a gradient.")
        message = "No optimizers were given; SGD with a learning rate of 0.1 is used."
        warnings.warn(message, ComposerWarning, stacklevel=3)
        state.optimizers = [torch.optim.SGD(parameters, lr=0.1)]


def log_hyperparameters(run: Run, arguments: Mapping[str, Any]) -> None:
    """Log what the run is made of.

    Args:
        run: The run.
        arguments: The trainer's arguments, if they are to be logged.
    """
    run.logger.log_hyperparameters(
        {
            **describe(arguments),
            "composer_version": __version__,
            "num_nodes": dist.get_world_size() // dist.get_local_world_size(),
            f"num_{run.state.device.name}s_per_node": dist.get_local_world_size(),
            "rank_zero_seed": run.state.rank_zero_seed,
        }
    )
