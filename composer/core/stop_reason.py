"""Why a run ended before its duration: early stopping, a threshold, or a custom callback."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Stop", "caller_of_stop"]


@dataclass(frozen=True)
class Stop:
    """Records what stopped a run before its duration, and why.

    Attributes:
        by: Class name of the callback or algorithm that stopped the run, or "the script".
        reason: The reason, as part of a sentence; empty if none was given.

    >>> str(Stop("EarlyStopper", "CrossEntropy 0.24 not below 0.23 for 3 evaluations"))
    'stopped by EarlyStopper: CrossEntropy 0.24 not below 0.23 for 3 evaluations'
    """

    by: str
    reason: str = ""

    def __str__(self) -> str:
        return f"stopped by {self.by}: {self.reason}" if self.reason else f"stopped by {self.by}"


def caller_of_stop(state: State) -> str:
    """Return the class name of the callback or algorithm whose method is running, or "the script" if none is.

    It is found by the call stack, so that callbacks need not pass their name; this happens once, when a run stops.

    Args:
        state: The state, whose callbacks and algorithms are searched for.

    >>> import torch
    >>> from composer import State
    >>> caller_of_stop(State(model=torch.nn.Linear(1, 1)))
    'the script'
    """
    listeners: list[Any] = [*state.callbacks, *state.algorithms]
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        # The first parameter of a method, whatever its name.
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if first is not None and any(first is one for one in listeners):
            return type(first).__name__
        frame = frame.f_back
    return "the script"
