"""Measure what the clock of a step costs itself, so that it can be left out of steps of about a millisecond."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from composer.core.engine import Engine
from composer.core.event import Event
from composer.core.state import State
from composer.diagnosis.step_clock import StepClock
from composer.diagnosis.step_timer import StepTimer

__all__ = ["seconds_per_change"]

# Changes of part in one turn of the loop below.
_CHANGES = 4


class _Method:
    def run(self) -> None: ...


def seconds_per_change(repeats: int = 60) -> float:
    """Return the seconds that a change of part takes: the clock, the wrapper around it, and its event.

    About half of the changes of a step are at events, the others around methods. Operators run in between, as in a
    step: without them, the processor would have everything in its cache, and take half as long.

    Args:
        repeats: Number of pairs of loops, with and without the timer, of which the fastest count.

    >>> 0 <= seconds_per_change() < 0.001
    True
    """
    clock = StepClock()
    timer = StepTimer(clock, ended=lambda: None)
    timed, bare = (Engine(State(model=nn.Identity()), callbacks=callbacks) for callbacks in ([timer], []))
    wrapped, plain = _Method(), _Method()
    timer.time_method(wrapped, "run", "metrics")
    weight = torch.ones(32, 32, requires_grad=True)

    def loop(engine: Engine, method: _Method) -> float:
        begin = time.perf_counter()
        for _ in range(4):
            engine.run_event(Event.BEFORE_FORWARD)
            value = torch.relu(torch.relu(weight @ weight) @ weight)
            engine.run_event(Event.AFTER_FORWARD)
            value.sum().backward()
            weight.grad = None
            method.run()
        return time.perf_counter() - begin

    with timed.looping(), bare.looping():
        loop(timed, wrapped)
        loop(bare, plain)
        pairs = [(loop(timed, wrapped), loop(bare, plain)) for _ in range(repeats)]
    timed.close()
    bare.close()
    # Lower quartiles: other programs can only make a loop longer, and too much left out would be a wrong split.
    with_timer, without = (statistics.quantiles(seconds, n=4)[0] for seconds in zip(*pairs, strict=True))
    return max(0.0, (with_timer - without) / (4 * _CHANGES))
