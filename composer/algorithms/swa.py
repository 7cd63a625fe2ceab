"""Stochastic weight averaging: near the end of training, average the weights at intervals, and go on from the average.

    average <- average + (weights - average) / (n + 1)        n: number of weights averaged so far

The average lies in the middle of a flat region whose rim training walks along. Paper: Averaging Weights Leads to Wider
Optima and Better Generalization, Izmailov et al. 2018, https://arxiv.org/abs/1803.05407
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer._text import non_negative, one_of, positive
from composer.algorithms._weight_averaging import Pairs, beside
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["SWA"]


class SWA(Algorithm):
    """Averages the weights from ``swa_start`` to ``swa_end``, and then puts the average into the model.

    The average, of the parameters only, is on their device. What remains of training after ``swa_end`` lets the
    running statistics of batch normalisation adapt; with ``swa_end="1dur"`` call
    :func:`torch.optim.swa_utils.update_bn` yourself.

    When to use it:
        For convolutional networks whose learning rate still moves the weights near the end: constant, cyclic, or
        ``schedule_swa_lr``.

    When not to:
        With a schedule that ends at zero, where weights hardly differ from each other, and where EMA is used.

    How to choose:
        Start at 0.7 to 0.8 of the training and end before the last epoch, so that batch norm can adapt. ``swa_lr`` is
        a rate that still moves the weights: half of the initial one on CIFAR in the paper.

    Cost:
        One copy of the weights, and a pass over them at each interval.

    Args:
        swa_start: When averaging starts: a share of training or epochs.
        swa_end: When it ends, in the same unit, later than the start. Looked at after each batch.
        update_interval: Time between updates of the average, in batches or epochs.
        schedule_swa_lr: Whether to move the learning rates to ``swa_lr`` meanwhile, against the schedules. Afterwards
            these go on; those that compute a rate from the last one (torch's ``CosineAnnealingLR``) from ``swa_lr``.
        anneal_strategy: How they move there: ``"linear"`` or ``"cos"``.
        anneal_steps: In how many updates they move there.
        swa_lr: The learning rate to move to; None keeps each at what it is when averaging starts.

    Attributes:
        swa_completed: Whether the average has been put into the model.
        num_averaged: Number of weights averaged.

    Raises:
        ValueError: An argument is out of its range, in the wrong unit, or the end is not later than the start.

    >>> SWA(swa_start="0.7dur", swa_end="0.97dur", update_interval="1ep")  # doctest: +ELLIPSIS
    SWA(swa_start=Time(0.7, TimeUnit.DURATION), swa_end=Time(0.97, TimeUnit.DURATION), ...)

    Paper: https://arxiv.org/abs/1803.05407 (Izmailov et al. 2018)
    """

    __traits__ = Traits(
        conflicts_with={
            "EMA": "it puts an average of its own into the model, to which that of EMA comes late. Take one of them.",
            "PostHocEMA": (
                "it puts an average into the model, and averages over time mix weights from before and after. Take "
                "one of them."
            ),
        },
        sharding=Sharding.SAFE,
        sharding_reason="Each process averages the weights that it holds.",
        engine_conflict="It reads the weights and puts averages in their place.",
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
        self.swa_start = ensure_time(swa_start, TimeUnit.EPOCH, "swa_start")
        self.swa_end = ensure_time(swa_end, TimeUnit.EPOCH, "swa_end")
        self.update_interval = ensure_time(update_interval, TimeUnit.EPOCH, "update_interval")
        _check_times(self.swa_start, self.swa_end, self.update_interval)
        self.schedule_swa_lr = schedule_swa_lr
        self.anneal_strategy = one_of("anneal_strategy", anneal_strategy, ("linear", "cos"))
        self.anneal_steps = positive("anneal_steps", anneal_steps)
        self.swa_lr = None if swa_lr is None else non_negative("swa_lr", swa_lr)
        self.swa_completed = False
        self.num_averaged = 0
        self._events = 0
        self._averages: dict[str, Tensor] = {}
        self._pairs: Pairs | None = None
        # The learning rate of each group when averaging started.
        self._rates: list[float] | None = None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Set the parameters beside a loaded average, which goes to their device."""
        self._pairs = None
        if self._averages:
            self._pair(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Update the average if batches are counted; end when it is time."""
        by_batches, length = self.update_interval.unit is TimeUnit.BATCH, state.train_phase.length
        if by_batches or length is None or state.timestamp.batch_in_epoch.value < length:
            self._act(state, by_batches)
        # Otherwise the end of the epoch comes next, whose weights are averaged before the end is looked at.

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Update the average if epochs are counted; end when it is time."""
        self._act(state, self.update_interval.unit is TimeUnit.EPOCH)

    def rate_at(self, initial: float, updates: int) -> float:
        """Return a learning rate that is on its way to ``swa_lr``.

        Args:
            initial: The rate when averaging started.
            updates: Number of updates of the average so far.

        >>> SWA(schedule_swa_lr=True, anneal_steps=10, swa_lr=0.5).rate_at(1.0, 5)
        0.75
        """
        if self.swa_lr is None:
            return initial
        share = min(updates / self.anneal_steps, 1.0)
        if self.anneal_strategy == "cos":
            share = (1 - math.cos(math.pi * share)) / 2
        return initial + (self.swa_lr - initial) * share

    def state_dict(self) -> dict[str, Any]:
        """Return the average by the names of the parameters, and how far averaging has come."""
        return {
            **super().state_dict(),
            "swa_completed": self.swa_completed,
            "num_averaged": self.num_averaged,
            "events": self._events,
            "averages": dict(self._averages),
            "rates": self._rates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the average.

        Args:
            state: What :meth:`state_dict` returned.
        """
        self.swa_completed, self.num_averaged = state["swa_completed"], state["num_averaged"]
        self._events, self._rates = state["events"], state["rates"]
        self._averages = {name: average.clone() for name, average in state["averages"].items()}
        self._pairs = None

    def _act(self, state: State, is_update: bool) -> None:
        if self.swa_completed:
            return
        elapsed = _elapsed(state, self.swa_start.unit)
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
            self._end_rates(state)
        elif self.schedule_swa_lr and self.num_averaged:
            self._set_rates(state)

    def _update(self, state: State) -> None:
        if self._rates is None:
            self._rates = [float(group["lr"]) for group in _groups(state)]
        self._pair(state).average(1 / (self.num_averaged + 1))
        self.num_averaged += 1

    def _pair(self, state: State) -> Pairs:
        """Set the parameters beside their averages."""
        if self._pairs is None:
            weights = _parameters(state.model)
            self._averages = {name: beside(weight, self._averages.get(name)) for name, weight in weights.items()}
            self._pairs = Pairs(weights, self._averages)
        return self._pairs

    def _set_rates(self, state: State) -> None:
        """Overwrite what the schedules, which have just moved, have set for the next step."""
        for group, initial in zip(_groups(state), self._rates or (), strict=True):
            _set_rate(group, self.rate_at(initial, self.num_averaged))

    def _end_rates(self, state: State) -> None:
        """Leave the rates to the schedules; without any, go back to the rates before."""
        if self.schedule_swa_lr and self._rates is not None and not state.schedulers:
            for group, initial in zip(_groups(state), self._rates, strict=True):
                _set_rate(group, initial)


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


def _elapsed(state: State, unit: TimeUnit) -> float:
    """Time in epochs, or as a share of training; parts of an epoch count where its length is known."""
    timestamp, length = state.timestamp, state.train_phase.length
    epochs = float(timestamp.epoch.value)
    if length:
        epochs += timestamp.batch_in_epoch.value / length
    if unit is TimeUnit.EPOCH:
        return epochs
    total, elapsed = state.max_duration, state.get_elapsed_duration()
    if total is None or elapsed is None:
        raise ValueError("SWA starts and ends at a share of the training, so max_duration must be set.")
    return epochs / total.value if total.unit is TimeUnit.EPOCH and total.value else float(elapsed)


def _check_times(start: Time, end: Time, interval: Time) -> None:
    units = (TimeUnit.DURATION, TimeUnit.EPOCH)
    if start.unit is not end.unit or start.unit not in units:
        raise ValueError(
            f"swa_start and swa_end must both be shares of training, such as '0.7dur', or both epochs; got '{start}' "
            f"and '{end}'."
        )
    if not 0 <= start.value < end.value:
        raise ValueError(f"swa_end must be later than swa_start, which is not negative; got '{start}' and '{end}'.")
    if end.unit is TimeUnit.DURATION and end.value > 1:
        raise ValueError(f"swa_end must be at most '1dur', the end of training; got '{end}'.")
    if interval.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH) or interval.value <= 0:
        raise ValueError(
            f"update_interval must be a positive time in batches or epochs, such as '1ep'; got '{interval}'."
        )
