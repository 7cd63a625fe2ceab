"""The trainer: takes what users give, and runs the loops."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TextIO, cast

import torch

from composer import dist, rng
from composer._text import one_of
from composer.checkpoint.filters import IgnoreKeys
from composer.checkpoint.metric_values import give_metric_values
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
from composer.trainer.compilation import compile_model
from composer.trainer.dry_run import dry_run as run_dry
from composer.trainer.evaluate import evaluate, set_eval_metrics
from composer.trainer.extract_hparams import describe
from composer.trainer.failure_notes import add_notes
from composer.trainer.find_lr import find_lr
from composer.trainer.fit import fit
from composer.trainer.model_report import html_of_run, summary_of_run
from composer.trainer.options import LoopOptions
from composer.trainer.outputs import free_outputs
from composer.trainer.predict import predict
from composer.trainer.run import Run
from composer.trainer.run_summary import Summary
from composer.trainer.short_names import instances
from composer.trainer.step_sync import StepSync
from composer.trainer.train_metrics import place
from composer.trainer.unknown_names import no_attribute, refuse_call, refuse_unknown, refuse_values

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from composer.callbacks.checkpoint_saver import CheckpointSaver
    from composer.core.algorithm_order import AlgorithmPass
    from composer.parallel.ddp import DDPSyncStrategy
    from composer.profiler.profiler import Profiler
    from composer.trainer.schedules import Scheduler

__all__ = ["Trainer"]

register_state_dict()

# Names by which loops of third parties import these.
_get_initial_device_train_microbatch_size = third_party_loops.get_initial_device_train_microbatch_size
_adjust_device_train_microbatch_size = third_party_loops.adjust_device_train_microbatch_size
_adjust_device_eval_microbatch_size = third_party_loops.adjust_device_eval_microbatch_size
_is_cuda_oom = is_out_of_memory

Data = DataSpec | Iterable[Batch] | Mapping[str, Any]  # of DataSpec's arguments, or loaders by label


class Trainer(TrainerNames):
    """Trains, evaluates and runs a model.

    All arguments are given by name. Several processes, as ``composer -n 8 train.py`` starts them, train together: by
    data parallelism, unless ``parallelism_config`` or ``deepspeed_config`` says otherwise.

    Args:
        model: The model; one wrapped by :func:`torch.compile` too.
        train_dataloader: Yields training batches: a ``DataLoader``, a :class:`.DataSpec`, any iterable, sized or not.
        train_dataloader_label: Names the training data in the metrics.
        train_subset_num_batches: Number of batches in an epoch; -1 is all.
        spin_dataloaders: Whether training that is resumed goes on in the middle of the data, or begins it anew.
        max_duration: When training ends: epochs as a number, a time string such as ``"10ep"``, ``"1000ba"``,
            ``"1h30m"``, or a :class:`.Time`.
        algorithms: The methods to train with: objects, or names such as "blurpool" of those that need no arguments.
        algorithm_passes: Functions ``(algorithms, event) -> algorithms`` that reorder them, each alone or as
            ``(function, index)``.
        optimizers: One optimizer or several, of the model's parameters. Several step one after the other and are
            counted as one step. By default :class:`.DecoupledSGDW` with a learning rate of 0.1.
        schedulers: One schedule or several: of :mod:`composer.optim`, functions ``(state, ssr) -> multiplier`` of the
            learning rate, or of ``torch.optim.lr_scheduler``. One is for all optimizers, several are for one each;
            those for other hyperparameters or parts of the parameters say so, see :class:`.AssignedSchedule`.
        scale_schedule_ratio: By what ``max_duration`` and the times of the schedules are multiplied, to train shorter
            or longer.
        step_schedulers_every_batch: Whether schedules move with every batch rather than with every epoch; None is yes,
            unless one of ``torch.optim.lr_scheduler`` is among them.
        eval_dataloader: What to evaluate on: a loader, labelled "eval", a mapping of loaders by their labels, or
            :class:`.Evaluator` objects.
        eval_interval: How often, for evaluators without an interval of their own: epochs, a time string, a
            :class:`.Time` or ``(state, event) -> bool``. 0 is never.
        eval_subset_num_batches: Number of batches of an evaluation, for evaluators without a number; -1 is all.
        callbacks: What watches the run: objects, or names such as "lr_monitor".
        loggers: Where metrics go: objects, or names such as "csv".
        run_name: Name of the run; by default from ``COMPOSER_RUN_NAME``, ``RUN_NAME`` or made of the time.
        progress_bar: Whether to show a progress bar.
        log_to_console: Whether to print metrics as lines.
        console_stream: Where progress and lines go: "stdout", "stderr" or an open text file.
        console_log_interval: How often lines are printed, in epochs or batches.
        log_traces: Whether to log which algorithm ran when.
        auto_log_hparams: Whether to log these arguments as hyperparameters.
        load_path: A checkpoint to load: a path, or a URI that fsspec knows. Weights may also be a safetensors file or a
            bare state dict.
        load_object_store: Where the path is, if it is a name in an object store.
        load_weights_only: Whether to load the weights only, rather than to go on with the training.
        load_strict_model_weights: Whether the names of the weights must be the same.
        load_progress_bar: Whether to show the progress of a download.
        load_ignore_keys: What to leave out: patterns of paths such as ``"state/optimizers*"``, or a function that edits
            the checkpoint.
        load_exclude_algorithms: Names of methods that are not applied though the weights were saved with them.
        save_folder: Where to save checkpoints, a path or URI; None saves none. See :class:`.CheckpointSaver` for this
            and the next. Those among the callbacks save as well.
        save_filename: Of a checkpoint.
        save_latest_filename: Of the link to the newest; None makes none.
        save_overwrite: Whether the folder may hold later checkpoints, of another run.
        save_interval: How often.
        save_weights_only: Whether to leave out what only training needs.
        save_ignore_keys: What else to leave out.
        save_num_checkpoints_to_keep: How many of the newest are kept; -1 is all.
        save_metrics: Whether to keep the state of the metrics.
        autoresume: Whether to go on with the newest checkpoint that a run of this name has saved in its folder, if
            there is one, whatever ended that process. The load arguments are for the first start then.
        parallelism_config: How weights are divided among processes, or a :class:`.Strategy` of one's own; None is not
            at all.
        deepspeed_config: Configuration of DeepSpeed, whose engine then trains; ``{}`` for what follows from the other
            arguments.
        device: "cpu", "gpu", "mps" or a device; by default the accelerator if there is one.
        precision: "fp32", "amp_bf16", "amp_fp16" or "amp_fp8". By default amp_bf16 where the accelerator has
            bfloat16, else amp_fp16; fp32 on the CPU.
        precision_config: Arguments of the recipe of amp_fp8.
        device_train_microbatch_size: Number of samples that go through the model at once; the gradient is that of
            the whole batch all the same. None is the whole batch, "auto" as many as memory allows: half as many after
            a batch that did not fit, which is trained again, and more when there is room again.
        accumulate_train_batch_on_tokens: Whether microbatches are weighted by the tokens that the loss averages over
            rather than by samples. None decides by the batch: tokens whose label is not -100 where ``batch["labels"]``
            has one for each. With True a ``get_num_tokens_in_batch`` of the data says how many they are.
        seed: Seed of all generators, from 0 to 2**32 - 1. None draws one from torch's, so that
            ``torch.manual_seed`` before is enough to repeat a run.
        deterministic_mode: Whether to use deterministic implementations only.
        dist_timeout: Seconds until processes that wait for one that does not come give up.
        ddp_sync_strategy: When data parallelism averages the gradients of microbatches, see :class:`.DDPSyncStrategy`.
        find_unused_parameters: Whether parameters of the model may get no gradient in a step, for data parallelism.
        profiler: Records in some batches where their time goes.
        python_log_level: Level of the library's log messages, such as "info".
        compile_config: Arguments of :func:`torch.compile` to compile the model with; ``{}`` for its defaults.
        grad_accum: Old spelling: number of microbatches of a batch, or "auto".
        fsdp_config: Old spelling of ``parallelism_config={"fsdp": fsdp_config}``.
        on_logger_error: Whether an exception in a logger is reported once as a warning ("warn") or ends the training.
        dry_run: Whether :meth:`fit` only runs two training and two evaluation batches through everything and reports
            shapes, time and memory.
        overfit_batches: Number of batches that every epoch repeats, to see whether the model can learn them; 0 trains
            on all of the data.
        eval_batches_before_fit: Number of batches to evaluate before training, to find mistakes in the evaluation
            early; the values are not logged.
        save_async: Whether checkpoints are written while training goes on.
        save_failure: Whether a checkpoint that cannot be written ends the training ("raise") or is a warning ("warn").
        save_on_signals: Signals at which, where checkpoints are saved, the step is finished, a checkpoint saved and
            the process left with 128 + the signal's number as its exit code; a second signal ends it at once.
        save_on_exception: Whether an exception in training saves a checkpoint ``exception-<filename>``, which is to be
            looked into rather than gone on with: the step may be half done. Not where there are several processes,
            which do not come together for it.

    Attributes:
        state: The model, the optimizers, the data and the progress.
        engine: Fires the events.
        logger: Takes metrics.

    Raises:
        TypeError: An argument does not exist, or is of another kind.
        ValueError: An argument has an impossible value.

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
        refuse_unknown(Trainer.__init__, unknown, data=train_dataloader)
        check_arguments(arguments)
        schedules.check_ratio(scale_schedule_ratio, schedulers)
        overfit_batches = given.as_count("overfit_batches", overfit_batches)
        eval_batches_before_fit = given.as_count("eval_batches_before_fit", eval_batches_before_fit)
        one_of("on_logger_error", on_logger_error, ("warn", "raise"))
        setup.set_log_level(python_log_level)
        model, compiled = given.as_model(model)
        if compiled is not None:
            given.without_config(compile_config)
            compile_config = None

        device = get_device(device)
        if deterministic_mode:
            rng.configure_deterministic_mode()
        parallelism_config = given.as_parallelism(parallelism_config, fsdp_config)
        works_alone = parallelism_config is not None or deepspeed_config is not None
        distributed_setup.join(device, dist_timeout, alone=works_alone)
        strategy = choose_strategy(
            parallelism_config,
            deepspeed_config=deepspeed_config,
            ddp_sync_strategy=ddp_sync_strategy,
            find_unused_parameters=find_unused_parameters,
        )
        seed = distributed_setup.agreed(int(torch.randint(2**31, ()).item()) if seed is None else int(seed))
        rng.seed_all(seed + strategy.data_rank)

        strategy.place(model, device)
        found = given.as_optimizers(optimizers, model)
        check_model_methods(model, has_optimizers=bool(found))
        for optimizer in found:
            device.optimizer_to_device(optimizer)

        name, name_given = distributed_setup.agreed(given.name_run(run_name))
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
        watching = list({id(callback): callback for callback in watching}.values())  # one given as both is still one
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
        setup.bind_profiler(self.state, profiler, fused=compile_config is not None)
        setup.add_uploaders(destinations, self.state.callbacks)
        self.state.callbacks = [*destinations, *self.state.callbacks]
        saver_setup.check_distinct(self.state, uploads=any(one.can_upload_files() for one in destinations))
        self.state.find_algorithm = resume.method_named
        self.logger = Logger(self.state, destinations, on_error=on_logger_error)
        self.engine = Engine(self.state, self.logger, algorithm_passes, record_traces=log_traces)
        model.logger = self.logger
        self._shown = setup.summary_stream(console_stream) if progress_bar or log_to_console else None
        self._dry_run = dry_run
        self.auto_log_hparams, self.python_log_level = auto_log_hparams, python_log_level
        self._eval_batches_before_fit = eval_batches_before_fit
        self._stopping = resume.Stopping(given.as_signals(save_on_signals), save_on_exception, autoresume)
        self._run = Run(self.state, self.engine, self.logger, strategy=strategy)
        if dist.get_world_size() > 1:
            self._run.step_sync = StepSync(copies=dist.get_world_size() // strategy.data_world_size)

        setup.set_precision(self._run, precision, precision_config)  # methods ask for it at INIT
        distributed_setup.check_algorithms(self.state, strategy)
        with self._closed_on_error():
            self.engine.run_event(Event.INIT)
            self.local_hparams = describe(arguments) if auto_log_hparams else {}
            setup.log_hyperparameters(self._run, self.local_hparams)
            # Of the model that there is now: methods may have put another in its place.
            metrics = cast(ComposerModel, self.state.model).get_metrics(is_train=True)
            self.state.train_metrics = place(deepcopy(metrics), self.state)
            evaluators = given.as_evaluators(eval_dataloader, eval_interval, eval_subset_num_batches)
            # Callbacks may have put some into the state by now.
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
            if not self._autoresumed:
                resume.load(self._run, setup.load_options(arguments))
            self.engine.run_event(Event.AFTER_LOAD)
            compile_model(self._run, compile_config, compiled)
            # Whatever the set-up drew, training begins with the seed.
            rng.seed_all(self.state.seed)

    if not TYPE_CHECKING:

        @functools.wraps(__init__)  # for what asks for the signature of the class
        def __new__(cls, *positional: Any, **arguments: Any) -> Self:
            """Refuse arguments of other libraries before Python complains of the model that is missing."""
            if cls.__init__ is Trainer.__init__ and (positional or (arguments and "model" not in arguments)):
                refuse_call(Trainer.__init__, positional, arguments)
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            """Say what a method or attribute of another library's trainer is called here."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that fails, with its own message
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
        """Train until ``max_duration``; where a fit ended in the middle of an epoch, the next goes on there.

        Args:
            train_dataloader: Replaces the training data.
            train_dataloader_label: Its label.
            train_subset_num_batches: Number of batches in an epoch; -1 is all.
            spin_dataloaders: Whether training that is resumed goes on in the middle of the data.
            duration: How much further to train, instead of ``max_duration``.
            reset_time: Whether to count from zero again.
            schedulers: Replace the schedules.
            scale_schedule_ratio: By what ``duration``, or ``max_duration`` where it is not given, and the times of
                these schedules are multiplied.
            step_schedulers_every_batch: Whether these move with every batch rather than with every epoch.
            eval_dataloader: Replaces what is evaluated on.
            eval_subset_num_batches: Number of batches of an evaluation; -1 is all.
            eval_interval: How often the new data is evaluated on.
            device_train_microbatch_size: Replaces the number of samples that go through the model at once; "auto" is
                as many as memory allows.
            precision: Replaces the precision.

        Raises:
            ValueError: Something that training needs was given neither here nor to the trainer, or there is nothing
                left to train.
            RuntimeError: The trainer is closed.
        """
        check_arguments(locals())
        data = self.state.train_dataloader if train_dataloader is None else train_dataloader
        refuse_unknown(Trainer.fit, unknown, positional, data)
        schedules.check_ratio(scale_schedule_ratio, schedulers)
        self._check_open()
        with all_or_nothing(self._run, schedulers):
            setup.set_train_data(self.state, train_dataloader, train_dataloader_label, train_subset_num_batches)
            if eval_dataloader is not None:
                evaluators = given.as_evaluators(eval_dataloader, eval_interval, eval_subset_num_batches)
                setup.set_evaluators(self.state, evaluators)
            if device_train_microbatch_size is not None:
                size = given.as_microbatch_size(device_train_microbatch_size, None, self.state)
                set_microbatch_size(self._run, size)
            if precision is not None:
                setup.set_precision(self._run, precision, self.state.precision_config)
            if step_schedulers_every_batch is not None and schedulers is None:
                raise ValueError("step_schedulers_every_batch is given without schedulers, whose steps it is about.")
            if reset_time:
                self.state.timestamp = Timestamp()
                phase = self.state.train_phase
                phase.iterator = phase.resume = phase.ended = None
                run_completion.forget(self._run)
            if spin_dataloaders is not None:
                self._run.options = dataclasses.replace(self._run.options, spin_dataloaders=spin_dataloaders)
            if self._run.loaded is not None and self._run.loaded.metric_values:
                give_metric_values(self.state, self._run.loaded.metric_values)  # of evaluators that were given here
            if self._autoresumed and run_completion.is_complete(self._run, duration, scale_schedule_ratio):
                return
            if duration is None:
                self.state.max_duration = schedules.scaled(self.state.max_duration, scale_schedule_ratio)
            else:
                duration = schedules.scaled(duration, scale_schedule_ratio)
                if self._autoresumed:  # less what was trained before
                    duration = run_completion.rest_of(self._run, duration)
                schedules.extend(self.state, duration)
            if schedulers is not None:
                schedules.set_schedules(self._run, schedulers, scale_schedule_ratio, step_schedulers_every_batch)
            setup.prepare(self.state)
            check_epochs_end(self._run)
            schedules.begin_schedules(self._run)
        self._train()

    def eval(
        self,
        eval_dataloader: Data | Evaluator | Sequence[Evaluator] | None = None,
        subset_num_batches: int = -1,
        **unknown: Never,
    ) -> None:
        """Evaluate; the results are logged and stand in ``state.eval_metrics[label][name]``.

        Args:
            eval_dataloader: What to evaluate on, for this once; by default what the trainer has.
            subset_num_batches: Number of batches; -1 leaves it to the evaluators.

        Raises:
            ValueError: There is nothing to evaluate on.
            RuntimeError: The trainer is closed.
        """
        refuse_unknown(Trainer.eval, unknown)
        refuse_values(Trainer.eval, eval_dataloader, subset_num_batches)
        check_arguments({"subset_num_batches": subset_num_batches})
        evaluators = self.state.evaluators
        if eval_dataloader is not None:
            evaluators = given.as_evaluators(eval_dataloader, 1, subset_num_batches)
            for evaluator in evaluators:
                set_eval_metrics(self.state, evaluator)
        if not evaluators:
            raise ValueError("eval_dataloader must be given, to eval or to the Trainer.")
        with self._running():
            self.engine.run_event(Event.EVAL_STANDALONE_START)
            for evaluator in evaluators:
                evaluate(self._run, evaluator, None if subset_num_batches == -1 else subset_num_batches)
            self.engine.run_event(Event.EVAL_STANDALONE_END)

    def predict(
        self, dataloader: Data, subset_num_batches: int = -1, *, return_outputs: bool = True, **unknown: Never
    ) -> list[Any]:
        """Return the model's outputs, one entry for each batch, on the CPU.

        Several processes predict the batches of a ``DataLoader`` in turn, and each gets the outputs of all, in order.

        Args:
            dataloader: What to predict.
            subset_num_batches: Number of batches; -1 is all.
            return_outputs: Whether to keep the outputs; callbacks see them either way.

        Raises:
            RuntimeError: The trainer is closed.
        """
        refuse_unknown(Trainer.predict, unknown)
        refuse_values(Trainer.predict, dataloader, subset_num_batches)
        check_arguments({"subset_num_batches": subset_num_batches, "return_outputs": return_outputs})
        with self._running():
            spec = ensure_data_spec(dataloader)
            check_sharded_data(spec.dataloader, self.state.data_shard, "dataloader")
            return predict(
                self._run,
                spec,
                given.as_subset("subset_num_batches", subset_num_batches),
                return_outputs=return_outputs,
            )

    def save_checkpoint(
        self, name: str | Path = "ep{epoch}-ba{batch}-rank{rank}", *, weights_only: bool = False
    ) -> str | None:
        """Save a checkpoint; see :func:`.save_checkpoint`.

        Args:
            name: The path, which may have names in braces such as ``{epoch}``.
            weights_only: Whether to leave out what only training needs.

        Returns:
            The path, or None on all processes but the first.
        """
        check_arguments({"name": name, "weights_only": weights_only})
        return save_checkpoint(self.state, name, weights_only=weights_only)

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
        """Export the model as it is evaluated: with layers replaced, and averaged weights where EMA keeps such.

        Args:
            save_format: "torchscript", "onnx" or "torch_export".
            save_path: Where to; may have names in braces such as ``{run_name}``. Where a logger keeps files, it gets
                the file under this name.
            save_object_store: Has ``upload_object(object_name, filename)``; gets the file instead.
            sample_input: A batch to call the model with; None is the last of the training.
            transforms: Functions that return the module to export, such as :func:`.quantize_dynamic`.
            input_names: A name for each tensor of the batch.
            output_names: A name for each tensor that the model returns.

        Raises:
            ValueError: There is no batch and the format needs one, or an argument does not fit the model.
            RuntimeError: The model can neither be scripted nor traced.
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

    def save_checkpoint_to_save_folder(self) -> None:
        """Have every :class:`.CheckpointSaver` save now.

        Raises:
            ValueError: There is none.
        """
        found = resume.savers_of(self.state)
        if not found:
            raise ValueError("There is no folder to save to; give save_folder to the Trainer, or a CheckpointSaver.")
        for saver in found:
            saver.save(self.state, self.logger)

    @property
    def saved_checkpoints(self) -> list[str]:
        """Paths of the checkpoints that are kept, oldest first."""
        return [path for saver in resume.savers_of(self.state) for path in saver.saved_checkpoints]

    @property
    def _checkpoint_saver(self) -> CheckpointSaver | None:
        """The first saver, which scripts of the predecessor ask for."""
        return next(iter(resume.savers_of(self.state)), None)

    @property
    def _rng_state(self) -> list[dict[str, Any]] | None:
        """What a checkpoint holds of the random generators, until training begins; tests of scripts ask for it."""
        return None if self._run.loaded is None else self._run.loaded.rng

    def load_best(self, monitor: str | None = None) -> BestCheckpoint:
        """Load the weights of the best checkpoint that a :class:`.CheckpointSaver` with ``monitor=`` has kept.

        Algorithms get their state of that time too, such as averages of the weights. Optimizers, schedules and the
        training time stay as they are. All ranks must call this.

        Args:
            monitor: Of which metric, where savers monitor several.

        Returns:
            The path and the value of the metric.

        Raises:
            ValueError: No saver monitors a metric, or no evaluation came before a checkpoint.
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
        """Try learning rates that grow from batch to batch, on the training data and with the algorithms.

        Afterwards everything is as it was, bit for bit: weights, optimizers, random numbers, the place in the data,
        algorithms and counts. Callbacks and loggers see nothing. It takes the memory of a second model and optimizer.

        Args:
            min_lr: The first rate, too small to do anything; of the first parameter group, to which those of the
                others keep their ratio.
            max_lr: The last rate, too large.
            num_batches: Number of rates.
            stop_factor: Stop when the running mean of the loss is so many times the lowest one.

        Returns:
            The rates and losses, with a ``suggestion`` and ``plot(path)``.

        Raises:
            ValueError: An argument is out of its range, data or optimizers are missing, or the data is an iterator,
                which can be read only once.
            RuntimeError: The trainer is closed.
        """
        refuse_unknown(Trainer.find_lr, unknown)
        refuse_values(Trainer.find_lr, min_lr, max_lr, num_batches)
        self._check_open()
        check_arguments({"min_lr": min_lr, "max_lr": max_lr, "num_batches": num_batches, "stop_factor": stop_factor})
        try:
            return find_lr(self._run, min_lr, max_lr, num_batches, stop_factor)
        except Exception as error:
            add_notes(error, self.state)
            raise

    def model_summary(self, depth: int | None = 2) -> ModelSummary:
        """Return parameter counts of the model, layer by layer, and what each algorithm changed in it.

        The first line of a fit is its :meth:`~.ModelSummary.line`.

        Args:
            depth: How many levels of modules are listed; None lists all.

        Raises:
            ValueError: ``depth`` is negative.
        """
        return summary_of_run(self._run, depth)

    def _repr_html_(self) -> str:
        """Return what is trained, on what and how far it is, as a table for notebooks."""
        return html_of_run(self._run)

    def close(self) -> None:
        """Close callbacks and loggers, and let go of the data; further calls do nothing."""
        self.engine.close()
        self.state.train_phase.iterator = None
        self._run.strategy.close()
        model = cast(ComposerModel, self.state.model)
        if model.logger is self.logger:  # through which the model would keep the data alive
            model.logger = None

    def __enter__(self) -> Self:
        """Return the trainer, to be closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the trainer."""
        self.close()

    def _train(self) -> None:
        """Run the loop, or the dry run in its place."""
        with self._running():
            # Also where the model says that it is in training mode: a part of it may not be, or may refuse to be.
            self.state.model.train()
            if self._dry_run:
                run_dry(self._run)
                return
            if self._eval_batches_before_fit:
                for evaluator in self.state.evaluators:
                    evaluate(self._run, evaluator, self._eval_batches_before_fit, log=False)
            if self._shown is not None:
                self._run.summary = Summary(self.state.timestamp)
            try:
                with self._stopping.around(self._run), run_completion.training(self._run, resumed=self._autoresumed):
                    fit(self._run)
            except BaseException:
                self.logger.notices.texts.clear()
                raise
        summary, self._run.summary = self._run.summary, None
        if self._shown is not None and summary is not None:
            summary.write(self._run, self._shown)
        self.logger.notices.texts.clear()

    def _check_open(self) -> None:
        if self.engine.closed:
            raise RuntimeError("This trainer is closed; make a new one to go on.")

    @contextlib.contextmanager
    def _closed_on_error(self) -> Generator[None]:
        """Close callbacks if the rest of the set-up fails, so that another trainer can have them."""
        try:
            yield
        except BaseException:
            self.engine.close()
            raise

    @contextlib.contextmanager
    def _running(self) -> Generator[None]:
        """Defer the delivery of metrics while a loop runs, and leave no display behind if it fails."""
        self._check_open()
        outer, self.logger.deferred = self.logger.deferred, True  # a callback may evaluate in the middle of a fit
        if not outer:
            free_outputs(self.state)  # of a step that an exception ended
        try:
            with dist.name_absent_ranks(), self.engine.looping():
                yield
        except BaseException as error:
            self.logger.suspend()
            add_notes(error, self.state)
            raise
        finally:
            self.logger.deferred = outer
            if not outer:
                self.logger.flush()
