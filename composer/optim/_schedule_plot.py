"""Plot the multipliers of a schedule over a run with matplotlib."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from composer._plots import draw_curve, one_axes, plain_label
from composer.core.time import Time, TimeUnit
from composer.optim.reduce_on_plateau import ReduceOnPlateauScheduler
from composer.optim.schedule import planned_duration
from composer.optim.schedule_times import Horizon
from composer.optim.schedule_units import UNIT_NAMES, check_units
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.optim.schedule import ComposerScheduler

__all__ = ["draw_schedule"]

_MAX_POINTS = 1001


def draw_schedule(
    schedule: ComposerScheduler,
    max_duration: Time | str,
    epoch_length: int | None,
    ssr: float,
    ax: Any,
    label: str,
    hyperparameter: str = "lr",
) -> Any:
    """Draw the multipliers over a run, and return the figure.

    Args:
        schedule: The schedule.
        max_duration: Duration of the run.
        epoch_length: Number of batches in an epoch, or None.
        ssr: Ratio by which times are multiplied.
        ax: The axes to draw on; None makes a new figure.
        label: The name in the legend.
        hyperparameter: What is multiplied.

    Raises:
        TypeError: ``max_duration`` is not a time, or is a number without a unit.
        ValueError: The schedule has times in a unit that cannot be converted to that of ``max_duration``, which is not
            greater than 0, ``epoch_length`` is less than 1, or the schedule depends on a metric.

    >>> from composer.optim import LinearScheduler
    >>> draw_schedule(LinearScheduler(), "2ep", None, 1.0, None, "linear").axes[0].get_xlabel()
    'epochs'
    """
    duration = planned_duration(max_duration, epoch_length, allow_zero=False)
    horizon = Horizon.of_run(duration, epoch_length, ssr)  # refuses durations that are fractions of a run
    _check_metrics(schedule)
    check_units(schedule, duration.unit, epoch_length)  # of what was given: it is replaced below
    schedule.__plan__(horizon)  # warns and raises in the units that were given
    axes = one_axes(ax, "schedule.plot")
    if duration.unit is TimeUnit.EPOCH and epoch_length is None:
        # The curve within an epoch is the same for any length, since all times are in epochs or fractions of the run.
        epoch_length = _MAX_POINTS
    total = float(duration.value)
    gaps = _MAX_POINTS - 1
    if duration.unit is not TimeUnit.SECOND:
        count = total * epoch_length if epoch_length and duration.unit is TimeUnit.EPOCH else total
        gaps = min(gaps, max(1, int(count)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ComposerWarning)  # said above
        values = schedule.preview(duration, epoch_length, ssr, num_points=gaps + 1)
    last = max(1, len(values) - 1)
    draw_curve(axes, [total * k / last for k in range(len(values))], values, label)
    name = "the learning rate" if hyperparameter == "lr" else plain_label(hyperparameter, 40)
    axes.set(xlabel=UNIT_NAMES[duration.unit], ylabel=f"multiplier of {name}")
    return axes.figure


def _check_metrics(schedule: ComposerScheduler) -> None:
    """Raise if a schedule, or one that it consists of, changes with a metric."""
    if isinstance(schedule, ReduceOnPlateauScheduler):
        raise ValueError(
            f"{schedule!r} depends on a metric, so that its values are only known in training. Pass the Trainer "
            f"callbacks=LRMonitor(), and call trainer.plot('lr-*') after training."
        )
    for child in schedule.__parts__:
        _check_metrics(child)
