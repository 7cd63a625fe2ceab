"""Check that the times of a schedule have a meaning in a run that is counted in some unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from composer.core.time import Time, TimeUnit

if TYPE_CHECKING:
    from composer.optim.schedule import ComposerScheduler

__all__ = ["UNIT_NAMES", "check_units"]

UNIT_NAMES = {
    TimeUnit.ITERATION: "iterations",
    TimeUnit.EPOCH: "epochs",
    TimeUnit.BATCH: "batches",
    TimeUnit.SAMPLE: "samples",
    TimeUnit.TOKEN: "tokens",
    TimeUnit.SECOND: "seconds",
}


def check_units(schedule: ComposerScheduler, unit: TimeUnit, epoch_length: int | None) -> None:
    """Check that the times of a schedule have a meaning in a run that is counted in some unit.

    Args:
        schedule: The schedule.
        unit: The unit of the duration of the run.
        epoch_length: Number of batches in an epoch, or None.

    Raises:
        ValueError: A time cannot be converted to the unit.

    >>> from composer.optim import StepScheduler
    >>> check_units(StepScheduler("100ba"), TimeUnit.EPOCH, None)
    Traceback (most recent call last):
    ...
    ValueError: '100ba' of StepScheduler cannot be converted to epochs. Pass epoch_length, the number of batches in ...
    """
    convertible = {TimeUnit.EPOCH, TimeUnit.BATCH}
    for value in vars(schedule).values():
        for time in cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,):
            if not isinstance(time, Time) or time.unit in (unit, TimeUnit.DURATION):
                continue
            if unit in convertible and time.unit in convertible and epoch_length is not None:
                continue
            remedy = f"Give max_duration in {UNIT_NAMES[time.unit]}."
            if unit in convertible and time.unit in convertible:
                remedy = f"Pass epoch_length, the number of batches in an epoch, or give max_duration in {time.unit!s}."
            raise ValueError(
                f"'{time}' of {type(schedule).__name__} cannot be converted to {UNIT_NAMES[unit]}. {remedy}"
            )
    for child in schedule.__parts__:
        check_units(child, unit, epoch_length)
