"""Train without end: durations of a program that a measurement ends."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import OneCycleLR

from composer.core.time import Time
from composer.trees import ensure_tuple

__all__ = ["endless", "without_ending_schedules"]

_LONG = 10**9


def endless(duration: Any) -> Time:
    """Return a duration without end in the unit of another.

    Args:
        duration: A duration.

    >>> endless("2ep").unit
    <TimeUnit.EPOCH: 'ep'>
    """
    return Time(_LONG, Time.from_input(duration, "ep").unit)


def without_ending_schedules(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments without schedules that raise after their last step.

    Args:
        arguments: Arguments of the trainer or of ``fit``.

    >>> without_ending_schedules({"schedulers": None})
    {'schedulers': None}
    """
    given = arguments.get("schedulers")
    if given is not None and any(isinstance(one, OneCycleLR) for one in ensure_tuple(given)):
        kept = [one for one in ensure_tuple(given) if not isinstance(one, OneCycleLR)]
        return {**arguments, "schedulers": kept or None}
    return arguments
