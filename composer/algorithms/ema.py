"""Exponential moving average of the weights.

    average <- s * average + (1 - s) * weights            s = 2 ** (-update_interval / half_life)

The average of the weights along the way is often better than the last weights, and needs no decay of the learning rate
to be so. Averages of SGD: Polyak and Juditsky 1992; in deep learning e.g. https://arxiv.org/abs/1703.01780
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from composer._text import in_unit_interval
from composer.algorithms._weight_averaging import Pairs, beside, weights_of
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["EMA", "compute_ema"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def compute_ema(model: nn.Module, ema_model: nn.Module, smoothing: float = 0.99) -> None:
    """Move the weights of an averaged model towards those of the model it follows, in place.

        ema <- s * ema + (1 - s) * weights

    Parameters and saved buffers of a floating dtype are averaged, other buffers (counters) copied. ``ema_model`` may
    be of a higher precision than the model, which half-precision models need, since small steps are rounded away.

    Args:
        model: The model that is trained.
        ema_model: A copy of it, such as ``copy.deepcopy(model)``.
        smoothing: Share s of the old average that stays, from 0 to 1.

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
    """Keeps a moving average of the weights, see :func:`compute_ema`, and evaluates with it.

    The average starts as a copy of the weights at the first step or epoch that ends at or after ``ema_start``. Training
    goes on with its own weights: the average is in the model only from the start of an evaluation or prediction to its
    end, in the same parameter objects. A checkpoint holds both. After training the average is had by
    :meth:`get_ema_model`.

    When to use it:
        Nearly always: the average is evaluated, and mostly better than the weights themselves, above all at a
        learning rate that is not near zero. It allows shorter trainings.

    When not to:
        Where memory has no room for a second copy of the weights, and where the schedule ends at zero after a long
        decay: weights are averaged by then as it is.

    How to choose:
        A half-life of a few per cent of the training; 100ba to 1000ba are usual. Update every few batches: the result
        is the same and the cost divided. To find the best length afterwards, use PostHocEMA.

    Cost:
        One copy of the weights in memory, a pass over them every ``update_interval``, and two copies of them at each
        evaluation.

    Args:
        half_life: Time after which a weight counts half in the average, in batches or epochs.
        smoothing: Share of the average that stays in an update, from 0 to 1; instead of ``half_life``, which must be
            None then.
        ema_start: When averaging starts, in any unit.
        update_interval: Time between updates, in the unit of ``half_life``; one by default. Longer costs less.

    Attributes:
        decay: Share of the average that stays in an update, given or computed.

    Raises:
        ValueError: Both or none of ``half_life`` and ``smoothing`` are given, or a time has the wrong unit.

    >>> EMA(half_life="10ba", update_interval="5ba").decay
    0.7071067811865476
    """

    __traits__ = Traits(
        sharding=Sharding.SAFE,
        sharding_reason="Each process averages the weights that it holds.",
        engine_conflict="It reads the weights and puts averages in their place.",
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
                f"Give either half_life or smoothing and set the other to None, as in EMA(half_life=None, "
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
        # The weights of training, while the averages are in the model.
        self._training: dict[str, Tensor] | None = None
        # The weights of the model beside their averages, kept so that a step need not collect them.
        self._pairs: Pairs | None = None

    @property
    def ema_weights_active(self) -> bool:
        """Whether the averages are in the model."""
        return self._training is not None

    def get_ema_model(self, model: ModuleT) -> ModuleT:
        """Put the averages into a model.

        Args:
            model: The model that is trained, which :meth:`get_training_model` or the next step of training puts back;
                or a copy of it.

        Returns:
            The model itself.

        Raises:
            ValueError: There are no averages yet, or they are in the model already.
        """
        if not self.ema_started:
            raise ValueError(f"There are no averages yet: they start at ema_start={self.ema_start}, in training.")
        if self.ema_weights_active:
            raise ValueError("The averages are in the trained model already.")
        if self._is_trained(model):
            self._swap_in(model)
        else:
            Pairs(weights_of(model), self._averages).load()
        return model

    def get_training_model(self, model: ModuleT) -> ModuleT:
        """Put the weights of training into a model while the averages are in the trained one.

        Args:
            model: The model that is trained, or a copy of it.

        Returns:
            The model itself.

        Raises:
            ValueError: The trained model holds the weights of training.
        """
        if self._training is None:
            raise ValueError("The averages are not in the trained model: it holds the weights of training itself.")
        if self._is_trained(model):
            self._swap_out(model)
        else:
            Pairs(weights_of(model), self._training).load()
        return model

    def after_load(self, state: State, logger: Logger) -> None:
        """Take note of the model that loaded averages belong to."""
        self._follow(state.model)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Make sure that training goes on with its own weights, on the device."""
        self._swap_out(state.model)
        self._follow(state.model)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Take note of layers that were replaced."""
        self._follow(state.model)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Make sure that training goes on with its own weights, also after an evaluation that failed."""
        if self._training is not None:
            self._swap_out(state.model)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the averages if batches are counted."""
        if self.update_interval.unit is TimeUnit.BATCH:
            self._update(state, state.timestamp.count(TimeUnit.BATCH))

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Update the averages if epochs are counted."""
        if self.update_interval.unit is TimeUnit.EPOCH:
            self._update(state, state.timestamp.count(TimeUnit.EPOCH))

    def eval_start(self, state: State, logger: Logger) -> None:
        """Evaluate with the averages."""
        self._swap_in(state.model)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Go back to the weights of training."""
        self._swap_out(state.model)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Predict with the averages."""
        self._swap_in(state.model)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Go back to the weights of training."""
        self._swap_out(state.model)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by the names of the weights; also those of training while they are not in the model."""
        return {
            **super().state_dict(),
            "ema_started": self.ema_started,
            "averages": dict(self._averages),
            "training": None if self._training is None else dict(self._training),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved averages; they go to the device when they are used.

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
            self.ema_started = self._has_come(state)
            if self.ema_started:
                self._pair(state.model)
        elif count % int(self.update_interval.value) == 0:
            (self._pairs or self._pair(state.model)).average(1 - self.decay)

    def _has_come(self, state: State) -> bool:
        """Whether it is time to start."""
        if self.ema_start.unit is not TimeUnit.DURATION:
            return state.timestamp.has_reached(self.ema_start)
        if self.ema_start.value <= 0:
            return True
        elapsed = state.get_elapsed_duration()
        if elapsed is None:
            raise ValueError(f"ema_start={self.ema_start} is a share of the training, so max_duration must be set.")
        return elapsed >= self.ema_start

    def _follow(self, model: nn.Module) -> None:
        if self.ema_started:
            self._pair(model)

    def _pair(self, model: nn.Module) -> Pairs:
        """Set the weights beside their averages; weights that are new since then start anew."""
        weights = weights_of(model)
        self._averages = {name: beside(weight, self._averages.get(name)) for name, weight in weights.items()}
        self._pairs = Pairs(weights, self._averages)
        return self._pairs

    def _swap_in(self, model: nn.Module) -> None:
        if self.ema_started and self._training is None:
            pairs = self._pair(model)
            self._training = {name: weight.detach().clone() for name, weight in weights_of(model).items()}
            # Values are copied, not storages exchanged: optimizers, sharding and captured graphs hold on to those.
            pairs.load()

    def _swap_out(self, model: nn.Module) -> None:
        if self._training is not None:
            Pairs(weights_of(model), self._training).load()
            self._training = None

    def _is_trained(self, model: nn.Module) -> bool:
        return self._pairs is not None and self._pairs.are_of(weights_of(model))


def _interval(argument: str, time: str | Time | int) -> Time:
    """A positive time in batches or epochs."""
    interval = ensure_time(time, TimeUnit.BATCH, argument)
    if interval.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH) or interval.value <= 0:
        raise ValueError(f"{argument} must be a positive time in batches or epochs, such as '10ba', but got {time!r}.")
    return interval
