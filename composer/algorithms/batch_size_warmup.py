"""Batch size warm-up: start training with small batches, and join several batches of the loader to a larger one later.

    B(t) = k(t) * B,    k(t) a schedule of integers, or doubled while B_simple > c * B(t)

where B is the batch of the loader, and B_simple the gradient noise scale. While a batch is smaller than that scale,
twice the batch makes almost twice the progress per step; beyond it, a larger batch mostly costs samples. The scale
grows as the loss falls, so small batches save samples early and large ones save steps late.

Papers: Don't Decay the Learning Rate, Increase the Batch Size, Smith et al. 2017, https://arxiv.org/abs/1711.00489;
An Empirical Model of Large-Batch Training, McCandlish et al. 2018, https://arxiv.org/abs/1812.06162
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from composer import dist
from composer._numbers import positive, whole_number
from composer._text import one_of
from composer.algorithms._scaled_rates import ScaledRates
from composer.core.algorithm import Algorithm
from composer.core.distributed_support import Sharding
from composer.core.microbatches import join
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits
from composer.core.types import Batch

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["BatchSizeWarmup", "grow_batches"]

_BATCH: Final = TimeUnit.BATCH
_LR_FACTORS: Mapping[str, Callable[[int], float]] = {"sqrt": math.sqrt, "linear": float}
# Those that give the same batches in every run: not wall-clock time.
_UNITS = (TimeUnit.BATCH, TimeUnit.SAMPLE, TimeUnit.TOKEN, TimeUnit.EPOCH, TimeUnit.DURATION)


def grow_batches(batches: Iterable[Batch], multiple: Callable[[int], int]) -> Iterator[Batch]:
    """Yield batches of a loader, several joined to one; the last one may have fewer.

    Args:
        batches: The loader, or another iterable of batches.
        multiple: Number of batches to join in a step, given the number of steps before it.

    Raises:
        ValueError: The batches cannot be joined, see :func:`.join`.

    >>> loader = torch.arange(10).split(2)
    >>> list(grow_batches(loader, lambda step: 1 if step < 2 else 2))
    [tensor([0, 1]), tensor([2, 3]), tensor([4, 5, 6, 7]), tensor([8, 9])]

    Paper: https://arxiv.org/abs/1711.00489 (Smith et al. 2017)
    """
    iterator = iter(batches)
    for step in itertools.count():
        group = list(itertools.islice(iterator, multiple(step)))
        if not group:
            return
        yield join(group)


class BatchSizeWarmup(Algorithm):
    """Joins batches of the loader to larger ones: by milestones, along a ramp, or by the gradient noise scale.

    A step trains on ``k`` successive batches of the loader, joined to one as :func:`.grow_batches` does. The order of
    the samples does not change: with a constant k, training equals that with a loader of k times the batch size, also
    on several ranks. Give one of:

    - ``milestones``: k by time. The largest k whose time is reached holds, and 1 before.
    - ``duration``: k grows from ``start`` to ``end`` in equal steps over this time.
    - ``noise_factor``: k is doubled, up to ``end``, when the noise scale that :class:`.GradientNoiseScale` measures
      exceeds ``noise_factor`` times the batch, which is checked every ``interval``. All ranks decide alike.

    Time in batches ("ba") counts optimizer steps. The length of an epoch, ``train_subset_num_batches`` and the progress
    bar count batches of the loader. The last step of an epoch takes those that are left, also with ``drop_last=True``,
    which concerns the batches of the loader. With ``max_duration`` in epochs, the number of steps is unknown: schedules
    of the learning rate follow the batches of the loader, and their times must be epochs or fractions of the run.

    Logs ``batch_size_warmup/multiple``, and with ``lr_scaling`` ``batch_size_warmup/lr_factor``.

    When to use it:
        If the critical batch size grows during training, as it does for language models, and large batches make
        better use of the hardware: several ranks, or an accelerator that small batches do not fill.

    When not to:
        If the hardware is no faster with large batches: then small batches cost nothing. With a :class:`.Mixture`,
        which counts the samples of each batch of the loader (an error is raised). In short runs: on a small language
        model, half of the steps for the same 4,800 sequences cost 0.08 nats of loss.

    How to choose:
        Let the loader have the largest batch that still learns well at the start. Measure the noise scale with
        :class:`.GradientNoiseScale` once, and put the milestones where it passes the next multiple. Where a schedule
        would divide the learning rate by k, multiply the batch by k instead. Set ``device_train_microbatch_size``, so
        that memory does not grow with the batch.

    Cost:
        A copy of each batch on the host. Fewer, larger steps for the same number of samples.

    Args:
        milestones: Multiples of the loader's batch by time: a time in batches (steps), samples, tokens, epochs, or a
            fraction of the run.
        start: Multiple at the start of a ramp, or before it is doubled the first time.
        end: Multiple at the end of a ramp, or the largest one with ``noise_factor``.
        duration: Length of a ramp, in one of the same units. Of a ramp that is longer than the run, only the beginning
            is reached.
        noise_factor: Ratio of the noise scale to the batch from which the multiple is doubled.
        interval: Number of steps from one comparison with the noise scale to the next.
        lr_scaling: Factor of the learning rates: "sqrt" for the square root of the multiple, which suits Adam, "linear"
            for the multiple itself, which suits SGD, or None for none. A parameter group that is added in a step is
            scaled from that step on, or from the next one if it is added at ``AFTER_TRAIN_BATCH`` or later.

    Raises:
        TypeError: A time is not one, or a multiple is not an integer.
        ValueError: An argument is invalid, or a combination of them. When training starts: a fraction of the run is
            unknown, ``noise_factor`` is given without :class:`.GradientNoiseScale`, or the data is a mixture.

    >>> BatchSizeWarmup({"0.2dur": 2, "0.5dur": 4}).milestones
    {Time(0.2, TimeUnit.DURATION): 2, Time(0.5, TimeUnit.DURATION): 4}
    >>> ramp = BatchSizeWarmup(start=1, end=8, duration="0.5dur")

    Papers: https://arxiv.org/abs/1711.00489 (Smith et al. 2017), https://arxiv.org/abs/1812.06162 (McCandlish et al.
    2018)
    """

    __traits__ = Traits(
        changes_shapes=True,
        dynamic_dims=(0,),
        sharding=Sharding.SAFE,
        sharding_reason="All ranks join the same number of batches.",
        engine_conflict="It changes the number of samples in a step, which the engine's configuration fixes.",
        neutral={"milestones": None, "duration": None, "noise_factor": None},
    )

    def __init__(
        self,
        milestones: Mapping[str, int] | Mapping[Time, int] | None = None,
        *,
        start: int = 1,
        end: int | None = None,
        duration: str | Time | None = None,
        noise_factor: float | None = None,
        interval: int | str | Time = "100ba",
        lr_scaling: str | None = None,
    ) -> None:
        given = {"milestones": milestones, "duration": duration, "noise_factor": noise_factor}
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) != 1:
            found = f"got {' and '.join(chosen)}" if chosen else "got none of them"
            raise ValueError(f"BatchSizeWarmup requires one of milestones, duration and noise_factor; {found}.")
        if (end is None) != (milestones is not None):
            remedy = "omit it" if end is not None else "pass the largest multiple"
            raise ValueError(f"end belongs to duration and noise_factor, but with {chosen[0]} it is {end!r}; {remedy}.")
        if milestones is not None and start != 1:
            raise ValueError(
                f"start belongs to duration and noise_factor, but with milestones it is {start!r}; add '0ba'."
            )
        if noise_factor is None and interval != "100ba":
            raise ValueError(f"interval belongs to noise_factor, but with {chosen[0]} it is {interval!r}; omit it.")
        self.milestones = None if milestones is None else _milestones(milestones)
        self.start = whole_number("start", start, minimum=1)
        self.end = None if end is None else whole_number("end", end, minimum=1)
        if self.end is not None and self.end < self.start:
            raise ValueError(f"end must not be less than start, but got {end} and {start}.")
        self.duration = None if duration is None else ensure_time(duration, _BATCH, "duration", _UNITS)
        if self.duration is not None:
            positive("duration", self.duration.value)
        self.noise_factor = None if noise_factor is None else positive("noise_factor", noise_factor)
        self.interval = ensure_time(interval, _BATCH, "interval", [_BATCH])
        if self.interval.value < 1:
            raise ValueError(f"interval must be a positive number of batches, such as '100ba'; got {interval!r}.")
        self.lr_scaling = None if lr_scaling is None else one_of("lr_scaling", lr_scaling, _LR_FACTORS)
        self._noisy = _NoiseDecision(self.start)
        self._rates = ScaledRates()

    def multiple_at(self, state: State) -> int:
        """Return the number of batches of the loader that the next step joins.

        Args:
            state: The state of the run.

        >>> from composer import State
        >>> state = State(model=torch.nn.Linear(1, 1), max_duration="10ba")
        >>> state.timestamp = state.timestamp.copy(batch=5)
        >>> BatchSizeWarmup(end=5, duration="0.8dur").multiple_at(state)
        3
        """
        if self.noise_factor is not None:
            return self._noisy.multiple
        if self.duration is None or self.end is None:
            reached = [k for time, k in (self.milestones or {}).items() if state.progress(time.unit) >= time.value]
            return max(reached, default=1)
        done = min(state.progress(self.duration.unit) / self.duration.value, 1.0)
        # A fraction such as 3 * (1 / 3) of the duration must not miss its step by rounding.
        return self.start + math.floor((self.end - self.start) * done + 1e-9)

    def init(self, state: State, logger: Logger) -> None:
        """Declare that the number of steps in an epoch is unknown, before schedules are planned."""
        largest = max([self.end or 1, *(self.milestones or {}).values()])
        if self.duration is not None or self.noise_factor is not None or self.milestones is not None:
            state.train_phase.joins_batches = state.train_phase.joins_batches or largest > 1

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that the multiple is known at all times."""
        self._rates.restore(state)
        if hasattr(getattr(state.train_phase.loader, "dataloader", None), "__follow__"):
            raise ValueError(
                "BatchSizeWarmup does not work with a Mixture, which counts the samples of each batch it yields by the "
                "progress of the run. Pass the sizes of the batches of its sources instead."
            )
        for time in [*(self.milestones or ()), *([] if self.duration is None else [self.duration])]:
            _check_known(state, time)
        if self.noise_factor is not None and _noise_scale_callback(state) is None:
            raise ValueError(
                f"BatchSizeWarmup(noise_factor={self.noise_factor}) follows the gradient noise scale, which nothing "
                f"measures. Pass callbacks=GradientNoiseScale() to the Trainer."
            )

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Set the number of batches to join."""
        state.train_phase.batches_per_step = self.multiple_at(state)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Scale the learning rates, and log the multiple."""
        multiple = state.train_phase.batches_per_step
        metrics: dict[str, Any] = {"batch_size_warmup/multiple": multiple}
        if self.lr_scaling is not None:
            metrics["batch_size_warmup/lr_factor"] = factor = _LR_FACTORS[self.lr_scaling](multiple)
            self._rates.scale(state, factor)
            state.train_phase.restore_rates = self._rates.restore
        logger.log_metrics(metrics)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Scale the learning rates of parameter groups that were added since the start of the batch."""
        self._rates.scale_added()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Compare the batch with the noise scale, if due; restore the learning rates, in loops without a Trainer."""
        self._rates.restore(state)
        if self.noise_factor is not None and self.end is not None:
            is_due = state.timestamp.count(_BATCH) % int(self.interval) == 0
            self._noisy.update(state, self.noise_factor, self.end, is_due=is_due)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "noise": self._noisy.state_dict(), "rates": self._rates.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._noisy.load_state_dict(state["noise"])
            self._rates.load_state_dict(state["rates"])


class _NoiseDecision:
    """Doubles the multiple when the noise scale exceeds the batch by a factor.

    Args:
        multiple: The multiple at the start.
    """

    def __init__(self, multiple: int) -> None:
        self.multiple = multiple
        # Samples in a batch of the loader on all ranks: the most in a step, since the last of an epoch may be short.
        self._batch_samples = 0.0

    def update(self, state: State, factor: float, end: int, *, is_due: bool) -> None:
        """Note the size of the batch, and decide, if due; all ranks call this."""
        before, phase = state.previous_timestamp, state.train_phase
        samples = state.timestamp.count(TimeUnit.SAMPLE) - (0 if before is None else before.count(TimeUnit.SAMPLE))
        self._batch_samples = max(self._batch_samples, samples / max(phase.batches_in_step, 1))
        if not is_due or self.multiple >= end:
            return
        callback = _noise_scale_callback(state)
        noise = None if callback is None else callback.noise_scale
        # Reads the device, once in an interval. NaN, and estimates that are negative in the first steps, do not grow.
        grows = noise is not None and float(noise) > factor * self._batch_samples * self.multiple
        # Averages of floating-point numbers may differ among ranks in the last bit.
        if not dist.largest(int(not grows)):
            self.multiple = min(2 * self.multiple, end)

    def state_dict(self) -> dict[str, Any]:
        """Return the multiple and the size of the batch."""
        return {"multiple": self.multiple, "batch_samples": self._batch_samples, "ranks": dist.get_world_size()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load them; with another number of ranks, the batch has another size."""
        self.multiple = state["multiple"]
        self._batch_samples = state["batch_samples"] if state["ranks"] == dist.get_world_size() else 0.0


def _noise_scale_callback(state: State) -> Any:
    """Return the callback that measures the noise scale, or None."""
    return next((callback for callback in state.callbacks if hasattr(callback, "noise_scale")), None)


def _check_known(state: State, time: Time) -> None:
    """Raise if the progress is not known at each step, or differs between runs."""
    end = state.max_duration
    if time.unit is not TimeUnit.DURATION:
        return
    if end is None or end.unit not in _UNITS:
        raise ValueError(
            f"BatchSizeWarmup: '{time}' is a fraction of max_duration={end}, which does not say how much is trained. "
            f"Give max_duration in epochs, batches, samples or tokens, or the time in one of these units."
        )
    if end.unit is TimeUnit.EPOCH and state.train_phase.length is None:
        raise ValueError(
            f"BatchSizeWarmup: '{time}' is a fraction of '{end}', but the number of batches in an epoch is unknown. "
            f"Give the time in batches, samples, tokens or epochs, or set train_subset_num_batches."
        )


def _milestones(milestones: Any) -> dict[Time, int]:
    if not isinstance(milestones, Mapping) or not milestones:
        raise ValueError(f"milestones must map times to multiples, such as {{'0.5dur': 2}}; got {milestones!r}.")
    read: dict[Time, int] = {}
    for given, k in milestones.items():
        time = ensure_time(given, _BATCH, "milestones", _UNITS)
        if time in read:
            raise ValueError(
                f"milestones has '{time}' twice, the second time as {given!r}, with the multiples {read[time]} and "
                f"{k}. Keep one of them."
            )
        read[time] = whole_number(f"milestones[{given!r}]", k, minimum=1)
    for time in read:
        if time.value < 0 or (time.unit is TimeUnit.DURATION and time.value > 1):
            raise ValueError(f"milestones: '{time}' is not a time of the run, which lasts from '0dur' to '1dur'.")
    for unit in {time.unit for time in read}:
        times = sorted((time for time in read if time.unit is unit), key=lambda time: time.value)
        for earlier, later in itertools.pairwise(times):
            if read[later] < read[earlier]:
                raise ValueError(
                    f"milestones must not decrease, but map '{earlier}' to {read[earlier]} and '{later}' to "
                    f"{read[later]}; the batch only grows."
                )
    return read
