"""Local steps: replicas train without communication, and synchronize their weights once every many steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from composer import dist
from composer._numbers import whole_number
from composer._text import one_of
from composer.algorithms._background_average import BackgroundAverages, PendingAverage
from composer.algorithms._pseudo_gradients import COMPRESSIONS, average_weights_of_replicas, difference
from composer.algorithms._replica_checks import check_averages, check_equal
from composer.algorithms._weight_averaging import weights_of
from composer.algorithms.ema import EMA
from composer.algorithms.sam import SAMOptimizer
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.replicas import Replicas
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits
from composer.dist.dtensor import is_dtensor
from composer.optim.closure_use import needs_closure

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["LocalSteps"]

# Share of its own weights that a replica keeps when an overlapped average is applied.
_MIXING: Final = 0.5


class LocalSteps(Algorithm, ABC):
    """Base of the algorithms that synchronize replicas only at the end of each round of local steps.

    Args:
        sync_every: Length of a round, in batches or epochs.
        compression: The dtype in which differences are sent, or None.
        replica_size: Number of ranks that form a replica.
        overlap: Number of steps of the next round during which the replicas average; 0 waits for the average.
    """

    # First at BATCH_END, so that others see the synchronized weights.
    __traits__ = Traits(
        slot=Slot.SELECT,
        conflicts_with={
            "GyroDropout": "its masks are created in the first step, when replicas train apart. Use ordinary dropout.",
            "SWA": "the next round would mix the average it loads with weights from before. Use EMA of whole rounds.",
            "ScheduleFree": "each replica would evaluate with its own average. Use AdamW as the inner optimizer.",
        },
        sharding=Sharding.FULL_WEIGHTS,
        sharding_reason="Each replica trains its own weights, all of which its ranks hold.",
        engine_conflict="It trains without the synchronization of gradients.",
        why_not_neutral="it averages the replicas of any run with several ranks",
    )

    has_outer_momentum = True

    def __init__(
        self, sync_every: int | str | Time, compression: str | None, replica_size: int, overlap: int | str | Time
    ) -> None:
        self.sync_every = ensure_time(sync_every, TimeUnit.BATCH, "sync_every", (TimeUnit.BATCH, TimeUnit.EPOCH))
        if self.sync_every.value < 1:
            raise ValueError(
                f"sync_every must be at least one batch or epoch, such as '100ba' or '1ep'; got {sync_every!r}."
            )
        self.compression = None if compression is None else one_of("compression", compression, COMPRESSIONS)
        self.replica_size = whole_number("replica_size", replica_size, minimum=1)
        self.overlap = _steps_of(overlap, self.sync_every)
        self._synchronized: dict[str, Tensor] = {}
        self._momenta: dict[str, Tensor] = {}
        # The parameters that are trained in this round, among them those that were frozen after it began.
        self._trained: set[str] = set()
        self._local_steps = 0
        # The average of the last round, until it is applied.
        self._pending: PendingAverage | None = None

    @abstractmethod
    def _outer_step(
        self, weights: Sequence[Tensor], synchronized: Sequence[Tensor], momenta: Sequence[Tensor], replicas: Replicas
    ) -> None:
        """Update the synchronized parameters and their momenta in place, and load the former into the model."""

    @abstractmethod
    def _apply_average(
        self, synchronized: Sequence[Tensor], momenta: Sequence[Tensor], differences: Sequence[Tensor]
    ) -> None:
        """Update the synchronized parameters and their momenta in place, by averaged differences, which are kept."""

    def init(self, state: State, logger: Logger) -> None:
        """Let a single process be the only replica; reject averages of weights that replicas do not share."""
        # What an earlier trainer has left; a checkpoint is loaded after this event.
        self._synchronized, self._momenta, self._trained, self._local_steps = {}, {}, set(), 0
        self._pending = None
        if dist.get_world_size() == 1:
            if self.replica_size != 1:
                raise ValueError(f"replica_size={self.replica_size}, but there is a single rank; use replica_size=1.")
            state.replicas = Replicas()
            return
        check_averages(type(self).__name__, self.sync_every, state.algorithms)

    def after_load(self, state: State, logger: Logger) -> None:
        """Evaluate with the loaded synchronized weights."""
        if self._local_steps or self._pending is not None:
            self._share(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Take the weights as synchronized, unless training resumes in the middle of a round.

        Raises:
            NotImplementedError: The parameters are sharded.
            ValueError: An optimizer requires a closure, and there are several replicas; or the weights, or the position
                in the round, differ between ranks.
        """
        if any(map(is_dtensor, state.model.parameters())):
            raise NotImplementedError(
                f"{type(self).__name__} averages full weights, and these are sharded. Train with DDP "
                f"(parallelism_config=None), and use replica_size for replicas of several ranks."
            )
        replicas = self._replicas(state)
        # SAM evaluates the batch in the same steps on all ranks.
        own = [each for each in state.optimizers if not isinstance(each, SAMOptimizer)]
        searching = [type(each).__name__ for each in own if needs_closure(type(each))]
        if searching and replicas.count > 1:
            raise ValueError(
                f"{type(self).__name__} lets replicas train apart, but {searching[0]} decides by the loss how often it "
                f"evaluates the batch, which all ranks must do equally often. Use another optimizer, or DDP alone."
            )
        for average in state.algorithms:
            if isinstance(average, EMA) and average.ema_weights_active:  # loaded by state.load_state_dict just before
                average.get_training_model(state.model)
        weights = weights_of(state.model)
        if self.overlap.value and replicas.background is None:
            replicas.background = BackgroundAverages(replicas)
        self._momenta = _on_devices(weights, self._momenta, partial=True)
        if self._local_steps or self._pending is not None:
            self._share(state)
        else:
            for buffer in (weight for weight in weights.values() if not isinstance(weight, nn.Parameter)):
                _use_first(buffer, replicas)  # as DDP does, since each rank may have computed its own statistics
            self._synchronized = {name: _wide(weight, self._synchronized.get(name)) for name, weight in weights.items()}
            self._trained = _trained(weights)
            replicas.synchronized = None
        if replicas.count > 1:
            position = {"local_steps": self._local_steps, "has_pending_average": self._pending is not None}
            check_equal(type(self).__name__, position, self._synchronized)

    def batch_end(self, state: State, logger: Logger) -> None:
        """End the round if it is due, and in the last batch of training; apply the average of the last one."""
        self._local_steps += 1
        if self._pending is not None and self._local_steps >= self.overlap.value:
            self._apply_pending(state)
        self._end_round_if_due(state, TimeUnit.BATCH)
        if self._local_steps and self._replicas(state).synchronized is None:
            self._share(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """End the round if it is due, and in the last epoch of training."""
        self._end_round_if_due(state, TimeUnit.EPOCH)

    def fit_end(self, state: State, logger: Logger) -> None:
        """End the round, if training was stopped in the middle of it."""
        self._synchronize(state)
        replicas = self._replicas(state)
        if replicas.background is not None:
            replicas.background.close()
            replicas.background = None

    def state_dict(self) -> dict[str, Any]:
        """Return the synchronized weights, the outer momenta and the position in the round.

        An average that overlaps with training is waited for, and saved as well.
        """
        return {
            **super().state_dict(),
            "synchronized": dict(self._synchronized),
            "momenta": dict(self._momenta),
            "trained": sorted(self._trained),
            "local_steps": self._local_steps,
            "pending": None if self._pending is None else self._pending.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state; the tensors move to the device when they are used.

        Args:
            state: A result of :meth:`state_dict`.
        """
        self._synchronized = {name: tensor.clone() for name, tensor in state["synchronized"].items()}
        self._momenta = {name: tensor.clone() for name, tensor in state["momenta"].items()}
        self._trained = set(state["trained"])
        self._local_steps = state["local_steps"]
        pending = state.get("pending")  # missing in older checkpoints
        self._pending = None if pending is None else PendingAverage.completed(pending)

    def _replicas(self, state: State) -> Replicas:
        if state.replicas is None:
            raise ValueError(
                f"{type(self).__name__} requires a parallelism strategy that can leave out the synchronization of "
                f"gradients between replicas. Train with DDP (parallelism_config=None)."
            )
        return state.replicas

    def _share(self, state: State) -> None:
        """Make the synchronized weights those that are evaluated and saved as the model."""
        weights = weights_of(state.model)
        self._synchronized = _on_devices(weights, self._synchronized)
        self._replicas(state).synchronized = [(weights[name], value) for name, value in self._synchronized.items()]

    def _end_round_if_due(self, state: State, unit: TimeUnit) -> None:
        """End the round if it is due in a unit of time; at the end of training, wait for the average."""
        if state.finished:
            self._synchronize(state)
        elif self.sync_every.unit is unit and state.timestamp.count(unit) % int(self.sync_every.value) == 0:
            if self.overlap.value:
                self._start_average(state)
            else:
                self._synchronize(state)

    @torch.no_grad()
    def _synchronize(self, state: State) -> None:
        """End the round: the outer step for the parameters, and averages of the buffers."""
        replicas = self._replicas(state)
        if self._pending is not None:
            self._apply_pending(state)
        if not self._local_steps:
            replicas.synchronized = None
            return
        weights = weights_of(state.model)
        self._synchronized = values = _on_devices(weights, self._synchronized)
        self._momenta = _on_devices(weights, self._momenta, partial=True)
        self._local_steps, replicas.synchronized = 0, None
        trained = self._names_of_trained(weights)
        momenta = self._momenta_of(trained, values)
        self._outer_step([weights[name] for name in trained], [values[name] for name in trained], momenta, replicas)
        rest = self._names_of_rest(weights, values)
        average_weights_of_replicas([weights[name] for name in rest], [values[name] for name in rest], replicas)
        for name in weights:
            if not _is_averaged(weights[name]):
                _use_first(weights[name], replicas)
                values[name].copy_(weights[name])
        self._trained = _trained(weights)

    @torch.no_grad()
    def _start_average(self, state: State) -> None:
        """End the round, and begin the next one while the replicas average their differences in the background."""
        if not self._local_steps:
            return
        if self._pending is not None:  # an epoch of fewer batches than the overlap
            self._apply_pending(state)
        replicas, weights = self._replicas(state), weights_of(state.model)
        self._synchronized = values = _on_devices(weights, self._synchronized)
        trained = self._names_of_trained(weights)
        rest = self._names_of_rest(weights, values)
        counts = [name for name in weights if not _is_averaged(weights[name])]
        for name in counts:
            _use_first(weights[name], replicas)
        self._pending = PendingAverage(
            {name: values[name] - weights[name] for name in trained},
            {name: difference(values[name], weights[name]) for name in rest},
            {name: weights[name].clone() for name in counts},
        )
        replicas.background.start(self._pending, self.compression, state.device.torch_device)
        self._trained, self._local_steps = _trained(weights), 0
        self._share(state)

    @torch.no_grad()
    def _apply_pending(self, state: State) -> None:
        """Take the outer step of the last round, and mix its result into the weights of this replica."""
        assert self._pending is not None
        weights = weights_of(state.model)
        self._synchronized = values = _on_devices(weights, self._synchronized)
        self._momenta = _on_devices(weights, self._momenta, partial=True)
        outer, rest, counts = (_on_devices(weights, part, partial=True) for part in self._pending.wait())
        momenta = self._momenta_of(list(outer), values)
        self._apply_average([values[name] for name in outer], momenta, list(outer.values()))
        for name, average in rest.items():
            values[name].sub_(average)
        for name, count in counts.items():
            values[name].copy_(count)
        self._pending = None
        for name in (*outer, *rest):
            weight, value = weights[name], values[name]
            is_trained = not isinstance(weight, nn.Parameter) or weight.requires_grad or name in self._trained
            if is_trained and self._local_steps:
                own = weight.to(value.dtype)
                mixed = torch.lerp(own, value, 1 - _MIXING)
                weight.copy_(torch.where(own == value, value, mixed))  # the difference of infinities is NaN
            else:  # there are no steps since then whose result could be kept
                weight.copy_(value)
        self._share(state)

    def _names_of_trained(self, weights: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the parameters that were trained in this round."""
        self._trained |= _trained(weights)
        return [name for name in weights if name in self._trained]

    def _momenta_of(self, names: Sequence[str], values: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the outer momenta of parameters, new ones if they were never trained before."""
        for name in names if self.has_outer_momentum else ():
            if name not in self._momenta:
                self._momenta[name] = torch.zeros_like(values[name])
        return [self._momenta[name] for name in names if name in self._momenta]

    def _names_of_rest(self, weights: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the other tensors to average: buffers, and frozen parameters that have changed.

        These have no gradient that a momentum could be of.
        """
        buffers = [name for name, one in weights.items() if not isinstance(one, nn.Parameter)]
        frozen = [name for name in weights if name not in self._trained and name not in buffers]
        return [name for name in (*buffers, *_changed(weights, values, frozen)) if _is_averaged(weights[name])]


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _changed(weights: Mapping[str, Tensor], values: Mapping[str, Tensor], names: Sequence[str]) -> list[str]:
    """Return the names of the frozen parameters that have changed on any rank; most have not, and are not sent."""
    if not names:
        return []
    moved = [not torch.equal(weights[name].to(values[name].dtype), values[name]) for name in names]
    flags = torch.tensor(moved, dtype=torch.uint8)
    dist.all_reduce(flags, "MAX")
    return [name for name, has_moved in zip(names, flags.tolist(), strict=True) if has_moved]


def _trained(weights: Mapping[str, Tensor]) -> set[str]:
    return {name for name, weight in weights.items() if weight.requires_grad}


def _wide(weight: Tensor, known: Tensor | None) -> Tensor:
    """Return a copy of a weight, in float32 if it has half precision; the known one if it is of these values."""
    if known is not None and known.shape == weight.shape:
        known = known.to(weight.device)
        if torch.equal(known.to(weight.dtype), weight.detach()):
            return known
    half = weight.dtype in (torch.float16, torch.bfloat16)
    return weight.detach().to(torch.float32 if half else weight.dtype, copy=True)


def _on_devices(
    weights: Mapping[str, Tensor], values: Mapping[str, Tensor], *, partial: bool = False
) -> dict[str, Tensor]:
    """Return values on the devices of the weights they belong to.

    Raises:
        ValueError: The names or shapes differ, since layers were replaced in the middle of a round.
    """
    unlike = values.keys() - weights.keys() if partial else values.keys() ^ weights.keys()
    unlike |= {name for name in values.keys() & weights.keys() if values[name].shape != weights[name].shape}
    if unlike:
        raise ValueError(
            f"The synchronized weights do not match the model in {min(unlike)!r}: layers cannot be replaced while "
            f"replicas train apart. Replace them before training starts."
        )
    return {name: value.to(weights[name].device) for name, value in values.items()}


def _use_first(buffer: Tensor, replicas: Replicas) -> None:
    """Set a buffer, such as the number of batches that batch normalization has tracked, to that of rank 0."""
    if replicas.count > 1:
        sent = buffer.contiguous()
        dist.broadcast(sent, src=0)
        if sent is not buffer:
            buffer.copy_(sent)


def _steps_of(overlap: int | str | Time, sync_every: Time) -> Time:
    """Return the number of steps that overlap with an exchange, in batches."""
    steps = ensure_time(overlap, TimeUnit.BATCH, "overlap", [TimeUnit.BATCH])
    if steps.value < 0:
        raise ValueError(f"overlap must be a number of batches, 0 or more, such as 4 or '4ba'; got {overlap!r}.")
    if sync_every.unit is TimeUnit.BATCH and steps.value >= sync_every.value:
        raise ValueError(
            f"overlap={overlap!r} must be less than sync_every={sync_every}: an average is applied before the next one "
            f"starts. Use a shorter overlap or longer rounds."
        )
    return steps
