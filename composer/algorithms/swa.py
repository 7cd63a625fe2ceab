"""SWA, stochastic weight averaging: average the weights at intervals near the end of training, and continue from there.

    average <- average + (weights - average) / (n + 1)        n: number of weights averaged so far

The average is near the center of a flat region, around which training moves. Paper: Averaging Weights Leads to Wider
Optima and Better Generalization, Izmailov et al. 2018, https://arxiv.org/abs/1803.05407
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer._numbers import non_negative, whole_number
from composer._text import one_of
from composer.algorithms._weight_averaging import Pairs, average_of, num_optimized
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SWA"]


class SWA(Algorithm):
    """Averages the weights from ``swa_start`` to ``swa_end``, and then loads the average into the model.

    The average, of the parameters only, is on their device. The training that remains after ``swa_end`` adapts the
    running statistics of batch normalization; with ``swa_end="1dur"`` call
    :func:`torch.optim.swa_utils.update_bn` yourself.

    When to use it:
        For convolutional networks whose learning rate still moves the weights near the end: constant, cyclic, or
        ``schedule_swa_lr``.

    When not to:
        With a schedule that ends at zero, where the averaged weights hardly differ; together with EMA; and with DiLoCo
        or LocalSGD on several ranks, which raises an error: use EMA with an interval of whole rounds there.

    How to choose:
        Start at 0.7 to 0.8 of the run and end before the last epoch, so that batch norm can adapt. Choose a ``swa_lr``
        that still moves the weights: half of the initial learning rate on CIFAR in the paper.

    Cost:
        One copy of the weights, and a pass over them at each interval.

    Args:
        swa_start: When averaging starts: a fraction of the run or epochs.
        swa_end: When it ends, in the same unit, later than the start. Checked after each batch.
        update_interval: Time between updates of the average, in batches or epochs.
        schedule_swa_lr: Whether to move the learning rates to ``swa_lr`` meanwhile, overriding the schedulers. These
            continue afterwards; those that compute a rate from the last one (torch's ``CosineAnnealingLR``) continue
            from ``swa_lr``.
        anneal_strategy: How the learning rates move there: ``"linear"`` or ``"cos"``.
        anneal_steps: Number of updates in which they move there.
        swa_lr: The learning rate to move to; None keeps each at its value when averaging starts.

    Attributes:
        swa_completed: Whether the average has been loaded into the model.
        num_averaged: Number of weights averaged.

    Raises:
        ValueError: An argument is out of range, in the wrong unit, or the end is not later than the start.

    >>> SWA(swa_start="0.7dur", swa_end="0.97dur", update_interval="1ep")  # doctest: +ELLIPSIS
    SWA(swa_start=Time(0.7, TimeUnit.DURATION), swa_end=Time(0.97, TimeUnit.DURATION), ...)

    Paper: https://arxiv.org/abs/1803.05407 (Izmailov et al. 2018)
    """

    __traits__ = Traits(
        conflicts_with={
            "EMA": "the average of SWA is loaded into the model, and that of EMA lags behind it. Use one of them.",
            "PostHocEMA": (
                "the average of SWA is loaded into the model, so post-hoc averages would mix weights from before and "
                "after. Use one of them."
            ),
        },
        sharding=Sharding.SAFE,
        sharding_reason="Each rank averages its shard of the parameters.",
        engine_conflict="It reads the weights and swaps in their averages.",
        neutral={"swa_start": Time(1, TimeUnit.DURATION), "swa_end": Time(1, TimeUnit.DURATION)},
    )

    def __init__(
        self,
        swa_start: str | Time | int = "0.7dur",
        swa_end: str | Time | int = "0.97dur",
        update_interval: str | Time | int = "1ep",
        schedule_swa_lr: bool = False,
        anneal_strategy: str = "linear",
        anneal_steps: int = 10,
        swa_lr: float | None = None,
    ) -> None:
        units = (TimeUnit.DURATION, TimeUnit.EPOCH)
        self.swa_start = ensure_time(swa_start, TimeUnit.EPOCH, "swa_start", units)
        self.swa_end = ensure_time(swa_end, TimeUnit.EPOCH, "swa_end", units)
        units = (TimeUnit.EPOCH, TimeUnit.BATCH)
        self.update_interval = ensure_time(update_interval, TimeUnit.EPOCH, "update_interval", units)
        _check_times(self.swa_start, self.swa_end, self.update_interval)
        self.schedule_swa_lr = schedule_swa_lr
        self.anneal_strategy = one_of("anneal_strategy", anneal_strategy, ("linear", "cos"))
        self.anneal_steps = whole_number("anneal_steps", anneal_steps, minimum=1)
        self.swa_lr = None if swa_lr is None else non_negative("swa_lr", swa_lr)
        self.swa_completed = False
        self.num_averaged = 0
        self._events = 0
        self._averages: dict[str, Tensor] = {}
        self._pairs: Pairs | None = None
        self._num_optimized = 0
        # The learning rate of each group when averaging started.
        self._initial_rates: list[float] | None = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Pair the parameters with a loaded average, which moves to their device."""
        self._pair_all(state)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Pair the weights that an optimizer got since; not at the next update, as a run may resume before it."""
        if num_optimized(state) != self._num_optimized:
            self._pair_all(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the average if the interval is in batches; end when it is time."""
        by_batches, length = self.update_interval.unit is TimeUnit.BATCH, state.train_phase.length
        if by_batches or length is None or state.train_phase.batches_loaded < length:
            self._advance(state, by_batches)
        # Otherwise the end of the epoch follows, whose weights are averaged before the end time is checked.

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Update the average if the interval is in epochs; end when it is time."""
        self._advance(state, self.update_interval.unit is TimeUnit.EPOCH)

    def rate_at(self, initial: float, updates: int) -> float:
        """Return an annealed learning rate on the way to ``swa_lr``.

        Args:
            initial: The learning rate when averaging started.
            updates: Number of updates of the average so far.

        >>> SWA(schedule_swa_lr=True, anneal_steps=10, swa_lr=0.5).rate_at(1.0, 5)
        0.75
        """
        if self.swa_lr is None:
            return initial
        progress = min(updates / self.anneal_steps, 1.0)
        if self.anneal_strategy == "cos":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return initial + (self.swa_lr - initial) * progress

    def state_dict(self) -> dict[str, Any]:
        """Return the average by parameter name, and the progress of averaging."""
        return {
            **super().state_dict(),
            "swa_completed": self.swa_completed,
            "num_averaged": self.num_averaged,
            "events": self._events,
            "averages": dict(self._averages),
            "rates": self._initial_rates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the average.

        Args:
            state: A result of :meth:`state_dict`.
        """
        self.swa_completed, self.num_averaged = state["swa_completed"], state["num_averaged"]
        self._events, self._initial_rates = state["events"], state["rates"]
        self._averages = {name: average.clone() for name, average in state["averages"].items()}
        self._pairs = None

    def _advance(self, state: State, is_update: bool) -> None:
        if self.swa_completed:
            return
        elapsed = state.progress(self.swa_start.unit)
        if elapsed < self.swa_start.value:
            return
        if is_update:
            if self._events % int(self.update_interval.value) == 0:
                self._update(state)
            self._events += 1
        if self.num_averaged and elapsed >= self.swa_end.value:
            self._pair(state).load()
            self.swa_completed = True
            self._averages, self._pairs = {}, None
            self._reset_learning_rates(state)
        elif self.schedule_swa_lr and self.num_averaged:
            self._set_learning_rates(state)

    def _update(self, state: State) -> None:
        if self._initial_rates is None:
            self._initial_rates = [float(group["lr"]) for group in _groups(state)]
        self._pair(state).average(1 / (self.num_averaged + 1))
        self.num_averaged += 1

    def _pair_all(self, state: State) -> None:
        self._num_optimized, self._pairs = num_optimized(state), None
        if self._averages:
            self._pair(state)

    def _pair(self, state: State) -> Pairs:
        """Pair the parameters with their averages."""
        if self._pairs is None:
            weights = _parameters(state.model)
            self._averages = {name: average_of(weight, self._averages.get(name)) for name, weight in weights.items()}
            self._pairs = Pairs(weights, self._averages)
        return self._pairs

    def _set_learning_rates(self, state: State) -> None:
        """Override the learning rates that the schedulers have just set for the next step."""
        for group, initial in self._groups_with_rates(state):
            _set_rate(group, self.rate_at(initial, self.num_averaged))

    def _reset_learning_rates(self, state: State) -> None:
        """Return control to the schedulers; without any, restore the initial learning rates."""
        if self.schedule_swa_lr and not state.schedulers:
            for group, initial in self._groups_with_rates(state):
                _set_rate(group, initial)

    def _groups_with_rates(self, state: State) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield the parameter groups and their learning rates when averaging started, or when they were added."""
        if self._initial_rates is None:
            return
        groups = _groups(state)
        self._initial_rates += [float(group["lr"]) for group in groups[len(self._initial_rates) :]]
        yield from zip(groups, self._initial_rates, strict=True)


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _groups(state: State) -> list[dict[str, Any]]:
    return [group for optimizer in state.optimizers for group in optimizer.param_groups]


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    if isinstance(model, DistributedDataParallel):
        model = model.module
    return {name.replace("_orig_mod.", ""): parameter for name, parameter in model.named_parameters()}


def _check_times(start: Time, end: Time, interval: Time) -> None:
    if start.unit is not end.unit:
        raise ValueError(
            f"swa_start and swa_end must both be fractions of the run, such as '0.7dur', or both epochs; got '{start}' "
            f"and '{end}'."
        )
    if not 0 <= start.value < end.value:
        raise ValueError(f"swa_end must be later than swa_start, which must be >= 0; got '{start}' and '{end}'.")
    if end.unit is TimeUnit.DURATION and end.value > 1:
        raise ValueError(f"swa_end must be at most '1dur', the end of training; got '{end}'.")
    if interval.value <= 0:
        raise ValueError(f"update_interval must be positive, such as '1ep'; got '{interval}'.")
