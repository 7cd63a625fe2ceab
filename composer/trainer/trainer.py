"""The :class:`.Trainer`: validates its arguments, sets up the run, and calls the loops: fit, eval, predict, find_lr."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TextIO, cast

import torch

from composer import dist, rng
from composer._text import one_of
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.metric_values import set_metric_values
from composer.checkpoint.retention import BestCheckpoint
from composer.checkpoint.save import save_checkpoint
from composer.checkpoint.state_methods import register as register_state_dict
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.core.data_sharding import DataShard, check_sharded_data
from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.core.engine import Engine
from composer.core.evaluator import Evaluator
from composer.core.event import Event
from composer.core.logger import Logger, LoggerDestination
from composer.core.model import ComposerModel
from composer.core.state import State
from composer.core.time import Time
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.core.unused_overrides import check_model_methods
from composer.devices import Device, get_device
from composer.export import ExportFormat, Transform, export_of_run
from composer.history.history import History
from composer.history.live import LiveHistory
from composer.ledger.category import Category
from composer.ledger.ledger import Ledger
from composer.loggers._run_history import history_of
from composer.model_summary import ModelSummary
from composer.optim.lr_finder import RangeTest
from composer.parallel.config import as_parallelism_config
from composer.parallel.config_agreement import check_agreement
from composer.parallel.strategy_selection import choose_strategy
from composer.precision import Precision
from composer.trainer import arguments as given
from composer.trainer import distributed_setup, resume, run_completion, saver_setup, schedules, setup, third_party_loops
from composer.trainer._trainer_names import TrainerNames
from composer.trainer.argument_rollback import all_or_nothing
from composer.trainer.argument_types import check_arguments
from composer.trainer.auto_microbatch.out_of_memory import is_out_of_memory
from composer.trainer.auto_microbatch.retry import set_microbatch_size
from composer.trainer.autoresume import resume_newest
from composer.trainer.batch_loading import check_epochs_end
from composer.trainer.blame import blame
from composer.trainer.blame_report import Blame
from composer.trainer.compilation import compile_model, fuses_loss, undo_compilation
from composer.trainer.dry_run import dry_run as run_dry
from composer.trainer.evaluate import evaluate, set_eval_metrics
from composer.trainer.extract_hparams import describe
from composer.trainer.failure_notes import add_notes
from composer.trainer.find_lr import find_lr
from composer.trainer.fingerprint.expect import expect_same_data
from composer.trainer.fit import fit
from composer.trainer.fit_calls import FitCalls
from composer.trainer.fork import checkpoint_at, fork
from composer.trainer.model_report import html_of_run, summary_of_run
from composer.trainer.outputs import free_outputs
from composer.trainer.overrides import run_overrides, saves
from composer.trainer.predict import predict
from composer.trainer.progress import begin_other_data
from composer.trainer.replay.record import ReplayedStep
from composer.trainer.replay.replay import replay
from composer.trainer.run import LoopOptions, Run
from composer.trainer.run_ledger import RunLedger
from composer.trainer.run_summary import Summary
from composer.trainer.short_names import instances
from composer.trainer.signals import import_for_exit, is_reported
from composer.trainer.step_sync import StepSync
from composer.trainer.train_metrics import metrics_of, move_metrics
from composer.trainer.unknown_names import check_call, no_attribute, raise_if_misplaced, raise_if_unknown

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from composer.callbacks.checkpoint_saver import CheckpointSaver
    from composer.core.algorithm_order import AlgorithmPass
    from composer.parallel.ddp import DDPSyncStrategy
    from composer.profiler.profiler import Profiler
    from composer.trainer.schedules import Scheduler

__all__ = ["Trainer"]

register_state_dict()

# Names that third-party training loops import.
_get_initial_device_train_microbatch_size = third_party_loops.get_initial_device_train_microbatch_size
_adjust_device_train_microbatch_size = third_party_loops.adjust_device_train_microbatch_size
_adjust_device_eval_microbatch_size = third_party_loops.adjust_device_eval_microbatch_size
_is_cuda_oom = is_out_of_memory

Data = DataSpec | Iterable[Batch] | Mapping[str, Any]  # a mapping of DataSpec arguments, or of loaders by label


class Trainer(TrainerNames):
    """Trains, evaluates and runs inference with a model.

    All arguments are keyword-only. For multi-GPU training, start one process per GPU with ``composer -n 8 train.py``;
    the ranks train with data parallelism (DDP) unless ``parallelism_config`` or ``deepspeed_config`` selects another
    strategy.

    Args:
        model: The model to train, optionally already compiled by :func:`torch.compile`.
        train_dataloader: Yields training batches: a ``DataLoader``, a :class:`.DataSpec`, or any iterable, with or
            without a length.
        train_dataloader_label: Label of the training data in metric names.
        train_subset_num_batches: Number of batches per epoch; -1 uses all.
        spin_dataloaders: Whether a resumed run continues at the batch where it stopped. If False, it starts the epoch's
            data from the beginning.
        max_duration: When to stop training: a number of epochs, a time string such as ``"10ep"``, ``"1000ba"`` or
            ``"1h30m"``, or a :class:`.Time`.
        algorithms: Algorithms to apply: objects, or names such as "blurpool" of algorithms that need no arguments.
        algorithm_passes: Functions ``(algorithms, event) -> algorithms`` that reorder the algorithms, each given alone
            or as ``(function, index)``.
        optimizers: One or more optimizers over the model's parameters. Multiple optimizers step one after the other,
            which counts as one step. The default is :class:`.DecoupledSGDW` with a learning rate of 0.1.
        schedulers: One or more learning rate schedules: from :mod:`composer.optim`, functions
            ``(state, ssr) -> multiplier``, or from ``torch.optim.lr_scheduler``. A single one applies to all
            optimizers; multiple are matched with the optimizers one to one. Use :class:`.AssignedSchedule` to schedule
            other hyperparameters or single parameter groups.
        scale_schedule_ratio: Multiplies ``max_duration`` and the times of the schedules, for a shorter or longer run.
        step_schedulers_every_batch: Whether to step schedules after every batch rather than every epoch. None means
            every batch, unless one of them is from ``torch.optim.lr_scheduler``.
        eval_dataloader: Data to evaluate on: a loader (labeled "eval"), a mapping from labels to loaders, or
            :class:`.Evaluator` objects. It may be the training data: training goes on where it was.
        eval_interval: How often to evaluate, for evaluators without their own interval: a number of epochs, a time
            string, a :class:`.Time` or ``(state, event) -> bool``. 0 disables evaluation.
        eval_subset_num_batches: Number of batches per evaluation, for evaluators that do not set it; -1 uses all.
        callbacks: Callbacks: objects, or names such as "lr_monitor".
        loggers: Logger destinations for metrics: objects, or names such as "csv".
        run_name: Name of the run. The default is ``COMPOSER_RUN_NAME`` or ``RUN_NAME`` from the environment, or a name
            made from the current time.
        progress_bar: Whether to show a progress bar.
        log_to_console: Whether to print metrics as lines.
        console_stream: Destination of the progress bar and lines: "stdout", "stderr" or an open text file.
        console_log_interval: How often to print lines, in epochs or batches.
        log_traces: Whether to log which algorithm ran at which event.
        auto_log_hparams: Whether to log these arguments as hyperparameters.
        load_path: Checkpoint to load: a path, or a URI that fsspec supports. With weights only, a safetensors file or a
            plain state dict also works.
        load_object_store: The object store to download from, if ``load_path`` is an object name.
        load_weights_only: Whether to load only the model weights, instead of resuming training.
        load_strict_model_weights: Whether the parameter names must match exactly.
        load_progress_bar: Whether to show the progress of the download.
        load_ignore_keys: What not to load: glob patterns of paths such as ``"state/optimizers*"``, or a function that
            edits the checkpoint.
        load_exclude_algorithms: Names of algorithms not to apply even though the weights were saved with them.
        save_folder: Path or URI of the folder for checkpoints; None saves none. The ``save_*`` arguments are those of
            :class:`.CheckpointSaver`. Savers among ``callbacks`` save in addition.
        save_filename: Filename of a checkpoint.
        save_latest_filename: Filename of the symlink to the newest checkpoint; None creates none.
        save_overwrite: Whether the folder may contain later checkpoints of another run.
        save_interval: How often to save.
        save_weights_only: Whether to leave out everything that only training needs.
        save_ignore_keys: What else to leave out.
        save_num_checkpoints_to_keep: How many of the newest checkpoints to keep; -1 keeps all.
        save_metrics: Whether to save the state of the metrics.
        autoresume: Whether to resume from the newest checkpoint that a run of this name saved in ``save_folder``, if
            one exists, no matter how that process ended. The ``load_*`` arguments then apply only to the first start.
        parallelism_config: How to shard the parameters across ranks (FSDP, tensor parallelism), or a custom
            :class:`.Strategy`; None does not shard.
        deepspeed_config: DeepSpeed configuration; training then runs in its engine. ``{}`` derives the configuration
            from the other arguments.
        device: "cpu", "gpu", "mps" or a :class:`.Device`. The default is the accelerator, if present.
        precision: "fp32", "amp_bf16", "amp_fp16" or "amp_fp8". The default is amp_bf16 on accelerators that support
            bfloat16, amp_fp16 on other accelerators, and fp32 on the CPU.
        precision_config: Arguments of amp_fp8: ``recipe`` ("tensorwise", "rowwise", "rowwise_with_gw_hp"),
            ``module_filter_fn`` and the fields of torchao's ``Float8LinearConfig``; for models with layers of
            TransformerEngine, those of its ``DelayedScaling``.
        device_train_microbatch_size: Number of samples per forward and backward pass (gradient accumulation); the
            gradient is that of the full batch regardless. None runs the full batch at once. "auto" runs as many
            samples as fit into memory: on a GPU it begins with the size that is estimated to fit; after an
            out-of-memory error (OOM) it halves the size and retries the batch, and it raises the size when memory is
            available again.
        accumulate_train_batch_on_tokens: Whether to weight microbatches by the number of tokens that the loss averages
            over, instead of samples. None decides by the batch: if ``batch["labels"]`` has a label per token, tokens
            whose label is not -100 are counted. If True, ``get_num_tokens_in_batch`` of the data, if given, counts
            them.
        seed: Seed of all random generators, from 0 to 2**32 - 1. None draws a seed from torch's generator, so calling
            ``torch.manual_seed`` first is enough to reproduce a run.
        deterministic_mode: Whether to use only deterministic implementations.
        dist_timeout: Timeout of collectives in seconds, after which ranks that wait for another rank give up.
        ddp_sync_strategy: When DDP all-reduces the gradients of microbatches; see :class:`.DDPSyncStrategy`.
        find_unused_parameters: Whether DDP must expect parameters that get no gradient in a step.
        profiler: Profiles some of the batches.
        python_log_level: Level of the library's log messages, such as "info".
        compile_config: Arguments of :func:`torch.compile` to compile the model with; ``{}`` for its defaults. With
            ``"regional": True`` only the blocks that the model repeats are compiled, each class of them once, which
            takes less time at the start.
        grad_accum: Old spelling: number of microbatches per batch, or "auto".
        fsdp_config: Old spelling of ``parallelism_config={"fsdp": fsdp_config}``.
        on_logger_error: Whether an exception in a logger is reported once as a warning ("warn") or raised ("raise").
        dry_run: Whether :meth:`fit` only runs two training and two evaluation batches, with all components, and reports
            shapes, time and memory.
        overfit_batches: Number of batches that every epoch repeats, to check whether the model can overfit them; 0
            trains on all data.
        eval_batches_before_fit: Number of batches to evaluate before training, as a sanity check of the evaluation;
            the values are not logged.
        save_async: Whether to write checkpoints in the background while training continues.
        save_failure: Whether a failure to write a checkpoint ends training ("raise") or is a warning ("warn").
        save_on_signals: Signals on which to finish the step, save a checkpoint and exit with code 128 + the signal's
            number, if checkpoints are saved; a second signal ends the process at once.
        save_on_exception: Whether an exception during training saves a checkpoint ``exception-<filename>``, for
            debugging rather than resuming: the step may be incomplete. Not supported with multiple ranks, which cannot
            save it together.

    Attributes:
        state: The model, optimizers, data and training progress.
        engine: Fires events to algorithms and callbacks.
        logger: Sends metrics to the logger destinations.

    Raises:
        TypeError: An argument does not exist or has the wrong type.
        ValueError: An argument has an invalid value.

    >>> from composer.models import ComposerClassifier
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> data = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))]
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with Trainer(
    ...     model=model, train_dataloader=data, max_duration="3ep", optimizers=optimizer, progress_bar=False
    ... ) as trainer:
    ...     trainer.fit()
    >>> trainer.state.timestamp.batch
    Time(3, TimeUnit.BATCH)
    """

    def __init__(
        self,
        *,
        model: ComposerModel,
        train_dataloader: Data | None = None,
        train_dataloader_label: str = "train",
        train_subset_num_batches: int = -1,
        spin_dataloaders: bool = True,
        max_duration: int | str | Time | None = None,
        algorithms: Algorithm | str | Sequence[Algorithm | str] | None = None,
        algorithm_passes: AlgorithmPass | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]] | None = None,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        schedulers: Scheduler | Sequence[Scheduler] | None = None,
        scale_schedule_ratio: float = 1.0,
        step_schedulers_every_batch: bool | None = None,
        eval_dataloader: Data | Evaluator | Sequence[Evaluator] | None = None,
        eval_interval: int | str | Time | Callable[[State, Event], bool] = 1,
        eval_subset_num_batches: int = -1,
        callbacks: Callback | str | Sequence[Callback | str] | None = None,
        loggers: LoggerDestination | str | Sequence[LoggerDestination | str] | None = None,
        run_name: str | None = None,
        progress_bar: bool = True,
        log_to_console: bool = False,
        console_stream: str | TextIO = "stderr",
        console_log_interval: int | str | Time = "1ba",
        log_traces: bool = False,
        auto_log_hparams: bool = False,
        load_path: str | None = None,
        load_object_store: Any = None,
        load_weights_only: bool = False,
        load_strict_model_weights: bool = True,
        load_progress_bar: bool = True,
        load_ignore_keys: IgnoreKeys = None,
        load_exclude_algorithms: list[str] | None = None,
        save_folder: str | None = None,
        save_filename: str = "ep{epoch}-ba{batch}-rank{rank}.pt",
        save_latest_filename: str | None = "latest-rank{rank}.pt",
        save_overwrite: bool = False,
        save_interval: int | str | Time | Callable[[State, Event], bool] = "1ep",
        save_weights_only: bool = False,
        save_ignore_keys: IgnoreKeys = None,
        save_num_checkpoints_to_keep: int = -1,
        save_metrics: bool = False,
        autoresume: bool = False,
        parallelism_config: Any = None,
        deepspeed_config: dict[str, Any] | None = None,
        device: str | Device | None = None,
        precision: str | Precision | None = None,
        precision_config: dict[str, Any] | None = None,
        device_train_microbatch_size: float | Literal["auto"] | None = None,
        accumulate_train_batch_on_tokens: bool | None = None,
        seed: int | None = None,
        deterministic_mode: bool = False,
        dist_timeout: float = 300.0,
        ddp_sync_strategy: str | DDPSyncStrategy | None = None,
        find_unused_parameters: bool = False,
        profiler: Profiler | None = None,
        python_log_level: str | None = None,
        compile_config: dict[str, Any] | None = None,
        grad_accum: int | Literal["auto"] | None = None,
        fsdp_config: dict[str, Any] | None = None,
        on_logger_error: Literal["warn", "raise"] = "warn",
        dry_run: bool = False,
        overfit_batches: int = 0,
        eval_batches_before_fit: int = 0,
        save_async: bool = False,
        save_failure: Literal["raise", "warn"] = "raise",
        save_on_signals: Sequence[str] = ("SIGINT", "SIGTERM", "SIGUSR1"),
        save_on_exception: bool = False,
        **unknown: Never,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "unknown")}
        if run_overrides(Trainer.__init__, self, {**arguments, **unknown}):
            return
        raise_if_unknown(Trainer.__init__, unknown, data=train_dataloader)
        check_arguments(arguments)
        schedules.check_ratio(scale_schedule_ratio, schedulers)
        overfit_batches = given.as_count("overfit_batches", overfit_batches)
        eval_batches_before_fit = given.as_count("eval_batches_before_fit", eval_batches_before_fit)
        one_of("on_logger_error", on_logger_error, ("warn", "raise"))
        setup.set_log_level(python_log_level)
        model, compiled = given.as_model(model)
        if compiled is not None:
            given.warn_already_compiled(compile_config)
            compile_config = None

        device = get_device(device)
        if deterministic_mode:
            rng.configure_deterministic_mode()
        parallelism_config = given.as_parallelism(parallelism_config, fsdp_config)
        supports_one_process = parallelism_config is not None or deepspeed_config is not None
        distributed_setup.init_process_group(device, dist_timeout, single_process=supports_one_process)
        strategy = choose_strategy(
            parallelism_config,
            deepspeed_config=deepspeed_config,
            ddp_sync_strategy=ddp_sync_strategy,
            find_unused_parameters=find_unused_parameters,
        )
        seed = distributed_setup.broadcast_from_rank_zero(
            int(torch.randint(2**31, ()).item()) if seed is None else int(seed)
        )
        rng.seed_all(seed + strategy.data_rank)

        strategy.setup_device(model, device)
        found = given.as_optimizers(optimizers, model)
        check_model_methods(model, has_optimizers=bool(found))
        for optimizer in found:
            device.optimizer_to_device(optimizer)

        name, name_given = distributed_setup.broadcast_from_rank_zero(given.name_run(run_name))
        self.state = State(
            model=model,
            rank_zero_seed=seed,
            run_name=name,
            device=device,
            max_duration=max_duration,
            optimizers=found,
            algorithms=instances("algorithms", algorithms, Algorithm),
            parallelism_config=None if strategy is parallelism_config else as_parallelism_config(parallelism_config),
        )
        self.state.data_shard = DataShard(strategy.data_rank, strategy.data_world_size)
        self.state.seed_rank = strategy.data_rank
        self.state.device_mesh = strategy.device_mesh
        self.state.run_name_given = name_given
        self.state.checkpoint_folders = strategy.checkpoint_folders
        watching = [
            *instances("loggers", loggers, LoggerDestination),
            *instances("callbacks", callbacks, Callback),
        ]
        watching = list({id(callback): callback for callback in watching}.values())  # one passed as both runs once
        destinations = [callback for callback in watching if isinstance(callback, LoggerDestination)]
        if progress_bar:
            setup.add_progress_bar(destinations, console_stream, log_traces)
        if log_to_console:
            setup.add_console(destinations, console_stream, console_log_interval, log_traces)
        setup.finish_displays(destinations)
        others = [callback for callback in watching if not isinstance(callback, LoggerDestination)]
        if save_folder is not None:
            others.append(saver_setup.make_saver(arguments))
        self.state.callbacks = others
        setup.bind_profiler(self.state, profiler, fused=fuses_loss(compile_config))
        setup.add_uploaders(destinations, self.state.callbacks)
        self.state.callbacks = [*destinations, *self.state.callbacks]
        saver_setup.check_distinct(self.state, uploads=any(one.can_upload_files() for one in destinations))
        self.state.find_algorithm = resume.find_algorithm_class
        self.logger = Logger(self.state, destinations, on_error=on_logger_error)
        self.logger.recorder = LiveHistory(name)
        self.engine = Engine(self.state, self.logger, algorithm_passes, record_traces=log_traces)
        model.logger = self.logger
        self._shown = setup.summary_stream(console_stream) if progress_bar or log_to_console else None
        self._dry_run = dry_run
        self._fit_calls = FitCalls()
        self.auto_log_hparams, self.python_log_level = auto_log_hparams, python_log_level
        self._eval_batches_before_fit = eval_batches_before_fit
        self._stopping = resume.SaveOnStop(given.as_signals(save_on_signals), save_on_exception, autoresume)
        self._ledger = RunLedger(self.state.clock, autoresume=autoresume)
        self._run = Run(self.state, self.engine, self.logger, strategy=strategy, ledger=self._ledger)
        if dist.get_world_size() > 1:
            ranks_per_batch = dist.get_world_size() // strategy.data_world_size
            self._run.step_sync = StepSync(ranks_per_batch, self.state.loss_names)

        setup.set_precision(self._run, precision, precision_config)  # algorithms read it at INIT
        distributed_setup.check_algorithms(self.state, strategy)
        with self._closed_on_error():
            self.engine.run_event(Event.INIT)
            self.local_hparams = describe(arguments) if auto_log_hparams else {}
            setup.log_hyperparameters(self._run, self.local_hparams)
            # From the current model: algorithms may have replaced it.
            metrics = metrics_of(cast(ComposerModel, self.state.model), is_train=True)
            self.state.train_metrics = move_metrics(deepcopy(metrics), self.state)
            evaluators = given.as_evaluators(eval_dataloader, eval_interval, eval_subset_num_batches)
            # Callbacks may have added evaluators to the state at INIT.
            present = given.as_evaluators(list(self.state.evaluators), eval_interval, eval_subset_num_batches)
            setup.set_evaluators(self.state, evaluators)
            self.state.evaluators = [*present, *evaluators]
            setup.set_train_data(self.state, train_dataloader, train_dataloader_label, train_subset_num_batches)
            size = given.as_microbatch_size(device_train_microbatch_size, grad_accum, self.state)
            set_microbatch_size(self._run, size)
            self._run.options = LoopOptions(
                weight_by_tokens=accumulate_train_batch_on_tokens,
                create_graph=any(algorithm.backwards_create_graph for algorithm in self.state.algorithms),
                overfit_batches=overfit_batches,
                spin_dataloaders=spin_dataloaders,
            )
            self.state.max_duration = schedules.scaled(self.state.max_duration, scale_schedule_ratio)
            schedules.set_schedules(self._run, schedulers, scale_schedule_ratio, step_schedulers_every_batch)
            check_agreement(self.state)
            self.engine.run_event(Event.BEFORE_LOAD)
            self._autoresumed = autoresume and resume_newest(self._run)
            if self._autoresumed:
                self._fit_calls.resume(self._run)
                expect_same_data(self._run)
            else:
                resume.load(self._run, setup.load_options(arguments))
            self.engine.run_event(Event.AFTER_LOAD)
            compile_model(self._run, compile_config, compiled)
            # Training starts from the seed, no matter how many random numbers setup used.
            rng.seed_all(self.state.seed)

    if not TYPE_CHECKING:

        @functools.wraps(__init__)  # for tools that inspect the signature of the class
        def __new__(cls, *positional: Any, **arguments: Any) -> Self:
            """Reject arguments of other libraries before Python complains about the missing model."""
            if cls.__init__ is Trainer.__init__ and (positional or (arguments and "model" not in arguments)):
                check_call(Trainer.__init__, positional, arguments)
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the equivalent of another library's method or attribute."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that raises: keep its message
            raise no_attribute(self, name)

    def fit(
        self,
        *positional: Never,
        train_dataloader: Data | None = None,
        train_dataloader_label: str = "train",
        train_subset_num_batches: int | None = None,
        spin_dataloaders: bool | None = None,
        duration: int | str | Time | None = None,
        reset_time: bool = False,
        schedulers: Scheduler | Sequence[Scheduler] | None = None,
        scale_schedule_ratio: float = 1.0,
        step_schedulers_every_batch: bool | None = None,
        eval_dataloader: Data | Evaluator | Sequence[Evaluator] | None = None,
        eval_subset_num_batches: int = -1,
        eval_interval: int | str | Time | Callable[[State, Event], bool] = 1,
        device_train_microbatch_size: float | Literal["auto"] | None = None,
        precision: str | Precision | None = None,
        **unknown: Never,
    ) -> None:
        """Train until ``max_duration``; continue where an earlier ``fit`` ended, also in the middle of an epoch.

        Args:
            train_dataloader: Replaces the training data. Another object than before begins a new epoch with its first
                batch; what an earlier ``fit`` left of the epoch of the earlier data is left out, without events.
            train_dataloader_label: Label of the new training data.
            train_subset_num_batches: Number of batches per epoch; -1 uses all.
            spin_dataloaders: Whether a resumed run continues at the batch where it stopped.
            duration: How much longer to train, instead of until ``max_duration``, which it replaces: a later call
                without it has nothing left to train, which is an error.
            reset_time: Whether to reset the training time to zero. With ``autoresume``, a call that had done so before
                the checkpoint was saved goes on instead.
            schedulers: Replace the schedules.
            scale_schedule_ratio: Multiplies ``duration`` (or ``max_duration`` if not given) and the times of these
                schedules.
            step_schedulers_every_batch: Whether to step these schedules after every batch rather than every epoch.
            eval_dataloader: Replaces the evaluation data.
            eval_subset_num_batches: Number of batches per evaluation; -1 uses all.
            eval_interval: How often to evaluate on the new data.
            device_train_microbatch_size: Replaces the number of samples per forward and backward pass; "auto" uses as
                many as fit into memory.
            precision: Replaces the precision.

        Raises:
            ValueError: An argument that training requires was given neither here nor to the trainer, or training
                already reached its end.
            RuntimeError: The trainer is closed.
        """
        arguments = {name: value for name, value in locals().items() if name not in ("self", "positional", "unknown")}
        if not positional and run_overrides(Trainer.fit, self, {**arguments, **unknown}):
            return
        check_arguments(arguments)
        data = self.state.train_dataloader if train_dataloader is None else train_dataloader
        raise_if_unknown(Trainer.fit, unknown, positional, data)
        schedules.check_ratio(scale_schedule_ratio, schedulers)
        self._check_open()
        with all_or_nothing(self._run, schedulers):
            self._set_train_data(train_dataloader, train_dataloader_label, train_subset_num_batches, reset_time)
            if eval_dataloader is not None:
                evaluators = given.as_evaluators(eval_dataloader, eval_interval, eval_subset_num_batches)
                setup.set_evaluators(self.state, evaluators)
            if device_train_microbatch_size is not None:
                size = given.as_microbatch_size(device_train_microbatch_size, None, self.state)
                set_microbatch_size(self._run, size)
            if precision is not None:
                setup.change_precision(self._run, precision)
            if step_schedulers_every_batch is not None and schedulers is None:
                raise ValueError("step_schedulers_every_batch requires schedulers; pass both to fit.")
            end, had_ended = self._fit_calls.plan(self.state, duration, scale_schedule_ratio)
            if reset_time and not had_ended and not self._fit_calls.keeps_time(self._run):
                self._reset_time()
                end, _ = self._fit_calls.plan(self.state, duration, scale_schedule_ratio)
            if spin_dataloaders is not None:
                self._run.options = dataclasses.replace(self._run.options, spin_dataloaders=spin_dataloaders)
            if self._run.state.loaded is not None and self._run.state.loaded.metric_values:
                set_metric_values(self.state, self._run.state.loaded.metric_values)  # for evaluators passed to fit
            is_over = had_ended or (self._fit_calls.is_resumed and run_completion.is_complete(self._run, end))
            self.state.max_duration = end
            if schedulers is not None:  # those of a call that had ended hold for the calls after it, too
                ratio, every_batch = scale_schedule_ratio, step_schedulers_every_batch
                schedules.set_schedules(self._run, schedulers, ratio, every_batch, later=is_over)
            if is_over:
                self._fit_calls.end()
                return
            setup.prepare(self.state)
            check_epochs_end(self._run)
            schedules.begin_schedules(self._run)
        self._train(reset_time=reset_time)
        self._fit_calls.end()

    def _set_train_data(self, data: Any, label: str, num_batches: int | None, reset_time: bool) -> None:
        """Set the training data; it begins at its first batch if it replaces other data, unless the call is resumed."""
        earlier = self.state.train_dataloader
        setup.set_train_data(self.state, data, label, num_batches)
        is_replaced = earlier is not None and self.state.train_dataloader is not earlier
        if is_replaced and self._fit_calls.begins(self._run):
            begin_other_data(self._run, reset_time=reset_time)

    def _reset_time(self) -> None:
        """Reset the training time to zero, and the position in the data to the start of an epoch."""
        self.state.timestamp = Timestamp()
        phase = self.state.train_phase
        phase.iterator = phase.resume_position = phase.last_epoch = None
        phase.extra_batches, phase.evaluated_at, phase.evaluators_done = 0, {}, []
        run_completion.discard_recorded_end(self._run)
        self._fit_calls.reset(self.state)

    def eval(
        self,
        eval_dataloader: Data | Evaluator | Sequence[Evaluator] | None = None,
        subset_num_batches: int = -1,
        **unknown: Never,
    ) -> None:
        """Evaluate the model; results are logged and available in ``state.eval_metrics[label][name]``.

        Args:
            eval_dataloader: Data to evaluate on in this call; by default the trainer's evaluators.
            subset_num_batches: Number of batches; -1 uses the setting of each evaluator.

        Raises:
            ValueError: Neither this call nor the trainer has evaluation data.
            RuntimeError: The trainer is closed.
        """
        raise_if_unknown(Trainer.eval, unknown)
        raise_if_misplaced(Trainer.eval, eval_dataloader, subset_num_batches)
        subset_num_batches = given.as_subset("subset_num_batches", subset_num_batches)
        evaluators = self.state.evaluators
        if eval_dataloader is not None:
            evaluators = given.as_evaluators(eval_dataloader, 1, subset_num_batches)
            for evaluator in evaluators:
                set_eval_metrics(self.state, evaluator)
        if not evaluators:
            raise ValueError("eval_dataloader must be given, to eval or to the Trainer.")
        with self._running(Category.EVALUATION):
            self.engine.run_event(Event.EVAL_STANDALONE_START)
            for evaluator in evaluators:
                evaluate(self._run, evaluator, None if subset_num_batches == -1 else subset_num_batches)
            self.engine.run_event(Event.EVAL_STANDALONE_END)

    def predict(
        self, dataloader: Data, subset_num_batches: int = -1, *, return_outputs: bool = True, **unknown: Never
    ) -> list[Any]:
        """Return the model's outputs on the CPU, one entry per batch.

        With multiple ranks, the batches of a ``DataLoader`` are sharded across the ranks, and the outputs are gathered:
        every rank returns all of them, in order.

        Args:
            dataloader: Data to run the model on.
            subset_num_batches: Number of batches; -1 uses all.
            return_outputs: Whether to keep and return the outputs; callbacks see them either way.

        Raises:
            RuntimeError: The trainer is closed.
        """
        raise_if_unknown(Trainer.predict, unknown)
        raise_if_misplaced(Trainer.predict, dataloader, subset_num_batches)
        check_arguments({"return_outputs": return_outputs})
        subset_num_batches = given.as_subset("subset_num_batches", subset_num_batches)
        with self._running(Category.EVALUATION):
            spec = ensure_data_spec(dataloader)
            check_sharded_data(spec.dataloader, self.state.data_shard, "dataloader")
            return predict(self._run, spec, subset_num_batches, return_outputs=return_outputs)

    @saves
    def save_checkpoint(
        self, name: str | Path = "ep{epoch}-ba{batch}-rank{rank}", *, weights_only: bool = False
    ) -> str | None:
        """Save a checkpoint; see :func:`.save_checkpoint`.

        Args:
            name: The path, which may contain placeholders such as ``{epoch}``.
            weights_only: Whether to leave out everything that only training needs.

        Returns:
            The path on rank 0, None on other ranks.
        """
        check_arguments({"name": name, "weights_only": weights_only})
        return save_checkpoint(self.state, name, weights_only=weights_only)

    @saves
    def export_for_inference(
        self,
        save_format: str | ExportFormat,
        save_path: str | Path,
        save_object_store: Any = None,
        sample_input: Any = None,
        transforms: Transform | Sequence[Transform] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        """Export the model as evaluation uses it: with its replaced layers, and with the averaged weights of EMA.

        Args:
            save_format: "torchscript", "onnx" or "torch_export".
            save_path: Path of the exported file; may contain placeholders such as ``{run_name}``. Loggers that upload
                files also get the file under this name.
            save_object_store: Object store with ``upload_object(object_name, filename)``, to which the file is uploaded
                instead.
            sample_input: A batch to call the model with; None uses the last training batch.
            transforms: Functions that return the module to export, such as :func:`.quantize_dynamic`.
            input_names: A name for each tensor of the batch.
            output_names: A name for each tensor that the model returns.

        Raises:
            ValueError: The format requires a batch and none is available, or an argument does not match the model.
            RuntimeError: The model can be neither scripted nor traced.
        """
        export_of_run(
            self.state,
            self.logger,
            save_format,
            save_path,
            save_object_store=save_object_store,
            sample_input=sample_input,
            transforms=transforms,
            input_names=input_names,
            output_names=output_names,
        )

    @saves
    def save_checkpoint_to_save_folder(self) -> None:
        """Save a checkpoint now with every :class:`.CheckpointSaver`.

        Raises:
            ValueError: The trainer has no checkpoint saver.
        """
        found = resume.savers_of(self.state)
        if not found:
            raise ValueError("No folder to save to: pass save_folder or a CheckpointSaver callback to the Trainer.")
        for saver in found:
            saver.save(self.state, self.logger)

    @property
    def saved_checkpoints(self) -> list[str]:
        """Paths of the saved checkpoints that have not been deleted, oldest first."""
        return [path for saver in resume.savers_of(self.state) for path in saver.saved_checkpoints]

    @property
    def _checkpoint_saver(self) -> CheckpointSaver | None:
        """The first checkpoint saver; 0.32 scripts read this attribute."""
        return next(iter(resume.savers_of(self.state)), None)

    @property
    def _rng_state(self) -> list[dict[str, Any]] | None:
        """The random states of a loaded checkpoint, until training starts; 0.32 test suites read this attribute."""
        return None if self._run.state.loaded is None else self._run.state.loaded.rng

    def load_best(self, monitor: str | None = None) -> BestCheckpoint:
        """Load the weights of the best checkpoint that a :class:`.CheckpointSaver` with ``monitor=`` kept.

        The state of algorithms, such as weight averages, is loaded too. Optimizers, schedules and the training time do
        not change. All ranks must call this method.

        Args:
            monitor: The metric, if savers monitor more than one.

        Returns:
            The path and the value of the metric.

        Raises:
            ValueError: No saver monitors a metric, or no checkpoint was saved after an evaluation.
            RuntimeError: The trainer is closed.
        """
        self._check_open()
        return saver_setup.load_best(self._run, monitor)

    def find_lr(
        self,
        min_lr: float = 1e-7,
        max_lr: float = 10.0,
        num_batches: int = 100,
        *,
        stop_factor: float = 4.0,
        **unknown: Never,
    ) -> RangeTest:
        """Run a learning rate range test: train at growing learning rates, then restore the run (learning rate finder).

        Trains on the training data with the algorithms of the run. Afterwards everything is restored bit for bit:
        weights, optimizers, random state, position in the data, algorithms and counters. Callbacks and loggers see
        nothing. Requires memory for a second copy of the model and optimizer state.

        Args:
            min_lr: The first learning rate, too small to have an effect. Applies to the first parameter group; the
                other groups keep their ratio to it.
            max_lr: The last learning rate, too large to train with.
            num_batches: Number of learning rates.
            stop_factor: Stop when the running mean of the loss exceeds its minimum by this factor.

        Returns:
            The learning rates and losses, with a ``suggestion`` and ``plot()``.

        Raises:
            ValueError: An argument is out of range, data or optimizers are missing, or the data is an iterator,
                which can be read only once.
            RuntimeError: The trainer is closed.
        """
        raise_if_unknown(Trainer.find_lr, unknown)
        raise_if_misplaced(Trainer.find_lr, min_lr, max_lr, num_batches)
        self._check_open()
        check_arguments({"min_lr": min_lr, "max_lr": max_lr, "num_batches": num_batches, "stop_factor": stop_factor})
        try:
            with self.state.clock.call(Category.OTHER):
                return find_lr(self._run, min_lr, max_lr, num_batches, stop_factor)
        except Exception as error:
            add_notes(error, self.state)
            raise

    def replay(
        self,
        step: int,
        run: str | Path | None = None,
        *,
        prompt: bool = False,
        allow_changes: bool = False,
        **arguments: Any,
    ) -> ReplayedStep:
        """Repeat a training step of a run, bit for bit, with everything in it visible.

        The trainer must be made as that of the run, and not have trained. It loads the newest checkpoint at or before
        the step, or starts from the seed; trains up to the step, without loggers, displays and callbacks that write;
        and runs the step. It then has the state after the step; create another trainer to train or replay again.

        Args:
            step: Number of batches trained before the step: its metrics were logged at this number.
            run: Path or URI of the folder of the run, or of a checkpoint; by default the trainer's ``save_folder``.
            prompt: Whether to stop in the Python debugger right before the step, with ``trainer``, ``state``, ``batch``
                and ``step``; ``c`` continues.
            allow_changes: Whether to go on with a warning if the data or the initial weights are not those of the run.
            **arguments: Arguments of :meth:`fit`, as in the run.

        Returns:
            The batch with its sample indices, outputs, losses, gradient norms and learning rates; printed as tables.

        Raises:
            ValueError: The step is not part of the run, or cannot be repeated exactly; the message says what is
                missing.
            FileNotFoundError: The folder has no checkpoints.
            RuntimeError: The trainer has trained, or is closed.
        """
        self._check_open()
        source = None if run is None else str(run)
        return replay(self, self._run, step, source, arguments, prompt=prompt, allow_changes=allow_changes)

    def blame(
        self,
        step: int,
        last_step: int | None = None,
        run: str | Path | None = None,
        *,
        allow_changes: bool = False,
        **arguments: Any,
    ) -> Blame:
        """Rank the rows of data in steps of a run by loss and gradient norm, to find what made the loss jump.

        The steps are replayed as in :meth:`replay`, with the loss and the gradient norm of each row: from slices of the
        outputs of the step itself, and one backward pass for each row through its graph. The time is that of the steps
        up to there, and of as many backward passes as there are rows.

        Args:
            step: Number of batches trained before the step: its metrics were logged at this number.
            last_step: Number of the last step, for all steps of a spike; by default only ``step``.
            run: Path or URI of the folder of the run, or of a checkpoint; by default the trainer's ``save_folder``.
            allow_changes: Whether to go on with a warning if the data or the initial weights are not those of the run.
            **arguments: Arguments of :meth:`fit`, as in the run.

        Returns:
            The rows, the most suspicious first, with their indices in the dataset; printed as a report.

        Raises:
            ValueError: The steps are not part of the run, or cannot be repeated exactly; the message says what is
                missing.
            FileNotFoundError: The folder has no checkpoints.
            RuntimeError: The trainer has trained, or is closed.
        """
        self._check_open()
        last, source = step if last_step is None else last_step, None if run is None else str(run)
        return blame(self, step, last, source, arguments, allow_changes=allow_changes)

    def checkpoint_at(
        self,
        step: int,
        path: str | Path,
        run: str | Path | None = None,
        *,
        allow_changes: bool = False,
        **arguments: Any,
    ) -> str | None:
        """Save the state of a run right before a step as a checkpoint, bit for bit, also if it saved none there.

        The trainer must be made as that of the run, and not have trained. As :meth:`replay`, it trains up to the step
        without outputs.

        Args:
            step: Number of batches trained before the step.
            path: Path or URI of the checkpoint; may contain placeholders such as ``{batch}``.
            run: Path or URI of the folder of the run, or of a checkpoint; by default the trainer's ``save_folder``.
            allow_changes: Whether to go on with a warning if the data or the initial weights are not those of the run.
            **arguments: Arguments of :meth:`fit`, as in the run.

        Returns:
            The path on rank 0, None on other ranks.

        Raises:
            ValueError: The step is beyond the end of the run, or cannot be repeated exactly; the message says what is
                missing.
            FileNotFoundError: The folder has no checkpoints.
            RuntimeError: The trainer has trained, or is closed.
        """
        self._check_open()
        source = None if run is None else str(run)
        return checkpoint_at(self, self._run, step, str(path), source, arguments, allow_changes=allow_changes)

    def fork(self, at: int, run: str | Path, *, changes: Sequence[str] = ()) -> None:
        """Load the state of another run at a step; the next :meth:`fit` trains on from there as a new run.

        The trainer must be made with the arguments of that run, except for what is to change, with its own ``run_name``
        and ``save_folder``, and not have trained. The state is exact: without changes, the fork equals the run bit for
        bit. Time goes on, so that the logs of both share one axis, and a ``duration`` of :meth:`fit` is that of the
        entire run. Checkpoints record where they come from, in ``state.forked_from``. Algorithms that the run did not
        have start fresh; the state of those that it had, and the fork has not, is dropped; after a change of the batch
        size, training continues at the same sample. A trainer with ``autoresume=True`` that has resumed the fork
        already is left as it is.

        Args:
            at: Number of batches trained before, which both runs share.
            run: Path or URI of the folder of the other run, or of its checkpoint at this step. If it has none,
                :meth:`checkpoint_at` makes one.
            changes: Names of settings that the trainer was made with and that must not come from the checkpoint:
                ``"optimizers.lr"`` and other hyperparameters, as the initial values of schedules if there are any;
                ``"optimizers"`` and ``"schedulers"`` for other objects that start fresh; ``"algorithms"`` if the run
                had algorithms that are left out; ``"seed"``. Other settings, such as ``max_duration``, never come from
                the checkpoint; they may be named to be recorded.

        Raises:
            TypeError: ``at`` is not an integer, or ``changes`` is not a sequence of strings.
            ValueError: The run has no complete checkpoint at this step, a name is unknown, or the trainer has the name
                of the run or saves to its folder.
            FileNotFoundError: The folder has no checkpoints.
            RuntimeError: The trainer has trained, or is closed.
        """
        self._check_open()
        fork(self, self._run, at, str(run), changes)

    @property
    def history(self) -> History:
        """What the run logged so far: metrics as arrays over steps and times, hyperparameters, tables and events.

        It has what was delivered to a logger, such as the progress bar, so that it costs nothing by itself: on ranks
        without loggers, and in runs with neither a progress bar nor loggers, it has no metrics. Beyond 4 million values
        it is downsampled so that minima and maxima stay. What was logged before a resumption is read from the file of
        :class:`.JSONLinesLogger` or :class:`.CSVLogger`, if there is one.
        """
        return history_of(self.state, self.logger)

    def plot(self, *names: str, over: str = "step", ax: Any = None) -> Any:
        """Plot curves of what the run logged so far with matplotlib, see :meth:`.History.plot`.

        Args:
            names: Names of metrics, or patterns with ``*`` and ``?``. Default: losses, metrics and learning rates.
            over: The horizontal axis: "step" (batches), "epoch", "sample", "token" or "seconds".
            ax: The axes to draw on, for one panel. Default: those of a new figure.

        Returns:
            The :class:`matplotlib.figure.Figure`; the last expression of a notebook cell shows it.

        Raises:
            MissingConditionalImportError: matplotlib is not installed.
            ValueError: Nothing was logged under a name, ``ax`` is given for several panels, or ``over`` was not logged.
        """
        return self.history.plot(*names, over=over, ax=ax)

    def model_summary(self, depth: int | None = 2) -> ModelSummary:
        """Return the model's parameter counts, layer by layer, and what each algorithm changed in it.

        ``fit`` prints its :meth:`~.ModelSummary.line` when training starts.

        Args:
            depth: Number of module levels to list; None lists all.

        Raises:
            ValueError: ``depth`` is negative.
        """
        return summary_of_run(self._run, depth)

    @property
    def ledger(self) -> Ledger:
        """Where the wall time of the run went, over restarts with ``save_folder``; ``print(trainer.ledger)`` shows it.

        With multiple ranks, only rank 0 writes ``ledger.jsonl``, and knows of other ranks (``of_all_ranks()``) and of
        earlier processes.
        """
        return self._ledger.ledger()

    def _repr_html_(self) -> str:
        """Return an HTML table of the model, the data and the progress, for notebooks."""
        return html_of_run(self._run)

    def close(self) -> None:
        """Close callbacks and loggers, release the data, and undo ``compile_config``; further calls have no effect."""
        self.engine.close()
        self.state.train_phase.iterator = None
        self._run.strategy.close()
        undo_compilation(self._run)
        model = cast(ComposerModel, self.state.model)
        if model.logger is self.logger:  # the reference would keep the data alive
            model.logger = None

    def __enter__(self) -> Self:
        """Return the trainer, which is closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the trainer."""
        self.close()

    def _train(self, *, reset_time: bool) -> None:
        """Run the training loop, or the dry run instead."""
        with self._running(Category.START_UP):
            # Also if model.training is already True: submodules may be in eval mode, or override train().
            self.state.model.train()
            if self._dry_run:
                run_dry(self._run)
                return
            if self._eval_batches_before_fit:
                with self.state.clock.during(Category.EVALUATION):
                    for evaluator in self.state.evaluators:
                        evaluate(self._run, evaluator, self._eval_batches_before_fit, log=False)
            if self._shown is not None:
                self._run.summary = Summary(self.state.timestamp)
            try:
                with (
                    self._ledger.recording(self.state),
                    self._stopping.save_on_interrupt(self._run),
                    run_completion.training(
                        self._run, resumed=self._fit_calls.begin(self.state, reset_time=reset_time)
                    ),
                ):
                    fit(self._run)
            except BaseException as error:
                self.logger.notices.texts.clear()
                if isinstance(error, Exception) or (isinstance(error, SystemExit) and not is_reported(error)):
                    self.logger.log_event("error", "".join(traceback.format_exception_only(error)).splitlines()[0])
                raise
        summary, self._run.summary = self._run.summary, None
        if self._shown is not None and summary is not None:
            summary.write(self._run, self._shown)
        self.logger.notices.texts.clear()

    def _check_open(self) -> None:
        if self.engine.closed:
            raise RuntimeError("This trainer is closed; create a new one to continue.")

    @contextlib.contextmanager
    def _closed_on_error(self) -> Generator[None]:
        """Close callbacks if the rest of the setup fails, so that another trainer can use them."""
        try:
            yield
        except BaseException:
            self.engine.close()
            raise

    @contextlib.contextmanager
    def _running(self, category: Category) -> Generator[None]:
        """Defer the delivery of metrics while a loop runs, and remove progress displays if it fails."""
        self._check_open()
        outer, self.logger.deferred = self.logger.deferred, True  # a callback may evaluate in the middle of a fit
        if not outer:
            free_outputs(self.state)  # left over from a step that an exception ended
        try:
            with self.state.clock.call(category), dist.name_missing_ranks(), self.engine.looping():
                yield
        except BaseException as error:
            self.logger.suspend()
            add_notes(error, self.state)
            if isinstance(error, KeyboardInterrupt):
                import_for_exit()
            raise
        finally:
            self.logger.deferred = outer
            if not outer:
                self.logger.flush()
