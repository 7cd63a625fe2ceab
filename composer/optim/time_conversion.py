"""Convert and compare schedule times, for schedules that override ``__call__`` (``convert_time``).

Schedules with a ``__plan__`` use a :class:`.Horizon` instead, which also supports segments of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.core.time import Time, TimeUnit
from composer.optim.schedule_times import truncate_to_int

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["convert_time", "raise_if_max_duration_exceeds_t_max", "raise_if_warmup_and_max_incompatible"]


def convert_time(time: str | Time, state: State, ssr: float = 1.0) -> Time:
    """Convert a time to the unit used by a run: epochs to batches, fractions to the unit of ``max_duration``.

    Args:
        time: A time, or a time string.
        state: Provides ``max_duration`` and the number of batches in an epoch.
        ssr: Ratio by which times are multiplied, except those given as a fraction of the run.

    Raises:
        ValueError: ``state.max_duration`` is None.
        RuntimeError: The number of batches in an epoch is required and unknown.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1), max_duration="10ep")
    >>> state.train_phase.length = 50
    >>> convert_time("3ep", state, 0.5), convert_time("0.25dur", state)
    (Time(75, TimeUnit.BATCH), Time(125, TimeUnit.BATCH))
    """
    time, end = _as_time(time), state.max_duration
    if end is None:
        raise ValueError(f"'{time}' cannot be converted, because state.max_duration is None. Set it.")
    if time.unit is TimeUnit.DURATION:
        converted = _in_batches(end, state)
        amount, unit = time.value * converted.value, converted.unit
    else:
        converted = _in_batches(time, state)
        amount, unit = converted.value * ssr, converted.unit
    return Time(amount if unit is TimeUnit.SECOND else truncate_to_int(amount), unit)


def raise_if_max_duration_exceeds_t_max(t_max: str | Time, state: State) -> None:
    """Raise if a schedule ends before the run. Times in units that cannot be compared are accepted.

    Args:
        t_max: When the schedule ends.
        state: Provides ``max_duration`` and the number of batches in an epoch.

    Raises:
        ValueError: The schedule ends before the run.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1), max_duration="10ba")
    >>> raise_if_max_duration_exceeds_t_max("5ba", state)
    Traceback (most recent call last):
    ValueError: t_max='5ba' is less than max_duration='10ba', which the schedule must cover. Pass t_max='1dur'.
    """
    t_max, end = _as_time(t_max), state.max_duration
    if end is None or (t_max.unit is TimeUnit.DURATION and t_max.value >= 1):
        return
    length, last = t_max, end
    if length.unit is not last.unit and state.train_phase.steps_per_epoch is not None:
        length, last = _in_batches(length, state), _in_batches(last, state)
    if length.unit is last.unit and length.value < last.value:
        raise ValueError(
            f"t_max='{t_max}' is less than max_duration='{end}', which the schedule must cover. Pass t_max='1dur'."
        )


def raise_if_warmup_and_max_incompatible(t_warmup: str | Time, t_max: str | Time) -> None:
    """Raise if the warm-up and the schedule have different units.

    Args:
        t_warmup: Length of the warm-up.
        t_max: When the schedule ends.

    Raises:
        ValueError: The units differ.

    >>> raise_if_warmup_and_max_incompatible("10ba", "100ba")
    """
    t_warmup, t_max = _as_time(t_warmup), _as_time(t_max)
    if t_warmup.unit is not t_max.unit:
        raise ValueError(
            f"t_warmup='{t_warmup}' is counted in '{t_warmup.unit}' and t_max='{t_max}' in '{t_max.unit}' in this run. "
            f"Pass both in one unit."
        )


def _as_time(time: str | Time) -> Time:
    return Time.from_timestring(time) if isinstance(time, str) else time


def _in_batches(time: Time, state: State) -> Time:
    """Return epochs in batches, and other times as they are."""
    if time.unit is not TimeUnit.EPOCH:
        return time
    length = state.train_phase.steps_per_epoch
    if length is None:
        raise RuntimeError(
            f"'{time}' cannot be converted to batches, because the number of batches in an epoch is unknown. Give "
            f"the time in batches, samples or tokens, or set train_subset_num_batches."
        )
    return Time(time.value * length, TimeUnit.BATCH)
