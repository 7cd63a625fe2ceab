"""Set up a run: loggers, data, evaluators, precision, hyperparameters; ``fit`` reuses this for its new arguments."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from composer import dist
from composer._cpus import cpus_of_node
from composer._text import one_of
from composer._version import __version__
from composer.core.data_sharding import check_sharded_data
from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.core.evaluator import Evaluator
from composer.core.logger import LoggerDestination
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.core.types import Batch
from composer.loggers._format import checked_stream, open_stream
from composer.precision import Precision
from composer.storage.uris import is_remote
from composer.trainer.arguments import as_subset
from composer.trainer.default_optimizer import make_default_optimizer
from composer.trainer.evaluate import set_eval_metrics
from composer.trainer.float8_model import float8_settings
from composer.trainer.resume import LoadOptions
from composer.trainer.run import Run
from composer.trainer.training_data import longest_length
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.callback import Callback
    from composer.core.time import Time
    from composer.profiler.profiler import Profiler

__all__ = [
    "add_console",
    "add_progress_bar",
    "add_uploaders",
    "bind_profiler",
    "change_precision",
    "finish_displays",
    "load_options",
    "log_hyperparameters",
    "prepare",
    "set_evaluators",
    "set_log_level",
    "set_precision",
    "set_train_data",
    "summary_stream",
]


def set_log_level(level: str | None) -> None:
    """Set the level of the library's log messages.

    Args:
        level: Name of the level, case-insensitive; None changes nothing.

    Raises:
        ValueError: The level does not exist.

    >>> set_log_level(None)
    """
    if level is not None:
        names = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("composer").setLevel(one_of("python_log_level", level.upper(), names))


def add_progress_bar(destinations: list[LoggerDestination], stream: str | TextIO, log_traces: bool) -> None:
    """Add a progress bar to the loggers, unless they contain one.

    Args:
        destinations: The loggers.
        stream: The output stream.
        log_traces: Whether to show traces.

    >>> destinations = []
    >>> add_progress_bar(destinations, "stderr", log_traces=False)
    >>> [type(destination).__name__ for destination in destinations]
    ['ProgressBarLogger']
    """
    from composer.loggers.progress_bar_logger import ProgressBarLogger

    if not any(isinstance(destination, ProgressBarLogger) for destination in destinations):
        destinations.append(ProgressBarLogger(stream, log_traces))


def summary_stream(stream: str | TextIO) -> TextIO | None:
    """Return the stream for the summary at the end of training; None on ranks that show nothing.

    Args:
        stream: "stdout", "stderr" or an open text file.

    >>> import sys
    >>> summary_stream("stdout") is sys.stdout
    True
    """
    if dist.get_local_rank() != 0:
        return None
    return open_stream(checked_stream(stream))


def add_console(
    destinations: list[LoggerDestination], stream: str | TextIO, log_interval: int | str | Time, log_traces: bool
) -> None:
    """Add a logger that prints lines, unless the loggers contain one.

    Args:
        destinations: The loggers.
        stream: The output stream.
        log_interval: How often to print.
        log_traces: Whether to print traces.

    >>> destinations = []
    >>> add_console(destinations, "stderr", "10ba", log_traces=False)
    >>> [type(destination).__name__ for destination in destinations]
    ['ConsoleLogger']
    """
    from composer.loggers.console_logger import ConsoleLogger

    if not any(isinstance(destination, ConsoleLogger) for destination in destinations):
        destinations.append(ConsoleLogger(log_interval, stream, log_traces))


def finish_displays(destinations: list[LoggerDestination]) -> None:
    """Warn if a progress bar and a console logger share a terminal; the bar then does not show the hyperparameters.

    Args:
        destinations: The loggers.

    >>> from composer.loggers import ConsoleLogger, ProgressBarLogger
    >>> import io
    >>> finish_displays([ProgressBarLogger("stdout"), ConsoleLogger("10ba", io.StringIO())])  # no warning
    """
    from composer.loggers.console_logger import ConsoleLogger
    from composer.loggers.progress_bar_logger import ProgressBarLogger

    standard = (sys.stdout, sys.stderr)
    lines = [open_stream(one.stream) for one in destinations if isinstance(one, ConsoleLogger)]
    for bar in destinations:
        if not isinstance(bar, ProgressBarLogger):
            continue
        where = open_stream(bar.stream)
        if any(stream is where or (stream in standard and where in standard) for stream in lines):
            bar.shows_config = False
            message = (
                "A progress bar and a console logger write to the same terminal; use progress_bar=False, or no "
                "console logger."
            )
            warnings.warn(message, ComposerWarning, stacklevel=3)


def add_uploaders(destinations: list[LoggerDestination], callbacks: Iterable[Callback]) -> None:
    """Add an uploading logger for the bucket of each ``remote_file_name`` that is a URI, unless one exists.

    Args:
        destinations: The loggers.
        callbacks: The other callbacks.

    >>> from composer.callbacks import CheckpointSaver
    >>> destinations = []
    >>> add_uploaders(destinations, [CheckpointSaver(remote_file_name="memory://bucket/ep{epoch}.pt")])
    >>> destinations[0].bucket_uri
    'memory://bucket'
    """
    from composer.loggers.remote_uploader_downloader import maybe_create_remote_uploader_downloader_from_uri

    names = [getattr(callback, "__remote_file_name__", None) for callback in (*destinations, *callbacks)]
    for name in names:
        if not isinstance(name, str) or not is_remote(name):
            continue
        uploader = maybe_create_remote_uploader_downloader_from_uri(name, destinations)
        if uploader is not None:
            destinations.append(uploader)


def bind_profiler(state: State, profiler: Profiler | None, *, fused: bool) -> None:
    """Bind the profiler to the state of a run.

    Args:
        state: The state.
        profiler: The profiler, or None.
        fused: Whether forward and loss are compiled as one graph.

    Raises:
        TypeError: The value is not a profiler.
    """
    from composer.profiler.profiler import Profiler

    if profiler is None:
        return
    if not isinstance(profiler, Profiler):
        raise TypeError(
            f"profiler must be a composer.profiler.Profiler, such as Profiler(cyclic_schedule(), JSONTraceHandler()); "
            f"got {profiler!r}."
        )
    profiler.fuses_forward_and_loss = fused
    profiler.bind_to_state(state)


def load_options(arguments: Mapping[str, Any]) -> LoadOptions:
    """Return the ``load_*`` arguments of the trainer.

    Args:
        arguments: The arguments of the trainer.

    Raises:
        ValueError: Load options are given without ``load_path``.

    >>> import inspect
    >>> from composer import Trainer
    >>> arguments = {name: p.default for name, p in inspect.signature(Trainer.__init__).parameters.items()}
    >>> load_options({**arguments, "load_path": "ep1.pt"}).strict
    True
    """
    options = LoadOptions(
        path=None if arguments["load_path"] is None else os.fspath(arguments["load_path"]),
        object_store=arguments["load_object_store"],
        weights_only=arguments["load_weights_only"],
        strict=arguments["load_strict_model_weights"],
        progress_bar=arguments["load_progress_bar"],
        ignore_keys=arguments["load_ignore_keys"],
        exclude_algorithms=arguments["load_exclude_algorithms"] or (),
    )
    if options.path is None and (options.object_store is not None or options.weights_only):
        given = "load_object_store" if options.object_store is not None else "load_weights_only"
        raise ValueError(f"{given} requires load_path; pass load_path as well.")
    return options


def set_train_data(
    state: State, data: DataSpec | Iterable[Batch] | Mapping[str, Any] | None, label: str, subset: int | None
) -> None:
    """Set the training data.

    Args:
        state: The state.
        data: The data; None keeps the current data.
        label: Label of the data.
        subset: Number of batches per epoch; -1 uses all, None keeps the current number.

    Raises:
        ValueError: ``subset`` is zero or less than -1.
    """
    if subset is not None:
        subset = as_subset("train_subset_num_batches", subset)
    if data is not None:
        spec = ensure_data_spec(data, "train_dataloader")
        check_sharded_data(spec.dataloader, state.data_shard, "train_dataloader")
        state.set_dataloader(spec, label)
        state.train_phase.repeated = None
    if subset == -1 and state.train_phase.loader is not None:
        state.train_phase.length = state.train_phase.loader.__length_of__(state.data_shard)
    elif subset is not None and subset != -1:
        state.dataloader_len = subset
    if data is not None or subset is not None:
        # All ranks must agree on the length of an epoch, which schedules depend on.
        state.train_phase.length = longest_length(state.train_phase.length)


def set_evaluators(state: State, evaluators: list[Evaluator]) -> None:
    """Set the evaluators of a run.

    Args:
        state: The state.
        evaluators: The evaluators.
    """
    state.evaluators = evaluators
    for evaluator in evaluators:
        set_eval_metrics(state, evaluator)


def set_precision(run: Run, precision: str | Precision | None, config: dict[str, Any] | None) -> None:
    """Set the precision of forward passes (mixed precision, autocast), and the gradient scaler of fp16.

    Args:
        run: The run.
        precision: The precision; None selects the default of the device.
        config: Arguments of amp_fp8.

    Raises:
        ValueError: The device or the strategy does not support the precision.
    """
    state = run.state
    strategy = run.strategy
    state.precision = strategy.resolve_precision(None if precision is None else Precision(precision), state.device)
    state.precision_config = config
    run.float8 = None
    if state.precision is Precision.AMP_FP8 and strategy.autocasts:
        run.float8 = float8_settings(state, strategy)
    state.float8_by_conversion = run.float8 is not None
    state.autocast_cache_enabled = strategy.autocast_cache_enabled
    if not strategy.autocasts:
        run.autocast = state.scaler = None
        return
    device_type = state.device.torch_device.type
    state.precision_context()  # raises now if the device does not support it
    run.autocast = None if state.precision is Precision.FP32 else state.precision_context
    scales = state.precision is Precision.AMP_FP16 and not strategy.has_own_optimizer_step
    state.scaler = strategy.make_scaler(device_type) if scales else None


def change_precision(run: Run, precision: str | Precision) -> None:
    """Set another precision for the next call of ``fit``.

    Args:
        run: The run.
        precision: The precision.

    Raises:
        ValueError: The device does not support the precision, or the precision would change to or from ``amp_fp8``.
    """
    before, wanted = run.state.precision, Precision(precision)
    if (wanted is Precision.AMP_FP8) != (before is Precision.AMP_FP8):
        raise ValueError(
            f"precision={wanted.value!r}, but the Trainer was created with precision={before.value!r}: fit cannot "
            f"change the precision to or from amp_fp8, for which layers are prepared only once. Create a Trainer with "
            f"precision={wanted.value!r}, and load_path= to continue from a checkpoint: its weights are the same in "
            f"every precision."
        )
    set_precision(run, wanted, run.state.precision_config)


def prepare(state: State) -> None:
    """Check that training can start; create the default optimizer if none was given.

    Args:
        state: The state.

    Raises:
        ValueError: Data, duration or parameters are missing, or training already reached its end.
    """
    if state.train_phase.loader is None:
        raise ValueError("train_dataloader must be given, to fit or to the Trainer.")
    if state.max_duration is None:
        raise ValueError("max_duration must be given to the Trainer, or duration to fit, such as '10ep' or '1000ba'.")
    if state.max_duration.unit is TimeUnit.ITERATION and state._iteration_length is None:  # pyright: ignore[reportPrivateUsage]
        raise ValueError(f"max_duration={state.max_duration}, but an iteration has no length; give epochs or batches.")
    # With an evaluation event, an interrupted evaluation remains to be run.
    if state.finished and state.train_phase.evaluation_event is None:
        now = state.timestamp.get(state.max_duration.unit)
        why = f"max_duration is {state.max_duration} and training has reached {now}"
        raise ValueError(
            f"There is nothing left to train: {why if state.stop is None else f'it was {state.stop}'}. Use "
            f"fit(duration=...) to continue, or reset_time=True."
        )
    if not state.optimizers:
        make_default_optimizer(state)


def log_hyperparameters(run: Run, hyperparameters: Mapping[str, Any]) -> None:
    """Log the hyperparameters of the run; all ranks must call this.

    Args:
        run: The run.
        hyperparameters: Hyperparameters of the trainer, or empty.
    """
    name = run.state.device.name
    run.logger.log_hyperparameters(
        {
            **hyperparameters,
            "composer_version": __version__,
            "num_nodes": dist.get_world_size() // dist.get_local_world_size(),
            f"num_{name}s_per_node": cpus_of_node() if name == "cpu" else dist.get_local_world_size(),
            "rank_zero_seed": run.state.rank_zero_seed,
        }
    )
