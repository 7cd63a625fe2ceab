"""The state of a run: model, optimizers, data, progress, batch, outputs and loss; algorithms edit it in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from composer import trees
from composer.core._state_names import StateNames
from composer.core._state_progress import StateProgress, as_duration
from composer.core._state_saved import StateSaved
from composer.core.algorithm import Algorithm, find_algorithm
from composer.core.data_spec import DataSpec
from composer.core.evaluator import Evaluator
from composer.core.loss_names import LossNames
from composer.core.microbatch_sizes import MicrobatchSizes
from composer.core.name_placeholders import check_run_name
from composer.core.stop_reason import Stop, caller_of_stop
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.core.watched_list import WatchedList
from composer.devices import Device, get_device
from composer.precision import Precision, get_precision_context

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from composer.core.callback import Callback
    from composer.core.checkpoint_folders import CheckpointFolders
    from composer.core.replicas import Replicas

__all__ = ["State"]


class State(StateProgress, StateNames, StateSaved):
    """The model, optimizers, data and progress of a run.

    Only the model is required, so that a custom loop can use algorithms without a :class:`.Trainer`.

    Args:
        model: The model.
        rank_zero_seed: Seed of the run; rank r uses this seed plus r.
        run_name: Name of the run; derived from the current time by default.
        device: Device of the model; the device of its first parameter by default.
        max_duration: When training ends: epochs, a time string or a :class:`.Time`.
        device_train_microbatch_size: Number of samples per forward pass; None is the full batch, in which case the
            attribute is the batch size of the loader.
        auto_microbatching: Whether the microbatch size is determined during training.
        train_dataloader: The training data.
        evaluators: The data to evaluate on.
        dataloader: The same as ``train_dataloader``, with a custom label and length.
        dataloader_label: Its label, ``"train"`` by default.
        dataloader_len: Number of its batches per epoch; -1 is all.
        precision: Numeric precision of the forward pass.
        precision_config: Arguments of the fp8 recipe, with ``amp_fp8`` only.
        optimizers: One optimizer or several.
        scaler: The gradient scaler (loss scaling) for ``amp_fp16``.
        algorithms: The algorithms to train with.
        callbacks: The callbacks, loggers included.
        parallelism_config: How weights are sharded, a :class:`.ParallelismConfig`; None is unsharded.

    Attributes:
        batch: The current batch or microbatch.
        outputs: The outputs of the model for that batch.
        loss: The loss of that batch on this rank: a scalar, or a collection of losses.
        total_loss_dict: The last step's losses by name, on the device.
        schedulers: Learning rate schedulers.
        microbatch_size: Number of samples per forward pass; None if it was neither given nor determined.
        device_mesh: The device mesh of the ranks if weights are sharded, or None.
        train_metrics: Metrics of the training data by name.
        eval_metrics: Metrics of the evaluation data by label and name.
        train_values: The last computed values of the training metrics by name, as of ``train_values_batch``.
        eval_values: The last computed values of the evaluation metrics by label and name.
        evaluations: Number of evaluations completed in this process.
        previous_timestamp: The timestamp before the last step.
        load_path: Path of the checkpoint that was loaded, or None.
        loaded: What waits in a loaded checkpoint until training starts, such as the random states; None before and
            after. Checkpoints that are saved meanwhile have it again.
        forked_from: The run that this one was forked from: its ``run_name`` and ``path``, the ``step`` and the
            ``changes``; None if it was not.
        fingerprint: What the run starts from and checkpoints do not restore, noted when training starts: digests of the
            initial weights, the training data and the source files; None before.
        run_name_given: Whether the run name was given, rather than generated at each start.
        data_shard: The data shard of this rank.
        seed_rank: Offset of this rank's seed from the seed of the run: its rank, equal on ranks with the same data.
        checkpoint_folders: How sharded checkpoints are written, or None if each checkpoint is a single file.
        replicas: The replicas that train apart between synchronizations, as with DiLoCo; None if gradients are averaged
            over all ranks in each step.
        find_algorithm: Returns the class of an algorithm by name, for checkpoints that require one, or None.
        profiler: The :class:`.Profiler` of the run, with which custom code can add spans to traces, or None.
        sync_stop_requests: Whether a stop request (``stop_requested``, or None) waits until all ranks know of it.
        stop: What stopped the run before its duration, or None; saved in checkpoints.
        planned_duration: The ``max_duration`` at the start of training, regardless of later changes.
        fit_calls: For each call of ``fit`` of the run so far, the counts at which it began by unit, and the time at
            which it ends; saved in checkpoints.
        microbatch_sizes: The microbatch sizes that "auto" has found on this rank: of training (``"train"``) and of
            evaluators (``"eval/<label>"``); saved in checkpoints.
        loss_names: The losses that are averaged over all ranks; empty on one rank, and saved in checkpoints.
        autocast_cache_enabled: Whether autocast caches cast weights until the end of a forward pass.
        float8_by_conversion: Whether, in ``amp_fp8``, the layers are converted to float8 (with torchao), so that the
            context of the precision is that of ``amp_bf16``.
        is_fitting: Whether the training loop is running.
        rng_before_evaluation: The random state of this rank before the evaluation or prediction that runs, which is
            restored after it, and which checkpoints contain; None outside of one.

    >>> state = State(model=torch.nn.Linear(1, 1), max_duration=Time(10, "ep"), rank_zero_seed=0)
    >>> state.timestamp.epoch, state.max_duration
    (Time(0, TimeUnit.EPOCH), Time(10, TimeUnit.EPOCH))
    """

    load_path: str | None = None
    loaded: Any = None
    forked_from: dict[str, Any] | None = None
    fingerprint: dict[str, Any] | None = None
    run_name_given: bool = False
    checkpoint_folders: CheckpointFolders | None = None
    replicas: Replicas | None = None
    sync_stop_requests: bool = False
    stop_requested: Stop | None = None
    stop: Stop | None = None
    planned_duration: Time | None = None
    is_fitting: bool = False
    rng_before_evaluation: dict[str, Any] | None = None
    evaluations: int = 0
    train_values_batch: int = 0
    profiler: Any = None
    previous_timestamp: Timestamp | None = None
    batch: Batch = None
    outputs: Any = None
    loss: Any = None
    auto_microbatching: bool = False
    precision_config: dict[str, Any] | None = None
    scaler: torch.amp.GradScaler | None = None
    autocast_cache_enabled: bool = True
    float8_by_conversion: bool = False
    rank_zero_seed: int = 0
    _precision: Precision = Precision.FP32

    def __init__(
        self,
        model: nn.Module,
        rank_zero_seed: int = 0,
        run_name: str | None = None,
        device: str | Device | None = None,
        max_duration: int | str | Time | None = None,
        device_train_microbatch_size: int | None = None,
        auto_microbatching: bool = False,
        *,
        train_dataloader: DataSpec | Iterable[Batch] | None = None,
        evaluators: Evaluator | Sequence[Evaluator] | None = None,
        dataloader: DataSpec | Iterable[Batch] | None = None,
        dataloader_label: str | None = None,
        dataloader_len: int | Time = -1,
        precision: str | Precision = Precision.FP32,
        precision_config: dict[str, Any] | None = None,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        algorithms: Algorithm | Sequence[Algorithm] | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        parallelism_config: Any = None,
    ) -> None:
        self.model = model
        self.rank_zero_seed = rank_zero_seed
        self.fit_calls: list[dict[str, Any]] = []
        self.loss_names = LossNames()
        self.microbatch_sizes: dict[str, MicrobatchSizes] = {}
        self.run_name_given = bool(run_name)
        self.run_name = check_run_name("run_name", run_name) if run_name else f"run-{time.strftime('%Y%m%d-%H%M%S')}"
        self.device = get_device(_device_of(model) if device is None else device)
        self._precision = Precision(precision)
        self.precision_config = precision_config
        self.fsdp_config = getattr(parallelism_config, "fsdp", None)
        self.tp_config = getattr(parallelism_config, "tp", None)
        self.microbatch_size = device_train_microbatch_size
        self.auto_microbatching = auto_microbatching

        self.optimizers, self.scaler, self.evaluators = optimizers, scaler, evaluators
        self.algorithms, self.callbacks = trees.ensure_tuple(algorithms), trees.ensure_tuple(callbacks)
        self.find_algorithm = find_algorithm
        self.max_duration = max_duration
        if train_dataloader is not None:
            self.set_dataloader(train_dataloader, "train")
            if dataloader is not None and dataloader is not train_dataloader:
                raise ValueError("train_dataloader and dataloader are both given; leave one of them out.")
        if dataloader is not None:
            self.set_dataloader(dataloader, dataloader_label or "train", dataloader_len)

    @property
    def max_duration(self) -> Time | None:
        """When training ends; set to epochs, a time string or a :class:`.Time`."""
        return self._max_duration

    @max_duration.setter
    def max_duration(self, duration: int | str | Time | None) -> None:
        self._max_duration = None if duration is None else as_duration("max_duration", duration)
        if self.is_fitting:
            # A duration that is already reached stops the run as stop_training does; a longer one revokes the stop.
            self.stop = (self.stop or Stop(caller_of_stop(self), "max_duration was set")) if self.finished else None

    @property
    def finished(self) -> bool:
        """Whether training has reached ``max_duration``."""
        return self._max_duration is not None and self.train_phase.timestamp.has_reached(self._max_duration)

    def stop_training(self, *, everywhere: bool = False, reason: str = "") -> None:
        """Stop training after this batch; callbacks of the batch still run.

        A stopped run is complete: checkpoints record the stop and its reason, and ``autoresume`` does not resume it.

        In distributed training, a single rank may request the stop: the other ranks learn of it with their next batch,
        and all ranks stop after that batch.

        Args:
            everywhere: Whether all ranks call this at the same point, for example based on a metric that is equal on
                all ranks. Then nothing is communicated, and training stops as in a single process.
            reason: The reason, as part of a sentence: "accuracy 0.9 above 0.8".

        >>> state = State(model=torch.nn.Linear(1, 1), max_duration="10ep")
        >>> state.stop_training(reason="it is good enough")
        >>> state.max_duration, str(state.stop)
        (Time(0, TimeUnit.BATCH), 'stopped by the script: it is good enough')
        """
        stop = Stop(caller_of_stop(self), reason)
        if self.sync_stop_requests and not everywhere:
            self.stop_requested = self.stop_requested or stop
        else:
            self.end_training(stop)

    def end_training(self, stop: Stop) -> None:
        """Stop training after this batch on this rank; all ranks must call this at the same point.

        Args:
            stop: What stopped the run, and why. Only the first is kept, and none if the duration has been reached.
        """
        if self.finished:
            return
        in_epochs = self._max_duration is None or self._max_duration.unit in (TimeUnit.EPOCH, TimeUnit.ITERATION)
        unit = TimeUnit.BATCH if in_epochs else cast(Time, self._max_duration).unit
        self._max_duration = Time(int(self.timestamp.count(unit)), unit)
        self.stop = stop

    def batch_get_item(self, key: trees.BatchKey) -> Any:
        """Return an element of the batch.

        Args:
            key: An index, a name, a path ``"a.b"``, a function ``batch -> element``, a pair of functions (get, set), or
                a sequence of such keys, which returns a tuple.
        """
        return trees.batch_get(self.batch, key)

    def batch_set_item(self, key: trees.BatchKey, value: Any) -> None:
        """Replace an element of the batch; tuples are rebuilt.

        Args:
            key: As for :meth:`batch_get_item`.
            value: The new element; a sequence if the key is one.
        """
        self.batch = trees.batch_set(self.batch, key, value)

    @property
    def precision(self) -> Precision:
        """Numeric precision of the forward pass; set to a :class:`.Precision` or its name."""
        return self._precision

    @precision.setter
    def precision(self, precision: str | Precision) -> None:
        self._precision = Precision(precision)

    def precision_context(self) -> AbstractContextManager[Any]:
        """Return the autocast context in which the run computes forward passes and losses.

        >>> with State(model=torch.nn.Linear(1, 1), precision="amp_bf16").precision_context():
        ...     torch.ones(1, 1).mm(torch.ones(1, 1)).dtype
        torch.bfloat16
        """
        device_type, cache_enabled = self.device.torch_device.type, self.autocast_cache_enabled
        if self.float8_by_conversion:
            return get_precision_context(Precision.AMP_BF16, device_type=device_type, cache_enabled=cache_enabled)
        return get_precision_context(
            self._precision, self.precision_config, device_type=device_type, cache_enabled=cache_enabled
        )

    def on_listeners_changed(self, callback: Callable[[], object]) -> None:
        """Register a function to call when algorithms or callbacks are added, removed or reordered.

        Args:
            callback: Called without arguments.
        """
        self._listeners.append(callback)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    @cached_property
    def _listeners(self) -> list[Callable[[], object]]:
        return []

    @cached_property
    def _algorithms(self) -> WatchedList[Any]:
        return WatchedList([], self._notify)

    @cached_property
    def _callbacks(self) -> WatchedList[Any]:
        return WatchedList([], self._notify)

    @cached_property
    def _optimizers(self) -> list[Any]:
        return []

    @cached_property
    def _schedulers(self) -> list[Any]:
        return []

    @cached_property
    def _evaluators(self) -> list[Any]:
        return []

    @property
    def algorithms(self) -> list[Algorithm]:
        """The algorithms to train with; assigning keeps the list object."""
        return self._algorithms

    @algorithms.setter
    def algorithms(self, algorithms: Sequence[Algorithm]) -> None:
        self._algorithms[:] = algorithms

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks, loggers included; assigning keeps the list object."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks[:] = callbacks

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers; set to one or several, which keeps the list object."""
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizers: Optimizer | Sequence[Optimizer] | None) -> None:
        self._optimizers[:] = trees.ensure_tuple(optimizers)

    @property
    def schedulers(self) -> list[LRScheduler]:
        """Learning rate schedulers; set to one or several, which keeps the list object."""
        return self._schedulers

    @schedulers.setter
    def schedulers(self, schedulers: LRScheduler | Sequence[LRScheduler] | None) -> None:
        self._schedulers[:] = trees.ensure_tuple(schedulers)

    @property
    def evaluators(self) -> list[Evaluator]:
        """The data to evaluate on; set to one evaluator or several, which keeps the list object."""
        return self._evaluators

    @evaluators.setter
    def evaluators(self, evaluators: Evaluator | Sequence[Evaluator] | None) -> None:
        self._evaluators[:] = trees.ensure_tuple(evaluators)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the listeners: nothing listens to a copy."""
        return {**self.__dict__, "_listeners": []}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        self._algorithms = WatchedList(self._algorithms, self._notify)
        self._callbacks = WatchedList(self._callbacks, self._notify)


def _device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
