"""What a schedule offers, as a ``ComposerScheduler`` or a plain function: values for a state, and state to save."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from composer.optim.schedule import ComposerScheduler
from composer.optim.schedule_assignment import Schedule, name_of

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["as_function", "has_state"]


def has_state(schedule: Schedule) -> bool:
    """Return whether a schedule has state to save in checkpoints.

    Args:
        schedule: The schedule.

    >>> has_state(lambda state, ssr: 1.0)
    False
    """
    return all(callable(getattr(schedule, name, None)) for name in ("state_dict", "load_state_dict"))


def as_function(schedule: Schedule, ssr: float = 1.0) -> Callable[[State], float] | None:
    """Wrap a schedule that is a function of the state so that its result is checked; None for one with a plan.

    Args:
        schedule: The schedule. A function with a second parameter named ``ssr``, or without default, is passed the
            ratio.
        ssr: ``scale_schedule_ratio``.

    Raises:
        TypeError: The function takes no state, or, when called, does not return a number.
        ValueError: The ratio is not 1 and the function takes no ratio; or, when called, it returns NaN or infinity.

    >>> as_function(lambda state, ssr: 0.5 * ssr, 0.5)(None)
    0.25
    """
    if isinstance(schedule, ComposerScheduler) and type(schedule).__call__ is ComposerScheduler.__call__:
        return None
    name, takes_ratio = name_of(schedule), _takes_ratio(schedule)
    if not takes_ratio and ssr != 1.0:
        raise ValueError(
            f"scale_schedule_ratio={ssr}, but {name} takes only the state and would ignore it. Add a second parameter: "
            f"{name}(state, ssr)."
        )

    def value(state: State) -> float:
        found = schedule(state, ssr) if takes_ratio else schedule(state)
        try:
            number = float(found)
        except (TypeError, ValueError):
            raise TypeError(f"schedulers: {name} must return a number, the multiplier, but got {found!r}.") from None
        if not math.isfinite(number):
            raise ValueError(f"schedulers: {name} must return a finite number, but got {number}.")
        return number

    return value


def _takes_ratio(schedule: Callable[..., float]) -> bool:
    """Return whether to pass the ratio to a function as its second argument."""
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # some functions written in C have none
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(signature.parameters.values())
    ordinary = [parameter for parameter in parameters if parameter.kind in positional]
    accepts_any = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    if not ordinary and not accepts_any:
        name = name_of(schedule)
        raise TypeError(f"schedulers: {name}{signature} takes no state; write f(state, ssr) -> multiplier.")
    if len(ordinary) < 2:
        return accepts_any
    return ordinary[1].name == "ssr" or ordinary[1].default is inspect.Parameter.empty
