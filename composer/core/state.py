"""What a run consists of; edited in place by algorithms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from composer import trees
from composer.core._state_data import StateData
from composer.core._state_names import StateNames
from composer.core._state_saved import StateSaved
from composer.core.algorithm import Algorithm, find_algorithm
from composer.core.data_spec import DataSpec
from composer.core.evaluator import Evaluator
from composer.core.name_placeholders import check_run_name
from composer.core.stop_reason import Stop, caller_of_stop
from composer.core.time import Time, TimeUnit, ensure_time
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

__all__ = ["State"]


class State(StateData, StateNames, StateSaved):
    """The model, the optimizers, the data and the progress of a run.

    Only the model is required, so that a loop of one's own can use algorithms without a :class:`.Trainer`.

    Args:
        model: The model.
        rank_zero_seed: Seed of the run; a process of rank r uses it plus r.
        run_name: Name of the run; made of the time by default.
        device: Where the model is; the device of its first parameter by default.
        max_duration: When training ends: epochs, a time string or a :class:`.Time`.
        device_train_microbatch_size: Number of samples that go through the model at once; None is the whole batch, and
            the attribute is the batch size of the loader then.
        auto_microbatching: Whether that number is found while training.
        train_dataloader: The training data.
        evaluators: What to evaluate on.
        dataloader: The same as ``train_dataloader``, with a label and a length of one's own.
        dataloader_label: Its label, ``"train"`` by default.
        dataloader_len: Number of its batches in a pass; -1 is all.
        precision: Number format of the forward pass.
        precision_config: Arguments of the fp8 recipe, with ``amp_fp8`` only.
        optimizers: One optimizer or several.
        scaler: Scales gradients in ``amp_fp16``.
        algorithms: The methods to train with.
        callbacks: What watches the run, loggers included.
        parallelism_config: How weights are sharded, a :class:`.ParallelismConfig`; None is not at all.

    Attributes:
        batch: The batch or microbatch in work.
        outputs: What the model returned for it.
        loss: Its loss, scalar, or a collection of losses.
        total_loss_dict: The last step's losses by name, on the device.
        schedulers: Learning-rate schedules.
        microbatch_size: Number of samples that go through the model at once; None where it was neither given nor found.
        device_mesh: The mesh of the ranks where weights are sharded, or None.
        train_metrics: Metrics of the training data by name.
        eval_metrics: Metrics of evaluation data by label and name.
        train_values: What the metrics of the training data had last computed, by name, at ``train_values_batch``.
        eval_values: What those of evaluation data had, by label and name.
        evaluations: Number of evaluations that were completed in this process.
        previous_timestamp: The time before the last step.
        load_path: Path of the checkpoint that was loaded, or None.
        run_name_given: Whether the name of the run was given, rather than made anew with each start.
        data_shard: Which part of the data this process gets.
        seed_rank: What this process's seed is above that of the run: its rank, the same for those with the same data.
        checkpoint_folders: How checkpoints are divided among processes, or None where each is one file.
        find_algorithm: Returns the class of a method by its name, for checkpoints that need one, or None.
        profiler: The :class:`.Profiler` of the run, by which code of one's own shows in its traces, or None.
        stops_together: Whether a wish to stop, ``stop_requested`` or None, waits until all ranks know of it.
        stop: Who or what ended the run before its duration, or None; saved in checkpoints.
        planned_duration: The ``max_duration`` with which training began, whatever was made of it since.
        caches_casts: Whether autocast keeps the weights that it has cast until the end of a forward pass.
        is_fitting: Whether the training loop is running.

    >>> state = State(model=torch.nn.Linear(1, 1), max_duration=Time(10, "ep"), rank_zero_seed=0)
    >>> state.timestamp.epoch, state.max_duration
    (Time(0, TimeUnit.EPOCH), Time(10, TimeUnit.EPOCH))
    """

    load_path: str | None = None
    run_name_given: bool = False
    checkpoint_folders: CheckpointFolders | None = None
    stops_together: bool = False
    stop_requested: Stop | None = None
    stop: Stop | None = None
    planned_duration: Time | None = None
    is_fitting: bool = False
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
    caches_casts: bool = True
    rank_zero_seed: int = 0
    _max_duration: Time | None = None
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
        if duration is not None:
            duration = ensure_time(duration, TimeUnit.EPOCH, "max_duration")
            if duration.value < 0:
                raise ValueError(f"max_duration must not be negative; got {str(duration)!r}.")
            if duration.unit is TimeUnit.DURATION:
                raise ValueError(
                    f"max_duration={duration} is a share of itself; give epochs, batches, samples or tokens."
                )
        self._max_duration = duration
        if self.is_fitting:
            # To set what has been reached ends the run as stop_training does; to set more revokes that.
            self.stop = (self.stop or Stop(caller_of_stop(self), "max_duration was set")) if self.finished else None

    @property
    def finished(self) -> bool:
        """Whether training has come to ``max_duration``."""
        return self._max_duration is not None and self.train_phase.timestamp.has_reached(self._max_duration)

    def get_elapsed_duration(self) -> Time | None:
        """Return the share of ``max_duration`` that is done, as a time in "dur"; None where there is no maximum."""
        if self._max_duration is None:
            return None
        done = self.timestamp.count(self._max_duration.unit)
        return Time.from_duration(done / self._max_duration.value if self._max_duration.value else 1.0)

    def stop_training(self, *, everywhere: bool = False, reason: str = "") -> None:
        """End training after this batch; callbacks of the batch still run.

        A run that was ended so is complete: checkpoints say so and why, and ``autoresume`` does not train it further.

        One rank of several may ask for it: the others learn of it with their next batch, and all end after that one.

        Args:
            everywhere: Whether all ranks ask at the same place, as they do who decide by a metric that is the same
                everywhere: then nothing has to be sent, and training ends as in a single process.
            reason: Why, as part of a sentence: "accuracy 0.9 above 0.8".

        >>> state = State(model=torch.nn.Linear(1, 1), max_duration="10ep")
        >>> state.stop_training(reason="it is good enough")
        >>> state.max_duration, str(state.stop)
        (Time(0, TimeUnit.BATCH), 'stopped by the script: it is good enough')
        """
        stop = Stop(caller_of_stop(self), reason)
        if self.stops_together and not everywhere:
            self.stop_requested = self.stop_requested or stop
        else:
            self.end_training(stop)

    def end_training(self, stop: Stop) -> None:
        """End training after this batch on this rank; all ranks must call this at the same place.

        Args:
            stop: Who and why. The first of several is kept, and none where the duration has been reached.
        """
        if self.finished:
            return
        in_epochs = self._max_duration is None or self._max_duration.unit in (TimeUnit.EPOCH, TimeUnit.ITERATION)
        unit = TimeUnit.BATCH if in_epochs else cast(Time, self._max_duration).unit
        self._max_duration = Time(int(self.timestamp.count(unit)), unit)
        self.stop = stop

    def batch_get_item(self, key: trees.BatchKey) -> Any:
        """Return a part of the batch.

        Args:
            key: An index, a name, a path ``"a.b"``, a function ``batch -> part``, a pair of functions (get, set), or
                a sequence of such keys, which gives a tuple.
        """
        return trees.batch_get(self.batch, key)

    def batch_set_item(self, key: trees.BatchKey, value: Any) -> None:
        """Replace a part of the batch; tuples are made anew.

        Args:
            key: As for :meth:`batch_get_item`.
            value: The new part; a sequence where the key is one.
        """
        self.batch = trees.batch_set(self.batch, key, value)

    @property
    def precision(self) -> Precision:
        """Number format of the forward pass; set to a :class:`.Precision` or its name."""
        return self._precision

    @precision.setter
    def precision(self, precision: str | Precision) -> None:
        self._precision = Precision(precision)

    def precision_context(self) -> AbstractContextManager[Any]:
        """Return a context in which the model, or its loss, computes as in the forward passes of the run.

        >>> with State(model=torch.nn.Linear(1, 1), precision="amp_bf16").precision_context():
        ...     torch.ones(1, 1).mm(torch.ones(1, 1)).dtype
        torch.bfloat16
        """
        kind = self.device.torch_device.type
        return get_precision_context(
            self._precision, self.precision_config, device_type=kind, cache_enabled=self.caches_casts
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
        """The methods to train with; assigning keeps the list object."""
        return self._algorithms

    @algorithms.setter
    def algorithms(self, algorithms: Sequence[Algorithm]) -> None:
        self._algorithms[:] = algorithms

    @property
    def callbacks(self) -> list[Callback]:
        """What watches the run, loggers included; assigning keeps the list object."""
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
        """Learning-rate schedules; set to one or several, which keeps the list object."""
        return self._schedulers

    @schedulers.setter
    def schedulers(self, schedulers: LRScheduler | Sequence[LRScheduler] | None) -> None:
        self._schedulers[:] = trees.ensure_tuple(schedulers)

    @property
    def evaluators(self) -> list[Evaluator]:
        """What to evaluate on; set to one or several, which keeps the list object."""
        return self._evaluators

    @evaluators.setter
    def evaluators(self, evaluators: Evaluator | Sequence[Evaluator] | None) -> None:
        self._evaluators[:] = trees.ensure_tuple(evaluators)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out who listens to this state, as nobody listens to a copy."""
        return {**self.__dict__, "_listeners": []}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        self._algorithms = WatchedList(self._algorithms, self._notify)
        self._callbacks = WatchedList(self._callbacks, self._notify)


def _device_of(model: nn.Module) -> torch.device:
    """Where the first of the model's parameters is."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
