"""EMA: exponential moving average of the weights.

    average <- s * average + (1 - s) * weights            s = 2 ** (-update_interval / half_life)

The average is often better than the last weights, even without learning rate decay. Averages of SGD: Polyak and
Juditsky 1992; in deep learning e.g. https://arxiv.org/abs/1703.01780
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from composer._numbers import in_unit_interval
from composer.algorithms._weight_averaging import Pairs, average_of, num_optimized, shared_weights, weights_of
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.replicas import Replicas
    from composer.core.state import State

__all__ = ["EMA", "compute_ema"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def compute_ema(model: nn.Module, ema_model: nn.Module, smoothing: float = 0.99) -> None:
    """Update the weights of an averaged model towards those of the trained model, in place.

        ema <- s * ema + (1 - s) * weights

    Floating-point parameters and persistent buffers are averaged; other buffers (counters) are copied. ``ema_model``
    may have a higher precision than the model, which half-precision models need: they would round small updates away.

    Args:
        model: The model that is trained.
        ema_model: A copy of it, such as ``copy.deepcopy(model)``.
        smoothing: Fraction s of the old average to keep, from 0 to 1.

    Raises:
        ValueError: The models have different weights, or ``smoothing`` is not in [0, 1].

    >>> model, ema_model = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.0), torch.nn.init.constant_(ema_model.weight, 0.0)
    >>> compute_ema(model, ema_model, smoothing=0.75)
    >>> ema_model.weight.item()
    0.25
    """
    in_unit_interval("smoothing", smoothing)
    Pairs(weights_of(model), weights_of(ema_model)).average(1 - smoothing)


class EMA(Algorithm):
    """Keeps an exponential moving average of the weights, see :func:`compute_ema`, and evaluates with it.

    The average starts as a copy of the weights at the first step or epoch that ends at or after ``ema_start``. Training
    continues with the trained weights: the average is in the model only during evaluation and prediction, in the same
    parameter objects. A checkpoint contains both. After training, get the average with :meth:`get_ema_model`.

    When to use it:
        Nearly always: the average is evaluated, and is usually better than the weights themselves, especially at a
        learning rate that is not near zero. It allows shorter runs.

    When not to:
        If memory has no room for a second copy of the weights, and if the learning rate decays to zero over a long
        time, which already has the effect of averaging.

    How to choose:
        A half-life of a few percent of the run; 100ba to 1000ba are usual. Update every few batches: the result is
        the same at a fraction of the cost. To find the best averaging length after training, use PostHocEMA.

    Cost:
        One copy of the weights in memory, one pass over them every ``update_interval``, and two copies of them at each
        evaluation.

    Args:
        half_life: Time after which the contribution of a weight to the average halves, in batches or epochs.
        smoothing: Fraction of the average to keep in an update, from 0 to 1; replaces ``half_life``, which must then
            be None.
        ema_start: When averaging starts, in any time unit.
        update_interval: Time between updates, in the unit of ``half_life``; 1 by default. Longer intervals cost less.

    Attributes:
        decay: Fraction of the average to keep in an update, given or computed.

    Raises:
        ValueError: Both or neither of ``half_life`` and ``smoothing`` are given, or a time has the wrong unit.

    >>> EMA(half_life="10ba", update_interval="5ba").decay
    0.7071067811865476
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="Each rank averages its shard of the parameters.",
        engine_conflict="It reads the weights and swaps in their averages.",
        neutral={},
    )

    def __init__(
        self,
        half_life: str | Time | int | None = "1000ba",
        smoothing: float | None = None,
        ema_start: str | Time = "0.0dur",
        update_interval: str | Time | int | None = None,
    ) -> None:
        if (half_life is None) == (smoothing is None):
            raise ValueError(
                f"Pass either half_life or smoothing and set the other to None, as in EMA(half_life=None, "
                f"smoothing=0.99); got half_life={half_life!r} and smoothing={smoothing!r}."
            )
        self.half_life = None if half_life is None else _interval("half_life", half_life)
        self.smoothing = None if smoothing is None else in_unit_interval("smoothing", smoothing)
        self.ema_start = ensure_time(ema_start, TimeUnit.BATCH, "ema_start")
        unit = TimeUnit.BATCH if self.half_life is None else self.half_life.unit
        interval = Time(1, unit) if update_interval is None else update_interval
        self.update_interval = _interval("update_interval", interval)
        if self.smoothing is not None:
            self.decay = self.smoothing
        elif self.half_life is not None:
            if self.update_interval.unit is not unit:
                raise ValueError(
                    f"half_life and update_interval must have the same unit, but got {self.half_life} and "
                    f"{self.update_interval}."
                )
            self.decay = 2.0 ** -(self.update_interval.value / self.half_life.value)
        self.ema_started = False
        self._averages: dict[str, Tensor] = {}
        # The trained weights, while the averages are in the model.
        self._training: dict[str, Tensor] | None = None
        # Whether these are the weights that all replicas share, in place of which a checkpoint has their own.
        self._is_shared = False
        # Pairs of weights and averages, cached so that a step need not collect them.
        self._pairs: Pairs | None = None
        self._num_optimized = 0

    @property
    def ema_weights_active(self) -> bool:
        """Whether the averages are in the model."""
        return self._training is not None

    def get_ema_model(self, model: ModuleT) -> ModuleT:
        """Copy the averages into a model.

        Args:
            model: The trained model, whose weights :meth:`get_training_model` or the next training step restores;
                or a copy of it.

        Returns:
            The model itself.

        Raises:
            ValueError: There are no averages yet, or they are already in the model.
        """
        if not self.ema_started:
            raise ValueError(f"There are no averages yet: averaging starts at ema_start={self.ema_start}.")
        if self.ema_weights_active:
            raise ValueError("The averages are already in the trained model.")
        if self._is_trained(model):
            self._swap_in(model)
        else:
            Pairs(weights_of(model), self._averages).load()
        return model

    def get_training_model(self, model: ModuleT) -> ModuleT:
        """Copy the trained weights into a model while the averages are in the trained one.

        Args:
            model: The trained model, or a copy of it.

        Returns:
            The model itself.

        Raises:
            ValueError: The model already holds the trained weights.
        """
        if self._training is None:
            raise ValueError("The averages are not in the trained model: it already holds the trained weights.")
        if self._is_trained(model):
            self._swap_out(model)
        else:
            Pairs(weights_of(model), self._training).load()
        return model

    def after_load(self, state: State, logger: Logger) -> None:
        """Restore the trained weights before others read them, and pair loaded averages with them."""
        self._swap_out(state.model)
        self._refresh_pairs(state.model)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Restore the trained weights, on the device."""
        self._swap_out(state.model)
        self._pair_all(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Pair the averages with weights of layers that were replaced."""
        self._refresh_pairs(state.model)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Restore the trained weights, also after an evaluation that failed; pair those that an optimizer got since."""
        if self._training is not None:
            self._swap_out(state.model)
        # Not at the next epoch: a run that resumes before it pairs all weights that there are.
        if num_optimized(state) != self._num_optimized:
            self._pair_all(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the averages if the interval is in batches."""
        if self.update_interval.unit is TimeUnit.BATCH:
            self._update(state, state.timestamp.count(TimeUnit.BATCH))

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Update the averages if the interval is in epochs."""
        if self.update_interval.unit is TimeUnit.EPOCH:
            self._update(state, state.timestamp.count(TimeUnit.EPOCH))

    def eval_start(self, state: State, logger: Logger) -> None:
        """Swap in the averages."""
        self._swap_in(state.model, state.replicas)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Restore the trained weights."""
        self._swap_out(state.model)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Swap in the averages."""
        self._swap_in(state.model, state.replicas)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Restore the trained weights."""
        self._swap_out(state.model)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by parameter name; also the trained weights while they are swapped out.

        The latter are left out while replicas train apart: their own weights are elsewhere in the checkpoint.
        """
        return {
            **super().state_dict(),
            "ema_started": self.ema_started,
            "averages": dict(self._averages),
            "training": None if self._training is None or self._is_shared else dict(self._training),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load saved averages; they move to the device when they are used.

        Args:
            state: A result of :meth:`state_dict`.
        """
        self.ema_started = state["ema_started"]
        self._averages = {name: tensor.clone() for name, tensor in state["averages"].items()}
        training: dict[str, Tensor] | None = state["training"]
        self._training = None if training is None else {name: tensor.clone() for name, tensor in training.items()}
        self._pairs = None

    def _update(self, state: State, count: int) -> None:
        if not self.ema_started:
            self.ema_started = self._should_start(state)
            if self.ema_started:
                with shared_weights(state):
                    self._pair(state.model)
        elif count % int(self.update_interval.value) == 0:
            with shared_weights(state):
                (self._pairs or self._pair(state.model)).average(1 - self.decay)

    def _should_start(self, state: State) -> bool:
        """Return whether averaging starts now."""
        return self.ema_start.value <= 0 or state.progress(self.ema_start.unit) >= self.ema_start.value

    def _pair_all(self, state: State) -> None:
        self._refresh_pairs(state.model)
        self._num_optimized = num_optimized(state)

    def _refresh_pairs(self, model: nn.Module) -> None:
        if self.ema_started:
            self._pair(model)

    def _pair(self, model: nn.Module) -> Pairs:
        """Pair the weights with their averages; new weights start a new average."""
        weights = weights_of(model)
        self._averages = {name: average_of(weight, self._averages.get(name)) for name, weight in weights.items()}
        self._pairs = Pairs(weights, self._averages)
        return self._pairs

    def _swap_in(self, model: nn.Module, replicas: Replicas | None = None) -> None:
        if self.ema_started and self._training is None:
            pairs = self._pair(model)
            self._training = {name: weight.detach().clone() for name, weight in weights_of(model).items()}
            # Copy values rather than swap storages: optimizers, sharding and captured graphs hold references to them.
            pairs.load()
            if replicas is not None:
                self._is_shared = replicas.before_restoring(lambda: self._swap_out(model))

    def _swap_out(self, model: nn.Module) -> None:
        if self._training is not None:
            Pairs(weights_of(model), self._training).load()
            self._training, self._is_shared = None, False

    def _is_trained(self, model: nn.Module) -> bool:
        return self._pairs is not None and self._pairs.are_of(weights_of(model))


def _interval(argument: str, time: str | Time | int) -> Time:
    """Return a positive time in batches or epochs."""
    interval = ensure_time(time, TimeUnit.BATCH, argument, (TimeUnit.BATCH, TimeUnit.EPOCH))
    if interval.value <= 0:
        raise ValueError(f"{argument} must be a positive time in batches or epochs, such as '10ba', but got {time!r}.")
    return interval
